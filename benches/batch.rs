//! Batches through ours and through the peers, in one process on the same data.

mod common;

use common::{Shape, compare, compared, passes, pin, print_table};
use criterion::Criterion;

/// Even batches by block size, then the shapes that others publish figures for.
fn shapes() -> Vec<Shape> {
    let runs = |shape: Shape, count, length| shape.with_runs(count, length);
    vec![
        Shape::text("1000 x 1024, 16", 1000, 1024, 16),
        Shape::text("1000 x 1024, 32", 1000, 1024, 32),
        Shape::text("1000 x 1008, 48", 1000, 1008, 48),
        Shape::text("1000 x 1024, 64", 1000, 1024, 64),
        Shape::text("1000 x 1024, 128", 1000, 1024, 128),
        Shape::text("1000 x 1024, 256", 1000, 1024, 256),
        Shape::text("1 x 16, 16", 1, 16, 16),
        Shape::text("1 x 128, 16", 1, 128, 16),
        Shape::text("1 x 512, 16", 1, 512, 16),
        Shape::text("1 x 2048, 16", 1, 2048, 16),
        Shape::text("1 x 8192, 16", 1, 8192, 16),
        Shape::text("1 x 131072, 128", 1, 131_072, 128),
        Shape::text("1 x 1000000, 16", 1, 1_000_000, 16),
        Shape::text("8000 x 128, 16", 8000, 128, 16),
        Shape::text("1000 x 1024, 16, salts", 1000, 1024, 16).with_salts(),
        Shape::ragged("500 x Azure code, 16", 500, 16),
        Shape::ragged("500 x Azure code, 64", 500, 64),
        runs(Shape::text("1 x 8192, 16, 1 run of 32", 1, 8192, 16), 1, 32),
        runs(Shape::text("1 x 8192, 16, 10 runs of 576", 1, 8192, 16), 10, 576),
        runs(Shape::text("1 x 1000000, 16, 10000 runs of 64", 1, 1_000_000, 16), 10_000, 64),
    ]
}

fn main() {
    pin();
    let mut criterion = Criterion::default().configure_from_args();
    let shapes = shapes();
    for pass in passes() {
        shapes.iter().for_each(|shape| compare(&mut criterion, shape, pass));
    }
    let shapes: Vec<_> = shapes.into_iter().map(|shape| (shape, compared())).collect();
    print_table(&shapes);
    criterion.final_summary();
}

//! Threads: the same batches on one, two and all, beside what the machine has to give.
//!
//! The read limit and a loop of nothing but arithmetic, cut evenly over the same number of
//! threads, say how much more two threads can do here at all. Threads are not pinned.

mod common;

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use common::{Shape, passes, peer_requests, print_handover, read_limit, requests, shortest, start};
use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use kvhash::{BlockSize, Engine, Lineages, PositionalLineageHash};
use rayon::prelude::*;

fn shapes() -> Vec<Shape> {
    vec![
        Shape::text("1000 x 1024, 16", 1000, 1024, 16),
        Shape::text("4000 x 1024, 16", 4000, 1024, 16),
        Shape::text("1000 x 1024, 64", 1000, 1024, 64),
        Shape::text("4000 x 1024, 64", 4000, 1024, 64),
        Shape::ragged("1000 x Azure code, 16", 1000, 16),
        Shape::ragged("1000 x Azure code, 64", 1000, 64),
        Shape::text("1 x 1000000 among 1000 x 1024, 16", 1000, 1024, 16).after_one_of(1_000_000),
        Shape::text("1 x 1000000 among 1000 x 1024, 64", 1000, 1024, 64).after_one_of(1_000_000),
        Shape::text("8000 x 128, 16", 8000, 128, 16),
    ]
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let all = thread::available_parallelism().map_or(1, usize::from);
    let threads: Vec<usize> = if all > 2 { vec![1, 2, all] } else { vec![1, 2] };
    let shapes = shapes();
    let quick = std::env::args().any(|argument| argument == "--test");
    for pass in passes() {
        print_handover(quick);
        shapes.iter().for_each(|shape| compare(&mut criterion, shape, &threads, pass));
        from_workers(&mut criterion, pass);
    }
    print_speedups(&shapes, &threads);
    criterion.final_summary();
}

fn compare(criterion: &mut Criterion, shape: &Shape, threads: &[usize], pass: usize) {
    let prompts = shape.make_prompts();
    let salts = shape.salts();
    let requests = requests(shape, &prompts, &salts);
    let peers = peer_requests(shape, &prompts);
    let size = shape.block_size as u32;
    let mut rows = vec![0; shape.blocks() as usize];
    let mut group = start(criterion, shape, pass);
    for &count in threads {
        let engine = engine(size, count);
        let mut lineages = Lineages::new();
        engine.hash(&requests, &mut lineages);
        for (peer, lineage) in peers.iter().zip(lineages.iter()).step_by(97) {
            let expected = peer.positional_lineage_hashes(size).unwrap();
            let ours = lineage.unwrap().plhs().iter().map(PositionalLineageHash::as_u128);
            assert!(ours.eq(expected.iter().map(|plh| plh.as_u128())));
        }
        bench(&mut group, "kvhash", count, || {
            engine.hash(black_box(&requests), black_box(&mut lineages));
        });
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
        bench(&mut group, "dynamo-kv-hashing", count, || {
            pool.install(|| {
                peers.par_iter().for_each(|peer| {
                    black_box(peer.positional_lineage_hashes(size).unwrap());
                });
            });
        });
        bench(&mut group, "read limit", count, || {
            let mut rows = &mut rows[..];
            thread::scope(|scope| {
                for part in even_parts(&prompts, count) {
                    let blocks = part.iter().map(|prompt| prompt.len() / shape.block_size).sum();
                    let rows = rows.split_off_mut(..blocks).unwrap();
                    scope.spawn(|| read_limit(black_box(part), shape.block_size, rows));
                }
            });
        });
        bench(&mut group, "arithmetic", count, || {
            let steps = 20 * shape.blocks() / count as u64;
            thread::scope(|scope| {
                (0..count).for_each(|_| drop(scope.spawn(move || arithmetic(steps))));
            });
        });
    }
    group.finish();
}

fn engine(block_size: u32, threads: usize) -> Engine {
    let block_size = BlockSize::new(block_size).unwrap();
    Engine::builder().block_size(block_size).threads(threads).build().unwrap()
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    threads: usize,
    mut run: impl FnMut(),
) {
    group.bench_function(format!("{name}, {threads}"), |bencher| bencher.iter(&mut run));
}

/// Prompts in as many runs of about the same number of tokens.
fn even_parts(prompts: &[Vec<u32>], count: usize) -> Vec<&[Vec<u32>]> {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let (mut parts, mut start, mut taken) = (Vec::new(), 0, 0);
    for (i, prompt) in prompts.iter().enumerate() {
        taken += prompt.len();
        if taken * count >= tokens * (parts.len() + 1) {
            parts.push(&prompts[start..=i]);
            start = i + 1;
        }
    }
    parts
}

/// A line of dependent multiplications.
fn arithmetic(steps: u64) {
    let mut number = black_box(3u64);
    for _ in 0..steps {
        number = number.wrapping_mul(number) ^ 1;
    }
    black_box(number);
}

/// A batch from inside a rayon worker, beside the same one outside.
fn from_workers(criterion: &mut Criterion, pass: usize) {
    let shape = Shape::text("1000 x 1024, 16, from a worker", 1000, 1024, 16);
    let prompts = shape.make_prompts();
    let salts = shape.salts();
    let requests = requests(&shape, &prompts, &salts);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut lineages = Lineages::new();
    let mut group = start(criterion, &shape, pass);
    let one = engine(16, 1);
    bench(&mut group, "one thread, outside", 1, || one.hash(&requests, &mut lineages));
    let two = engine(16, 2);
    group.bench_function("from a worker, 2", |bencher| {
        bencher.iter_custom(|iterations| {
            pool.install(|| {
                let start = Instant::now();
                (0..iterations).for_each(|_| two.hash(&requests, &mut lineages));
                start.elapsed()
            })
        });
    });
    group.finish();
    // One that stays small: allowing it threads costs nothing.
    let shape = Shape::text("1 x 4096, 16", 1, 4096, 16);
    let mut group = start(criterion, &shape, pass);
    let prompt = [vec![7; 4096]];
    let request = [kvhash::Request::new(&prompt[0])];
    for threads in [1, 2, 16] {
        let engine = engine(16, threads);
        bench(&mut group, "kvhash", threads, || engine.hash(&request, &mut lineages));
    }
    group.finish();
}

fn print_speedups(shapes: &[Shape], threads: &[usize]) {
    println!("\n| shape | function | threads | ms | times one thread |");
    println!("|---|---|---|---|---|");
    let print = |shape: &str, function: &str, threads: usize, one: Option<f64>| {
        let time = shortest(shape, &format!("{function}, {threads}"))?;
        let speedup = one.map_or(String::new(), |one| format!("{:.2}", one / time));
        println!("| {shape} | {function} | {threads} | {:.3} | {speedup} |", time / 1e6);
        Some(time)
    };
    for shape in shapes {
        for function in ["read limit", "arithmetic", "dynamo-kv-hashing", "kvhash"] {
            let one = print(shape.name, function, 1, None);
            for &count in &threads[1..] {
                print(shape.name, function, count, one);
            }
        }
    }
    let one = print("1000 x 1024, 16, from a worker", "one thread, outside", 1, None);
    print("1000 x 1024, 16, from a worker", "from a worker", 2, one);
    let one = print("1 x 4096, 16", "kvhash", 1, None);
    print("1 x 4096, 16", "kvhash", 2, one);
    print("1 x 4096, 16", "kvhash", 16, one);
}

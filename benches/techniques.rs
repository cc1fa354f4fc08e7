//! What each technique of the scalar kernel is worth: the same hashes, one technique more from
//! row to row.

mod common;

use std::hint::black_box;

use common::{Shape, passes, pin, print_table, start};
use criterion::Criterion;
use kvhash::{Backend, BlockHash, BlockSize, Engine, Lineages, PositionalLineageHash, Request};
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

/// The seed of a request without salt and LoRA name.
const SEED: u64 = 1337;

fn bytes(block: &[u32]) -> &[u8] {
    bytemuck::cast_slice(block)
}

/// A lineage block by block: `hash`, then `extend`.
fn extend(
    prompt: &[u32],
    size: usize,
    hash: impl Fn(&[u8]) -> u64,
    rows: &mut Vec<PositionalLineageHash>,
) {
    let mut last: Option<PositionalLineageHash> = None;
    for block in prompt.chunks_exact(size) {
        let hash = BlockHash(hash(bytes(block)));
        let next = match last {
            None => PositionalLineageHash::root(hash),
            Some(parent) => parent.extend(hash).unwrap(),
        };
        rows.push(next);
        last = Some(next);
    }
}

/// Through what was there before, then with one technique more a row.
fn step_by_step(criterion: &mut Criterion, shape: &Shape, pass: usize) {
    let prompts = shape.make_prompts();
    let requests: Vec<Request<'_>> = prompts.iter().map(|prompt| Request::new(prompt)).collect();
    let salts: Vec<String> = (0..prompts.len()).map(|i| format!("tenant-{i}")).collect();
    let salted: Vec<Request<'_>> =
        requests.iter().zip(&salts).map(|(request, salt)| request.salt(salt)).collect();
    let size = shape.block_size;
    let engine = Engine::builder()
        .block_size(BlockSize::new(size as u32).unwrap())
        .backend(Backend::Scalar)
        .build()
        .unwrap();
    let mut lineages = Lineages::new();
    let one_shot = |block: &[u8]| xxh3_64_with_seed(block, SEED);

    engine.hash(&requests, &mut lineages);
    for (prompt, lineage) in prompts.iter().zip(lineages.iter()) {
        let mut rows = Vec::new();
        extend(prompt, size, one_shot, &mut rows);
        assert_eq!(lineage.unwrap().plhs(), rows);
    }

    let mut group = start(criterion, shape, pass);
    group.bench_function("one-shot hash, a vector a request", |bencher| {
        bencher.iter(|| {
            for prompt in &prompts {
                let mut rows = Vec::new();
                extend(prompt, size, one_shot, &mut rows);
                black_box(&rows);
            }
        });
    });
    group.bench_function("+ an arena", |bencher| {
        let mut rows = Vec::new();
        bencher.iter(|| {
            rows.clear();
            for prompt in &prompts {
                extend(prompt, size, one_shot, &mut rows);
            }
            black_box(&rows);
        });
    });
    if 4 * size > 240 {
        // The secret that long inputs derive from the seed, once for all blocks.
        let secret = derived_secret();
        let cached = |block: &[u8]| xxh3_64_with_secret(block, &secret);
        assert_eq!(cached(bytes(&prompts[0][..size])), one_shot(bytes(&prompts[0][..size])));
        group.bench_function("+ a secret derived once", |bencher| {
            let mut rows = Vec::new();
            bencher.iter(|| {
                rows.clear();
                for prompt in &prompts {
                    extend(prompt, size, cached, &mut rows);
                }
                black_box(&rows);
            });
        });
    }
    group.bench_function("+ the schedule, request by request", |bencher| {
        bencher.iter(|| {
            for request in &requests {
                engine.hash(std::slice::from_ref(request), &mut lineages);
            }
            black_box(&lineages);
        });
    });
    group.bench_function("a salt a request", |bencher| {
        bencher.iter(|| engine.hash(black_box(&salted), &mut lineages));
    });
    group.bench_function("a batch", |bencher| {
        bencher.iter(|| engine.hash(black_box(&requests), &mut lineages));
    });
    group.finish();
}

/// The default secret of XXH3 with the seed in it, as the specification derives it.
fn derived_secret() -> [u8; 192] {
    let mut secret = *include_bytes!("common/xxh3-secret.bin");
    for (i, word) in secret.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = u64::from_le_bytes(*word);
        let value = if i % 2 == 0 { value.wrapping_add(SEED) } else { value.wrapping_sub(SEED) };
        *word = value.to_le_bytes();
    }
    secret
}

const STEPS: &[&str] = &[
    "one-shot hash, a vector a request",
    "+ an arena",
    "+ a secret derived once",
    "+ the schedule, request by request",
    "a salt a request",
    "a batch",
];

fn main() {
    pin();
    let mut criterion = Criterion::default().configure_from_args();
    let shapes = [
        Shape::text("techniques: 1000 x 1024, 16", 1000, 1024, 16),
        Shape::text("techniques: 1000 x 1024, 8", 1000, 1024, 8),
        Shape::text("techniques: 1000 x 1024, 64", 1000, 1024, 64),
        Shape::text("techniques: 1000 x 1024, 256", 1000, 1024, 256),
    ];
    for pass in passes() {
        shapes.iter().for_each(|shape| step_by_step(&mut criterion, shape, pass));
    }
    print_table(&shapes.map(|shape| (shape, STEPS.to_vec())));
    criterion.final_summary();
}

//! What the benches share: prompts, the peers, the read limit, and a table at the end.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use dynamo_kv_router::protocols::{compute_block_hash_for_seq, compute_seq_hash_for_block};
use kvhash::{Backend, BlockSize, Engine, Lineages, MmRun, PositionalLineageHash, Request};

/// Prompts of one length and block size, with the same runs in each.
pub struct Shape {
    pub name: &'static str,
    pub prompts: usize,
    pub tokens: usize,
    pub block_size: usize,
    pub runs: Vec<MmRun>,
}

impl Shape {
    pub fn text(name: &'static str, prompts: usize, tokens: usize, block_size: usize) -> Self {
        Self { name, prompts, tokens, block_size, runs: Vec::new() }
    }

    /// `count` runs of `length`, evenly spread.
    pub fn with_runs(self, count: usize, length: usize) -> Self {
        let apart = self.tokens / count;
        let run = |i| MmRun { mm_hash: !(i as u64), offset: i * apart + apart / 7, length };
        Self { runs: (0..count).map(run).collect(), ..self }
    }

    pub fn blocks(&self) -> u64 {
        (self.prompts * (self.tokens / self.block_size)) as u64
    }

    fn throughput(&self) -> Throughput {
        let tokens = (self.prompts * self.tokens) as u64;
        Throughput::ElementsAndBytes { elements: tokens, bytes: 4 * tokens }
    }

    /// Ids of a vocabulary of 128,256, each prompt its own.
    pub fn make_prompts(&self) -> Vec<Vec<u32>> {
        let mut state = 1u64;
        let mut id = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % 128_256) as u32
        };
        (0..self.prompts).map(|_| (0..self.tokens).map(|_| id()).collect()).collect()
    }
}

/// Adds up all tokens and writes 16 bytes a block: what no hash can be faster than.
pub fn read_limit(prompts: &[Vec<u32>], block_size: usize, rows: &mut [u128]) {
    let blocks = prompts.iter().flat_map(|prompt| prompt.chunks_exact(block_size));
    for (block, row) in blocks.zip(rows) {
        let sum = block.iter().fold(0u32, |sum, &token| sum.wrapping_add(token));
        *row = u128::from(sum);
    }
}

pub fn peer_requests(shape: &Shape, prompts: &[Vec<u32>]) -> Vec<dynamo_kv_hashing::Request> {
    let runs: Vec<_> = shape
        .runs
        .iter()
        .map(|run| dynamo_kv_hashing::RequestMmObjectInfo {
            mm_hash: run.mm_hash,
            offset: run.offset,
            length: run.length,
        })
        .collect();
    prompts
        .iter()
        .map(|prompt| {
            dynamo_kv_hashing::Request::builder()
                .tokens(prompt.clone())
                .mm_info(runs.clone())
                .build()
                .unwrap()
        })
        .collect()
}

/// What [`compare`] measures, our fastest backend last.
pub fn compared() -> Vec<String> {
    let peers = ["read limit", "dynamo-kv-hashing", "dynamo-kv-router"].map(String::from);
    peers.into_iter().chain(Backend::available().iter().map(ours)).collect()
}

fn ours(backend: &Backend) -> String {
    format!("kvhash {backend}")
}

/// Runs one shape through ours and the peers: equality first, then the clock.
pub fn compare(criterion: &mut Criterion, shape: &Shape) {
    let prompts = shape.make_prompts();
    let requests: Vec<Request<'_>> =
        prompts.iter().map(|prompt| Request::new(prompt).mm_runs(&shape.runs)).collect();
    let size = shape.block_size as u32;
    let engines = Backend::available().iter().map(|&backend| {
        let builder = Engine::builder().block_size(BlockSize::new(size).unwrap());
        builder.backend(backend).build().unwrap()
    });
    let engines: Vec<Engine> = engines.collect();
    let mut lineages = Lineages::new();
    let peers = peer_requests(shape, &prompts);
    let router = |prompt: &Vec<u32>| {
        let blocks = compute_block_hash_for_seq(prompt, size, Default::default());
        compute_seq_hash_for_block(&blocks)
    };
    // The router's rule for images is another one.
    let with_router = shape.runs.is_empty();

    for engine in &engines {
        engine.hash(&requests, &mut lineages);
        for ((peer, prompt), lineage) in peers.iter().zip(&prompts).zip(lineages.iter()) {
            let lineage = lineage.unwrap();
            let expected = peer.positional_lineage_hashes(size).unwrap();
            assert!(
                expected
                    .iter()
                    .map(|plh| plh.as_u128())
                    .eq(lineage.plhs().iter().map(PositionalLineageHash::as_u128))
            );
            if with_router {
                assert!(router(prompt).into_iter().eq(lineage.sequence_hashes().map(u64::from)));
            }
        }
    }

    let mut rows = vec![0; shape.blocks() as usize];
    let mut group = start(criterion, shape);
    group.bench_function("read limit", |bencher| {
        bencher.iter(|| read_limit(black_box(&prompts), shape.block_size, black_box(&mut rows)));
    });
    group.bench_function("dynamo-kv-hashing", |bencher| {
        bencher.iter(|| {
            for peer in &peers {
                black_box(peer.positional_lineage_hashes(size).unwrap());
            }
        });
    });
    if with_router {
        group.bench_function("dynamo-kv-router", |bencher| {
            bencher.iter(|| {
                for prompt in &prompts {
                    black_box(router(prompt));
                }
            });
        });
    }
    for engine in &engines {
        group.bench_function(ours(&engine.backend()), |bencher| {
            bencher.iter(|| engine.hash(black_box(&requests), black_box(&mut lineages)));
        });
    }
    group.finish();
}

/// A group of its own for a shape, quick to run: the table takes the minimum.
pub fn start<'a>(criterion: &'a mut Criterion, shape: &Shape) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(shape.name);
    group
        .throughput(shape.throughput())
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500));
    group
}

/// Keeps the calling thread on the last CPU that it may use.
pub fn pin() {
    if let Some(cpu) = core_affinity::get_core_ids().and_then(|cpus| cpus.into_iter().next_back()) {
        core_affinity::set_for_current(cpu);
    }
}

/// Prints, for every shape that was just measured and each of its functions: the shortest time,
/// as ns a block and as GB/s of token ids, and how many times that of the last function it is.
pub fn print_table<F: AsRef<str>>(shapes: &[(Shape, Vec<F>)]) {
    println!("\n| shape | function | ns a block | GB/s | times the last |");
    println!("|---|---|---|---|---|");
    for (shape, functions) in shapes {
        let last = functions.last().and_then(|function| shortest(shape.name, function.as_ref()));
        for function in functions {
            let function = function.as_ref();
            let Some(time) = shortest(shape.name, function) else { continue };
            let nanoseconds = time / shape.blocks() as f64;
            let gigabytes = (4 * shape.prompts * shape.tokens) as f64 / time;
            let ratio = last.map_or(String::new(), |last| format!("{:.2}", time / last));
            let name = shape.name;
            println!("| {name} | {function} | {nanoseconds:.2} | {gigabytes:.1} | {ratio} |");
        }
    }
}

/// The shortest time of one iteration in nanoseconds, from criterion's samples. Nothing where
/// there are none: in test mode, or with a filter.
fn shortest(group: &str, function: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = |name: &str| name.replace(['/', '"', '?', '\\', '*', '<', '>', ':', '|'], "_");
    let path = PathBuf::from(target)
        .join("criterion")
        .join(folder(group))
        .join(folder(function))
        .join("new/sample.json");
    let sample: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let numbers = |key: &str| -> Option<Vec<f64>> {
        sample[key].as_array()?.iter().map(serde_json::Value::as_f64).collect()
    };
    let times = numbers("times")?.into_iter().zip(numbers("iters")?).map(|(time, n)| time / n);
    times.min_by(f64::total_cmp)
}

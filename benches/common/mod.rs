//! What the benches share: prompts, the peers, the read limit, and a table at the end.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::fs;
use std::hint::black_box;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{hint, thread};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use dynamo_kv_router::protocols::{compute_block_hash_for_seq, compute_seq_hash_for_block};
use kvhash::{Backend, BlockSize, Engine, Lineages, MmRun, PositionalLineageHash, Request};

/// Lengths of prompts in the middle of each fiftieth of the code trace of the Azure LLM inference
/// dataset 2023 (AzurePublicDataset, CC-BY 4.0): what a ragged batch looks like.
const AZURE_CODE: [usize; 50] = [
    17, 50, 75, 97, 130, 162, 193, 232, 283, 352, 423, 501, 578, 651, 745, 816, 880, 938, 997,
    1049, 1105, 1174, 1261, 1346, 1417, 1500, 1600, 1690, 1774, 1874, 1964, 2077, 2164, 2284, 2387,
    2480, 2615, 2745, 2896, 3066, 3295, 3599, 3923, 4320, 4759, 5636, 6194, 7315, 7435, 7436,
];

/// Prompts of one block size, with the same runs in each.
pub struct Shape {
    pub name: &'static str,
    /// The length of each prompt, in tokens.
    pub lengths: Vec<usize>,
    pub block_size: usize,
    pub runs: Vec<MmRun>,
    /// Whether each prompt has a salt of its own.
    pub salted: bool,
}

impl Shape {
    pub fn text(name: &'static str, prompts: usize, tokens: usize, block_size: usize) -> Self {
        let lengths = vec![tokens; prompts];
        Self { name, lengths, block_size, runs: Vec::new(), salted: false }
    }

    /// Lengths of the Azure code trace, in no order.
    pub fn ragged(name: &'static str, prompts: usize, block_size: usize) -> Self {
        // Steps of a number without a factor of 50 go through all of them.
        let lengths = (0..prompts).map(|i| AZURE_CODE[i * 21 % AZURE_CODE.len()]).collect();
        Self { lengths, ..Self::text(name, 0, 0, block_size) }
    }

    /// A prompt more, before the others.
    pub fn after_one_of(mut self, tokens: usize) -> Self {
        self.lengths.insert(0, tokens);
        self
    }

    /// `count` runs of `length`, evenly spread.
    pub fn with_runs(self, count: usize, length: usize) -> Self {
        let apart = self.lengths[0] / count;
        let run = |i| MmRun { mm_hash: !(i as u64), offset: i * apart + apart / 7, length };
        Self { runs: (0..count).map(run).collect(), ..self }
    }

    /// A salt for every prompt.
    pub fn with_salts(self) -> Self {
        Self { salted: true, ..self }
    }

    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    pub fn blocks(&self) -> u64 {
        self.lengths.iter().map(|length| (length / self.block_size) as u64).sum()
    }

    fn throughput(&self) -> Throughput {
        let tokens = self.tokens() as u64;
        Throughput::ElementsAndBytes { elements: tokens, bytes: 4 * tokens }
    }

    /// The salt of each prompt.
    pub fn salts(&self) -> Vec<Option<String>> {
        let salt = |i| self.salted.then(|| format!("tenant-{i}"));
        (0..self.lengths.len()).map(salt).collect()
    }

    /// Ids of a vocabulary of 128,256, each prompt its own.
    pub fn make_prompts(&self) -> Vec<Vec<u32>> {
        let mut state = 1u64;
        let mut id = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % 128_256) as u32
        };
        self.lengths.iter().map(|&length| (0..length).map(|_| id()).collect()).collect()
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
        .zip(shape.salts())
        .map(|(prompt, salt)| {
            dynamo_kv_hashing::Request::builder()
                .tokens(prompt.clone())
                .salt(salt)
                .mm_info(runs.clone())
                .build()
                .unwrap()
        })
        .collect()
}

pub fn requests<'a>(
    shape: &'a Shape,
    prompts: &'a [Vec<u32>],
    salts: &'a [Option<String>],
) -> Vec<Request<'a>> {
    let request = |(prompt, salt): (&'a Vec<u32>, &'a Option<String>)| {
        let request = Request::new(prompt).mm_runs(&shape.runs);
        salt.as_deref().map_or(request, |salt| request.salt(salt))
    };
    prompts.iter().zip(salts).map(request).collect()
}

/// What [`compare`] measures, our fastest backend last.
pub fn compared() -> Vec<String> {
    let peers = ["read limit", "dynamo-kv-hashing", "dynamo-kv-router"].map(String::from);
    peers.into_iter().chain(Backend::available().iter().map(ours)).collect()
}

fn ours(backend: &Backend) -> String {
    format!("kvhash {backend}")
}

/// How often all is measured, each time briefly. A machine that is shared is fast and slow in waves,
/// which would otherwise meet one function and not the one that it is compared with.
const PASSES: usize = 5;

/// The passes of this process: as criterion does it, `cargo bench -- --test` runs everything once.
pub fn passes() -> Range<usize> {
    let once = std::env::args().any(|argument| argument == "--test");
    0..if once { 1 } else { PASSES }
}

/// Runs one shape through ours and the peers: equality first, then the clock.
pub fn compare(criterion: &mut Criterion, shape: &Shape, pass: usize) {
    let prompts = shape.make_prompts();
    let salts = shape.salts();
    let requests = requests(shape, &prompts, &salts);
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
    // The router's rules for images and salts are other ones.
    let with_router = shape.runs.is_empty() && !shape.salted;

    for engine in engines.iter().filter(|_| pass == 0) {
        // New ones, where nothing is left of the backend before.
        let mut lineages = Lineages::new();
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
    let mut group = start(criterion, shape, pass);
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

/// A group of its own for a shape and a pass, quick to run: the table takes the minimum.
pub fn start<'a>(
    criterion: &'a mut Criterion,
    shape: &Shape,
    pass: usize,
) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(pass_of(shape.name, pass));
    group
        .throughput(shape.throughput())
        .sample_size(25)
        .nresamples(1001)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    group
}

fn pass_of(group: &str, pass: usize) -> String {
    format!("{group}, pass {pass}")
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
            let gigabytes = (4 * shape.tokens()) as f64 / time;
            let ratio = last.map_or(String::new(), |last| format!("{:.2}", time / last));
            let name = shape.name;
            println!("| {name} | {function} | {nanoseconds:.2} | {gigabytes:.1} | {ratio} |");
        }
    }
}

/// The shortest time of one iteration in nanoseconds, from criterion's samples of all passes.
/// Nothing where there are none: in test mode, or with a filter.
pub fn shortest(group: &str, function: &str) -> Option<f64> {
    passes().filter_map(|pass| shortest_of(&pass_of(group, pass), function)).min_by(f64::total_cmp)
}

fn shortest_of(group: &str, function: &str) -> Option<f64> {
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

/// Prints how long a cache line takes from one thread to another and back: what the two CPUs are to
/// each other. Virtual ones may be two threads of a core, two cores beside one cache, or far apart, and
/// be moved at any time; what goes from one to the other costs accordingly.
pub fn print_handover(quick: bool) {
    let (runs, times) = if quick { (1, 1) } else { (10, 2_000) };
    let ns = (0..runs).map(|_| handover(times)).fold(f64::INFINITY, f64::min);
    println!("\n| a cache line to another thread and back | {ns:.0} ns |");
}

/// The time of one of so many.
fn handover(times: usize) -> f64 {
    let [there, back] = [(); 2].map(|()| Line(AtomicUsize::new(0)));
    let wait_for = |line: &Line, number| {
        while line.0.load(Ordering::Acquire) != number {
            hint::spin_loop();
        }
    };
    let time = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=times {
                wait_for(&there, number);
                back.0.store(number, Ordering::Release);
            }
        });
        let start = Instant::now();
        for number in 1..=times {
            there.0.store(number, Ordering::Release);
            wait_for(&back, number);
        }
        start.elapsed()
    });
    time.as_nanos() as f64 / times as f64
}

/// A line of its own, and its neighbour, which is fetched with it.
#[repr(align(128))]
struct Line(AtomicUsize);

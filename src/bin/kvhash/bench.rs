//! `kvhash bench`: how fast this machine hashes, by backend, block size and shape of batch,
//! beside how fast it reads. What is measured was compared with the rule before.

mod clock;
mod oracle;
mod read_limit;
mod report;
mod shapes;

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kvhash::{Backend, BlockSize, Engine, EngineError, Lineages, Request};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Outcome;
use crate::args::{BenchArgs, thread_count};
use crate::progress::{Progress, say};
use clock::shortest_times;
use oracle::Difference;
use read_limit::ReadLimit;
use report::{Measurement, Report};
pub(crate) use shapes::LARGEST_BLOCK;
use shapes::{Batch, Case, cases};

pub(crate) fn run(args: &BenchArgs) -> Result<Outcome> {
    let bench = Bench::new(args)?;
    let cases = cases(&args.block_sizes);
    if let Err(difference) = cases.iter().try_for_each(|case| bench.check(case)) {
        say(&difference.to_string());
        return Ok(Outcome::SomeFailed);
    }
    if cfg!(debug_assertions) && !args.quiet {
        say("this build has debug assertions; a release build is faster");
    }

    let mut progress = Progress::of_steps(args.progress, args.quiet, cases.len() as u64);
    let budget = args.seconds / cases.len() as u32;
    let mut measurements = Vec::new();
    for case in &cases {
        progress.bar.set_message(case.to_string());
        measurements.push(bench.measure(case, budget));
        progress.bar.inc(1);
        progress.tick();
    }
    progress.finish();

    let report = Report {
        cpu: report::cpu(),
        threads: bench.threads,
        backends: &bench.backends,
        measurements,
    };
    let text = if args.json { format!("{:#}\n", report.to_json()) } else { report.to_table() };
    io::stdout().write_all(text.as_bytes()).context("cannot write standard output")?;
    Ok(Outcome::Good)
}

/// What is the same for all cases.
struct Bench {
    backends: Vec<Backend>,
    threads: usize,
    /// The threads, where there are more than the calling one. The engines and the read limit
    /// share them, so that waking them costs both the same.
    pool: Option<Arc<ThreadPool>>,
}

impl Bench {
    fn new(args: &BenchArgs) -> Result<Self> {
        let threads = thread_count(args.threads);
        let start = || ThreadPoolBuilder::new().num_threads(threads).build().map(Arc::new);
        let pool = (threads > 1).then(start).transpose().context("cannot start the threads")?;
        Ok(Self { backends: args.backends(), threads, pool })
    }

    fn engine(&self, backend: Backend, block_size: BlockSize) -> Result<Engine, EngineError> {
        let builder = Engine::builder().backend(backend).block_size(block_size);
        match &self.pool {
            Some(pool) => builder.pool(Arc::clone(pool)).build(),
            None => builder.threads(1).build(),
        }
    }

    fn engines(&self, block_size: BlockSize) -> Vec<Engine> {
        let engine = |&backend| self.engine(backend, block_size);
        let engines: Result<_, _> = self.backends.iter().map(engine).collect();
        engines.expect("the flag takes only backends that are available")
    }

    /// Compares all blocks of a case with the rule, on every backend.
    fn check(&self, case: &Case) -> Result<(), Difference> {
        let batch = Batch::new(case);
        let expected = oracle::rows(&batch);
        let requests = batch.requests();
        for engine in self.engines(case.block_size) {
            // New ones, where nothing is left of the backend before.
            let mut lineages = Lineages::new();
            engine.hash(&requests, &mut lineages);
            oracle::compare(&expected, &lineages).map_err(|place| Difference {
                backend: engine.backend(),
                case: *case,
                place,
            })?;
        }
        Ok(())
    }

    fn measure(&self, case: &Case, budget: Duration) -> Measurement {
        let batch = Batch::new(case);
        let requests = batch.requests();
        let mut lineages = Lineages::new();
        let mut read_limit = ReadLimit::new(&batch, self.threads, self.pool.as_deref());
        let engines = self.engines(case.block_size);

        let times = shortest_times(1 + engines.len(), budget, |contender| match contender {
            0 => read_limit.run(),
            _ => hash(&engines[contender - 1], &requests, &mut lineages),
        });
        let backends = self.backends.iter().copied().zip(times[1..].iter().copied()).collect();
        Measurement {
            case: *case,
            prompts: batch.prompts.len(),
            blocks: batch.blocks(),
            read_limit: times[0],
            backends,
        }
    }
}

/// Planning the batch is part of the work.
fn hash(engine: &Engine, requests: &[Request<'_>], lineages: &mut Lineages) {
    engine.hash(black_box(requests), black_box(lineages));
}

//! The result does not depend on threads, on cutting or on order; and one thread is one thread.

mod common;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use common::{Prompt, splitmix64};
use kvhash::admission::{Admission, Options, Ticket};
use kvhash::{
    Columns, DynamoPlhLegacy, Engine, EngineError, LegacyRequest, Lineages, MmRun, OwnedRequest,
    Request, SequenceHash,
};
use rayon::prelude::*;

fn prompts() -> Vec<Prompt> {
    (0..97)
        .map(|i: u64| {
            let block_size = [16, 1, 4, 64, 100][i as usize % 5];
            let length = splitmix64(i, 1, 2000)[0] as usize;
            let mm_runs = match i % 7 {
                3 if length > 60 => vec![MmRun { mm_hash: i, offset: 5, length: 50 }],
                // An error in every batch.
                4 => vec![MmRun { mm_hash: i, offset: 5, length: 0 }],
                _ => vec![],
            };
            Prompt {
                tokens: splitmix64(i, length, 1 << 32),
                salt: i.is_multiple_of(3).then(|| format!("tenant-{}", i % 4)),
                lora_name: None,
                mm_runs,
                block_size,
            }
        })
        .collect()
}

fn same(a: &Lineages, b: &Lineages) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b.iter()) {
        match (a, b) {
            (Ok(a), Ok(b)) => {
                assert_eq!(a.plhs(), b.plhs());
                assert_eq!(a.block_hashes(), b.block_hashes());
                assert_eq!((a.salt_hash(), a.tail()), (b.salt_hash(), b.tail()));
            }
            (a, b) => assert_eq!(a.map(|_| ()), b.map(|_| ())),
        }
    }
}

#[test]
fn threads_and_cuts_change_nothing() {
    let prompts = prompts();
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    for columns in [Columns::NONE, Columns::BLOCK_HASHES] {
        let mut alone = Lineages::new();
        Engine::builder().columns(columns).build().unwrap().hash(&requests, &mut alone);
        for prompt in prompts.iter().zip(alone.iter()) {
            common::check_against_reference(prompt.0, prompt.1);
        }
        for threads in [1, 2, 3, 7] {
            // From a task for every request to one for all of them; with the last but one, whole
            // chunks of 32 requests make tasks.
            for task_bytes in [1, 64, 1000, 20_000, 150_000, 1 << 30] {
                let engine = Engine::builder()
                    .columns(columns)
                    .threads(threads)
                    .task_bytes(task_bytes)
                    .build()
                    .unwrap();
                let mut cut = Lineages::new();
                for batch in [&requests[..], &requests[..1], &[], &requests] {
                    engine.hash(batch, &mut cut);
                    assert_eq!(cut.len(), batch.len());
                }
                same(&alone, &cut);
            }
        }
    }
}

/// Requests that are cut into pieces: of blocks that are hashed in stripes, past the change of
/// layout at position 256, among small ones, two in a row, and one that goes on from a parent.
#[test]
fn large_requests_in_pieces_are_hashed_as_whole_ones() {
    let lengths = [40, 64 * 300 + 5, 64 * 300, 10, 0, 100 * 90 + 99, 70];
    let tokens: Vec<Vec<u32>> =
        (1..).zip(lengths).map(|(i, length)| splitmix64(i, length, 1 << 32)).collect();
    let mut requests: Vec<Request<'_>> = (1..)
        .zip(&tokens)
        .map(|(i, tokens)| Request::new(tokens).block_size([64, 100][i / 6]))
        .collect();
    let parent =
        kvhash::PositionalLineageHash::new(SequenceHash(7), Some(SequenceHash(9)), 200).unwrap();
    requests.push(requests[2].resume(parent));
    for columns in [Columns::NONE, Columns::BLOCK_HASHES] {
        let (mut alone, mut cut) = (Lineages::new(), Lineages::new());
        Engine::builder().columns(columns).build().unwrap().hash(&requests, &mut alone);
        for task_bytes in [1, 300, 5000, 20_000] {
            let engine = Engine::builder()
                .columns(columns)
                .threads(3)
                .task_bytes(task_bytes)
                .build()
                .unwrap();
            for _ in 0..20 {
                engine.hash(&requests, &mut cut);
                same(&alone, &cut);
            }
        }
    }
}

/// A batch large enough to be cut without being asked to: many lengths, so that tasks of four fifths of
/// what is left end anywhere; a request that is large with any number of threads, and one that is with
/// seven and is not with two.
#[test]
fn large_batches_are_cut_by_shares() {
    let length = |i: u64| match i {
        0 => 3_000_000,
        411 => 1_000_000,
        i => (i * 7919 % 2000) as usize,
    };
    let tokens: Vec<Vec<u32>> = (0..600).map(|i| splitmix64(i, length(i), 128_256)).collect();
    for block_size in [16, 64] {
        let requests: Vec<Request<'_>> =
            tokens.iter().map(|tokens| Request::new(tokens).block_size(block_size)).collect();
        let (mut alone, mut cut) = (Lineages::new(), Lineages::new());
        Engine::builder().build().unwrap().hash(&requests, &mut alone);
        for threads in [2, 3, 7] {
            let engine = Engine::builder().threads(threads).build().unwrap();
            engine.hash(&requests, &mut cut);
            same(&alone, &cut);
        }
    }
}

#[test]
fn legacy_rows_are_laid_out_in_every_cut() {
    let tokens: Vec<Vec<u32>> = (0..40).map(|i| splitmix64(i, 37 * i as usize, 1000)).collect();
    let requests: Vec<LegacyRequest<'_>> = tokens
        .iter()
        .map(|tokens| LegacyRequest::new(tokens).block_size(1).salt("tenant"))
        .collect();
    let builder =
        || Engine::builder().scheme(DynamoPlhLegacy::PUBLISHED).columns(Columns::SEQUENCE_HASHES);
    let (mut alone, mut cut) = (Lineages::default(), Lineages::default());
    builder().build().unwrap().hash(&requests, &mut alone);
    builder().threads(3).task_bytes(100).build().unwrap().hash(&requests, &mut cut);
    for (i, (alone, cut)) in alone.iter().zip(cut.iter()).enumerate() {
        let (alone, cut) = (alone.unwrap(), cut.unwrap());
        assert_eq!(alone.plhs(), cut.plhs());
        assert_eq!(alone.sequence_hashes(), cut.sequence_hashes());
        let reference = dynamo_tokens_legacy::TokenBlockSequence::new(
            tokens[i].clone().into(),
            1,
            Some(alone.salt_hash().0),
        );
        for (block, (plh, &sequence)) in
            reference.blocks().iter().zip(alone.plhs().iter().zip(alone.sequence_hashes().unwrap()))
        {
            assert_eq!(plh.as_u128(), block.positional_lineage_hash().as_u128());
            assert_eq!(sequence, SequenceHash(block.sequence_hash()));
        }
    }
}

#[test]
fn a_given_pool_is_used_and_its_workers_stay_on_their_thread() {
    let prompts = prompts();
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    let mut alone = Lineages::new();
    Engine::builder().build().unwrap().hash(&requests, &mut alone);

    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let engine = Engine::builder().pool(Arc::clone(&pool)).task_bytes(1).build().unwrap();
    let mut lineages = Lineages::new();
    engine.hash(&requests, &mut lineages);
    same(&alone, &lineages);
    assert_eq!(engine.threads(), 2);
    // From a worker of the same pool, while it holds a lock that another task wants.
    let lock = std::sync::Mutex::new(());
    pool.scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|_| {
                let _guard = lock.lock().unwrap();
                let mut lineages = Lineages::new();
                engine.hash(&requests, &mut lineages);
                same(&alone, &lineages);
            });
        }
    });
}

#[test]
fn a_worker_fans_out_where_it_is_asked_to() {
    let prompts = prompts();
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    let mut alone = Lineages::new();
    Engine::builder().build().unwrap().hash(&requests, &mut alone);

    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (same_pool, other_pool) = (Arc::new(pool(2)), pool(2));
    let builder = || Engine::builder().task_bytes(1000);
    let engines = [
        builder().pool(Arc::clone(&same_pool)).build().unwrap(),
        builder().threads(2).build().unwrap(),
        builder().build().unwrap(),
    ];
    let run = || {
        engines.par_iter().for_each(|engine| {
            let mut lineages = Lineages::new();
            engine.hash_in_pool(&requests, &mut lineages);
            same(&alone, &lineages);
            engine.hash(&requests, &mut lineages);
            same(&alone, &lineages);
        });
    };
    run();
    same_pool.install(run);
    other_pool.install(run);
}

#[test]
fn threads_are_pinned_only_where_they_are_the_engines() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let pinned = Engine::builder().pool(pool).pin_cores(true).build();
    assert_eq!(pinned.unwrap_err(), EngineError::PinnedPool);

    let prompts = prompts();
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    let (mut alone, mut pinned) = (Lineages::new(), Lineages::new());
    Engine::builder().build().unwrap().hash(&requests, &mut alone);
    // More threads than there are CPUs share them.
    let engine = Engine::builder().threads(5).pin_cores(true).task_bytes(1000).build().unwrap();
    engine.hash(&requests, &mut pinned);
    same(&alone, &pinned);
}

/// Runs a test of this file by itself in a new process: tests of one file share one, and the
/// others start threads. `true` in that process.
#[cfg(target_os = "linux")]
fn in_a_process_of_its_own(test: &str) -> bool {
    const MARK: &str = "KVHASH_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env(MARK, "1")
        .status()
        .unwrap();
    assert!(status.success());
    false
}

#[cfg(target_os = "linux")]
#[test]
fn an_affinity_mask_of_one_cpu_is_one_thread() {
    if in_a_process_of_its_own("an_affinity_mask_of_one_cpu_is_one_thread") {
        let cpus = core_affinity::get_core_ids().unwrap();
        assert!(core_affinity::set_for_current(cpus[0]));
        assert_eq!(Engine::builder().threads(0).build().unwrap().threads(), 1);
    }
}

/// A control group with time for one CPU, gone when this is dropped. `None` where this process may
/// not make one.
#[cfg(target_os = "linux")]
struct Quota(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl Quota {
    fn of_one_cpu() -> Option<Self> {
        let name = format!("kvhash-test-{}", std::process::id());
        // The second version of control groups has one tree, the first one for each resource.
        [
            ("/sys/fs/cgroup", "cpu.max", "100000 100000"),
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"),
        ]
        .into_iter()
        .find_map(|(root, file, limit)| {
            let group = std::path::Path::new(root).join(&name);
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            // Opened as they are, not created: elsewhere than in a control group there is none.
            let write = |file: &str, text: &str| {
                let mut file = std::fs::OpenOptions::new().write(true).open(group.0.join(file))?;
                std::io::Write::write_all(&mut file, text.as_bytes())
            };
            write(file, limit).ok()?;
            write("cgroup.procs", &std::process::id().to_string()).ok()?;
            Some(group)
        })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Quota {
    fn drop(&mut self) {
        // Not while a process is in it.
        let parent = self.0.parent().unwrap().join("cgroup.procs");
        let _ = std::fs::write(parent, std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_quota_of_one_cpu_is_one_thread() {
    if in_a_process_of_its_own("a_quota_of_one_cpu_is_one_thread") {
        match Quota::of_one_cpu() {
            Some(_group) => {
                assert_eq!(Engine::builder().threads(0).build().unwrap().threads(), 1);
            }
            None => println!("not checked: this process may not make a control group"),
        }
    }
}

/// Seconds of CPU that the process has used.
#[cfg(target_os = "linux")]
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The fields after the name, which is in parentheses: user and system time are the 12th and
    // 13th of them, in hundredths.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[cfg(target_os = "linux")]
#[test]
fn idle_threads_cost_no_cpu() {
    if in_a_process_of_its_own("idle_threads_cost_no_cpu") {
        let prompts = prompts();
        let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
        let engine = Engine::builder().threads(4).task_bytes(1000).build().unwrap();
        let mut lineages = Lineages::new();
        engine.hash(&requests, &mut lineages);
        // Workers of a queue stay awake for a moment after requests that come in a row.
        let admission = Admission::start(engine, Options::default().workers(2)).unwrap();
        for _ in 0..1000 {
            admission.submit(OwnedRequest::new([7; 64])).unwrap().wait().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        let before = cpu_seconds();
        std::thread::sleep(std::time::Duration::from_secs(2));
        // 1 % of the time, and what the clock can be off by.
        assert!(cpu_seconds() - before <= 0.02 + 0.01);
    }
}

/// How many threads the process has, as the system sees it.
#[cfg(target_os = "linux")]
fn kvhash_threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            let name = task.as_ref().unwrap().path().join("comm");
            std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("kvhash-"))
        })
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn no_thread_that_was_not_asked_for() {
    if !in_a_process_of_its_own("no_thread_that_was_not_asked_for") {
        return;
    }
    let tokens = vec![splitmix64(1, 1 << 20, 1000); 2];
    let requests: Vec<Request<'_>> = tokens.iter().map(|tokens| Request::new(tokens)).collect();
    let mut lineages = Lineages::new();

    let one = Engine::builder().build().unwrap();
    one.hash(&requests, &mut lineages);
    assert_eq!((one.threads(), kvhash_threads()), (1, 0));

    let two = Engine::builder().threads(2).build().unwrap();
    two.hash(&[Request::new(&tokens[0][..1000])], &mut lineages);
    assert_eq!(kvhash_threads(), 0, "a small batch stays where it is");
    two.hash(&requests, &mut lineages);
    // A thread has its name once it runs, which may be after the batch is done; and the system
    // lists it for a moment after it was joined.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let threads_come_to = |count| {
        while kvhash_threads() != count && std::time::Instant::now() < patience {
            std::thread::yield_now();
        }
        kvhash_threads()
    };
    assert_eq!(threads_come_to(1), 1, "the calling thread is the other one");
    drop(two);
    assert_eq!(threads_come_to(0), 0, "threads end with their engine");
}

#[test]
fn more_threads_than_there_can_be_are_as_many_as_there_can_be() {
    let engine = Engine::builder().threads(usize::MAX).build().unwrap();
    assert_eq!(engine.threads(), rayon::max_num_threads());
    let mut lineages = Lineages::new();
    engine.hash(&[Request::new(&[1; 16])], &mut lineages);
    assert_eq!(lineages.get(0).unwrap().plhs().len(), 1);
}

#[test]
fn engines_are_shared_and_results_are_sent() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Engine>();
    shared::<Engine<DynamoPlhLegacy>>();
    sent::<Lineages>();
    sent::<Lineages<kvhash::LegacyLineageHash>>();
    // In any future, and across a caught panic.
    fn ticket<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}
    ticket::<Ticket>();
    shared::<Admission>();
}

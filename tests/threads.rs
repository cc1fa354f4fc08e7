//! The result does not depend on threads, on cutting or on order; and one thread is one thread.

mod common;

use std::sync::Arc;

use common::{Prompt, splitmix64};
use kvhash::{
    Columns, DynamoPlhLegacy, Engine, LegacyRequest, Lineages, MmRun, Request, SequenceHash,
};

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
            // From a task for every request to one for all of them.
            for task_bytes in [1, 64, 1000, 20_000, 1 << 30] {
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
    // Tests of one file share a process, and others here start threads: ask in a new one.
    const MARK: &str = "KVHASH_TEST_COUNTS_THREADS";
    if std::env::var_os(MARK).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "no_thread_that_was_not_asked_for", "--test-threads=1"])
            .env(MARK, "1")
            .status()
            .unwrap();
        assert!(status.success());
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
    // A thread has its name once it runs, which may be after the batch is done.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while kvhash_threads() < 2 && std::time::Instant::now() < patience {
        std::thread::yield_now();
    }
    assert_eq!(kvhash_threads(), 2);
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
}

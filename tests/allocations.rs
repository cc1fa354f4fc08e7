//! No allocation while hashing, once the arena is warm.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::splitmix64;
use kvhash::admission::{Admission, Options};
use kvhash::{Columns, DynamoPlh, Engine, Lineages, MmRun, OwnedRequest, Request, RequestError};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes.
static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator as it came.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the ones that the system asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; the pointer came from `alloc`, so from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

// One test, so that no other thread allocates meanwhile.
#[test]
fn a_warm_arena_is_enough() {
    let prompts: Vec<Vec<u32>> =
        (0..200).map(|i| splitmix64(i, 50 * i as usize, 1 << 32)).collect();
    let salts: Vec<String> = (0..200).map(|i| format!("tenant-{i}")).collect();
    let text: Vec<Request<'_>> = prompts
        .iter()
        .zip(&salts)
        .enumerate()
        .map(|(i, (tokens, salt))| {
            Request::new(tokens).salt(salt).block_size([16, 1, 64, 5][i % 4])
        })
        .collect();

    for scheme in [DynamoPlh::PUBLISHED, DynamoPlh::README] {
        for columns in [Columns::NONE, Columns::BLOCK_HASHES] {
            let engine = Engine::builder().scheme(scheme).columns(columns).build().unwrap();
            let mut lineages = Lineages::new();
            engine.hash(&text, &mut lineages);
            assert_eq!(allocations(|| engine.hash(&text, &mut lineages)), 0);
            // A smaller batch, an empty one, one request, and the large one again.
            for batch in [&text[3..90], &[], &text[199..], &text] {
                assert_eq!(allocations(|| engine.hash(batch, &mut lineages)), 0);
            }
        }
    }

    // Multimodal requests take memory of their own, once, whatever the order of their runs;
    // errors take none.
    let runs: Vec<MmRun> =
        (0..40).map(|i| MmRun { mm_hash: i, offset: 100 * i as usize, length: 64 }).collect();
    let reversed: Vec<MmRun> = runs.iter().rev().copied().collect();
    let images = [
        Request::new(&prompts[199]).mm_runs(&runs),
        Request::new(&prompts[198]).mm_runs(&runs).block_size(100),
        Request::new(&prompts[3]).mm_runs(&runs),
        Request::new(&prompts[9]).block_size(0),
    ];
    let engine = Engine::builder().build().unwrap();
    let mut lineages = Lineages::new();
    engine.hash(&images, &mut lineages);
    assert_eq!(allocations(|| engine.hash(&images, &mut lineages)), 0);
    assert_eq!(lineages.get(3).map(|_| ()), Err(RequestError::ZeroBlockSize));
    // Sorting needs a buffer; no more than that.
    let unsorted = [Request::new(&prompts[199]).mm_runs(&reversed)];
    engine.hash(&unsorted, &mut lineages);
    assert!(allocations(|| engine.hash(&unsorted, &mut lineages)) <= 1);

    // Given back, and taken again.
    lineages.shrink_to(0);
    assert!(lineages.is_empty());
    assert!(allocations(|| engine.hash(&text, &mut lineages)) > 0);
    assert_eq!(lineages.get(199).unwrap().plhs().len(), 9950 / 5);

    // A request is freed with its ticket: the queue holds a few of 2,000, which are 128 MB, and nothing
    // when it is gone.
    let before = HELD.load(Ordering::Relaxed);
    let held = || HELD.load(Ordering::Relaxed).saturating_sub(before);
    let admission = Admission::start(engine, Options::default()).unwrap();
    for _ in 0..2000 {
        let request = OwnedRequest::new(vec![7; 16 << 10]);
        assert_eq!(admission.submit(request).unwrap().wait().unwrap().plhs().len(), 1024);
    }
    assert!(held() < 16 * (64 << 10), "{} bytes", held());
    // Nor does a worker keep what one request made large: frames of 26 MB, and 24 MB of sorted runs.
    let tokens = 2 << 20;
    let run = |offset| MmRun { mm_hash: 1, offset, length: 1 };
    for (count, block_size) in [(1, tokens), (1_000_000, 16)] {
        let runs: Vec<MmRun> = (0..count).rev().map(run).collect();
        let request = OwnedRequest::new(vec![7; tokens]).block_size(block_size as u32);
        let request = request.mm_runs(runs);
        let lineage = admission.submit(request).unwrap().wait().unwrap();
        assert_eq!(lineage.plhs().len(), tokens / block_size);
        drop(lineage);
        // The worker answers, and then gives back.
        let start = std::time::Instant::now();
        while held() > 10 << 20 && start.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert!(held() < 10 << 20, "{} bytes", held());
    }
    drop(admission);
    assert!(held() < 64 << 10, "{} bytes", held());
    a_burst_is_given_back();
}

/// As long as it is not set, a worker waits.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Neither the queue nor its worker keeps the room of a batch of 100,000 requests: 4 MB of plans. Their
/// order, 1.6 MB, is of what a worker may keep.
fn a_burst_is_given_back() {
    const BURST: usize = 100_000;
    let before = HELD.load(Ordering::Relaxed);
    let held = || HELD.load(Ordering::Relaxed).saturating_sub(before);
    let options = Options::default().capacity(BURST).largest_batch(BURST).fault(|_| {
        while !OPEN.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    });
    let admission = Admission::start(Engine::builder().build().unwrap(), options).unwrap();
    let submit = || admission.submit(OwnedRequest::new([])).unwrap();
    let first = submit();
    while admission.waiting() > 0 {
        std::thread::yield_now();
    }
    let burst: Vec<_> = (0..BURST).map(|_| submit()).collect();
    OPEN.store(true, Ordering::Relaxed);
    assert!(first.wait().is_ok() && burst.into_iter().all(|ticket| ticket.wait().is_ok()));
    // The worker answers, and then gives back.
    let start = std::time::Instant::now();
    while held() > 2 << 20 && start.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert!(held() < 2 << 20, "{} bytes", held());
}

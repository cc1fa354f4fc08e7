//! Every request that a queue accepts is answered exactly once, with its own hashes.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::splitmix64;
use kvhash::admission::{Admission, AdmissionError, Options, Rejected, Ticket, TicketError};
use kvhash::{
    Backend, BlockSize, Columns, Engine, MmRun, OwnedRequest, PositionalLineageHash, RequestError,
    SequenceHash,
};

/// Has the worker wait while [`Gate`] is closed.
const SLOW: u32 = u32::MAX;
/// Has the batch panic.
const PANIC: u32 = u32::MAX - 1;

/// A worker that meets [`SLOW`] waits here, so that a test knows that it is under way. Tests that
/// close it take turns.
static GATE: Mutex<()> = Mutex::new(());
static AT_THE_GATE: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

fn fault(tokens: &[u32]) {
    match tokens.first() {
        Some(&SLOW) => {
            AT_THE_GATE.fetch_add(1, Ordering::SeqCst);
            drop(GATE.lock().unwrap());
            AT_THE_GATE.fetch_sub(1, Ordering::SeqCst);
        }
        Some(&PANIC) => panic!("on purpose"),
        _ => {}
    }
}

fn start(options: Options) -> Admission {
    let engine = Engine::builder().block_size(BlockSize::new(4).unwrap()).build().unwrap();
    Admission::start(engine, options.fault(fault)).unwrap()
}

/// Submits a request that keeps the worker until the gate is opened, and waits until it does.
fn keep_busy(admission: &Admission) -> (Ticket, MutexGuard<'static, ()>) {
    let gate = GATE.lock().unwrap();
    let ticket = admission.submit(OwnedRequest::new([SLOW; 4])).unwrap();
    while AT_THE_GATE.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    (ticket, gate)
}

/// What the published crate gives.
fn reference(tokens: &[u32], salt: Option<&str>) -> Vec<u128> {
    let builder = dynamo_kv_hashing::Request::builder();
    let builder = builder.tokens(tokens.to_vec()).salt(salt.map(String::from));
    let plhs = builder.build().unwrap().positional_lineage_hashes(4).unwrap();
    plhs.iter().map(|plh| plh.as_u128()).collect()
}

fn rows(lineage: &kvhash::OwnedLineage) -> Vec<u128> {
    lineage.plhs().iter().map(|plh| plh.as_u128()).collect()
}

#[test]
fn options_that_cannot_work_are_errors() {
    let start = |options| Admission::start(Engine::builder().build().unwrap(), options);
    let none = Options::default();
    assert!(matches!(start(none.clone().capacity(0)), Err(AdmissionError::ZeroCapacity)));
    assert!(matches!(start(none.clone().workers(0)), Err(AdmissionError::ZeroWorkers)));
    assert!(matches!(start(none.largest_batch(0)), Err(AdmissionError::ZeroBatch)));
}

#[test]
fn an_answer_has_what_a_lineage_has() {
    let builder = Engine::builder().block_size(BlockSize::new(4).unwrap());
    let engine = builder.columns(Columns::BLOCK_HASHES).build().unwrap();
    let tokens = splitmix64(1, 15, 1000);
    let mut lineages = kvhash::Lineages::new();
    engine.hash(&[kvhash::Request::new(&tokens).salt("a")], &mut lineages);
    let expected = lineages.get(0).unwrap();

    let admission = Admission::start(engine, Options::default()).unwrap();
    let answer = admission.submit(OwnedRequest::new(tokens.clone()).salt("a")).unwrap().wait();
    let lineage = answer.unwrap();
    assert_eq!(lineage, expected.detach());
    assert_eq!(lineage.plhs(), expected.plhs());
    assert_eq!(lineage.block_hashes(), expected.block_hashes());
    assert_eq!(lineage.kept_sequence_hashes(), None);
    assert!(lineage.sequence_hashes().eq(expected.sequence_hashes()));
    assert_eq!(
        (lineage.salt_hash(), lineage.block_size(), lineage.tail()),
        (expected.salt_hash(), 4, 3)
    );
    assert_eq!(rows(&lineage), reference(&tokens, Some("a")));
}

#[test]
fn answers_are_those_of_a_batch_however_it_is_cut() {
    let _turn = TURN.lock().unwrap();
    let size = |tokens| BlockSize::new(tokens).unwrap();
    let tokens = splitmix64(7, 40_000, 128_256);
    let run = |offset, length| MmRun { mm_hash: offset as u64, offset, length };
    let parent = PositionalLineageHash::new(SequenceHash(9), Some(SequenceHash(5)), 1).unwrap();
    // In requests of 64 tokens a block those that are large go in pieces. Some of each kind fail.
    let mut requests: Vec<OwnedRequest> = (0..90)
        .map(|i| {
            let tokens = &tokens[i..i + [40_000 - i, 700, 64, 3, 5000][i % 5]];
            let request = match i % 2 {
                0 => OwnedRequest::new(tokens),
                _ => OwnedRequest::shared(tokens.into()),
            };
            match i % 7 {
                0 => request.salt(format!("tenant {i}")),
                1 => request.mm_runs([run(1, 60)]),
                2 => request.mm_runs([run(300, 200), run(5, 290)]),
                3 => request.block_size([16, 0, 300][i / 7 % 3]),
                4 => request.max_blocks(i),
                5 => request.resume(parent),
                _ => request,
            }
        })
        .collect();
    // Short blocks go side by side, those of many lengths, too, in whatever order they come.
    requests.extend(
        (0..24).map(|i| OwnedRequest::new(&tokens[i..][..37 * i % 50 * 16 + i]).block_size(16)),
    );
    let each = |&backend: &Backend| {
        let columns = [Columns::NONE, Columns::BLOCK_HASHES].into_iter();
        columns.flat_map(move |columns| [1, 3].map(|threads| (backend, columns, threads)))
    };
    for (backend, columns, threads) in Backend::available().iter().flat_map(each) {
        let builder = || Engine::builder().block_size(size(64)).columns(columns);
        let borrowed: Vec<_> = requests.iter().map(OwnedRequest::as_request).collect();
        let mut expected = kvhash::Lineages::new();
        builder().backend(Backend::Scalar).build().unwrap().hash(&borrowed, &mut expected);

        let engine = builder().backend(backend).threads(threads).task_bytes(10_000);
        let engine = engine.build().unwrap();
        let admission = Admission::start(engine, Options::default().fault(fault)).unwrap();
        let (busy, gate) = keep_busy(&admission);
        // These wait together, and so are one batch.
        let tickets: Vec<Ticket> =
            requests.iter().map(|request| admission.submit(request.clone()).unwrap()).collect();
        drop(gate);
        assert!(busy.wait().is_ok());
        for (ticket, expected) in tickets.into_iter().zip(expected.iter()) {
            let expected = expected.map(|lineage| lineage.detach()).map_err(TicketError::Request);
            assert_eq!(ticket.wait(), expected, "{backend}, {threads} threads");
        }
    }
}

#[test]
fn a_bad_request_costs_the_others_nothing() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (busy, gate) = keep_busy(&admission);
    let run = MmRun { mm_hash: 1, offset: 2, length: 0 };
    let [first, mut second, third] = [
        OwnedRequest::new([1; 8]),
        OwnedRequest::new([2; 8]).mm_runs([run]),
        OwnedRequest::new([3; 8]),
    ]
    .map(|request| admission.submit(request).unwrap());
    // It has its error at once, takes no place from others, and keeps no worker.
    assert_eq!(admission.waiting(), 2);
    let error = Err(TicketError::Request(RequestError::EmptyRun { offset: 2 }));
    assert_eq!(second.try_take(), Some(error));
    assert_eq!(second.wait(), Err(TicketError::Taken));
    drop(gate);
    assert!(busy.wait().is_ok());
    assert_eq!(rows(&first.wait().unwrap()), reference(&[1; 8], None));
    assert_eq!(rows(&third.wait().unwrap()), reference(&[3; 8], None));
}

#[test]
fn the_error_of_a_bad_request_can_be_had_in_every_way() {
    let admission = start(Options::default());
    let submit = || admission.submit(OwnedRequest::new([1; 8]).block_size(0)).unwrap();
    let error = Err(TicketError::Request(RequestError::ZeroBlockSize));
    assert_eq!(submit().wait(), error);
    assert_eq!(submit().wait_timeout(Duration::ZERO), Some(error.clone()));
    assert_eq!(block_on(submit()), error);
    let mut ticket = submit();
    assert_eq!(poll_once(&mut ticket, Waker::noop()), Poll::Ready(error));
    assert_eq!(poll_once(&mut ticket, Waker::noop()), Poll::Ready(Err(TicketError::Taken)));
}

#[test]
fn hashes_go_to_the_memory_of_a_lineage_that_is_handed_in() {
    let size = BlockSize::new(4).unwrap();
    let start = |columns| {
        let engine = Engine::builder().block_size(size).columns(columns).build().unwrap();
        Admission::start(engine, Options::default()).unwrap()
    };
    let [plain, keeping] = [Columns::NONE, Columns::BLOCK_HASHES].map(start);
    let tokens = splitmix64(9, 4000, 128_256);
    let mut old = plain.submit(OwnedRequest::new(&tokens[..1000])).unwrap().wait().unwrap();
    let memory = old.plhs().as_ptr();
    // Longer and shorter ones than the one before, than all before, and of no block at all. With block
    // hashes to be kept after such, and after none.
    for (i, count) in [1000, 7, 999, 3, 40, 4, 1000, 4000, 12, 2000].into_iter().enumerate() {
        let keeps = i % 4 > 1;
        let admission = if keeps { &keeping } else { &plain };
        let salt = format!("tenant {i}");
        let request = || OwnedRequest::new(&tokens[i..][..count.min(4000 - i)]).salt(&salt);
        let fresh = admission.submit(request()).unwrap().wait().unwrap();
        old = admission.submit_into(request(), old).unwrap().wait().unwrap();
        assert_eq!(old, fresh);
        assert_eq!(rows(&old), reference(request().tokens(), Some(&salt)));
        assert_eq!(old.block_hashes().is_some(), keeps);
        assert_eq!(
            old.plhs().as_ptr() == memory,
            i < 7,
            "the memory that there was, while it is enough"
        );
    }
}

#[test]
fn what_does_not_fit_is_given_back() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default().capacity(2));
    let (busy, gate) = keep_busy(&admission);
    let fitting = [1, 2].map(|id| admission.submit(OwnedRequest::new([id; 4])).unwrap());
    let request = OwnedRequest::new([3; 4]).salt("mine");
    match admission.submit(request.clone()) {
        Err(Rejected::Full(back)) => assert_eq!(back, request),
        other => panic!("{other:?}"),
    }
    drop(gate);
    assert!(busy.wait().is_ok());
    assert!(fitting.into_iter().all(|ticket| ticket.wait().is_ok()));
    // There is room again.
    assert!(admission.submit(request.clone()).unwrap().wait().is_ok());
    admission.shutdown();
    match admission.submit(request.clone()) {
        Err(rejected @ Rejected::Closed(_)) => assert_eq!(rejected.into_request(), request),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deadlines_pass_and_the_ticket_stays_good() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut ticket, gate) = keep_busy(&admission);
    assert_eq!(ticket.try_take(), None);
    assert_eq!(ticket.wait_until(Instant::now()), None);
    assert_eq!(ticket.wait_timeout(Duration::from_millis(5)), None);
    drop(gate);
    assert!(ticket.wait_timeout(Duration::MAX).unwrap().is_ok());
    assert_eq!(ticket.try_take(), Some(Err(TicketError::Taken)));
    assert_eq!(ticket.wait_until(Instant::now()), Some(Err(TicketError::Taken)));
    assert_eq!(ticket.wait(), Err(TicketError::Taken));
}

/// Counts how often it is woken.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Unparks the thread that it is of.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest of executors.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_ticket_is_a_future_that_wakes_its_last_waker() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut ticket, gate) = keep_busy(&admission);
    let counts = [0, 0].map(|_| Arc::new(Count(AtomicUsize::new(0))));
    for count in &counts {
        let waker = Waker::from(Arc::clone(count));
        assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(gate);
    assert!(block_on(&mut ticket).is_ok());
    assert_eq!(counts[0].0.load(Ordering::SeqCst), 0, "it is woken no more");
    assert_eq!(block_on(&mut ticket), Err(TicketError::Taken));
    // And from beginning to end.
    let answer = block_on(admission.submit(OwnedRequest::new([5; 9])).unwrap());
    assert_eq!(rows(&answer.unwrap()), reference(&[5; 9], None));
}

#[test]
fn asking_leaves_the_waker_in_place() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut ticket, gate) = keep_busy(&admission);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    assert!(poll_once(&mut ticket, &Waker::from(Arc::clone(&count))).is_pending());
    assert_eq!(ticket.try_take(), None);
    drop(gate);
    admission.shutdown();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(ticket.try_take().unwrap().is_ok());
}

#[test]
fn a_dropped_ticket_cancels_what_has_not_begun() {
    static HASHED: AtomicBool = AtomicBool::new(false);
    let _turn = TURN.lock().unwrap();
    let engine = Engine::builder().build().unwrap();
    let options = Options::default().fault(|tokens| {
        fault(tokens);
        if tokens == [77; 3] {
            HASHED.store(true, Ordering::SeqCst);
        }
    });
    let admission = Admission::start(engine, options).unwrap();
    let (busy, gate) = keep_busy(&admission);
    drop(admission.submit(OwnedRequest::new([77; 3])).unwrap());
    let after = admission.submit(OwnedRequest::new([1; 3])).unwrap();
    drop(gate);
    assert!(busy.wait().is_ok() && after.wait().is_ok());
    assert!(!HASHED.load(Ordering::SeqCst));
}

#[test]
fn a_dropped_ticket_leaves_the_others_what_is_theirs() {
    let _turn = TURN.lock().unwrap();
    let request =
        |i: u32| OwnedRequest::new((0..16).map(|t| 7 * t + 1000 * i).collect::<Vec<u32>>());
    let run = MmRun { mm_hash: 1, offset: 0, length: 0 };
    for columns in [Columns::NONE, Columns::BLOCK_HASHES] {
        let builder = || Engine::builder().block_size(BlockSize::new(4).unwrap()).columns(columns);
        let mut expected = kvhash::Lineages::new();
        let requests: Vec<OwnedRequest> = (0..200).map(request).collect();
        let borrowed: Vec<_> = requests.iter().map(OwnedRequest::as_request).collect();
        builder().build().unwrap().hash(&borrowed, &mut expected);

        let admission =
            Admission::start(builder().build().unwrap(), Options::default().fault(fault)).unwrap();
        let (busy, gate) = keep_busy(&admission);
        let tickets: Vec<Ticket> =
            (0..200).map(|i| admission.submit(request(i)).unwrap()).collect();
        // Behind the others, one that has an error.
        let bad = admission.submit(request(200).mm_runs([run])).unwrap();
        // In the first group of the batch, and in others: the first, one between, and two together.
        let cancelled = [0, 5, 70, 71, 199];
        let mut kept = Vec::new();
        for (i, ticket) in tickets.into_iter().enumerate() {
            if !cancelled.contains(&i) {
                kept.push((i, ticket));
            }
        }
        drop(gate);
        assert!(busy.wait().is_ok() && bad.wait().is_err());
        for (i, ticket) in kept {
            assert_eq!(ticket.wait().unwrap(), expected.get(i).unwrap().detach(), "{i}");
        }
    }
}

#[test]
fn a_waker_that_panics_when_it_is_dropped_takes_no_answer_along() {
    /// Panics when another one takes its place.
    struct DropsBadly;
    impl Wake for DropsBadly {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for DropsBadly {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut busy, gate) = keep_busy(&admission);
    let waker = Waker::from(Arc::new(DropsBadly));
    assert!(poll_once(&mut busy, &waker).is_pending());
    let replace = std::panic::AssertUnwindSafe(|| {
        drop(waker);
        poll_once(&mut busy, Waker::noop())
    });
    assert!(std::panic::catch_unwind(replace).is_err());
    drop(gate);
    assert!(busy.wait().is_ok());
}

#[test]
fn a_panic_ends_its_batch_and_nothing_else() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (busy, gate) = keep_busy(&admission);
    let batch = [1, PANIC, 2].map(|id| admission.submit(OwnedRequest::new([id; 4])).unwrap());
    drop(gate);
    assert!(busy.wait().is_ok());
    for ticket in batch {
        assert_eq!(ticket.wait(), Err(TicketError::Panicked));
    }
    let after = admission.submit(OwnedRequest::new([3; 4])).unwrap().wait();
    assert_eq!(rows(&after.unwrap()), reference(&[3; 4], None));
}

#[test]
fn a_waker_that_panics_costs_nobody_else_an_answer() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (busy, gate) = keep_busy(&admission);
    let mut first = admission.submit(OwnedRequest::new([1; 4])).unwrap();
    let second = admission.submit(OwnedRequest::new([2; 4])).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    assert!(pin!(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(gate);
    assert!(busy.wait().is_ok() && second.wait().is_ok() && first.wait().is_ok());
}

#[test]
fn while_a_waker_runs_other_workers_take_what_waits() {
    const OTHER: u32 = 77;
    static OTHER_MAY_END: AtomicBool = AtomicBool::new(false);
    static OTHER_HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    /// Waits for a request that was behind its own.
    struct Waits(Mutex<Ticket>, AtomicBool);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            OTHER_MAY_END.store(true, Ordering::SeqCst);
            let answer = self.0.lock().unwrap().wait_timeout(Duration::from_secs(10));
            self.1.store(answer.is_some_and(|answer| answer.is_ok()), Ordering::SeqCst);
        }
    }
    let _turn = TURN.lock().unwrap();
    let options = Options::default().workers(2).largest_batch(1).fault(|tokens| {
        fault(tokens);
        if tokens == [OTHER; 3] {
            OTHER_HAS_BEGUN.store(true, Ordering::SeqCst);
            while !OTHER_MAY_END.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        }
    });
    let admission = Admission::start(Engine::builder().build().unwrap(), options).unwrap();
    let (mut busy, gate) = keep_busy(&admission);
    let other = admission.submit(OwnedRequest::new([OTHER; 3])).unwrap();
    while !OTHER_HAS_BEGUN.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let behind = admission.submit(OwnedRequest::new([1; 3])).unwrap();
    let waker = Arc::new(Waits(Mutex::new(behind), AtomicBool::new(false)));
    assert!(poll_once(&mut busy, &Arc::clone(&waker).into()).is_pending());
    drop(gate);
    assert!(other.wait().is_ok());
    admission.shutdown();
    assert!(waker.1.load(Ordering::SeqCst), "nobody took it");
}

#[test]
fn shutdown_finishes_what_was_accepted() {
    let _turn = TURN.lock().unwrap();
    for by_drop in [false, true] {
        let admission = Arc::new(start(Options::default()));
        let (busy, gate) = keep_busy(&admission);
        let waiting: Vec<Ticket> =
            (0..100).map(|id| admission.submit(OwnedRequest::new([id; 8])).unwrap()).collect();
        let shutting = if by_drop {
            thread::spawn(move || drop(admission))
        } else {
            thread::spawn(move || admission.shutdown())
        };
        drop(gate);
        shutting.join().unwrap();
        assert!(busy.wait().is_ok());
        for (id, ticket) in (0..).zip(waiting) {
            assert_eq!(rows(&ticket.wait().unwrap()), reference(&[id; 8], None));
        }
    }
}

#[test]
fn abort_answers_what_has_not_begun_with_an_error() {
    let _turn = TURN.lock().unwrap();
    let admission = Arc::new(start(Options::default()));
    let (busy, gate) = keep_busy(&admission);
    let waiting: Vec<Ticket> =
        (0..10).map(|id| admission.submit(OwnedRequest::new([id; 8])).unwrap()).collect();
    let aborting = {
        let admission = Arc::clone(&admission);
        thread::spawn(move || admission.abort())
    };
    // It is closed before it waits for the worker.
    while !matches!(admission.submit(OwnedRequest::new([1; 4])), Err(Rejected::Closed(_))) {
        thread::yield_now();
    }
    drop(gate);
    aborting.join().unwrap();
    assert!(busy.wait().is_ok(), "it was under way");
    let answers: Vec<_> = waiting.into_iter().map(Ticket::wait).collect();
    // Those that came in before the queue was closed; one of the loop above may be among them.
    assert!(answers.iter().all(|answer| *answer == Err(TicketError::Aborted)));
}

/// Runs something that must end, and would otherwise hang.
fn in_time(run: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        let _ = sender.send(());
    });
    let ended = receiver.recv_timeout(Duration::from_secs(30));
    assert_ne!(ended, Err(RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

#[test]
fn threads_of_a_given_pool_may_wait_for_tickets() {
    in_time(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let pool = Arc::new(pool);
        let builder = Engine::builder().block_size(BlockSize::new(64).unwrap());
        let engine = builder.pool(Arc::clone(&pool)).task_bytes(10_000).build().unwrap();
        let admission = Admission::start(engine, Options::default()).unwrap();
        pool.scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|_| {
                    let ticket = admission.submit(OwnedRequest::new(vec![7; 1 << 20])).unwrap();
                    assert_eq!(ticket.wait().unwrap().plhs().len(), 1 << 14);
                });
            }
        });
    });
}

#[test]
fn whoever_shuts_down_second_waits_too() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut busy, gate) = keep_busy(&admission);
    thread::scope(|scope| {
        let shut_down = || {
            admission.shutdown();
            // All that was accepted is answered, whoever it was that waited for it.
            assert_eq!(AT_THE_GATE.load(Ordering::SeqCst), 0);
        };
        scope.spawn(shut_down);
        while !matches!(admission.submit(OwnedRequest::new([1])), Err(Rejected::Closed(_))) {
            thread::yield_now();
        }
        let second = scope.spawn(shut_down);
        thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        drop(gate);
    });
    assert!(busy.try_take().unwrap().is_ok());
}

/// A waker that keeps something as long as it is there itself.
struct Keeps<T>(T);

impl<T: Send + Sync + 'static> Wake for Keeps<T> {
    fn wake(self: Arc<Self>) {}
}

fn poll_once(ticket: &mut Ticket, waker: &Waker) -> Poll<kvhash::admission::Answer> {
    pin!(ticket).poll(&mut Context::from_waker(waker))
}

#[test]
fn wakers_are_let_go_of_when_they_are_no_longer_asked_for() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (busy, gate) = keep_busy(&admission);
    let kept = Arc::new(());
    let waker = || Waker::from(Arc::new(Keeps(Arc::clone(&kept))));
    let submit = || admission.submit(OwnedRequest::new([1; 4])).unwrap();
    // Another one, a wait, and the end of the ticket take its place.
    let [mut other, mut waiting, mut dropped] = [submit(), submit(), submit()];
    for ticket in [&mut other, &mut waiting, &mut dropped] {
        assert!(poll_once(ticket, &waker()).is_pending());
    }
    assert_eq!(Arc::strong_count(&kept), 4);
    assert!(poll_once(&mut other, Waker::noop()).is_pending());
    assert_eq!(Arc::strong_count(&kept), 3);
    assert_eq!(waiting.wait_timeout(Duration::from_millis(1)), None);
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(dropped);
    assert_eq!(Arc::strong_count(&kept), 1);
    drop(gate);
    assert!(busy.wait().is_ok() && other.wait().is_ok() && waiting.wait().is_ok());
}

#[test]
fn a_waker_may_be_the_last_to_hold_the_queue() {
    // A gate of its own, so that no other test waits where this one hangs.
    static OPEN: AtomicBool = AtomicBool::new(false);
    fn until_open(_: &[u32]) {
        while !OPEN.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }
    in_time(|| {
        let engine = Engine::builder().build().unwrap();
        let options = Options::default().fault(until_open);
        let admission = Arc::new(Admission::start(engine, options).unwrap());
        let mut ticket = admission.submit(OwnedRequest::new([1; 16])).unwrap();
        let waker = Waker::from(Arc::new(Keeps(admission)));
        assert!(poll_once(&mut ticket, &waker).is_pending());
        drop(waker);
        let opens = thread::spawn(|| {
            thread::sleep(Duration::from_millis(50));
            OPEN.store(true, Ordering::SeqCst);
        });
        // The old waker goes, and the queue with it, which waits for this very ticket's request.
        let answer = match poll_once(&mut ticket, Waker::noop()) {
            Poll::Ready(answer) => answer,
            Poll::Pending => ticket.wait(),
        };
        assert!(answer.is_ok());
        opens.join().unwrap();
    });
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose, again");
    }
}

/// Panics with that when it wakes.
struct Bomber;

impl Wake for Bomber {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn what_a_waker_panics_with_may_panic_too() {
    let _turn = TURN.lock().unwrap();
    let admission = start(Options::default());
    let (mut busy, gate) = keep_busy(&admission);
    assert!(poll_once(&mut busy, &Waker::from(Arc::new(Bomber))).is_pending());
    drop(gate);
    let after = admission.submit(OwnedRequest::new([1; 4])).unwrap();
    assert!(after.wait().is_ok());
    assert!(admission.submit(OwnedRequest::new([1; 4])).unwrap().wait().is_ok());
}

/// How many requests the test below submits: over a million where it is asked for.
fn requests_under_load() -> usize {
    match std::env::var("KVHASH_TEST_REQUESTS") {
        Ok(count) => count.parse().expect("KVHASH_TEST_REQUESTS is a number"),
        Err(_) => 100_000,
    }
}

/// 64 threads that submit, cancel, wait with deadlines, and bring bad requests and panics, until
/// the queue is shut down between them.
#[test]
fn under_load_everything_is_answered_once() {
    const THREADS: usize = 64;
    let engine = Engine::builder().block_size(BlockSize::new(4).unwrap()).build().unwrap();
    let options = Options::default().capacity(256).workers(2).fault(fault);
    let admission = Admission::start(engine, options).unwrap();
    let each = requests_under_load().div_ceil(THREADS);
    let [hashed, failed, panicked, cancelled, closed] = [(); 5].map(|()| AtomicUsize::new(0));
    let submitted = AtomicUsize::new(0);
    let dropped = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let counts = [&hashed, &failed, &panicked, &cancelled, &closed];
            let (admission, submitted, dropped) = (&admission, &submitted, &dropped);
            scope.spawn(move || {
                // Ends the wait below, too, where a thread fails.
                let _all = AllOnPanic(submitted, THREADS * each);
                submit_all(thread, each, admission, counts, submitted, dropped);
            });
        }
        scope.spawn(|| {
            // Near the end, so that some of every kind come before it and some after.
            while submitted.load(Ordering::Relaxed) < THREADS * each * 9 / 10 {
                thread::yield_now();
            }
            admission.shutdown();
        });
    });
    let counts = [hashed, failed, panicked, cancelled, closed].map(AtomicUsize::into_inner);
    assert_eq!(counts.iter().sum::<usize>(), THREADS * each, "{counts:?}");
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    assert!(dropped.into_inner().unwrap().iter().all(|held| held.upgrade().is_none()), "leaked");
}

/// Counts all requests as submitted where a thread panics.
struct AllOnPanic<'a>(&'a AtomicUsize, usize);

impl Drop for AllOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fetch_add(self.1, Ordering::Relaxed);
        }
    }
}

fn submit_all(
    thread: usize,
    each: usize,
    admission: &Admission,
    [hashed, failed, panicked, cancelled, closed]: [&AtomicUsize; 5],
    submitted: &AtomicUsize,
    dropped: &Mutex<Vec<Weak<[u32]>>>,
) {
    let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed);
    let random = splitmix64(thread as u64, 4 * each, 1 << 32);
    'requests: for (i, dice) in random.chunks_exact(4).enumerate() {
        count(submitted);
        let length = dice[0] as usize % 40;
        let mut tokens = splitmix64((thread * each + i) as u64, length, 1 << 31);
        let salt = format!("tenant {}", dice[1] % 3);
        let (panics, bad) = (dice[2] % 1000 == 0, dice[2] % 10 == 1);
        if panics {
            tokens.insert(0, PANIC);
        }
        let shared: Arc<[u32]> = tokens.as_slice().into();
        let held = Arc::downgrade(&shared);
        let mut request = OwnedRequest::shared(shared).salt(salt.as_str());
        if bad {
            request = request.mm_runs([MmRun { mm_hash: 1, offset: 7, length: 0 }]);
        }
        let mut ticket = loop {
            match admission.submit(request) {
                Ok(ticket) => break ticket,
                Err(Rejected::Full(back)) => request = back,
                Err(rejected) => {
                    assert!(matches!(rejected, Rejected::Closed(_)), "{rejected:?}");
                    count(closed);
                    continue 'requests;
                }
            }
            thread::yield_now();
        };
        let answer = match dice[3] % 8 {
            // Whatever its worker does in the meantime: never waited for, with a waker, after a wait.
            0 => {
                match dice[3] / 8 % 3 {
                    0 => {}
                    1 => _ = poll_once(&mut ticket, &Waker::from(Arc::new(Keeps(())))),
                    _ => _ = ticket.wait_timeout(Duration::from_micros(u64::from(dice[3] % 20))),
                }
                drop(ticket);
                count(cancelled);
                dropped.lock().unwrap().push(held);
                continue;
            }
            1 => match ticket.wait_timeout(Duration::from_micros(u64::from(dice[3] % 100))) {
                Some(answer) => answer,
                None => ticket.wait(),
            },
            2 => block_on(ticket),
            _ => ticket.wait(),
        };
        match answer {
            Ok(lineage) => {
                assert!(!bad && !panics);
                assert_eq!(rows(&lineage), reference(&tokens, Some(&salt)));
                count(hashed);
            }
            Err(TicketError::Request(error)) => {
                assert!(bad);
                assert_eq!(error, RequestError::EmptyRun { offset: 7 });
                count(failed);
            }
            Err(error) => {
                // Its own panic, or that of another in its batch.
                assert_eq!(error, TicketError::Panicked);
                count(panicked);
            }
        };
    }
}

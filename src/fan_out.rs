//! A batch on several threads: how it is cut, and who does what.
//!
//! Each thread has a share of the batch, neighbours, and takes from the others' when it is done: from
//! batch to batch a thread mostly writes the rows that it wrote before, which its own cache still
//! has. A share is cut into tasks of whole requests, the first of four fifths of it, the next of four
//! fifths of the rest: of many requests more find others of their length to go side by side with, and
//! the last tasks are small, so that all threads end together.
//!
//! Where whole requests would keep a thread busy for longer than its share, the large ones are cut into
//! pieces whose blocks are hashed on any thread, if hashing takes longer than chaining, as it does from
//! 240 bytes a block on. Whoever finishes a piece that the chain waits for goes on with the chain;
//! nobody waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;

use crate::digest::BlockHash;
use crate::engine::room;
use crate::output::Output;
use crate::plan::{Plan, PlanMemory};
use crate::run::{Batch, Memory, REQUESTS_A_CHUNK, Scratch, Size};
use crate::scheme::Scheme;
use crate::xxh3::LONGEST_FOLDED;

/// How long the calling thread looks for the end of the others' last tasks before it sleeps: some
/// tasks' time.
const LONGEST_SPIN: Duration = Duration::from_micros(100);

/// How many bytes of a batch are what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grain {
    /// A thread's share.
    pub(crate) share: usize,
    /// The smallest task.
    pub(crate) task: usize,
}

impl Grain {
    /// How large the task is to be that begins after so many bytes: four fifths of what is left of a
    /// share.
    fn task_after(self, bytes: usize) -> usize {
        let left = self.share - bytes % self.share.max(1);
        self.task.max(left / 5 * 4)
    }

    /// What can be cut into pieces that are worth handing out.
    fn is_large(self, bytes: usize) -> bool {
        bytes >= 2 * self.task
    }

    /// Whether some requests can be whole: one after the other, the largest first, to the thread that has
    /// the least, they are no thread's work for more than a quarter longer than its share. Hashed in
    /// pieces they take longer altogether: the chain, which is else hidden behind the hashing, comes on
    /// top.
    fn lets_whole(self, mut requests: Vec<usize>, threads: usize) -> bool {
        requests.sort_unstable_by(|a, b| b.cmp(a));
        let mut loads = vec![0; threads];
        requests.into_iter().all(|bytes| {
            let least = loads.iter_mut().min().expect("there is a thread");
            *least += bytes;
            *least <= self.share + self.share / 4
        })
    }
}

/// A share of the work of a batch.
enum Task<'a, R> {
    /// Whole requests.
    Requests { range: Range<usize>, output: Output<'a, R>, bytes: usize },
    /// Some blocks of a large request, whose hashes are to be worked out.
    Piece { large: usize, piece: Piece<'a>, bytes: usize },
}

impl<R> Task<'_, R> {
    fn bytes(&self) -> usize {
        match self {
            Self::Requests { bytes, .. } | Self::Piece { bytes, .. } => *bytes,
        }
    }
}

/// The tasks of a thread.
type Share<'a, R> = Mutex<VecDeque<Task<'a, R>>>;

/// The tasks of a batch, and the requests that some of them are pieces of.
type Cut<'a, R> = (Vec<Task<'a, R>>, Vec<Large<'a, R>>);

/// Some blocks of a large request, and the place of their hashes.
struct Piece<'a> {
    /// Counted from the request's first.
    start: usize,
    hashes: &'a mut [u64],
}

/// Some requests that stay together, or one that is hashed in pieces.
struct Part {
    range: Range<usize>,
    size: Size,
    is_large: bool,
}

/// A request that is hashed in pieces.
struct Large<'a, R> {
    index: usize,
    plan: Plan,
    chain: Mutex<PiecedChain<'a, R>>,
}

/// How far the chain of a large request has come.
struct PiecedChain<'a, R> {
    /// Pieces that are hashed and not chained, by their first blocks.
    hashed: BTreeMap<usize, &'a mut [u64]>,
    /// The first block that is not chained.
    next: usize,
    /// The sequence hash before that block, if there is one.
    state: Option<u64>,
    /// Where the rows go; away while a thread is at it.
    under_way: Option<Output<'a, R>>,
}

impl<S: Scheme> Batch<'_, '_, S> {
    /// Runs the batch, which was counted, on the calling thread and `helpers` threads of a pool.
    pub(crate) fn run_on(
        &self,
        pool: &ThreadPool,
        helpers: usize,
        grain: Grain,
        output: Output<'_, S::Row>,
        memory: &mut Memory,
    ) {
        let Memory { chunks, scratches, large_hashes } = memory;
        let plans = &mut scratches.at_least(1)[0].plans;
        let threads = helpers + 1;
        let (tasks, large) = self.cut(grain, threads, output, chunks, large_hashes, plans);
        let helpers = helpers.min(tasks.len().saturating_sub(1));
        let shares = share_out(tasks, helpers + 1);
        let scratches = scratches.at_least(helpers + 1);
        let (own, others) = scratches.split_first_mut().expect("there is one more than helpers");
        // The calling thread works, too: it need not wake a thread only to wait for it.
        let at_work = AtomicUsize::new(helpers);
        pool.in_place_scope(|scope| {
            let (shares, large, at_work) = (&shares, &large, &at_work);
            for (i, scratch) in (1..=helpers).zip(others) {
                scope.spawn(move |_| {
                    self.work(i, shares, large, scratch);
                    at_work.fetch_sub(1, Ordering::Relaxed);
                });
            }
            self.work(0, shares, large, own);
            // Nothing is left to begin, so the others are at their last tasks: to fall asleep and
            // be woken takes longer than those.
            let start = Instant::now();
            while at_work.load(Ordering::Relaxed) > 0 && start.elapsed() < LONGEST_SPIN {
                hint::spin_loop();
            }
        });
    }

    /// Does the tasks of one share, and then those of the others.
    fn work<'a>(
        &self,
        own: usize,
        shares: &[Share<'a, S::Row>],
        large: &[Large<'a, S::Row>],
        scratch: &mut Scratch,
    ) {
        let (before, from) = shares.split_at(own);
        for (i, share) in from.iter().chain(before).enumerate() {
            // From the front of one's own, from the back of another's: what is last there.
            let take = if i == 0 { VecDeque::pop_front } else { VecDeque::pop_back };
            loop {
                let task = take(&mut *lock(share));
                match task {
                    None => break,
                    Some(Task::Requests { range, mut output, .. }) => {
                        self.plan_and_run(range, &mut output, scratch);
                    }
                    Some(Task::Piece { large: index, piece, .. }) => {
                        self.run_piece(&large[index], piece, scratch);
                    }
                }
            }
        }
    }

    /// Hashes a piece, and chains what is ready to be chained.
    fn run_piece<'a>(&self, large: &Large<'a, S::Row>, piece: Piece<'a>, scratch: &mut Scratch) {
        let (request, plan) = (self.request(large.index), &large.plan);
        self.hash_blocks(request, plan, piece.start, piece.hashes, scratch);
        let mut chain = lock(&large.chain);
        chain.hashed.insert(piece.start, piece.hashes);
        // Another thread that is at it will see the piece when it is done with its own.
        let Some(mut output) = chain.under_way.take() else { return };
        loop {
            let (next, state) = (chain.next, chain.state);
            let Some(hashes) = chain.hashed.remove(&next) else { break };
            drop(chain);
            let rows = output.rows.of_one();
            let state = self.chain_blocks(request, plan, next, state, hashes, rows);
            chain = lock(&large.chain);
            chain.next += hashes.len();
            chain.state = state;
        }
        if chain.next < plan.shape.blocks() {
            chain.under_way = Some(output);
        } else {
            self.lay_out(request, output);
        }
    }

    /// Cuts the batch. Requests that are hashed in pieces come apart.
    fn cut<'a>(
        &'a self,
        grain: Grain,
        threads: usize,
        mut output: Output<'a, S::Row>,
        chunks: &[Size],
        large_hashes: &'a mut Vec<u64>,
        memory: &mut PlanMemory,
    ) -> Cut<'a, S::Row> {
        let parts: Vec<Part> = self.parts(chunks, grain).collect();
        let large = || parts.iter().filter(|part| part.is_large);
        let whole = grain.lets_whole(large().map(|part| part.size.bytes).collect(), threads);
        let mut large_hashes = match output.block_hashes {
            None if !whole => room(large_hashes, large().map(|part| part.size.rows).sum()),
            _ => &mut [],
        };
        let (mut tasks, mut large) = (Vec::new(), Vec::new());
        let mut range = 0..0;
        let mut size = Size::default();
        // Of all tasks before.
        let mut bytes = 0;
        for part in parts {
            let is_large = part.is_large && !whole;
            // Whichever is nearer to what the task is to be: without the part, or with it.
            let is_enough = size.bytes + part.size.bytes / 2 >= grain.task_after(bytes);
            if is_large || (is_enough && size.bytes > 0) {
                let output = output.take(range.len(), size.rows);
                bytes += size.bytes;
                tasks.push(Task::Requests { range, output, bytes: size.bytes });
                (range, size) = (part.range.start..part.range.start, Size::default());
            }
            range.end = part.range.end;
            if !is_large {
                size = size.and(part.size);
                continue;
            }
            bytes += part.size.bytes;
            range.start = part.range.end;
            let index = part.range.start;
            let request = self.request(index);
            let mut output = output.take(1, part.size.rows);
            let hashes = match output.block_hashes.take() {
                Some(hashes) => BlockHash::peel_slice_mut(hashes.into_one()),
                None => {
                    large_hashes.split_off_mut(..part.size.rows).expect("there is room for all")
                }
            };
            output.plans[0] = self.planner.plan(index, request, output.first_row, memory);
            let Ok(plan) = output.plans[0] else { continue };
            let step = (grain.task / plan.shape.block_bytes()).max(1);
            for (i, hashes) in hashes.chunks_mut(step).enumerate() {
                let bytes = hashes.len() * plan.shape.block_bytes();
                let piece = Piece { start: i * step, hashes };
                tasks.push(Task::Piece { large: large.len(), piece, bytes });
            }
            let (hashed, state) = (BTreeMap::new(), request.state());
            let chain = PiecedChain { hashed, next: 0, state, under_way: Some(output) };
            large.push(Large { index, plan, chain: Mutex::new(chain) });
        }
        tasks.push(Task::Requests { range, output, bytes: size.bytes });
        // Where a large request came first or last, or two met.
        tasks.retain(|task| !matches!(task, Task::Requests { range, .. } if range.is_empty()));
        (tasks, large)
    }

    /// What the batch is cut along: chunks of small requests, and the requests of other chunks.
    fn parts(&self, chunks: &[Size], grain: Grain) -> impl Iterator<Item = Part> {
        let starts = (0..self.requests.len()).step_by(REQUESTS_A_CHUNK);
        starts.zip(chunks).flat_map(move |(start, &size)| {
            let range = start..(start + REQUESTS_A_CHUNK).min(self.requests.len());
            let small = size.bytes <= grain.task;
            let whole = small.then(|| Part { range: range.clone(), size, is_large: false });
            let others = if small { 0..0 } else { range };
            whole.into_iter().chain(others.map(move |index| self.part(index, grain)))
        })
    }

    /// One request as a part of the batch.
    fn part(&self, index: usize, grain: Grain) -> Part {
        let request = self.request(index);
        let size = self.planner.size(request);
        let is_large = grain.is_large(size.bytes)
            && self.planner.block_bytes(request) > LONGEST_FOLDED
            && request.mm_runs.is_empty();
        Part { range: index..index + 1, size, is_large }
    }
}

/// Hands tasks out in shares of about the same number of bytes. In each, what takes longest to be
/// done is first: a large request's chain waits for its pieces, and cannot be hastened.
fn share_out<R>(tasks: Vec<Task<'_, R>>, count: usize) -> Vec<Share<'_, R>> {
    let all: usize = tasks.iter().map(Task::bytes).sum();
    let mut shares: Vec<VecDeque<_>> = (0..count).map(|_| VecDeque::new()).collect();
    let mut bytes = 0;
    for task in tasks {
        // By where its middle lies.
        let middle = bytes + task.bytes() / 2;
        bytes += task.bytes();
        shares[(middle * count / all.max(1)).min(count - 1)].push_back(task);
    }
    for share in &mut shares {
        share.make_contiguous().sort_by_key(|task| match task {
            Task::Piece { .. } => 0,
            Task::Requests { bytes, .. } => usize::MAX - bytes,
        });
    }
    shares.into_iter().map(Mutex::new).collect()
}

/// Locks what no thread leaves half done: a panic is passed on by the scope in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;
    use crate::kernel::Backend;
    use crate::output::Column;
    use crate::plan::Planner;
    use crate::plh::PositionalLineageHash;
    use crate::request::Request;
    use crate::scheme::DynamoPlh;

    #[test]
    fn tasks_of_a_share_get_smaller() {
        let grain = Grain { share: 1600, task: 100 };
        let mut tasks = Vec::new();
        let mut bytes = 0;
        while bytes < 2 * grain.share {
            tasks.push(grain.task_after(bytes));
            bytes += tasks[tasks.len() - 1];
        }
        // Four fifths of what is left, down to the smallest; the last one may go a little past the
        // share, and so the next share's first task is as much smaller.
        assert_eq!(tasks[..4], [1280, 256, 100, 1248]);
        // Where a size is forced, all have it; and nothing is divided by a share of nothing.
        assert_eq!(Grain { share: 100, task: 100 }.task_after(250), 100);
        assert_eq!(Grain { share: 0, task: 0 }.task_after(7), 0);
    }

    #[test]
    fn requests_are_whole_where_no_thread_would_be_waited_for() {
        let grain = Grain { share: 1600, task: 100 };
        // A share and a quarter, and one byte more.
        assert!(grain.lets_whole(vec![2000, 200], 2));
        assert!(!grain.lets_whole(vec![200, 2001], 2));
        // As many as threads; one more, of a size with which two are too much for one, and are not.
        assert!(grain.lets_whole(vec![1060; 2], 2));
        assert!(!grain.lets_whole(vec![1060; 3], 2));
        assert!(grain.lets_whole(vec![1000; 3], 2));
        assert!(grain.lets_whole(vec![], 1));
    }

    /// What requests of 64 tokens a block are cut to on two threads: the bytes of each task in blocks,
    /// pieces with a minus sign.
    fn cut(blocks: &[usize], columns: bool) -> Vec<i64> {
        let tokens = vec![0; 64 * blocks.iter().max().unwrap()];
        let requests: Vec<_> =
            blocks.iter().map(|blocks| Request::new(&tokens[..64 * blocks])).collect();
        let planner = Planner::new(DynamoPlh::PUBLISHED, 64);
        let batch: Batch<'_, '_, DynamoPlh> =
            Batch { backend: Backend::Scalar, planner: &planner, requests: &requests };
        let mut chunks = Vec::new();
        let Size { rows: count, bytes } = batch.count_chunks(&mut chunks);
        let mut plans = vec![Ok(Plan::default()); requests.len()];
        let mut rows: Vec<PositionalLineageHash> = vec![Zeroable::zeroed(); count];
        let mut hashes = vec![BlockHash(0); count];
        let output = Output {
            plans: &mut plans,
            first_row: 0,
            rows: Column::Together(&mut rows),
            block_hashes: columns.then_some(Column::Together(&mut hashes)),
            sequence_hashes: None,
        };
        let share = bytes / 2;
        let grain = Grain { share, task: share / 16 };
        let (mut large_hashes, mut memory) = (Vec::new(), PlanMemory::default());
        let (tasks, _) = batch.cut(grain, 2, output, &chunks, &mut large_hashes, &mut memory);
        let in_blocks = |task: &Task<'_, _>| match task {
            Task::Requests { bytes, .. } => (bytes / 256) as i64,
            Task::Piece { bytes, .. } => -((bytes / 256) as i64),
        };
        tasks.iter().map(in_blocks).collect()
    }

    #[test]
    fn batches_are_cut_near_what_tasks_are_to_be() {
        for columns in [false, true] {
            // 320 requests of 10 blocks: chunks of 32 are more than a task, and come apart.
            let shares = [1280, 260, 100];
            let last = [1250, 250, 60];
            assert_eq!(cut(&[10; 320], columns), [shares, last].concat());
            // A request of a share, after some: it does not come on top of what is a task already.
            let mut blocks = vec![10; 200];
            blocks.insert(130, 2000);
            assert_eq!(cut(&blocks, columns)[..2], [1300, 2000]);
            // Three of two thirds of a share are too much for two threads: pieces of a sixteenth.
            let pieces = [&[-150; 10][..], &[-100]].concat();
            assert_eq!(cut(&[1600; 3], columns), pieces.repeat(3));
        }
    }
}

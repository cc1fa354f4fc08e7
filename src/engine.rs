//! The engine: settings, and the one call that hashes a batch.

mod apart;

use std::fmt;
use std::ops::BitOr;
use std::sync::{Arc, OnceLock};

use bytemuck::Zeroable;
use rayon::ThreadPool;

use crate::error::EngineError;
use crate::fan_out::Grain;
use crate::kernel::Backend;
use crate::lineages::Lineages;
use crate::output::{Column, Output, OutputColumns};
use crate::plan::{Plan, Planned, Planner};
use crate::pool::OwnPool;
use crate::run::{Batch, Memory, Size};
use crate::scheme::sealed::Layout;
use crate::scheme::{DynamoPlh, Scheme};
pub(crate) use apart::{Aside, PlannedRequest};

/// Bytes of tokens below which a batch stays on the calling thread: about 100 µs of work. Waking a
/// thread takes some 10 µs, often several times that, and for less it loses as often as it wins
/// (`perf/threads.md`).
const FAN_OUT_BYTES: usize = 2 << 20;

/// The least that a task is made of: some 8 µs of work.
const TASK_BYTES: usize = 128 << 10;

/// What part of a thread's share its smallest tasks are, which come last, so that threads end together.
const SMALLEST_OF_SHARE: usize = 16;

/// How many tokens make a block; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 16 tokens, as in vLLM.
    pub const DEFAULT: Self = Self(16);

    /// A block of `tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`EngineError::ZeroBlockSize`] for 0.
    pub fn new(tokens: u32) -> Result<Self, EngineError> {
        match tokens {
            0 => Err(EngineError::ZeroBlockSize),
            _ => Ok(Self(tokens)),
        }
    }

    /// The number of tokens.
    pub fn tokens(self) -> u32 {
        self.0
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which hashes are kept beside the lineage hashes. Combined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns(u8);

impl Columns {
    /// The lineage hashes alone.
    pub const NONE: Self = Self(0);
    /// The block hashes too.
    pub const BLOCK_HASHES: Self = Self(1);
    /// The sequence hashes too, where the scheme's rows do not hold them.
    pub const SEQUENCE_HASHES: Self = Self(2);

    /// Whether all of `other` are kept.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Columns {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Hashes batches of requests under one scheme.
///
/// An engine is settings and, where it was asked for, a thread pool. It can be shared between
/// threads; every thread brings its own [`Lineages`].
///
/// ```
/// use kvhash::{BlockSize, Engine, Lineages, Request};
///
/// let engine = Engine::builder().block_size(BlockSize::new(4)?).build()?;
/// let prompts = [vec![1, 2, 3, 4, 5, 6, 7, 8, 9], vec![1, 2, 3]];
/// let requests: Vec<Request<'_>> = prompts.iter().map(|tokens| Request::new(tokens)).collect();
///
/// let mut lineages = Lineages::new();
/// engine.hash(&requests, &mut lineages);
///
/// let lineage = lineages.get(0)?;
/// assert_eq!(lineage.plhs().len(), 2);
/// assert_eq!(lineage.plhs()[1].current_sequence_hash().0, 0x44a2_b237_9d6d_3c3d);
/// assert_eq!(lineage.tail(), 1);
/// assert!(lineages.get(1)?.plhs().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<S: Scheme = DynamoPlh> {
    planner: Planner<S>,
    backend: Backend,
    columns: Columns,
    threads: usize,
    task_bytes: Option<usize>,
    pool: Pool,
}

/// Where the threads beside the calling one come from.
enum Pool {
    /// Started by the first batch that needs it; and whether its threads are pinned.
    Own(OnceLock<Option<OwnPool>>, bool),
    Given(Arc<ThreadPool>),
}

impl Engine {
    /// The settings of an engine, at their defaults.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }
}

impl<S: Scheme> Engine<S> {
    /// Hashes a batch. The results are in `lineages`, in place of what was there.
    ///
    /// A batch does not fail: a request that cannot be hashed has its error in
    /// [`Lineages::get`], and the others are as if it were not there. The hashes depend on the
    /// requests, the scheme and the block size alone.
    ///
    /// Called on a thread of a rayon pool, the batch stays on that thread: its caller is
    /// already parallel.
    pub fn hash(&self, requests: &[S::Request<'_>], lineages: &mut Lineages<S::Row>) {
        self.hash_on(self.pool_here(), requests, lineages);
    }

    /// Hashes a batch as [`hash`](Self::hash) does, and leaves the thread for the engine's pool
    /// even where that thread is one of a rayon pool.
    ///
    /// While a worker of the engine's pool waits for the others, rayon gives it other jobs of
    /// that pool to do. Do not call this under a lock that such a job could want: the thread
    /// would wait for itself.
    pub fn hash_in_pool(&self, requests: &[S::Request<'_>], lineages: &mut Lineages<S::Row>) {
        self.hash_on(self.threads > 1, requests, lineages);
    }

    fn hash_on(
        &self,
        may_fan_out: bool,
        requests: &[S::Request<'_>],
        lineages: &mut Lineages<S::Row>,
    ) {
        let Lineages { plans, rows, block_hashes, sequence_hashes, columns, memory } = lineages;
        *columns = self.columns;
        self.hash_to(may_fan_out, requests, plans, memory, |blocks| {
            let rows = Column::Together(room(rows, blocks));
            let kept = self.columns.contains(Columns::BLOCK_HASHES);
            let block_hashes = kept.then(|| Column::Together(room(block_hashes, blocks)));
            let kept =
                S::Row::LOSES_SEQUENCE_HASHES && self.columns.contains(Columns::SEQUENCE_HASHES);
            (rows, block_hashes, kept.then(|| room(sequence_hashes, blocks)))
        });
    }

    /// Hashes a batch to the columns that `columns` has for so many blocks.
    #[inline(always)]
    fn hash_to<'o>(
        &self,
        may_fan_out: bool,
        requests: &[S::Request<'_>],
        plans: &'o mut Vec<Planned>,
        memory: &mut Memory,
        columns: impl FnOnce(usize) -> OutputColumns<'o, S::Row>,
    ) {
        let batch: Batch<'_, '_, S> =
            Batch { backend: self.backend, planner: &self.planner, requests };
        plans.resize(requests.len(), Ok(Plan::default()));
        let size = may_fan_out.then(|| batch.count_chunks(&mut memory.chunks));
        let fan_out = size.and_then(|Size { rows, bytes }| {
            self.pool_for(bytes).map(|(pool, grain)| (pool, grain, rows))
        });
        let blocks = match fan_out {
            Some((.., rows)) => rows,
            None => batch.plan(plans, &mut memory.scratches.at_least(1)[0]),
        };
        let (rows, block_hashes, sequence_hashes) = columns(blocks);
        let mut output = Output { plans, first_row: 0, rows, block_hashes, sequence_hashes };
        match fan_out {
            Some((pool, grain, _)) => {
                batch.run_on(pool, self.threads - 1, grain, output, memory);
            }
            None => {
                let scratch = &mut memory.scratches.at_least(1)[0];
                batch.run(0..requests.len(), &mut output, scratch);
            }
        }
    }

    /// The backend that hashes.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// How many threads a large batch is hashed on.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether a batch of the calling thread may leave it: not that of a thread of a rayon pool,
    /// whose caller is parallel already.
    fn pool_here(&self) -> bool {
        self.threads > 1 && rayon::current_thread_index().is_none()
    }

    /// The pool for a batch of so many bytes, and how it is cut; `None` where the batch is too small
    /// to leave the thread.
    fn pool_for(&self, bytes: usize) -> Option<(&ThreadPool, Grain)> {
        let share = bytes / self.threads;
        let grain = match self.task_bytes {
            Some(forced) => Grain { share: forced, task: forced },
            None if bytes < FAN_OUT_BYTES => return None,
            None => Grain { share, task: (share / SMALLEST_OF_SHARE).max(TASK_BYTES) },
        };
        let pool = match &self.pool {
            Pool::Given(pool) => pool,
            // Where no thread is to be had, the calling one does all the work: the results are
            // the same.
            Pool::Own(pool, pin) => {
                pool.get_or_init(|| OwnPool::start(self.threads - 1, *pin)).as_ref()?.get()?
            }
        };
        Some((pool, grain))
    }
}

impl<S: Scheme> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("scheme", &self.planner.scheme)
            .field("block_size", &self.planner.block_size)
            .field("backend", &self.backend)
            .field("columns", &self.columns)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// The first `count` elements of a vector that grows where needed and is never cleared: no
/// batch pays for writing zeros that its results overwrite. Only where assertions are compiled in: what
/// a batch leaves unwritten must not pass for the same results of the batch before.
pub(crate) fn room<T: Zeroable + Copy>(vec: &mut Vec<T>, count: usize) -> &mut [T] {
    if cfg!(debug_assertions) {
        vec.fill(T::zeroed());
    }
    if vec.len() < count {
        vec.resize(count, T::zeroed());
    }
    &mut vec[..count]
}

/// The settings of an [`Engine`].
#[derive(Debug, Clone, Default)]
pub struct EngineBuilder<S: Scheme = DynamoPlh> {
    scheme: S,
    block_size: BlockSize,
    backend: Option<Backend>,
    columns: Columns,
    threads: Threads,
    pin_cores: bool,
    task_bytes: Option<usize>,
}

#[derive(Debug, Clone)]
enum Threads {
    Own(usize),
    Pool(Arc<ThreadPool>),
}

impl Default for Threads {
    fn default() -> Self {
        Self::Own(1)
    }
}

impl Default for Columns {
    fn default() -> Self {
        Self::NONE
    }
}

impl<S: Scheme> EngineBuilder<S> {
    /// Tokens a block, for requests that do not say so themselves. Default:
    /// [`BlockSize::DEFAULT`].
    pub fn block_size(self, block_size: BlockSize) -> Self {
        Self { block_size, ..self }
    }

    /// The rule to hash by. Default: [`DynamoPlh::PUBLISHED`].
    pub fn scheme<T: Scheme>(self, scheme: T) -> EngineBuilder<T> {
        EngineBuilder {
            scheme,
            block_size: self.block_size,
            backend: self.backend,
            columns: self.columns,
            threads: self.threads,
            pin_cores: self.pin_cores,
            task_bytes: self.task_bytes,
        }
    }

    /// Which hashes to keep beside the lineage hashes. Default: none.
    pub fn columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

    /// The implementation of the kernels. Default: [`Backend::detect`].
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend: Some(backend), ..self }
    }

    /// How many threads a large batch is hashed on, the calling one among them. 1, the default,
    /// is the calling thread and no other; 0 is as many as the process may use; what is past
    /// rayon's limit is taken for the limit. Small batches stay on the calling thread in any
    /// case. Threads are started by the first batch that needs them, belong to the engine and
    /// end with it.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Threads::Own(threads), ..self }
    }

    /// Hashes large batches on threads of `pool`, in place of threads of the engine's own. The
    /// calling thread works, too, in place of one of them. (The workers of an
    /// [`Admission`](crate::admission::Admission) keep to their own threads then: those of the pool may
    /// be waiting for them.)
    pub fn pool(self, pool: Arc<ThreadPool>) -> Self {
        Self { threads: Threads::Pool(pool), ..self }
    }

    /// Keeps each thread that the engine starts on one CPU of those that the process may use.
    /// The calling thread stays as it is. Default: no.
    pub fn pin_cores(self, pin: bool) -> Self {
        Self { pin_cores: pin, ..self }
    }

    /// Cuts every batch into tasks of about this many bytes, however small it is, so that
    /// tests see what otherwise only large batches do.
    #[doc(hidden)]
    pub fn task_bytes(self, bytes: usize) -> Self {
        Self { task_bytes: Some(bytes), ..self }
    }

    /// The engine.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnavailableBackend`] for a backend that this CPU cannot run;
    /// [`EngineError::PinnedPool`] for a given pool whose threads should be pinned.
    pub fn build(self) -> Result<Engine<S>, EngineError> {
        if let Some(backend) = self.backend
            && !backend.is_available()
        {
            return Err(EngineError::UnavailableBackend { name: backend.name().into() });
        }
        if self.pin_cores && matches!(self.threads, Threads::Pool(_)) {
            return Err(EngineError::PinnedPool);
        }
        Ok(self.engine())
    }

    pub(crate) fn engine(self) -> Engine<S> {
        let own = Pool::Own(OnceLock::new(), self.pin_cores);
        let (threads, pool) = match self.threads {
            Threads::Own(0) => (available_threads(), own),
            Threads::Own(threads) => (threads.min(rayon::max_num_threads()), own),
            Threads::Pool(pool) => (pool.current_num_threads(), Pool::Given(pool)),
        };
        Engine {
            planner: Planner::new(self.scheme, self.block_size.0),
            backend: self.backend.unwrap_or_else(Backend::detect),
            columns: self.columns,
            threads,
            task_bytes: self.task_bytes,
            pool,
        }
    }
}

/// What affinity mask and cgroup quota leave to the process.
fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

//! From requests to rows of numbers: what is hashed from where to where, under which seed.

use std::ops::Range;

use crate::digest::SaltHash;
use crate::error::RequestError;
use crate::plh::MAX_POSITION;
use crate::request::{MmRun, Request};
use crate::run::Size;
use crate::scheme::Scheme;
use crate::scheme::encode::{Stretches, TOKEN_BYTES, whole_blocks};
use crate::scheme::sealed::General;

/// One request, planned. What of it is in the request is not here again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    /// Where its rows start among those of the batch.
    pub(crate) first_row: usize,
    /// Tokens after the last block.
    pub(crate) tail: usize,
    /// The seed of its block hashes.
    pub(crate) salt_hash: SaltHash,
    pub(crate) shape: Shape,
}

/// Tokens a block, and the number of blocks and rows. In one word, the size of a block first: what
/// makes requests go well side by side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape(u64);

impl Shape {
    /// Positions, and so numbers of blocks, have 24 bits.
    pub(crate) fn new(block_size: u32, blocks: usize) -> Self {
        Self(u64::from(block_size) << 32 | blocks as u64)
    }

    pub(crate) fn block_size(self) -> usize {
        (self.0 >> 32) as usize
    }

    pub(crate) fn blocks(self) -> usize {
        self.0 as u32 as usize
    }

    /// How many bytes a block of tokens has.
    pub(crate) fn block_bytes(self) -> usize {
        self.block_size() * TOKEN_BYTES
    }

    /// How many bytes all its blocks of tokens have.
    pub(crate) fn bytes(self) -> usize {
        self.blocks() * self.block_bytes()
    }
}

/// A plan, or why there is none.
pub(crate) type Planned = Result<Plan, RequestError>;

impl Plan {
    /// Where its rows stand among those of the batch: one a block.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.shape.blocks()
    }

    /// What of a request with these runs is hashed from where.
    pub(crate) fn stretches<'a>(&self, request: &Request<'_>, runs: &'a [MmRun]) -> Stretches<'a> {
        let block_size = self.shape.block_size();
        // In range: checked when the plan was made.
        let first_token = request.first_block() as usize * block_size;
        Stretches::new(runs, first_token, block_size, self.shape.blocks())
    }
}

impl Request<'_> {
    /// Whether it is tokens and nothing else that takes planning.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        let Self { lora_name, salt, mm_runs, parent, .. } = self;
        lora_name.is_none() & salt.is_none() & mm_runs.is_empty() & parent.is_none()
    }

    /// The sequence hash of the block before its first one, where there is one.
    #[inline(always)]
    pub(crate) fn state(&self) -> Option<u64> {
        self.parent.map(|parent| parent.current_sequence_hash().0)
    }

    /// The position of its first block, in blocks.
    #[inline(always)]
    pub(crate) fn first_block(&self) -> u64 {
        self.parent.map_or(0, |parent| parent.position() + 1)
    }
}

/// By what rules requests are planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planner<S> {
    pub(crate) scheme: S,
    /// Tokens a block, for requests that do not say so themselves.
    pub(crate) block_size: u32,
    /// The salt hash of requests without salt and LoRA name.
    plain_salt_hash: SaltHash,
}

/// What planning a task writes beside the plans, kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct PlanMemory {
    /// The requests that are hashed from their tokens alone.
    pub(crate) order: Order,
    /// The requests that have runs.
    pub(crate) images: Vec<WithRuns>,
    /// Copies of the runs of requests that gave them out of order.
    sorted_runs: Vec<MmRun>,
    salt_buffer: Vec<u8>,
}

/// The order in which requests are hashed.
#[derive(Debug, Default)]
pub(crate) struct Order {
    pub(crate) waiting: Vec<Waiting>,
    /// Whether it is that of their shapes.
    pub(crate) is_by_shape: bool,
}

impl Order {
    /// Adds the request at an index of the task, which is past those before.
    #[inline(always)]
    pub(crate) fn push(&mut self, shape: Shape, index: usize) {
        self.is_by_shape &= self.waiting.last().is_none_or(|last| last.shape <= shape);
        self.waiting.push(Waiting { shape, index });
    }
}

/// A request that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiting {
    pub(crate) shape: Shape,
    /// Its place in the task.
    pub(crate) index: usize,
}

/// A request with runs, and where those are found in the order of their offsets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WithRuns {
    /// Its place in the task.
    pub(crate) index: usize,
    /// Among the sorted runs, from here on; in the request where that is `None`.
    sorted: Option<usize>,
}

impl PlanMemory {
    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.order.waiting.capacity() * size_of::<Waiting>()
            + self.images.capacity() * size_of::<WithRuns>()
            + self.sorted_runs.capacity() * size_of::<MmRun>()
            + self.salt_buffer.capacity()
    }

    /// The runs of a request, in order.
    pub(crate) fn runs<'a>(&'a self, which: WithRuns, request: &Request<'a>) -> &'a [MmRun] {
        match which.sorted {
            None => request.mm_runs,
            Some(start) => &self.sorted_runs[start..][..request.mm_runs.len()],
        }
    }

    /// Notes a request that has runs, and gives those in order.
    #[cold]
    pub(crate) fn note_runs<'a>(&'a mut self, index: usize, runs: &'a [MmRun]) -> &'a [MmRun] {
        if runs.is_sorted_by_key(|run| run.offset) {
            self.images.push(WithRuns { index, sorted: None });
            return runs;
        }
        let start = self.sorted_runs.len();
        self.images.push(WithRuns { index, sorted: Some(start) });
        self.sorted_runs.extend_from_slice(runs);
        let sorted = &mut self.sorted_runs[start..];
        // Stable, as the peer's: of two runs with the same offset the second one overlaps.
        sorted.sort_by_key(|run| run.offset);
        sorted
    }

    /// Begins a task of so many requests.
    pub(crate) fn begin(&mut self, requests: usize) {
        self.order.waiting.clear();
        self.order.waiting.reserve(requests);
        self.order.is_by_shape = true;
        self.images.clear();
        self.sorted_runs.clear();
    }
}

impl<S: Scheme> Planner<S> {
    pub(crate) fn new(scheme: S, block_size: u32) -> Self {
        let plain_salt_hash = scheme.salt_hash(&Request::new(&[]), &mut Vec::new());
        Self { scheme, block_size, plain_salt_hash }
    }

    /// The seed of a request's chain steps.
    #[inline(always)]
    pub(crate) fn chain_seed(&self, plan: &Plan) -> u64 {
        self.scheme.chain_seed(plan.salt_hash)
    }

    #[inline(always)]
    fn block_size(&self, request: &Request<'_>) -> u32 {
        request.block_size.unwrap_or(self.block_size)
    }

    /// How many bytes a request's block of tokens has.
    pub(crate) fn block_bytes(&self, request: &Request<'_>) -> usize {
        self.block_size(request) as usize * TOKEN_BYTES
    }

    /// How many rows are set aside for a request: one for each of its blocks, though it may turn
    /// out to have none since it fails.
    #[inline(always)]
    pub(crate) fn rows(&self, request: &Request<'_>) -> usize {
        match blocks(request, self.block_size(request)) {
            blocks if blocks as u64 > MAX_POSITION + 1 => 0,
            blocks => blocks,
        }
    }

    /// What a request takes, if it does not fail.
    #[inline(always)]
    pub(crate) fn size(&self, request: &Request<'_>) -> Size {
        let rows = self.rows(request);
        Size { rows, bytes: rows * self.block_bytes(request) }
    }

    /// Plans the requests of a task, whose rows start at `row`. Gives the row after their last.
    pub(crate) fn plan_all(
        &self,
        requests: &[S::Request<'_>],
        mut row: usize,
        plans: &mut [Planned],
        memory: &mut PlanMemory,
    ) -> usize {
        memory.begin(requests.len());
        for (index, (place, request)) in plans.iter_mut().zip(requests).enumerate() {
            let request = request.general();
            let rows = self.rows(request);
            let first_row = row;
            row += rows;
            let shape = if request.is_plain() && rows > 0 {
                let plan = self.plan_of(request, first_row, rows, self.plain_salt_hash);
                *place = Ok(plan);
                plan.shape
            } else {
                *place = self.plan(index, request, first_row, memory);
                match place {
                    Ok(plan) if rows > 0 && request.mm_runs.is_empty() => plan.shape,
                    _ => continue,
                }
            };
            memory.order.push(shape, index);
        }
        row
    }

    /// Plans the request at `index` of a task, whose rows start at `first_row`.
    #[inline(never)]
    pub(crate) fn plan(
        &self,
        index: usize,
        request: &Request<'_>,
        first_row: usize,
        memory: &mut PlanMemory,
    ) -> Planned {
        let block_size = self.block_size(request);
        let first_block = request.first_block();
        if !request.mm_runs.is_empty() {
            let before = first_block as usize * block_size as usize;
            let runs = memory.note_runs(index, request.mm_runs);
            check_in_order(runs, before + request.tokens.len())?;
        }
        if block_size == 0 {
            return Err(RequestError::ZeroBlockSize);
        }
        let blocks = blocks(request, block_size);
        let end = first_block + blocks as u64;
        if blocks > 0 && end > MAX_POSITION + 1 {
            return Err(RequestError::PositionLimit { position: end - 1 });
        }
        let salt_hash = self.scheme.salt_hash(request, &mut memory.salt_buffer);
        Ok(self.plan_of(request, first_row, blocks, salt_hash))
    }

    #[inline(always)]
    fn plan_of(
        &self,
        request: &Request<'_>,
        first_row: usize,
        blocks: usize,
        salt_hash: SaltHash,
    ) -> Plan {
        let block_size = self.block_size(request);
        let tail = request.tokens.len() - blocks * block_size as usize;
        Plan { first_row, tail, salt_hash, shape: Shape::new(block_size, blocks) }
    }
}

/// How many blocks of its tokens a request is to be hashed to; none of size 0.
#[inline(always)]
fn blocks(request: &Request<'_>, block_size: u32) -> usize {
    match block_size {
        0 => 0,
        _ => whole_blocks(request.tokens.len(), block_size as usize).min(request.max_blocks),
    }
}

/// Checks runs that are in the order of their offsets; the first one that fails decides.
pub(crate) fn check_in_order(runs: &[MmRun], tokens_len: usize) -> Result<(), RequestError> {
    let mut previous_end = 0;
    for &MmRun { offset, length, .. } in runs {
        if length == 0 {
            return Err(RequestError::EmptyRun { offset });
        }
        let Some(end) = offset.checked_add(length) else {
            return Err(RequestError::OffsetOverflow { offset, length });
        };
        if end > tokens_len {
            return Err(RequestError::OutOfBounds { offset, length, tokens_len });
        }
        if offset < previous_end {
            return Err(RequestError::Overlapping { position: offset });
        }
        previous_end = end;
    }
    Ok(())
}

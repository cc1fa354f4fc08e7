//! From plans to rows: which blocks are hashed when, on which thread, side by side with which.

use std::ops::Range;
use std::slice;

use bytemuck::TransparentWrapper;

use crate::digest::{BlockHash, SequenceHash};
use crate::images::Frames;
use crate::kernel::{Arena, Backend, Lane, MAX_LANES, Workspace};
use crate::plan::{Plan, Plans};
use crate::plh::Mode;
use crate::scheme::Scheme;
use crate::scheme::encode::TOKEN_BYTES;
use crate::scheme::sealed::{General, Layout};
use crate::xxh3::keys::ChainKeys;

/// How many blocks make it worth while to go on side by side with dead lanes among them.
const SHORTEST_WALK: usize = 16;

/// A planned batch, to be run in one piece or cut between threads.
pub(crate) struct Batch<'r, 't, S: Scheme> {
    pub(crate) backend: Backend,
    pub(crate) requests: &'r [S::Request<'t>],
    pub(crate) plans: &'r Plans,
}

/// Where the results of some requests go: a row a block, and a hash a block for each column.
pub(crate) struct Output<'a, R> {
    pub(crate) rows: &'a mut [R],
    pub(crate) block_hashes: Option<&'a mut [BlockHash]>,
    pub(crate) sequence_hashes: Option<&'a mut [SequenceHash]>,
}

/// A thread's working memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    workspace: Workspace,
    /// The requests of a task that are hashed from their tokens alone, in the order in which
    /// they are.
    order: Vec<Waiting>,
    frames: Frames,
}

/// A request that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    /// What makes requests go well side by side: first the size of a block, then the number of
    /// blocks.
    kind: u64,
    index: usize,
}

impl Waiting {
    fn new(plan: &Plan, index: usize) -> Self {
        Self { kind: u64::from(plan.block_size) << 32 | u64::from(plan.blocks), index }
    }

    fn block_size(&self) -> usize {
        (self.kind >> 32) as usize
    }
}

impl Scratch {
    /// Gives memory back that a batch has left behind.
    pub(crate) fn shrink(&mut self) {
        self.order = Vec::new();
        self.frames = Vec::new();
    }
}

impl<'a, R> Output<'a, R> {
    /// Splits off what belongs to the next `count` blocks.
    pub(crate) fn take(&mut self, count: usize) -> Output<'a, R> {
        Output {
            rows: take(&mut self.rows, count),
            block_hashes: self.block_hashes.as_mut().map(|hashes| take(hashes, count)),
            sequence_hashes: self.sequence_hashes.as_mut().map(|hashes| take(hashes, count)),
        }
    }
}

fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    slice.split_off_mut(..count).expect("an output has room for every block")
}

impl<S: Scheme> Batch<'_, '_, S> {
    /// Runs the whole batch on the calling thread.
    pub(crate) fn run_here(&self, output: Output<'_, S::Row>, scratch: &mut Scratch) {
        self.run(0..self.requests.len(), output, scratch);
    }

    /// The plans of some requests, without those that failed.
    fn plans(&self, range: &Range<usize>) -> impl Iterator<Item = &Plan> {
        self.plans.plans[range.clone()].iter().flatten()
    }

    /// Runs some of the requests on the calling thread.
    pub(crate) fn run(
        &self,
        range: Range<usize>,
        mut output: Output<'_, S::Row>,
        scratch: &mut Scratch,
    ) {
        let words = S::Row::words_mut(output.rows);
        let hashes = output.block_hashes.as_deref_mut().map(BlockHash::peel_slice_mut);
        self.hash_and_chain(range.clone(), Arena { rows: words, hashes }, scratch);
        if !S::Row::LOSES_SEQUENCE_HASHES {
            return;
        }
        for plan in self.plans(&range) {
            let output = output.take(plan.blocks as usize);
            let words = S::Row::words_mut(output.rows);
            S::Row::lay_out(words, plan.first_block.into(), output.sequence_hashes);
        }
    }

    /// Hashes the blocks of every request of a range, chains them and packs the rows.
    fn hash_and_chain(&self, range: Range<usize>, mut arena: Arena<'_>, scratch: &mut Scratch) {
        let first_row = self.plans(&range).next().map_or(0, |plan| plan.first_row);
        let Scratch { workspace, order, frames } = scratch;
        order.clear();
        let (mut in_order, mut last) = (true, 0);
        for index in range {
            let (Ok(plan), request) = (&self.plans.plans[index], self.requests[index].general())
            else {
                continue;
            };
            if !request.mm_runs.is_empty() {
                let lane = self.lane(index, first_row);
                self.run_stretches(request, plan, lane, &mut arena, workspace, frames);
            } else if plan.blocks > 0 {
                let waiting = Waiting::new(plan, index);
                in_order &= last <= waiting.kind;
                last = waiting.kind;
                order.push(waiting);
            }
        }
        // Neighbours of about the same number of blocks end at about the same time.
        if !in_order {
            order.sort_unstable();
        }
        let mut order = &order[..];
        if let [only] = order {
            // Spared the room for others.
            let len = only.block_size() * TOKEN_BYTES;
            let mut lane = self.lane(only.index, first_row);
            self.advance(lane.left, len, slice::from_mut(&mut lane), &mut arena, workspace);
            return;
        }
        let mut lanes = [Lane::default(); MAX_LANES];
        while let Some(first) = order.first() {
            let block_size = first.block_size();
            let len = block_size * TOKEN_BYTES;
            let width = *self.backend.lanes(len).end();
            let same = order.iter().take(width);
            let count = same.take_while(|other| other.block_size() == block_size).count();
            let (group, rest) = order.split_at(count);
            for (i, waiting) in group.iter().enumerate() {
                lanes[i] = self.lane(waiting.index, first_row);
                if let Some(next) = rest.get(i) {
                    lanes[i].next = self.tokens(next.index);
                }
            }
            self.run_group(len, &mut lanes[..count], &mut arena, workspace);
            order = rest;
        }
    }

    #[inline]
    pub(crate) fn plan(&self, index: usize) -> &Plan {
        self.plans.plans[index].as_ref().expect("a request that failed has no turn")
    }

    /// Hashes the blocks of a request without runs from `start` on, as many as there is room for.
    pub(crate) fn hash_blocks(
        &self,
        index: usize,
        start: usize,
        hashes: &mut [u64],
        scratch: &mut Scratch,
    ) {
        let plan = self.plan(index);
        let len = plan.block_bytes();
        let blocks = &self.tokens(index)[start * len..(start + hashes.len()) * len];
        let seed = plan.seeds.salt_hash.0;
        self.backend.hash(blocks, len, seed, hashes, &mut scratch.workspace);
    }

    /// Chains the hashes of a lane's next blocks; `rows` are those of the whole lane.
    pub(crate) fn chain_blocks(&self, lane: &mut Lane<'_>, mut hashes: &[u64], rows: &mut [u128]) {
        while !hashes.is_empty() {
            let together = lay_out(slice::from_mut(lane), hashes.len());
            let now = hashes.split_off(..together).expect("at most all of them");
            self.backend.chain(now, lane, rows);
        }
    }

    fn tokens(&self, index: usize) -> &[u8] {
        bytemuck::cast_slice(self.requests[index].general().tokens)
    }

    /// A planned request before its first block. Its task's rows start at `first_row`.
    #[inline]
    pub(crate) fn lane(&self, index: usize, first_row: usize) -> Lane<'_> {
        let plan = self.plan(index);
        Lane {
            blocks: self.tokens(index),
            left: plan.blocks as usize,
            row: plan.first_row - first_row,
            position: plan.first_block.into(),
            seed: plan.seeds.salt_hash.0,
            chain: ChainKeys::new(plan.seeds.chain),
            state: plan.state,
            ..Lane::default()
        }
    }

    /// Takes lanes to their ends, the shortest first: side by side as long as there are enough
    /// of them, then one by one.
    fn run_group(
        &self,
        len: usize,
        mut lanes: &mut [Lane<'_>],
        arena: &mut Arena<'_>,
        workspace: &mut Workspace,
    ) {
        let fewest = *self.backend.lanes(len).start();
        while lanes.len() > 1 && lanes.len() >= fewest {
            let count = lanes[0].left;
            if count < SHORTEST_WALK && lanes.len() < MAX_LANES {
                break;
            }
            self.advance(count, len, lanes, arena, workspace);
            let done = lanes.iter().take_while(|lane| lane.left == 0).count();
            lanes = &mut lanes[done..];
        }
        for lane in lanes {
            self.advance(lane.left, len, slice::from_mut(lane), arena, workspace);
        }
    }

    /// Takes every lane `count` blocks on, in as many calls as layouts ask for.
    pub(crate) fn advance(
        &self,
        mut count: usize,
        len: usize,
        lanes: &mut [Lane<'_>],
        arena: &mut Arena<'_>,
        workspace: &mut Workspace,
    ) {
        while count > 0 {
            let together = lay_out(lanes, count);
            self.backend.walk(together, len, lanes, arena, workspace);
            count -= together;
        }
    }
}

/// Sets how lanes pack their next rows; gives how many of the next `count` blocks it holds for.
pub(crate) fn lay_out(lanes: &mut [Lane<'_>], count: usize) -> usize {
    let mut together = count;
    for lane in lanes {
        let mode = mode_of(lane.position);
        lane.fragment_bits = mode.fragment_bits();
        lane.prefix = mode.prefix(lane.position);
        together = together.min((mode.end() - lane.position) as usize);
    }
    together
}

fn mode_of(position: u64) -> Mode {
    Mode::of(position).expect("positions are checked when a request is planned")
}

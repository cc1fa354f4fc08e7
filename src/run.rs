//! From plans to rows: which blocks are hashed when, on which thread, side by side with which.

use std::ops::Range;
use std::slice;

use crate::images::Frames;
use crate::kernel::{Backend, Lane, MAX_LANES, Workspace};
use crate::output::{Output, Place, Places, cells};
use crate::plan::{Plan, PlanMemory, Planned, Planner, Waiting};
use crate::plh::Mode;
use crate::request::Request;
use crate::scheme::Scheme;
use crate::scheme::sealed::{General, Layout};
use crate::xxh3::keys::ChainKeys;

/// How many blocks make it worth while to go on side by side with dead lanes among them.
const SHORTEST_WALK: usize = 16;

/// How many requests at most are taken together where they go one after the other: the more, the fewer
/// pauses.
const MAX_IN_TURN: usize = 32;

/// A batch, to be run in one piece or cut between threads.
pub(crate) struct Batch<'r, 't, S: Scheme> {
    pub(crate) backend: Backend,
    pub(crate) planner: &'r Planner<S>,
    pub(crate) requests: &'r [S::Request<'t>],
}

/// How many requests a batch is counted by, so that it can be cut without counting them again.
pub(crate) const REQUESTS_A_CHUNK: usize = 32;

/// What some requests take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    /// How many bytes they are hashed from, frames taken for tokens.
    pub(crate) bytes: usize,
}

impl Size {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }
}

/// What a batch works with, kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) chunks: Vec<Size>,
    pub(crate) scratches: Scratches,
    /// Block hashes of requests that are hashed in pieces, where they are not kept.
    pub(crate) large_hashes: Vec<u64>,
}

impl Memory {
    /// Gives memory back where single requests have made it larger than so many bytes.
    pub(crate) fn shrink_past(&mut self, bytes: usize) {
        let scratches: usize = self.scratches.0.iter().map(Scratch::bytes).sum();
        if scratches + size_of_val(&self.large_hashes[..]) > bytes {
            self.shrink();
        }
    }

    /// Gives memory back that a batch has left behind.
    pub(crate) fn shrink(&mut self) {
        self.chunks = Vec::new();
        self.large_hashes = Vec::new();
        for scratch in &mut self.scratches.0 {
            scratch.plans = PlanMemory::default();
            scratch.frames = Vec::new();
        }
    }
}

/// The working memories of threads.
#[derive(Debug, Default)]
pub(crate) struct Scratches(Vec<Scratch>);

impl Scratches {
    /// Those of so many threads.
    #[inline]
    pub(crate) fn at_least(&mut self, count: usize) -> &mut [Scratch] {
        if self.0.len() < count {
            self.0.resize_with(count, Scratch::default);
        }
        &mut self.0[..count]
    }
}

/// A thread's working memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) plans: PlanMemory,
    workspace: Workspace,
    frames: Frames,
}

impl Scratch {
    /// How much of it is as large as single requests make it.
    fn bytes(&self) -> usize {
        self.plans.bytes() + size_of_val(&self.frames[..])
    }
}

impl<S: Scheme> Batch<'_, '_, S> {
    /// Plans the whole batch. Gives the number of its rows.
    pub(crate) fn plan(&self, plans: &mut [Planned], scratch: &mut Scratch) -> usize {
        self.planner.plan_all(self.requests, 0, plans, &mut scratch.plans)
    }

    /// Counts what the batch takes, chunk by chunk, too.
    pub(crate) fn count_chunks(&self, chunks: &mut Vec<Size>) -> Size {
        let requests = self.requests.chunks(REQUESTS_A_CHUNK);
        chunks.clear();
        chunks.extend(requests.map(|requests| self.count_some(requests)));
        chunks.iter().fold(Size::default(), |all, &chunk| all.and(chunk))
    }

    #[inline]
    fn count_some(&self, requests: &[S::Request<'_>]) -> Size {
        let sizes = requests.iter().map(|request| self.planner.size(request.general()));
        sizes.fold(Size::default(), Size::and)
    }

    /// A request of the batch.
    #[inline]
    pub(crate) fn request(&self, index: usize) -> &Request<'_> {
        self.requests[index].general()
    }

    /// Plans some of the requests, and [runs](Self::run) them.
    pub(crate) fn plan_and_run(
        &self,
        range: Range<usize>,
        output: &mut Output<'_, S::Row>,
        scratch: &mut Scratch,
    ) {
        let requests = &self.requests[range.clone()];
        self.planner.plan_all(requests, output.first_row, output.plans, &mut scratch.plans);
        self.run(range, output, scratch);
    }

    /// Runs some of the requests, which have been planned, on the calling thread.
    pub(crate) fn run(
        &self,
        range: Range<usize>,
        output: &mut Output<'_, S::Row>,
        scratch: &mut Scratch,
    ) {
        self.hash_and_chain(range.clone(), output, scratch);
        if S::Row::LOSES_SEQUENCE_HASHES {
            self.lay_rows_out(range, output);
        }
    }

    /// Brings rows that are hashed into their type's own layout.
    fn lay_rows_out(&self, range: Range<usize>, output: &mut Output<'_, S::Row>) {
        for request in &self.requests[range] {
            let request = request.general();
            // Rows of requests that failed are nobody's.
            self.lay_out(request, output.take(1, self.planner.rows(request)));
        }
    }

    /// Brings the rows of one request into their type's own layout.
    pub(crate) fn lay_out(&self, request: &Request<'_>, mut output: Output<'_, S::Row>) {
        let words = S::Row::words_mut(output.rows.of_one());
        S::Row::lay_out(words, request.first_block(), output.sequence_hashes);
    }

    /// Hashes the blocks of each request of a range, chains them and packs the rows.
    fn hash_and_chain(
        &self,
        range: Range<usize>,
        output: &mut Output<'_, S::Row>,
        scratch: &mut Scratch,
    ) {
        let (plans, places) = output.places(S::Row::words_mut);
        let Scratch { plans: memory, workspace, frames } = scratch;
        let requests = &self.requests[range];
        for &which in &memory.images {
            if let Ok(plan) = &plans[which.index] {
                let request = requests[which.index].general();
                let lane = self.lane(request, plan, places.of(which.index, plan));
                let stretches = plan.stretches(request, memory.runs(which, request));
                self.run_stretches(request, stretches, lane, workspace, frames);
            }
        }
        let task = Task { batch: self, requests, plans, places };
        if !memory.in_order && !memory.order.iter().all(|waiting| task.goes_in_turn(waiting)) {
            // Side by side, neighbours of about the same number of blocks end at about the same time.
            memory.order.sort_unstable();
        }
        let order = &memory.order[..];
        match order {
            // Spared the room for others.
            [only] => {
                let (len, mut lane) = (only.shape.block_bytes(), task.lane(only));
                match task.goes_in_turn(only) {
                    true => self.walk_group(len, slice::from_mut(&mut lane), workspace),
                    false => self.walk_to_end(len, &mut lane, workspace),
                }
            }
            [first, ..] if order.len() > MAX_LANES && task.goes_in_turn(first) => {
                task.walk_groups::<MAX_IN_TURN>(order, workspace);
            }
            _ => task.walk_groups::<MAX_LANES>(order, workspace),
        }
    }

    /// Hashes the blocks of a request without runs from `start` on, as many as there is room for.
    pub(crate) fn hash_blocks(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        start: usize,
        hashes: &mut [u64],
        scratch: &mut Scratch,
    ) {
        let len = plan.shape.block_bytes();
        let blocks = &tokens(request)[start * len..(start + hashes.len()) * len];
        self.backend.hash(blocks, len, plan.salt_hash.0, cells(hashes), &mut scratch.workspace);
    }

    /// Chains the hashes of a request's blocks from `start` on, after the sequence hash of the block
    /// before. Gives that of the last one. `rows` are those of the whole request.
    pub(crate) fn chain_blocks(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        start: usize,
        state: Option<u64>,
        mut hashes: &[u64],
        rows: &mut [S::Row],
    ) -> Option<u64> {
        let mut lane = self.lane(request, plan, (cells(S::Row::words_mut(rows)), None));
        lane.take_places(start);
        lane.state = state;
        while !hashes.is_empty() {
            let together = lay_out(slice::from_mut(&mut lane), hashes.len());
            let now = hashes.split_off(..together).expect("at most all of them");
            self.backend.chain(now, &mut lane);
        }
        lane.state
    }

    /// A planned request before its first block.
    #[inline(always)]
    fn lane<'a>(&self, request: &Request<'a>, plan: &Plan, (rows, hashes): Place<'a>) -> Lane<'a> {
        Lane {
            blocks: tokens(request),
            left: plan.shape.blocks(),
            rows,
            hashes,
            position: request.first_block(),
            seed: plan.salt_hash.0,
            chain: ChainKeys::new(self.planner.chain_seed(plan)),
            state: request.state(),
            ..Lane::default()
        }
    }

    /// Takes lanes to their ends: in turn, where the backend goes so, and otherwise the shortest first, side
    /// by side as long as there are enough of them, then two by two, the longest first, and what is left of
    /// them one by one.
    fn walk_group(&self, len: usize, mut lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
        let keeps_hashes = lanes[0].hashes.is_some();
        if self.backend.goes_in_turn(len, keeps_hashes) {
            return self.walk_in_turn(len, lanes, workspace);
        }
        let fewest = *self.backend.lanes(len).start();
        while lanes.len() > 1 && lanes.len() >= fewest {
            let count = lanes[0].left;
            if count < SHORTEST_WALK && lanes.len() < MAX_LANES {
                break;
            }
            self.advance(count, len, lanes, workspace);
            let done = lanes.iter().take_while(|lane| lane.left == 0).count();
            lanes = &mut lanes[done..];
        }
        while let [.., a, b] = lanes
            && let count = a.left.min(b.left)
            && self.backend.goes_by_two(count, len, keeps_hashes)
        {
            let both = lanes.len() - 2;
            self.advance(count, len, &mut lanes[both..], workspace);
            // What is left of one goes on beside the next.
            if lanes[both].left == 0 {
                lanes.swap(both, both + 1);
            }
            let done = lanes[both..].iter().filter(|lane| lane.left == 0).count();
            lanes = &mut lanes[..both + 2 - done];
        }
        for lane in lanes {
            self.walk_to_end(len, lane, workspace);
        }
    }

    /// Takes lanes to their ends in turn; by itself one that comes to another layout before.
    fn walk_in_turn(&self, len: usize, mut lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
        while !lanes.is_empty() {
            let other = lanes.iter_mut().position(|lane| !packs_to_its_end(lane));
            let (alike, rest) = lanes.split_at_mut(other.unwrap_or(lanes.len()));
            if !alike.is_empty() {
                self.backend.walk_in_turn(len, alike, workspace);
            }
            let Some((other, rest)) = rest.split_first_mut() else { return };
            self.walk_to_end(len, other, workspace);
            lanes = rest;
        }
    }

    /// Takes one lane to its end.
    #[inline(always)]
    fn walk_to_end(&self, len: usize, lane: &mut Lane<'_>, workspace: &mut Workspace) {
        while lane.left > 0 {
            let left = lane.left;
            let together = lay_out(slice::from_mut(lane), left);
            self.backend.walk_one(together, len, lane, workspace);
        }
    }

    /// Takes every lane `count` blocks on, in as many calls as layouts ask for.
    pub(crate) fn advance(
        &self,
        mut count: usize,
        len: usize,
        lanes: &mut [Lane<'_>],
        workspace: &mut Workspace,
    ) {
        while count > 0 {
            let together = lay_out(lanes, count);
            self.backend.walk(together, len, lanes, workspace);
            count -= together;
        }
    }
}

/// Planned requests, and where their rows go.
struct Task<'a, 'r, 't, S: Scheme> {
    batch: &'a Batch<'r, 't, S>,
    requests: &'a [S::Request<'t>],
    plans: &'a [Planned],
    places: Places<'a>,
}

impl<S: Scheme> Task<'_, '_, '_, S> {
    /// Takes requests to their ends, up to `N` at a time.
    #[inline(always)]
    fn walk_groups<const N: usize>(&self, mut order: &[Waiting], workspace: &mut Workspace) {
        let batch = self.batch;
        let mut lanes = [Lane::default(); N];
        while let Some(first) = order.first() {
            let block_size = first.shape.block_size();
            let len = first.shape.block_bytes();
            let in_turn = self.goes_in_turn(first);
            let width = if in_turn { N } else { (*batch.backend.lanes(len).end()).min(N) };
            let same = order.iter().take(width);
            let count = same.take_while(|other| other.shape.block_size() == block_size).count();
            let (group, rest) = order.split_at(count);
            for (lane, waiting) in lanes.iter_mut().zip(group) {
                *lane = self.lane(waiting);
            }
            if workspace.hints.help() {
                // In turn, each goes over to its neighbour, and the last one to the next group.
                let first = if in_turn { count - 1 } else { 0 };
                for (lane, next) in lanes[first..count].iter_mut().zip(rest) {
                    lane.next = self.lane(next).blocks;
                }
            }
            batch.walk_group(len, &mut lanes[..count], workspace);
            order = rest;
        }
    }

    /// Whether a request goes after others, not beside them.
    fn goes_in_turn(&self, waiting: &Waiting) -> bool {
        let len = waiting.shape.block_bytes();
        self.batch.backend.goes_in_turn(len, self.places.keep_hashes())
    }

    /// A request that waits for its turn, before its first block.
    #[inline(always)]
    fn lane(&self, &Waiting { index, .. }: &Waiting) -> Lane<'_> {
        let plan = self.plans[index].as_ref().expect("a request that failed has no turn");
        self.batch.lane(self.requests[index].general(), plan, self.places.of(index, plan))
    }
}

/// The bytes of a request's tokens.
#[inline(always)]
fn tokens<'a>(request: &Request<'a>) -> &'a [u8] {
    bytemuck::cast_slice(request.tokens)
}

/// Sets how lanes pack their next rows; gives how many of the next `count` blocks it holds for.
#[inline]
pub(crate) fn lay_out(lanes: &mut [Lane<'_>], count: usize) -> usize {
    let mut together = count;
    let Some(first) = lanes.first() else { return together };
    let mut position = first.position;
    let mut mode = mode_of(position);
    for lane in lanes {
        if lane.position != position {
            position = lane.position;
            mode = mode_of(position);
        }
        lane.fragment_bits = mode.fragment_bits();
        lane.prefix = mode.prefix(position);
        together = together.min((mode.end() - position) as usize);
    }
    together
}

/// Sets how a lane packs its rows; whether that holds to its end.
fn packs_to_its_end(lane: &mut Lane<'_>) -> bool {
    let left = lane.left;
    lay_out(slice::from_mut(lane), left) == left
}

#[inline]
fn mode_of(position: u64) -> Mode {
    Mode::of(position).expect("positions are checked when a request is planned")
}

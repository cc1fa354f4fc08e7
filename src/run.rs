//! From plans to rows: a batch, or a part of it, on one thread.

use std::ops::Range;
use std::slice;

use crate::images::Frames;
use crate::kernel::{Backend, Lane, Workspace};
use crate::output::{Output, Place, Places, cells};
use crate::plan::{Plan, PlanMemory, Planned, Planner};
use crate::request::Request;
use crate::scheme::Scheme;
use crate::scheme::sealed::{General, Layout};
use crate::walk::{Lanes, Walker, lay_out};
use crate::xxh3::keys::ChainKeys;

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
    pub(crate) workspace: Workspace,
    pub(crate) frames: Frames,
}

impl Scratch {
    /// How much of it is as large as single requests, or the number of requests, make it.
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
        let keeps_hashes = places.keep_hashes();
        let mut walker = Walker { backend: self.backend, keeps_hashes, workspace };
        for &which in &memory.images {
            if let Ok(plan) = &plans[which.index] {
                let request = requests[which.index].general();
                let lane = self.planner.lane(request, plan, places.of(which.index, plan));
                let stretches = plan.stretches(request, memory.runs(which, request));
                walker.walk_stretches(request, stretches, lane, frames);
            }
        }
        let task = Task { planner: self.planner, requests, plans, places };
        walker.walk_all(&mut memory.order, &task);
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
        let mut lane = self.planner.lane(request, plan, (cells(S::Row::words_mut(rows)), None));
        lane.take_places(start);
        lane.state = state;
        while !hashes.is_empty() {
            let together = lay_out(slice::from_mut(&mut lane), hashes.len());
            let now = hashes.split_off(..together).expect("at most all of them");
            self.backend.chain(now, &mut lane);
        }
        lane.state
    }
}

impl<S: Scheme> Planner<S> {
    /// A planned request before its first block.
    #[inline(always)]
    pub(crate) fn lane<'a>(
        &self,
        request: &Request<'a>,
        plan: &Plan,
        (rows, hashes): Place<'a>,
    ) -> Lane<'a> {
        Lane {
            blocks: tokens(request),
            left: plan.shape.blocks(),
            rows,
            hashes,
            position: request.first_block(),
            seed: plan.salt_hash.0,
            chain: ChainKeys::new(self.chain_seed(plan)),
            state: request.state(),
            ..Lane::default()
        }
    }
}

/// Planned requests, and where their rows go.
struct Task<'a, 't, S: Scheme> {
    planner: &'a Planner<S>,
    requests: &'a [S::Request<'t>],
    plans: &'a [Planned],
    places: Places<'a>,
}

impl<'a, 't: 'a, S: Scheme> Lanes<'a> for Task<'a, 't, S> {
    #[inline(always)]
    fn lane(&self, index: usize) -> Lane<'a> {
        let plan = self.plans[index].as_ref().expect("a request that failed has no turn");
        let (request, place) = (self.requests[index].general(), self.places.of(index, plan));
        self.planner.lane(request, plan, place)
    }

    #[inline(always)]
    fn blocks(&self, index: usize) -> &'a [u8] {
        tokens(self.requests[index].general())
    }
}

/// The bytes of a request's tokens.
#[inline(always)]
fn tokens<'a>(request: &Request<'a>) -> &'a [u8] {
    bytemuck::cast_slice(request.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Waiting;

    #[test]
    fn what_many_requests_make_large_is_given_back_past_a_limit() {
        let mut memory = Memory::default();
        let capacity =
            |memory: &mut Memory| memory.scratches.at_least(1)[0].plans.order.waiting.capacity();
        memory.scratches.at_least(1)[0].plans.begin(1000);
        let bytes = capacity(&mut memory) * size_of::<Waiting>();
        memory.shrink_past(bytes);
        assert!(capacity(&mut memory) >= 1000);
        memory.shrink_past(bytes - 1);
        assert_eq!(capacity(&mut memory), 0);
    }
}

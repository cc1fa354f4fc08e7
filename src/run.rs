//! From plans to rows: which blocks are hashed when, on which thread, side by side with which.

use std::ops::Range;
use std::slice;

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::digest::{BlockHash, SequenceHash};
use crate::kernel::{Backend, Lane, MAX_LANES, Workspace};
use crate::plan::{Plan, Plans};
use crate::plh::Mode;
use crate::request::Request;
use crate::scheme::Scheme;
use crate::scheme::encode::{FRAME_BYTES, SLACK, Stretch, Stretches, TOKEN_BYTES, encode_frames};
use crate::scheme::sealed::{General, Layout};
use crate::xxh3::keys::ChainKeys;

/// How many bytes of frames are written before they are hashed: few enough to stay in the
/// first-level cache.
const FRAMES_AT_ONCE: usize = 8 << 10;

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
    frames: Vec<[u8; FRAME_BYTES]>,
}

/// A request that waits for its turn. Ordered by what makes requests go well side by side:
/// first by the bytes of a block, then by the number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    block_bytes: usize,
    blocks: usize,
    index: usize,
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
    fn take(&mut self, count: usize) -> Output<'a, R> {
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

    /// Runs the batch on a pool, in tasks of whole requests that make up about `task_bytes`.
    pub(crate) fn run_on(
        &self,
        pool: &ThreadPool,
        task_bytes: usize,
        mut output: Output<'_, S::Row>,
        scratches: &mut Vec<Scratch>,
    ) {
        let ranges = cut(self.plans, task_bytes);
        if scratches.len() < ranges.len() {
            scratches.resize_with(ranges.len(), Scratch::default);
        }
        let mut tasks = Vec::with_capacity(ranges.len());
        for (range, scratch) in ranges.into_iter().zip(scratches) {
            let blocks = self.plans(&range).map(|plan| plan.rows.len()).sum();
            tasks.push((range, output.take(blocks), scratch));
        }
        pool.install(|| {
            tasks
                .into_par_iter()
                .with_max_len(1)
                .for_each(|(range, output, scratch)| self.run(range, output, scratch));
        });
    }

    /// The plans of some requests, without those that failed.
    fn plans(&self, range: &Range<usize>) -> impl Iterator<Item = &Plan> {
        self.plans.plans[range.clone()].iter().flatten()
    }

    fn run(&self, range: Range<usize>, mut output: Output<'_, S::Row>, scratch: &mut Scratch) {
        let words = S::Row::words_mut(output.rows);
        let hashes = output.block_hashes.as_deref_mut().map(BlockHash::peel_slice_mut);
        self.hash_and_chain(range.clone(), words, hashes, scratch);
        if !S::Row::LOSES_SEQUENCE_HASHES {
            return;
        }
        for plan in self.plans(&range) {
            let output = output.take(plan.rows.len());
            let words = S::Row::words_mut(output.rows);
            S::Row::lay_out(words, plan.first_block, output.sequence_hashes);
        }
    }

    /// Requests without runs are put in order of their lengths and go side by side, as many as
    /// the backend takes at once.
    fn hash_and_chain(
        &self,
        range: Range<usize>,
        rows: &mut [u128],
        mut hashes: Option<&mut [u64]>,
        scratch: &mut Scratch,
    ) {
        let first_row = self.plans(&range).next().map_or(0, |plan| plan.rows.start);
        let Scratch { workspace, order, frames } = scratch;
        order.clear();
        for index in range {
            let (Ok(plan), request) = (&self.plans.plans[index], self.requests[index].general())
            else {
                continue;
            };
            let (blocks, block_bytes) = (plan.rows.len(), plan.block_size * TOKEN_BYTES);
            if !request.mm_runs.is_empty() {
                let window = from(plan.rows.clone(), first_row);
                let kept = hashes.as_mut().map(|hashes| &mut hashes[window.clone()]);
                let lane = self.lane(index, &mut rows[window], kept);
                self.run_stretches(request, plan, lane, workspace, frames);
            } else if blocks > 0 {
                order.push(Waiting { block_bytes, blocks, index });
            }
        }
        // Neighbours of about the same number of blocks end at about the same time.
        if !order.is_sorted() {
            order.sort_unstable();
        }
        let width = |waiting: &Waiting| *self.backend.lanes(waiting.block_bytes).end();
        let mut order = &order[..];
        while let Some(first) = order.first() {
            let same = order.iter().take(width(first));
            let count = same.take_while(|other| other.block_bytes == first.block_bytes).count();
            let (group, rest) = order.split_at(count);
            if let [only] = group {
                // What is below would find it a place among windows that nobody needs.
                let plan = self.plan(only.index);
                let window = from(plan.rows.clone(), first_row);
                let kept = hashes.as_mut().map(|hashes| &mut hashes[window.clone()]);
                let mut lane = self.lane(only.index, &mut rows[window], kept);
                let (lane, position) = (slice::from_mut(&mut lane), &mut [plan.first_block]);
                self.advance(only.blocks, only.block_bytes, lane, position, workspace);
                order = rest;
                continue;
            }
            let window = |i: usize| {
                let plan = |waiting: &Waiting| self.plan(waiting.index).rows.clone();
                from(group.get(i).map_or(first_row..first_row, plan), first_row)
            };
            let windows: [_; MAX_LANES] = std::array::from_fn(window);
            let apart = "rows of different requests do not overlap";
            let rows = rows.get_disjoint_mut(windows.clone()).expect(apart);
            let hashes = match &mut hashes {
                Some(hashes) => hashes.get_disjoint_mut(windows).expect(apart).map(Some),
                None => [const { None }; MAX_LANES],
            };
            let mut lanes: [Lane<'_>; MAX_LANES] = Default::default();
            let mut positions = [0; MAX_LANES];
            for (i, (rows, hashes)) in rows.into_iter().zip(hashes).enumerate().take(count) {
                let index = group[i].index;
                lanes[i] = self.lane(index, rows, hashes);
                if let Some(next) = rest.get(i) {
                    let request = self.requests[next.index].general();
                    lanes[i].next = bytemuck::cast_slice(request.tokens);
                }
                positions[i] = self.plan(index).first_block;
            }
            let lanes = &mut lanes[..count];
            self.run_group(first.block_bytes, lanes, &mut positions[..count], workspace);
            order = rest;
        }
    }

    fn plan(&self, index: usize) -> &Plan {
        self.plans.plans[index].as_ref().expect("a request that failed has no turn")
    }

    /// A planned request before its first block, and where its results go.
    fn lane<'a>(
        &'a self,
        index: usize,
        rows: &'a mut [u128],
        hashes: Option<&'a mut [u64]>,
    ) -> Lane<'a> {
        let plan = self.plan(index);
        Lane {
            blocks: bytemuck::cast_slice(self.requests[index].general().tokens),
            rows,
            hashes,
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
        block_bytes: usize,
        mut lanes: &mut [Lane<'_>],
        mut positions: &mut [u64],
        workspace: &mut Workspace,
    ) {
        let fewest = *self.backend.lanes(block_bytes).start();
        while lanes.len() >= fewest {
            let count = lanes[0].rows.len();
            if count < SHORTEST_WALK && lanes.len() < MAX_LANES {
                break;
            }
            self.advance(count, block_bytes, lanes, positions, workspace);
            let done = lanes.iter().take_while(|lane| lane.rows.is_empty()).count();
            lanes = &mut lanes[done..];
            positions = &mut positions[done..];
        }
        for (lane, position) in lanes.iter_mut().zip(positions) {
            let (lane, position) = (slice::from_mut(lane), slice::from_mut(position));
            self.advance(lane[0].rows.len(), block_bytes, lane, position, workspace);
        }
    }

    /// Takes every lane `count` blocks on, in as many calls as layouts ask for.
    fn advance(
        &self,
        mut count: usize,
        block_bytes: usize,
        lanes: &mut [Lane<'_>],
        positions: &mut [u64],
        workspace: &mut Workspace,
    ) {
        while count > 0 {
            let mut together = count;
            for (lane, position) in lanes.iter_mut().zip(&*positions) {
                let mode = mode_of(*position);
                lane.fragment_bits = mode.fragment_bits();
                lane.prefix = mode.prefix(*position);
                together = together.min((mode.end() - position) as usize);
            }
            self.backend.walk(together, block_bytes, lanes, workspace);
            positions.iter_mut().for_each(|position| *position += together as u64);
            count -= together;
        }
    }

    /// One request with multimodal runs. Text stretches are hashed where they lie, framed ones
    /// by way of the scratch memory.
    fn run_stretches(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        mut lane: Lane<'_>,
        workspace: &mut Workspace,
        frames: &mut Vec<[u8; FRAME_BYTES]>,
    ) {
        let block_size = plan.block_size;
        let first_token = plan.first_token();
        let runs = self.plans.runs(plan, request);
        let blocks_at_once = (FRAMES_AT_ONCE / (block_size * FRAME_BYTES)).max(1);
        let mut walk = |blocks: &[u8], range: Range<usize>, slot_bytes: usize| {
            let mut part = Lane {
                blocks,
                rows: take(&mut lane.rows, range.len()),
                hashes: lane.hashes.as_mut().map(|hashes| take(hashes, range.len())),
                next: &[],
                ..lane
            };
            let mut position = plan.first_block + range.start as u64;
            let (part, position) = (slice::from_mut(&mut part), slice::from_mut(&mut position));
            self.advance(range.len(), block_size * slot_bytes, part, position, workspace);
            lane.state = part[0].state;
        };
        for stretch in Stretches::new(runs, first_token, block_size, plan.rows.len()) {
            match stretch {
                Stretch::Text(range) => {
                    let tokens = &request.tokens[range.start * block_size..range.end * block_size];
                    walk(bytemuck::cast_slice(tokens), range, TOKEN_BYTES);
                }
                Stretch::Framed(range, mut runs) => {
                    for start in range.clone().step_by(blocks_at_once) {
                        let blocks = start..range.end.min(start + blocks_at_once);
                        let slots = blocks.start * block_size..blocks.end * block_size;
                        let (count, position) = (slots.len(), first_token + slots.start);
                        if frames.len() < count + SLACK {
                            frames.resize(count + SLACK, [0; FRAME_BYTES]);
                        }
                        let tokens = &request.tokens[slots.start..];
                        encode_frames(tokens, count, position, &mut runs, frames);
                        walk(frames[..count].as_flattened(), blocks, FRAME_BYTES);
                    }
                }
            }
        }
    }
}

/// A range of the batch's rows as one of a task's, which start at `first`.
fn from(rows: Range<usize>, first: usize) -> Range<usize> {
    rows.start - first..rows.end - first
}

fn mode_of(position: u64) -> Mode {
    Mode::of(position).expect("positions are checked when a request is planned")
}

/// Cuts a batch into runs of requests of about `task_bytes` each.
fn cut(plans: &Plans, task_bytes: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (i, plan) in plans.plans.iter().enumerate() {
        bytes += plan.as_ref().map_or(0, Plan::bytes);
        if bytes >= task_bytes {
            ranges.push(start..i + 1);
            start = i + 1;
            bytes = 0;
        }
    }
    if start < plans.plans.len() {
        ranges.push(start..plans.plans.len());
    }
    ranges
}

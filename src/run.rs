//! From plans to rows: which blocks are hashed when, on which thread, side by side with which.

use std::ops::Range;
use std::slice;

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::digest::{BlockHash, SequenceHash};
use crate::kernel::{Backend, EMPTY_TILES, Lane, MAX_LANES, Tiles};
use crate::plan::{Plan, Plans};
use crate::plh::Mode;
use crate::request::Request;
use crate::scheme::Scheme;
use crate::scheme::encode::{FRAME_BYTES, SLACK, Stretch, Stretches, TOKEN_BYTES, encode_frames};
use crate::scheme::sealed::{General, Layout};
use crate::xxh3::keys::{BlockKeys, ChainKeys};

/// How many bytes of frames are written before they are hashed: few enough to stay in the
/// first-level cache.
const FRAMES_AT_ONCE: usize = 8 << 10;

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
#[derive(Debug)]
pub(crate) struct Scratch {
    tiles: Tiles,
    lane_keys: [BlockKeys; MAX_LANES],
    text_keys: BlockKeys,
    frame_keys: BlockKeys,
    frames: Vec<[u8; FRAME_BYTES]>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            tiles: EMPTY_TILES,
            lane_keys: Default::default(),
            text_keys: BlockKeys::default(),
            frame_keys: BlockKeys::default(),
            frames: Vec::new(),
        }
    }
}

impl Scratch {
    /// Gives memory back that a batch of multimodal requests has left behind.
    pub(crate) fn shrink(&mut self) {
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

    /// Requests go by themselves, one after the other, but where their blocks are so short that
    /// several are faster side by side: then each new one goes into the lane that came free.
    fn hash_and_chain(
        &self,
        range: Range<usize>,
        mut rows: &mut [u128],
        mut hashes: Option<&mut [u64]>,
        scratch: &mut Scratch,
    ) {
        let mut waiting = self.requests[range.clone()].iter().zip(&self.plans.plans[range]);
        let mut lanes = Lanes::default();
        loop {
            while lanes.active < MAX_LANES
                && let Some((request, plan)) = waiting.next()
            {
                let Ok(plan) = plan else { continue };
                let request = request.general();
                let lane = Lane {
                    blocks: bytemuck::cast_slice(request.tokens),
                    rows: take(&mut rows, plan.rows.len()),
                    hashes: hashes.as_mut().map(|hashes| take(hashes, plan.rows.len())),
                    chain: ChainKeys::new(plan.seeds.chain),
                    state: plan.state,
                    prefix: 0,
                };
                let (seed, block_bytes) = (plan.seeds.salt_hash.0, plan.block_size * TOKEN_BYTES);
                if !request.mm_runs.is_empty() {
                    self.run_stretches(request, plan, lane, scratch);
                } else if self.backend.lanes(block_bytes) == 1 {
                    scratch.text_keys.set(seed, block_bytes);
                    self.run_alone(lane, plan.first_block, &scratch.text_keys, &mut scratch.tiles);
                } else if !lane.rows.is_empty() {
                    scratch.lane_keys[lanes.active].set(seed, block_bytes);
                    lanes.push(lane, plan.first_block);
                }
            }
            if lanes.active == 0 {
                return;
            }
            lanes.advance(self.backend, &scratch.lane_keys, &mut scratch.tiles);
            lanes.retire(&mut scratch.lane_keys);
        }
    }

    /// Takes one lane to its end; returns the sequence hash of its last block.
    fn run_alone(
        &self,
        mut lane: Lane<'_>,
        mut position: u64,
        keys: &BlockKeys,
        tiles: &mut Tiles,
    ) -> Option<u64> {
        while !lane.rows.is_empty() {
            let mode = mode_of(position);
            let count = lane.rows.len().min((mode.end() - position) as usize);
            lane.prefix = mode.prefix(position);
            let (lane, keys) = (slice::from_mut(&mut lane), slice::from_ref(keys));
            self.backend.walk(count, mode.fragment_bits(), lane, keys, tiles);
            position += count as u64;
        }
        lane.state
    }

    /// One request with multimodal runs. Text stretches are hashed where they lie, framed ones
    /// by way of the scratch memory.
    fn run_stretches(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        mut lane: Lane<'_>,
        scratch: &mut Scratch,
    ) {
        let (seed, block_size) = (plan.seeds.salt_hash.0, plan.block_size);
        let first_token = plan.first_token();
        let runs = self.plans.runs(plan, request);
        let Scratch { tiles, text_keys, frame_keys, frames, .. } = scratch;
        let blocks_at_once = (FRAMES_AT_ONCE / (block_size * FRAME_BYTES)).max(1);
        let mut walk = |blocks: &[u8], range: Range<usize>, keys: &BlockKeys| {
            let part = Lane {
                blocks,
                rows: take(&mut lane.rows, range.len()),
                hashes: lane.hashes.as_mut().map(|hashes| take(hashes, range.len())),
                ..lane
            };
            lane.state = self.run_alone(part, plan.first_block + range.start as u64, keys, tiles);
        };
        for stretch in Stretches::new(runs, first_token, block_size, plan.rows.len()) {
            match stretch {
                Stretch::Text(range) => {
                    text_keys.set(seed, block_size * TOKEN_BYTES);
                    let tokens = &request.tokens[range.start * block_size..range.end * block_size];
                    walk(bytemuck::cast_slice(tokens), range, text_keys);
                }
                Stretch::Framed(range, mut runs) => {
                    frame_keys.set(seed, block_size * FRAME_BYTES);
                    for start in range.clone().step_by(blocks_at_once) {
                        let blocks = start..range.end.min(start + blocks_at_once);
                        let slots = blocks.start * block_size..blocks.end * block_size;
                        let (count, position) = (slots.len(), first_token + slots.start);
                        if frames.len() < count + SLACK {
                            frames.resize(count + SLACK, [0; FRAME_BYTES]);
                        }
                        let tokens = &request.tokens[slots.start..];
                        encode_frames(tokens, count, position, &mut runs, frames);
                        walk(frames[..count].as_flattened(), blocks, frame_keys);
                    }
                }
            }
        }
    }
}

/// The requests that are hashed side by side.
#[derive(Default)]
struct Lanes<'a> {
    lanes: [Lane<'a>; MAX_LANES],
    /// The position of each lane's next block.
    positions: [u64; MAX_LANES],
    active: usize,
}

impl<'a> Lanes<'a> {
    fn push(&mut self, lane: Lane<'a>, position: u64) {
        self.lanes[self.active] = lane;
        self.positions[self.active] = position;
        self.active += 1;
    }

    /// Takes all lanes as far as the first of them goes in one layout. A packing is constant
    /// over a call: where the lanes' layouts differ, only the first lane moves on.
    fn advance(&mut self, backend: Backend, keys: &[BlockKeys], tiles: &mut Tiles) {
        let mode = mode_of(self.positions[0]);
        let positions = &mut self.positions[..self.active];
        let together = if positions.iter().all(|&position| mode_of(position) == mode) {
            self.active
        } else {
            1
        };
        let positions = &mut positions[..together];
        let lanes = &mut self.lanes[..together];
        let count = lanes
            .iter()
            .zip(&*positions)
            .map(|(lane, position)| lane.rows.len().min((mode.end() - position) as usize))
            .min()
            .expect("there is a lane");
        debug_assert!(count > 0, "a lane that is done has been retired");
        for (lane, position) in lanes.iter_mut().zip(positions) {
            lane.prefix = mode.prefix(*position);
            *position += count as u64;
        }
        backend.walk(count, mode.fragment_bits(), lanes, &keys[..together], tiles);
    }

    /// Closes the ranks behind the lanes that are done.
    fn retire(&mut self, keys: &mut [BlockKeys; MAX_LANES]) {
        // From the back, so that lanes that are done together are not moved.
        for lane in (0..self.active).rev() {
            if !self.lanes[lane].rows.is_empty() {
                continue;
            }
            self.active -= 1;
            if lane != self.active {
                self.lanes.swap(lane, self.active);
                self.positions.swap(lane, self.active);
                keys.swap(lane, self.active);
            }
        }
    }
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

//! General registers, for every CPU.
//!
//! A chain is a line of dependent multiplications, so a CPU that does nothing else waits. From
//! 64 bytes a block on, the wait is filled with the hashing of the request's next blocks. Shorter
//! blocks do not fill it; there, several requests are chained side by side, over hashes that
//! were worked out before. General registers are short either way, so the rows of one request are
//! packed eight at a time by `wide`'s vectors: SSE2, NEON, or general registers again.

use std::array;
use std::cell::Cell;
use std::ops::RangeInclusive;

use wide::u64x2;

use super::{Lane, Workspace};
use crate::fetch::fetch;
use crate::output::cells;
use crate::xxh3::keys::{BlockKeys, ChainKeys, Words};
use crate::xxh3::scalar::{
    Chain, avalanche, chain_step, hash_up_to_8, sum_9_to_16, sum_folds, sum_stripes,
};

/// Calls `$run(block length, sum of one block, finish of a sum, …)` with the two functions of
/// a schedule.
///
/// The lengths of whole blocks of tokens (multiples of 4) and of frames (of 13) that take the
/// folds are spelled out: with the length known at compile time the folds become a straight
/// line at constant offsets, which is a third faster than a loop over them.
macro_rules! with_hash_of {
    ($keys:expr, $run:tt($($argument:expr),*)) => {
        with_hash_of!(@lengths $keys, $run($($argument),*),
            20 24 26 28 32 36 39 40 44 48 52 56 60 64 65 68 72 76 78 80 84 88 91 92 96 100 104
            108 112 116 117 120 124 128 130 132 136 140 143 144 148 152 156 160 164 168 169 172
            176 180 182 184 188 192 195 196 200 204 208 212 216 220 221 224 228 232 234 236 240)
    };
    (@lengths $keys:expr, $run:tt $arguments:tt, $($length:literal)*) => {
        match $keys.words() {
            Words::Folds(folds) => match $keys.len() {
                $($length => with_hash_of!(@call $run, $length, |block: &[u8]| {
                    let block: &[u8; $length] = block.first_chunk().expect("a whole block");
                    sum_folds(block, folds)
                }, avalanche, $arguments),)*
                length => with_hash_of!(@call $run, length, |block: &[u8]| {
                    sum_folds(block, folds)
                }, avalanche, $arguments),
            },
            Words::Stripes(keys) => with_hash_of!(@call $run, $keys.len(), |block: &[u8]| {
                sum_stripes(block, keys)
            }, avalanche, $arguments),
            Words::Two(words) => with_hash_of!(@call $run, $keys.len(), |block: &[u8]| {
                sum_9_to_16(block, words)
            }, avalanche, $arguments),
            Words::One(word) => with_hash_of!(@call $run, $keys.len(), |block: &[u8]| {
                hash_up_to_8(block, word)
            }, std::convert::identity, $arguments),
        }
    };
    (@call $run:tt, $length:expr, $sum:expr, $finish:expr, ($($argument:expr),*)) => {
        $run($length, $sum, $finish, $($argument),*)
    };
}

/// Hashes the blocks of one schedule, back to back in `blocks`.
pub(super) fn hash(blocks: &[u8], keys: &BlockKeys, hashes: &[Cell<u64>]) {
    with_hash_of!(keys, hash_each(blocks, hashes))
}

fn hash_each(
    length: usize,
    sum: impl Fn(&[u8]) -> u64,
    finish: impl Fn(u64) -> u64,
    blocks: &[u8],
    hashes: &[Cell<u64>],
) {
    for (block, out) in blocks.chunks_exact(length).zip(hashes) {
        out.set(finish(sum(block)));
    }
}

/// The most chains side by side: what the general registers hold.
pub(super) const MAX_LANES: usize = 4;

/// How many block hashes of a lane are kept between `hash` and `chain`.
const TILE: usize = 64;

/// Chains the hashes of every lane's tile and packs the rows from each lane's place on. All
/// lanes pack alike.
fn chain(lanes: &mut [Lane<'_>], places: [usize; MAX_LANES], tiles: [&[u64]; MAX_LANES]) {
    let ([t0, t1, t2, t3], [p0, p1, p2, p3]) = (tiles, places);
    match lanes {
        [] => {}
        [a] => chain_side_by_side([a], [p0], [t0]),
        [a, b] => chain_side_by_side([a, b], [p0, p1], [t0, t1]),
        [a, b, c] => chain_side_by_side([a, b, c], [p0, p1, p2], [t0, t1, t2]),
        [a, b, c, d] => chain_side_by_side([a, b, c, d], [p0, p1, p2, p3], [t0, t1, t2, t3]),
        _ => unreachable!("a call has at most {MAX_LANES} lanes"),
    }
}

fn chain_side_by_side<const N: usize>(
    lanes: [&mut Lane<'_>; N],
    places: [usize; N],
    tiles: [&[u64]; N],
) {
    let count = tiles[0].len();
    let packing = Packing::new(lanes[0].fragment_bits);
    let rows: [_; N] = array::from_fn(|lane| &lanes[lane].rows[places[lane]..][..count]);
    let keys = lanes.each_ref().map(|lane| lane.chain);
    let mut prefixes = lanes.each_ref().map(|lane| lane.prefix);
    let mut states = [0; N];
    for lane in 0..N {
        let (state, row) =
            packing.first(lanes[lane].state, tiles[lane][0], keys[lane], prefixes[lane]);
        rows[lane][0].set(row);
        states[lane] = state;
    }
    for i in 1..count {
        for lane in 0..N {
            prefixes[lane] += packing.step();
            let state = chain_step(states[lane], tiles[lane][i], keys[lane]);
            rows[lane][i].set(packing.row(prefixes[lane], state, states[lane]));
            states[lane] = state;
        }
    }
    for lane in 0..N {
        lanes[lane].state = Some(states[lane]);
        lanes[lane].prefix = prefixes[lane] + packing.step();
    }
}

/// Chains the hashes of one lane and packs the rows.
pub(super) fn chain_alone(hashes: &[u64], lane: &mut Lane<'_>, rows: &[Cell<u128>]) {
    chain_each(hashes.iter().copied(), lane, rows);
}

/// [`chain_alone`] over hashes that are an output.
pub(super) fn chain_kept(hashes: &[Cell<u64>], lane: &mut Lane<'_>, rows: &[Cell<u128>]) {
    chain_each(hashes.iter().map(Cell::get), lane, rows);
}

#[inline(always)]
fn chain_each(hashes: impl Iterator<Item = u64>, lane: &mut Lane<'_>, rows: &[Cell<u128>]) {
    let mut lineage = Lineage::of(lane);
    for (hash, row) in hashes.zip(rows) {
        row.set(lineage.link(hash));
    }
    lineage.give_back(lane);
}

/// Chains the block of a lane that was left unchained. The rows end with its own.
#[inline]
pub(super) fn settle(lane: &mut Lane<'_>, rows: &[Cell<u128>]) {
    if let Some(hash) = lane.unchained.take() {
        chain_alone(&[hash], lane, &rows[rows.len() - 1..]);
    }
}

/// The chain of a lane by itself, under way, and how its rows are packed.
pub(super) struct Lineage {
    begun: bool,
    chain: Chain,
    state: u64,
    packing: Packing,
    prefix: u64,
}

impl Lineage {
    /// That of a lane.
    #[inline(always)]
    pub(super) fn of(lane: &Lane<'_>) -> Self {
        let state = lane.state.unwrap_or_default();
        Self {
            begun: lane.state.is_some(),
            chain: Chain::new(state, lane.chain),
            state,
            packing: Packing::new(lane.fragment_bits),
            prefix: lane.prefix,
        }
    }

    /// The sequence hash of the last block; 0 where there is none.
    #[inline(always)]
    pub(super) fn state(&self) -> u64 {
        self.state
    }

    /// Chains the hash of the next block; gives its row.
    #[inline(always)]
    pub(super) fn link(&mut self, hash: u64) -> u128 {
        let parent = self.state;
        self.state = self.next(hash);
        self.row(self.state, parent)
    }

    /// [`link`](Self::link) to a block before.
    #[inline(always)]
    fn go_on(&mut self, hash: u64) -> u128 {
        let parent = self.state;
        self.state = self.step(hash);
        self.row(self.state, parent)
    }

    /// The next sequence hash, which [`pack`](Self::pack) is still to be told of.
    #[inline(always)]
    pub(super) fn next(&mut self, hash: u64) -> u64 {
        if self.begun {
            return self.step(hash);
        }
        // The first block's hash is its sequence hash, and its row has no parent.
        self.begun = true;
        self.chain.begin(hash);
        hash
    }

    /// [`next`](Self::next) after a block before.
    #[inline(always)]
    pub(super) fn step(&mut self, hash: u64) -> u64 {
        self.chain.step(hash)
    }

    /// Packs eight rows, from the sequence hash of the block before and those of their own.
    #[inline(always)]
    pub(super) fn pack_eight(&mut self, states: &States, rows: &[Cell<u128>; ROWS_AT_ONCE]) {
        self.packing.rows(self.prefix, states, rows);
        self.prefix += ROWS_AT_ONCE as u64 * self.packing.step();
        self.state = states[ROWS_AT_ONCE];
    }

    /// [`pack_eight`](Self::pack_eight) of up to eight rows.
    #[inline(always)]
    pub(super) fn pack(&mut self, states: &States, rows: &[Cell<u128>]) {
        if let Ok(eight) = rows.try_into() {
            return self.pack_eight(states, eight);
        }
        for (row, states) in rows.iter().zip(states.windows(2)) {
            self.state = states[1];
            row.set(self.row(states[1], states[0]));
        }
    }

    #[inline(always)]
    fn row(&mut self, current: u64, parent: u64) -> u128 {
        let row = self.packing.row(self.prefix, current, parent);
        self.prefix += self.packing.step();
        row
    }

    #[inline(always)]
    pub(super) fn give_back(self, lane: &mut Lane<'_>) {
        lane.state = self.begun.then_some(self.state);
        lane.prefix = self.prefix;
    }
}

/// Where a block takes less time to hash than its chain step has to wait, several chains side
/// by side fill the wait; other requests are faster by themselves.
pub(super) fn lanes(len: usize) -> RangeInclusive<usize> {
    if len < SHORTEST_ALONE { 2..=MAX_LANES } else { 1..=1 }
}

/// The shortest block, in bytes, that takes as long to hash as a chain step waits.
const SHORTEST_ALONE: usize = 64;

/// `hash`, then `chain`, a tile at a time.
pub(super) fn walk(count: usize, len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    let mut tiles = [[0; TILE]; MAX_LANES];
    let mut places = [0; MAX_LANES];
    let mut left = count;
    while left > 0 {
        let count = left.min(TILE);
        for (i, (lane, tile)) in lanes.iter_mut().zip(&mut tiles).enumerate() {
            let blocks = lane.take(count * len);
            places[i] = lane.take_places(count).start;
            hash(blocks, workspace.schedules.of_lane(i, lane.seed, len), cells(&mut tile[..count]));
        }
        chain(lanes, places, tiles.each_ref().map(|tile| &tile[..count]));
        left -= count;
    }
}

/// `hash` and `chain` of one request, in one loop. The rows end with those of the blocks.
#[inline(always)]
pub(super) fn walk_over(
    ahead: usize,
    blocks: &[u8],
    lane: &mut Lane<'_>,
    rows: &[Cell<u128>],
    keys: &BlockKeys,
) {
    let fetch = |block: &[u8]| fetch(block.as_ptr().wrapping_add(ahead));
    with_hash_of!(keys, walk_in_stages(fetch, blocks, lane, rows))
}

/// Three blocks are under way in every turn of the loop: the first is chained, the second
/// finished, the third summed. None of the three waits for another, where one block after the
/// other fills the CPU's window with instructions that wait. The last block is left unchained, so
/// that the blocks of another schedule can go on where these end; where it is the lane's last, it
/// need not be.
///
/// Eight rows are packed at a time, by vectors.
///
/// The rows end with those of the blocks.
fn walk_in_stages(
    length: usize,
    sum: impl Fn(&[u8]) -> u64,
    finish: impl Fn(u64) -> u64,
    fetch: impl Fn(&[u8]),
    blocks: &[u8],
    lane: &mut Lane<'_>,
    rows: &[Cell<u128>],
) {
    let mut blocks = blocks.chunks_exact(length);
    let first = rows.len() - blocks.len() - usize::from(lane.unchained.is_some());
    let mut rows = rows[first..].iter();
    let mut lineage = Lineage::of(lane);
    if !lineage.begun
        && let (Some(block), Some(row)) = (blocks.next(), rows.next())
    {
        row.set(lineage.link(finish(sum(block))));
    }
    let unchained = lane.unchained.or_else(|| blocks.next().map(|block| finish(sum(block))));
    lane.unchained = unchained;
    let (Some(mut hash), Some(block)) = (unchained, blocks.next()) else {
        return lineage.give_back(lane);
    };
    let mut summed = sum(block);
    let mut states = States::default();
    while blocks.len() >= ROWS_AT_ONCE {
        let places: &[Cell<u128>; ROWS_AT_ONCE] =
            rows.as_slice().first_chunk().expect("a row for every block");
        states[0] = lineage.state;
        for state in &mut states[1..] {
            let block = blocks.next().expect("so many");
            fetch(block);
            *state = lineage.step(hash);
            hash = finish(summed);
            summed = sum(block);
        }
        lineage.pack_eight(&states, places);
        rows = rows.as_slice()[ROWS_AT_ONCE..].iter();
    }
    for (block, row) in blocks.zip(&mut rows) {
        fetch(block);
        row.set(lineage.go_on(hash));
        hash = finish(summed);
        summed = sum(block);
    }
    if let Some(row) = rows.next() {
        row.set(lineage.go_on(hash));
    }
    hash = finish(summed);
    lane.unchained = match rows.next() {
        // Nothing comes after it.
        Some(row) if lane.left == 0 => {
            row.set(lineage.go_on(hash));
            None
        }
        _ => Some(hash),
    };
    lineage.give_back(lane);
}

/// How many rows are packed at once.
pub(super) const ROWS_AT_ONCE: usize = 8;

/// The sequence hashes of as many blocks, after that of the block before.
pub(super) type States = [u64; ROWS_AT_ONCE + 1];

/// How sequence hashes become rows: `prefix | current << bits | parent & mask`, over 128 bits.
#[derive(Clone, Copy)]
struct Packing {
    fragment_bits: u32,
    fragment_mask: u64,
}

impl Packing {
    fn new(fragment_bits: u32) -> Self {
        Self { fragment_bits, fragment_mask: (1 << fragment_bits) - 1 }
    }

    /// What the prefix grows by from row to row.
    #[inline(always)]
    fn step(self) -> u64 {
        self.fragment_mask + 1
    }

    /// Rows one after the other.
    #[inline(always)]
    fn rows(self, prefix: u64, states: &States, rows: &[Cell<u128>; ROWS_AT_ONCE]) {
        let bits = self.fragment_bits;
        let mask = u64x2::splat(self.fragment_mask);
        let mut prefixes = u64x2::new([prefix, prefix + self.step()]);
        let step = u64x2::splat(2 * self.step());
        for i in (0..ROWS_AT_ONCE).step_by(2) {
            let parents = u64x2::new([states[i], states[i + 1]]);
            let currents = u64x2::new([states[i + 1], states[i + 2]]);
            let low = currents << bits | parents & mask;
            let high = currents >> (u64::BITS - bits) | prefixes;
            prefixes += step;
            rows[i].set(bytemuck::cast(low.unpack_lo(high)));
            rows[i + 1].set(bytemuck::cast(low.unpack_hi(high)));
        }
    }

    /// One rotation gives both halves of the shifted sequence hash, which keeps the shift
    /// variable at the price of a constant one.
    #[inline(always)]
    fn row(self, prefix: u64, current: u64, parent: u64) -> u128 {
        let rotated = current.rotate_left(self.fragment_bits);
        let low = rotated ^ ((rotated ^ parent) & self.fragment_mask);
        let high = prefix | (rotated & self.fragment_mask);
        u128::from(high) << 64 | u128::from(low)
    }

    /// The first state and row of a stretch, which may be the first of a whole lineage.
    #[inline(always)]
    fn first(self, state: Option<u64>, hash: u64, keys: ChainKeys, prefix: u64) -> (u64, u128) {
        let (current, parent) = match state {
            Some(parent) => (chain_step(parent, hash, keys), parent),
            None => (hash, 0),
        };
        (current, self.row(prefix, current, parent))
    }
}

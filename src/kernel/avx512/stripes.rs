//! Blocks of more than 240 bytes: a vector is the accumulators of one block. The merges of eight
//! blocks go together, whatever requests they are of; or each block is merged in general registers.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::side_by_side::{Blocks, walk_eight};
use super::vector::{XOR3, add_up, finish, fold_pair, load_row, start_avalanche, words};
use super::{LANES, keep, of_lanes};
use crate::fetch::{FETCH_AHEAD, Hints, fetch, fetch_start};
use crate::kernel::merge::{self, InTurn, Waiting, with_length};
use crate::kernel::{Lane, Workspace, scalar};
use crate::xxh3::keys::{BlockKeys, Key, StripeKeys, length_term};
use crate::xxh3::secret::STRIPES_PER_SCRAMBLE;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_BYTES};

/// Hashes, chains and packs the next `count` blocks of up to eight lanes.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_stripes<const IFMA: bool, const FETCH: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>; LANES],
    workspace: &mut Workspace,
) {
    // Lanes of one seed share a schedule.
    let seeds = of_lanes(lanes, |lane| lane.seed);
    let keys = workspace.schedules.of_lanes(&seeds, len).map(BlockKeys::stripes);
    with_length!(len, |_STRIPES| walk_eight::<IFMA, FETCH, _>(count, len, lanes, |blocks| {
        // SAFETY: as many bytes are read as a block has.
        unsafe { sum_stripes::<IFMA, FETCH>(blocks, len, &keys) }
    }));
}

/// Takes lanes to their ends, one after the other: their stripes in vectors, and all else in general
/// registers beside them.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_in_turn(len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    with_length!(len, |STRIPES| {
        let absorb = |keys: &StripeKeys, in_turn: &mut InTurn<'_, '_, '_>| {
            let loaded = Keys::<STRIPES>::load(keys);
            // SAFETY: the CPU has what this function has.
            in_turn.absorb(|block, _| unsafe { loaded.absorb(block, keys) });
        };
        merge::walk(len, absorb, lanes, workspace)
    });
}

/// The hashes of blocks, back to back: their stripes in vectors, and all else in general registers.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn hash_in_turn(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
) {
    with_length!(len, |STRIPES| {
        let loaded = Keys::<STRIPES>::load(keys);
        // SAFETY: the CPU has what this function has.
        let absorb = |block: &[u8]| unsafe { loaded.absorb(block, keys) };
        merge::hash(len, absorb, blocks, hashes, waiting)
    });
}

/// One request: while eight of its blocks are hashed, the eight before are chained.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_over<const IFMA: bool, const FETCH: bool>(
    blocks: &[u8],
    places: Range<usize>,
    lane: &mut Lane<'_>,
    keys: &StripeKeys,
    len: usize,
) {
    fetch_start(lane.next, Hints(FETCH));
    let mut hashes = [0; LANES];
    let mut rows: &[Cell<u128>] = &[];
    let eights = blocks.chunks(LANES * len).zip(lane.rows[places.clone()].chunks(LANES));
    let mut kept = lane.hashes.map(|hashes| hashes[places].chunks(LANES));
    let mut lineage = scalar::Lineage::of(lane);
    for (blocks, next_rows) in eights {
        let mut links = hashes.iter().zip(rows);
        let mut merged = [_mm512_setzero_si512(); LANES];
        for (merged, block) in merged.iter_mut().zip(blocks.chunks_exact(len)) {
            let block = block.as_ptr();
            // SAFETY: a block has `len` bytes.
            *merged = unsafe { absorb::<FETCH>(block, len, block.wrapping_add(FETCH_AHEAD), keys) };
            if let Some((&hash, row)) = links.next() {
                row.set(lineage.link(hash));
            }
        }
        for (&hash, row) in links {
            row.set(lineage.link(hash));
        }
        hashes = hashes_of::<IFMA>(len, merged);
        rows = next_rows;
        if let Some(kept) = kept.as_mut().and_then(Iterator::next) {
            keep(kept, &hashes);
        }
    }
    for (&hash, row) in hashes.iter().zip(rows) {
        row.set(lineage.link(hash));
    }
    lineage.give_back(lane);
}

/// Takes lanes to their ends, a few blocks each: eight are hashed together, whatever lanes they are
/// of.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_ends<const IFMA: bool, const FETCH: bool>(
    len: usize,
    lanes: &mut [Lane<'_>],
    workspace: &mut Workspace,
) {
    let mut merged = [_mm512_setzero_si512(); LANES];
    let mut owners = [0; LANES];
    let mut count = 0;
    for index in 0..lanes.len() {
        let keys = workspace.schedules.alone(lanes[index].seed, len).stripes();
        let blocks = lanes[index].blocks;
        for block in blocks.chunks_exact(len).take(lanes[index].left) {
            let block = block.as_ptr();
            // SAFETY: a block has `len` bytes.
            merged[count] =
                unsafe { absorb::<FETCH>(block, len, block.wrapping_add(FETCH_AHEAD), keys) };
            owners[count] = index;
            count += 1;
            if count == LANES {
                link_all::<IFMA>(len, merged, &owners, lanes);
                count = 0;
            }
        }
    }
    if count > 0 {
        link_all::<IFMA>(len, merged, &owners[..count], lanes);
    }
}

/// Chains blocks that are summed, the next ones of the lanes that own them.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn link_all<const IFMA: bool>(
    len: usize,
    merged: [__m512i; LANES],
    owners: &[usize],
    lanes: &mut [Lane<'_>],
) {
    let mut hashes = &hashes_of::<IFMA>(len, merged)[..];
    for owners in owners.chunk_by(|a, b| a == b) {
        let lane = &mut lanes[owners[0]];
        let now = hashes.split_off(..owners.len()).expect("a hash for each owner");
        lane.take(owners.len() * len);
        let places = lane.take_places(owners.len());
        if let Some(kept) = lane.hashes {
            keep(&kept[places.clone()], now);
        }
        scalar::chain_alone(now, lane, &lane.rows[places]);
    }
}

/// The hashes of blocks of more than 240 bytes, back to back.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn hash<const IFMA: bool, const FETCH: bool>(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
) {
    for (blocks, hashes) in blocks.chunks(LANES * len).zip(hashes.chunks(LANES)) {
        keep(hashes, &hash_eight::<IFMA, FETCH>(blocks, len, keys));
    }
}

/// The hashes of up to eight blocks, back to back.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn hash_eight<const IFMA: bool, const FETCH: bool>(
    blocks: &[u8],
    len: usize,
    keys: &StripeKeys,
) -> [u64; LANES] {
    let mut merged = [_mm512_setzero_si512(); LANES];
    for (merged, block) in merged.iter_mut().zip(blocks.chunks_exact(len)) {
        let block = block.as_ptr();
        // SAFETY: a block has `len` bytes.
        *merged = unsafe { absorb::<FETCH>(block, len, block.wrapping_add(FETCH_AHEAD), keys) };
    }
    hashes_of::<IFMA>(len, merged)
}

/// The hashes of eight blocks, from their accumulators xored with the secret.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn hashes_of<const IFMA: bool>(len: usize, merged: [__m512i; LANES]) -> [u64; LANES] {
    // SAFETY: the CPU has what this function has.
    bytemuck::cast(finish(start_avalanche(unsafe { merge_eight::<IFMA>(len, merged) })))
}

/// The sums of eight blocks of more than 240 bytes, up to the last avalanche.
///
/// # Safety
///
/// At each pointer there are `len` bytes, more than 240. The CPU has AVX-512.
#[inline(always)]
unsafe fn sum_stripes<const IFMA: bool, const FETCH: bool>(
    blocks: &Blocks<'_, FETCH>,
    len: usize,
    keys: &[&StripeKeys; LANES],
) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        let mut merged = [_mm512_setzero_si512(); LANES];
        for lane in 0..LANES {
            merged[lane] = absorb::<FETCH>(blocks.at(lane, 0), len, blocks.ahead(lane), keys[lane]);
        }
        merge_eight::<IFMA>(len, merged)
    }
}

/// The sums of eight blocks up to the last avalanche, from their accumulators xored with the secret.
///
/// # Safety
///
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn merge_eight<const IFMA: bool>(len: usize, merged: [__m512i; LANES]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let mut folds = [_mm512_setzero_si512(); LANES / 2];
        for (pair, folded) in folds.iter_mut().enumerate() {
            *folded = fold_pair::<IFMA>(merged[2 * pair], merged[2 * pair + 1]);
        }
        _mm512_add_epi64(_mm512_set1_epi64(length_term(len) as i64), add_up(folds))
    }
}

/// The accumulators of one block, xored with the secret as the merge takes them. While a stripe
/// is read, the line as far from `ahead` is fetched.
///
/// # Safety
///
/// At the block there are `len` bytes, more than 240. The CPU has AVX-512.
#[inline(always)]
unsafe fn absorb<const FETCH: bool>(
    block: *const u8,
    len: usize,
    ahead: *const u8,
    keys: &StripeKeys,
) -> __m512i {
    // SAFETY: the caller's promises. The last stripe is apart: it may begin inside the one
    // before, and is always there; so the others are less than the block.
    unsafe {
        let mut accumulators = Accumulators::start();
        let mut offset = 0;
        let mut left = (len - 1) / STRIPE_BYTES;
        while left > 0 {
            let absorb = |key: &Key| {
                if FETCH {
                    fetch(ahead.wrapping_add(offset));
                }
                accumulators.absorb(load_row(block.add(offset)), words(&key.0));
                offset += STRIPE_BYTES;
            };
            // Blocks of 64, 128, 256 and more tokens, spelled out: a loop of a known length
            // becomes a straight line.
            match left {
                3 => keys.stripes[..3].iter().for_each(absorb),
                7 => keys.stripes[..7].iter().for_each(absorb),
                15 => keys.stripes[..15].iter().for_each(absorb),
                STRIPES_PER_SCRAMBLE.. => keys.stripes.iter().for_each(absorb),
                _ => keys.stripes[..left].iter().for_each(absorb),
            }
            if left < STRIPES_PER_SCRAMBLE {
                break;
            }
            accumulators.scramble(words(&keys.scramble.0));
            left -= STRIPES_PER_SCRAMBLE;
        }
        if FETCH {
            fetch(ahead.wrapping_add(offset));
        }
        accumulators.absorb(load_row(block.add(len - STRIPE_BYTES)), words(&keys.last.0));
        _mm512_xor_si512(accumulators.joined(), words(&keys.merge.0))
    }
}

/// The keys of a seed in vectors, for blocks of `STRIPES` whole stripes and a last one: from memory the
/// compiler would load them again for every block, since it cannot know that no row lies among them. With 0,
/// for blocks of any length, whose keys stay in memory.
struct Keys<const STRIPES: usize> {
    stripes: [__m512i; STRIPES],
    last: __m512i,
    merge: __m512i,
}

impl<const STRIPES: usize> Keys<STRIPES> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn load(keys: &StripeKeys) -> Self {
        let stripes = std::array::from_fn(|i| words(&keys.stripes[i].0));
        Self { stripes, last: words(&keys.last.0), merge: words(&keys.merge.0) }
    }

    /// [`absorb`] of a block that these are for; `keys` are the same ones, in memory.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512.
    #[inline(always)]
    unsafe fn absorb(&self, block: &[u8], keys: &StripeKeys) -> __m512i {
        // SAFETY: at the block there are as many bytes as it is long; the caller's promise.
        unsafe {
            if STRIPES == 0 {
                return absorb::<false>(block.as_ptr(), block.len(), block.as_ptr(), keys);
            }
            let (stripes, []) = block.as_chunks::<STRIPE_BYTES>() else {
                unreachable!("whole stripes");
            };
            let (last, before) = stripes.split_last().expect("a last stripe");
            debug_assert!(before.len() == STRIPES, "{} bytes", block.len());
            let mut accumulators = Accumulators::start();
            for (stripe, &key) in before.iter().zip(&self.stripes) {
                accumulators.absorb(bytemuck::pod_read_unaligned(stripe), key);
            }
            accumulators.absorb(bytemuck::pod_read_unaligned(last), self.last);
            _mm512_xor_si512(accumulators.joined(), self.merge)
        }
    }
}

/// The accumulators of one block, in two: the specification adds each data lane to the
/// neighbour of the lane that has its product, which one swap at the end does for all.
#[derive(Clone, Copy)]
struct Accumulators {
    products: __m512i,
    data: __m512i,
}

impl Accumulators {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn start() -> Self {
        Self { products: words(&INITIAL_ACCUMULATORS), data: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn absorb(&mut self, data: __m512i, key: __m512i) {
        let keyed = _mm512_xor_si512(data, key);
        let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
        self.products = _mm512_add_epi64(self.products, product);
        self.data = _mm512_add_epi64(self.data, data);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn joined(&self) -> __m512i {
        const NEIGHBOURS: i32 = 0b01_00_11_10;
        _mm512_add_epi64(self.products, _mm512_shuffle_epi32::<NEIGHBOURS>(self.data))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn scramble(&mut self, key: __m512i) {
        let sums = self.joined();
        let mixed = _mm512_ternarylogic_epi64::<XOR3>(sums, _mm512_srli_epi64::<47>(sums), key);
        let prime = _mm512_set1_epi64(PRIME32_1 as i64);
        let low = _mm512_mul_epu32(mixed, prime);
        let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
        self.products = _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high));
        self.data = _mm512_setzero_si512();
    }
}

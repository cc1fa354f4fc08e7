//! AVX-512: eight requests or eight blocks to a vector.
//!
//! Up to 240 bytes a lane is a request: the folds of eight requests' blocks are worked out four
//! pieces at a time, brought into one lane a block, and chained and packed there. Above, a vector
//! is the accumulators of one block; the merges of eight blocks go together, and from there on it
//! is the same. A request by itself has eight of its own long blocks merged together.
//!
//! The functions are generic over how two vectors are folded: `IFMA` says that the CPU has the
//! 52-bit multiplications.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use super::{Arena, Lane, Workspace, avx512ifma, scalar};
use crate::fetch::{FETCH_AHEAD, fetch};
use crate::xxh3::LONGEST_FOLDED;
use crate::xxh3::keys::length_term;
use crate::xxh3::pieces::{PIECE_BYTES, Pass, Pieces};
use crate::xxh3::secret::{self, DERIVED_WORDS, STRIPES_PER_SCRAMBLE};
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME_AVALANCHE, PRIME32_1, STRIPE_BYTES};

/// Lanes of a vector.
const LANES: usize = 8;

const ALL_LANES: __mmask8 = 0xff;

/// The truth table of `a ^ b ^ c`.
pub(super) const XOR3: i32 = 0x96;
/// The truth table of `(a & !c) | (b & c)`.
const SELECT: i32 = 0xD8;
/// The truth table of `a | (b & c)`.
const OR_AND: i32 = 0xF8;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// With dead lanes, a vector of fewer requests costs as much as one of eight; each request by
/// itself costs about a fifth of that.
pub(super) fn lanes(len: usize) -> RangeInclusive<usize> {
    if len > PIECE_BYTES { 6..=LANES } else { scalar::lanes(len) }
}

/// Hashes, chains and packs one lane.
pub(super) fn walk_alone<const IFMA: bool>(
    count: usize,
    len: usize,
    lane: &mut Lane<'_>,
    arena: &mut Arena<'_>,
    workspace: &mut Workspace,
) {
    // Up to 240 bytes a block there is time enough for the scalar folds while the chain waits,
    // and setting vectors up costs more than they save.
    if len <= LONGEST_FOLDED {
        return scalar::walk_alone(count, lane, arena, workspace.keys_alone(lane.seed, len));
    }
    // SAFETY: a backend is called only where it is available.
    unsafe { walk_one_by_vectors::<IFMA>(count, len, lane, arena) };
}

/// Hashes, chains and packs up to eight lanes.
pub(super) fn walk<const IFMA: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>],
    arena: &mut Arena<'_>,
    workspace: &mut Workspace,
) {
    if len <= PIECE_BYTES {
        return scalar::walk(count, len, lanes, arena, workspace);
    }
    if count == 0 {
        return;
    }
    if arena.hashes.is_some() {
        // Vectors of lanes go straight from blocks to rows.
        for lane in lanes {
            walk_alone::<IFMA>(count, len, lane, arena, workspace);
        }
        return;
    }
    workspace.pieces.set(len);
    // SAFETY: a backend is called only where it is available.
    unsafe { walk_vectors::<IFMA>(count, len, lanes, arena, &workspace.pieces) };
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn walk_one_by_vectors<const IFMA: bool>(
    count: usize,
    len: usize,
    lane: &mut Lane<'_>,
    arena: &mut Arena<'_>,
) {
    let keys = StripeKeys::new([lane.seed; LANES]);
    walk_one(count, len, lane, arena, |blocks| {
        // SAFETY: as many bytes are read as a block has.
        unsafe { sum_stripes::<IFMA>(blocks, len, &keys) }
    });
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn walk_vectors<const IFMA: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>],
    arena: &mut Arena<'_>,
    pieces: &Pieces,
) {
    let seeds = of_lanes(lanes, |lane| lane.seed);
    let (first, second) = (pieces.first(), pieces.second());
    // With the numbers of rows and single pieces known at compile time, the loops over them
    // become straight lines. These are all that lengths of 17 to 240 bytes have.
    macro_rules! walk_shapes {
        ($(($r1:literal $s1:literal $r2:literal $s2:literal))*) => {
            match (first.counts(), second.counts()) {
                $((($r1, $s1), ($r2, $s2)) => {
                    let first = PassKeys::<$r1, $s1>::new(first, seeds);
                    let second = PassKeys::<$r2, $s2>::new(second, seeds);
                    walk_eight::<IFMA, _>(count, len, lanes, arena, |blocks| {
                        // SAFETY: the pieces of a length do not reach past its end.
                        unsafe {
                            sum_pieces::<IFMA, $r1, $s1, $r2, $s2>(blocks, pieces, &first, &second)
                        }
                    });
                })*
                _ => {
                    assert!(len > LONGEST_FOLDED, "a length without a shape: {len}");
                    let keys = StripeKeys::new(seeds);
                    walk_eight::<IFMA, _>(count, len, lanes, arena, |blocks| {
                        // SAFETY: as many bytes are read as a block has.
                        unsafe { sum_stripes::<IFMA>(blocks, len, &keys) }
                    });
                }
            }
        };
    }
    walk_shapes! {
        (0 2 0 0) (0 4 0 0) (0 6 0 0) (1 0 0 0) (1 2 0 0) (2 0 0 0) (2 0 0 1) (2 0 0 2)
        (2 0 0 3) (2 0 0 4) (2 0 1 1) (2 0 1 2) (2 0 1 3) (2 0 1 4)
    }
}

/// What each lane has of something. Lanes without a request are copies of the first one: they
/// work out and write what it does.
fn of_lanes<T>(lanes: &[Lane<'_>], get: impl Fn(&Lane<'_>) -> T) -> [T; LANES] {
    std::array::from_fn(|i| get(lanes.get(i).unwrap_or(&lanes[0])))
}

/// One request: its blocks are hashed eight at a time, and chained while the next are hashed.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn walk_one<S: Fn(&Blocks<'_>) -> __m512i>(
    count: usize,
    len: usize,
    lane: &mut Lane<'_>,
    arena: &mut Arena<'_>,
    sum: S,
) {
    let (blocks, places) = lane.take(count, len);
    let rows = arena.rows[places.clone()].chunks_mut(LANES);
    let mut kept = arena.hashes.as_mut().map(|hashes| &mut hashes[places]);
    for (blocks, rows) in blocks.chunks(LANES * len).zip(rows) {
        // Lanes without a block read the last one again.
        let last = blocks.len() / len - 1;
        let at = std::array::from_fn(|i| blocks[i.min(last) * len..].as_ptr());
        let ahead = at.map(|block| block.wrapping_add(FETCH_AHEAD));
        let eight = Blocks { at: &at, ahead: &ahead, offset: 0 };
        let hashes: [u64; LANES] = bytemuck::cast(finish(start_avalanche(sum(&eight))));
        let hashes = &hashes[..=last];
        if let Some(kept) = &mut kept {
            let kept = kept.split_off_mut(..hashes.len()).expect("a hash for every block");
            kept.copy_from_slice(hashes);
        }
        scalar::chain_alone(hashes, lane, rows);
    }
}

/// Eight blocks, and for each the place whose bytes are to be fetched while it is read.
struct Blocks<'a> {
    at: &'a [*const u8; LANES],
    ahead: &'a [*const u8; LANES],
    /// Counted from the pointers on.
    offset: usize,
}

impl Blocks<'_> {
    /// Where a lane's block has a byte.
    #[inline(always)]
    fn at(&self, lane: usize, offset: usize) -> *const u8 {
        self.at[lane].wrapping_add(self.offset).wrapping_add(offset)
    }

    /// Fetches what lies as far ahead as a byte offset of a lane's block.
    #[inline(always)]
    fn fetch(&self, lane: usize, offset: usize) {
        fetch(self.ahead[lane].wrapping_add(self.offset).wrapping_add(offset));
    }
}

/// The blocks of eight requests, and where their rows go.
struct Streams<'t, 'r> {
    blocks: [*const u8; LANES],
    /// What is fetched, counted from where the blocks are read: first the blocks further on.
    fetched: [*const u8; LANES],
    next: [*const u8; LANES],
    rows: [*mut __m128i; LANES],
    borrowed: PhantomData<(&'t [u8], &'r mut [u128])>,
}

impl<'t, 'r> Streams<'t, 'r> {
    /// Takes `count` blocks of `len` bytes and as many rows from each lane. Lanes without a
    /// request do what the first one does.
    #[inline]
    fn take(lanes: &mut [Lane<'t>], rows: &'r mut [u128], count: usize, len: usize) -> Self {
        let (room, rows) = (rows.len(), rows.as_mut_ptr());
        let mut streams = Self {
            blocks: [std::ptr::null(); LANES],
            fetched: [std::ptr::null(); LANES],
            next: [std::ptr::null(); LANES],
            rows: [std::ptr::null_mut(); LANES],
            borrowed: PhantomData,
        };
        for i in 0..LANES {
            if let Some(lane) = lanes.get_mut(i) {
                let (blocks, places) = lane.take(count, len);
                assert!(places.end <= room, "a row for every block");
                streams.blocks[i] = blocks.as_ptr();
                streams.next[i] = lane.next.as_ptr();
                streams.rows[i] = rows.wrapping_add(places.start).cast();
            } else {
                streams.blocks[i] = streams.blocks[0];
                streams.next[i] = streams.next[0];
                streams.rows[i] = streams.rows[0];
            }
            streams.fetched[i] = streams.blocks[i].wrapping_add(FETCH_AHEAD);
        }
        streams
    }
}

/// Hashes, chains and packs `count` blocks of each lane. One block of each is chained while the
/// next is summed: the one waits for its multiplications, the other fills the wait.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn walk_eight<const IFMA: bool, S: Fn(&Blocks<'_>) -> __m512i>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>],
    arena: &mut Arena<'_>,
    sum: S,
) {
    let mut chain = Chain::new(lanes);
    let mut streams = Streams::take(lanes, arena.rows, count, len);
    // Towards their ends the streams are fetched on in the ones that come next.
    let border = (count * len).saturating_sub(FETCH_AHEAD) / len * len;

    let mut product = _mm512_setzero_si512();
    let mut offset = 0;
    let mut row = 0;
    while offset < count * len {
        if offset == border {
            streams.fetched = streams.next.map(|next| next.wrapping_sub(border));
        }
        let sum = sum(&Blocks { at: &streams.blocks, ahead: &streams.fetched, offset });
        if offset > 0 {
            // SAFETY: the CPU has what this function has; every lane has `count` rows.
            unsafe { store(&streams.rows, row, chain.step::<IFMA>(product)) };
            row += 1;
        }
        product = start_avalanche(sum);
        // Opaque, so that one offset goes with eight pointers: the compiler would have eight
        // pointers grow, and no registers for them.
        offset = opaque(offset + len);
    }
    // SAFETY: as above; there is at least one block.
    unsafe { store(&streams.rows, row, chain.step::<IFMA>(product)) };
    chain.give_back(lanes);
}

/// The chains of eight requests, and how their rows are packed.
struct Chain {
    state: __m512i,
    /// Which lanes have a state; the others begin a lineage.
    begun: __mmask8,
    parent_key: __m512i,
    block_key: __m512i,
    fragment_bits: __m512i,
    fragment_mask: __m512i,
    prefix: __m512i,
}

impl Chain {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(lanes: &[Lane<'_>]) -> Self {
        let of = |get: fn(&Lane<'_>) -> u64| words(&of_lanes(lanes, get));
        let begun = of_lanes(lanes, |lane| lane.state.is_some());
        let one = _mm512_set1_epi64(1);
        let fragment_bits = of(|lane| lane.fragment_bits.into());
        Self {
            state: of(|lane| lane.state.unwrap_or(0)),
            begun: begun.iter().rev().fold(0, |mask, &begun| mask << 1 | u8::from(begun)),
            parent_key: of(|lane| lane.chain.parent),
            block_key: of(|lane| lane.chain.block),
            fragment_bits,
            fragment_mask: _mm512_sub_epi64(_mm512_sllv_epi64(one, fragment_bits), one),
            prefix: of(|lane| lane.prefix),
        }
    }

    /// Chains the hashes of the next blocks, which are given as the products of their
    /// avalanches; gives the low and the high halves of their rows.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512.
    #[inline(always)]
    unsafe fn step<const IFMA: bool>(&mut self, product: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_xor_si512(self.state, self.parent_key);
            // The end of the avalanche, and the xor with the key.
            let shifted = _mm512_srli_epi64::<32>(product);
            let high = _mm512_ternarylogic_epi64::<XOR3>(product, shifted, self.block_key);
            let beside =
                _mm512_add_epi64(_mm512_add_epi64(swap_bytes(low), high), _mm512_set1_epi64(16));
            let sum = _mm512_add_epi64(beside, fold::<IFMA>(low, high));
            let mut current = finish(start_avalanche(sum));
            if self.begun != ALL_LANES {
                // A lineage begins with its block hash, and its first row has no parent: its
                // state was given as 0.
                current = _mm512_mask_blend_epi64(self.begun, finish(product), current);
                self.begun = ALL_LANES;
            }
            let rotated = _mm512_rolv_epi64(current, self.fragment_bits);
            let packed = (
                _mm512_ternarylogic_epi64::<SELECT>(rotated, self.state, self.fragment_mask),
                _mm512_ternarylogic_epi64::<OR_AND>(self.prefix, rotated, self.fragment_mask),
            );
            let grown = _mm512_add_epi64(self.prefix, self.fragment_mask);
            self.prefix = _mm512_add_epi64(grown, _mm512_set1_epi64(1));
            self.state = current;
            packed
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn give_back(&self, lanes: &mut [Lane<'_>]) {
        let states: [u64; LANES] = bytemuck::cast(self.state);
        let prefixes: [u64; LANES] = bytemuck::cast(self.prefix);
        for (i, lane) in lanes.iter_mut().enumerate() {
            lane.state = Some(states[i]);
            lane.prefix = prefixes[i];
        }
    }
}

/// Writes a row of every lane.
///
/// # Safety
///
/// Each lane has a row at `index`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn store(rows: &[*mut __m128i; LANES], index: usize, (low, high): (__m512i, __m512i)) {
    // Opaque, so that each is made by one instruction: the compiler would take the vectors apart
    // first.
    let even = opaque_vector(_mm512_unpacklo_epi64(low, high));
    let odd = opaque_vector(_mm512_unpackhi_epi64(low, high));
    // SAFETY: the caller says that the rows are there.
    unsafe {
        rows[0].add(index).write(_mm512_castsi512_si128(even));
        rows[1].add(index).write(_mm512_castsi512_si128(odd));
        rows[2].add(index).write(_mm512_extracti64x2_epi64::<1>(even));
        rows[3].add(index).write(_mm512_extracti64x2_epi64::<1>(odd));
        rows[4].add(index).write(_mm512_extracti64x2_epi64::<2>(even));
        rows[5].add(index).write(_mm512_extracti64x2_epi64::<2>(odd));
        rows[6].add(index).write(_mm512_extracti64x2_epi64::<3>(even));
        rows[7].add(index).write(_mm512_extracti64x2_epi64::<3>(odd));
    }
}

/// The keys of a pass: of each row a vector for every lane, of each single piece a vector of all
/// lanes' first words and one of their second ones.
struct PassKeys<const ROWS: usize, const SINGLES: usize> {
    rows: [[__m512i; LANES]; ROWS],
    row_offsets: [usize; ROWS],
    singles: [[__m512i; 2]; SINGLES],
    single_offsets: [usize; SINGLES],
}

impl<const ROWS: usize, const SINGLES: usize> PassKeys<ROWS, SINGLES> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(pass: &Pass, seeds: [u64; LANES]) -> Self {
        let (rows, singles) = (pass.rows(), pass.singles());
        let all_seeds = words(&seeds);
        let mut row_keys = [[_mm512_setzero_si512(); LANES]; ROWS];
        for (row, keys) in row_keys.iter_mut().enumerate() {
            let secret = words(&rows[row].secret);
            for (key, seed) in keys.iter_mut().zip(seeds) {
                *key = _mm512_add_epi64(secret, signed(seed));
            }
        }
        Self {
            rows: row_keys,
            row_offsets: std::array::from_fn(|row| rows[row].offset),
            singles: std::array::from_fn(|single| {
                let [low, high] = singles[single].secret.map(|word| _mm512_set1_epi64(word as i64));
                [_mm512_add_epi64(low, all_seeds), _mm512_sub_epi64(high, all_seeds)]
            }),
            single_offsets: std::array::from_fn(|single| singles[single].offset),
        }
    }
}

/// The sums of eight blocks of 17 to 240 bytes, up to the last avalanche.
///
/// # Safety
///
/// At each pointer there are as many bytes as the pieces are for, and the keys were made from
/// them. The CPU has AVX-512.
#[inline(always)]
unsafe fn sum_pieces<
    const IFMA: bool,
    const R1: usize,
    const S1: usize,
    const R2: usize,
    const S2: usize,
>(
    blocks: &Blocks<'_>,
    pieces: &Pieces,
    first: &PassKeys<R1, S1>,
    second: &PassKeys<R2, S2>,
) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        let sum = _mm512_set1_epi64(pieces.length_term() as i64);
        let sum = sum_pass::<IFMA, R1, S1>(sum, blocks, first);
        if R2 + S2 == 0 {
            return sum;
        }
        sum_pass::<IFMA, R2, S2>(finish(start_avalanche(sum)), blocks, second)
    }
}

/// # Safety
///
/// As [`sum_pieces`].
#[inline(always)]
unsafe fn sum_pass<const IFMA: bool, const ROWS: usize, const SINGLES: usize>(
    mut sum: __m512i,
    blocks: &Blocks<'_>,
    keys: &PassKeys<ROWS, SINGLES>,
) -> __m512i {
    // SAFETY: the caller's promises; rows and pieces lie inside their blocks.
    unsafe {
        if ROWS > 0 {
            let mut folds = [_mm512_setzero_si512(); 4];
            for row in 0..ROWS {
                let offset = keys.row_offsets[row];
                for pair in 0..4 {
                    let (a, b) = (2 * pair, 2 * pair + 1);
                    blocks.fetch(a, offset);
                    blocks.fetch(b, offset);
                    let row_a = load_row(blocks.at(a, offset));
                    let row_b = load_row(blocks.at(b, offset));
                    let folded = fold_pair::<IFMA>(
                        _mm512_xor_si512(row_a, keys.rows[row][a]),
                        _mm512_xor_si512(row_b, keys.rows[row][b]),
                    );
                    folds[pair] =
                        if row == 0 { folded } else { _mm512_add_epi64(folds[pair], folded) };
                }
            }
            sum = _mm512_add_epi64(sum, add_up(folds));
        }
        for single in 0..SINGLES {
            let offset = keys.single_offsets[single];
            if offset.is_multiple_of(STRIPE_BYTES) {
                (0..LANES).for_each(|lane| blocks.fetch(lane, offset));
            }
            let even = load_pieces([0, 2, 4, 6].map(|lane| blocks.at(lane, offset)));
            let odd = load_pieces([1, 3, 5, 7].map(|lane| blocks.at(lane, offset)));
            let [low_key, high_key] = keys.singles[single];
            let low = _mm512_xor_si512(_mm512_unpacklo_epi64(even, odd), low_key);
            let high = _mm512_xor_si512(_mm512_unpackhi_epi64(even, odd), high_key);
            sum = _mm512_add_epi64(sum, fold::<IFMA>(low, high));
        }
        sum
    }
}

/// The secrets that eight lanes derive from their seeds.
struct StripeKeys {
    derived: [[__m512i; DERIVED_WORDS / LANES]; LANES],
}

impl StripeKeys {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(seeds: [u64; LANES]) -> Self {
        let (secret, _) = secret::WORDS.as_chunks();
        let mut derived = [[_mm512_setzero_si512(); DERIVED_WORDS / LANES]; LANES];
        for (derived, seed) in derived.iter_mut().zip(seeds) {
            for (derived, secret) in derived.iter_mut().zip(secret) {
                *derived = _mm512_add_epi64(words(secret), signed(seed));
            }
        }
        Self { derived }
    }

    /// The eight words at a byte offset of a lane's secret.
    #[inline(always)]
    fn at(&self, lane: usize, offset: usize) -> __m512i {
        let secret: &[u8] = bytemuck::bytes_of(&self.derived[lane]);
        bytemuck::pod_read_unaligned(&secret[offset..offset + STRIPE_BYTES])
    }
}

/// The sums of eight blocks of more than 240 bytes, up to the last avalanche.
///
/// # Safety
///
/// At each pointer there are `len` bytes, more than 240. The CPU has AVX-512.
#[inline(always)]
unsafe fn sum_stripes<const IFMA: bool>(
    blocks: &Blocks<'_>,
    len: usize,
    keys: &StripeKeys,
) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        let mut merged = [_mm512_setzero_si512(); LANES];
        for (lane, merged) in merged.iter_mut().enumerate() {
            let accumulators = absorb(blocks, len, keys, lane);
            *merged = _mm512_xor_si512(accumulators, keys.at(lane, secret::MERGE));
        }
        let mut folds = [_mm512_setzero_si512(); LANES / 2];
        for (pair, folded) in folds.iter_mut().enumerate() {
            *folded = fold_pair::<IFMA>(merged[2 * pair], merged[2 * pair + 1]);
        }
        _mm512_add_epi64(_mm512_set1_epi64(length_term(len) as i64), add_up(folds))
    }
}

/// The accumulators of one block, as the merge takes them.
///
/// # Safety
///
/// As [`sum_stripes`].
#[inline(always)]
unsafe fn absorb(blocks: &Blocks<'_>, len: usize, keys: &StripeKeys, lane: usize) -> __m512i {
    // SAFETY: the caller's promises. The last stripe is apart: it may begin inside the one
    // before, and is always there; so the others are less than the block.
    unsafe {
        let mut accumulators =
            Accumulators { products: words(&INITIAL_ACCUMULATORS), data: _mm512_setzero_si512() };
        let mut index = 0;
        for stripe in 0..(len - 1) / STRIPE_BYTES {
            let offset = stripe * STRIPE_BYTES;
            blocks.fetch(lane, offset);
            let data = load_row(blocks.at(lane, offset));
            accumulators.absorb(data, keys.at(lane, 8 * index));
            index += 1;
            if index == STRIPES_PER_SCRAMBLE {
                accumulators.scramble(keys.at(lane, secret::SCRAMBLE));
                index = 0;
            }
        }
        blocks.fetch(lane, len - STRIPE_BYTES);
        let data = load_row(blocks.at(lane, len - STRIPE_BYTES));
        accumulators.absorb(data, keys.at(lane, secret::LAST_STRIPE));
        accumulators.joined()
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

/// Folds the four pieces of two blocks. A vector of 128-bit pairs: the first block's, the
/// second's.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn fold_pair<const IFMA: bool>(a: __m512i, b: __m512i) -> __m512i {
    fold::<IFMA>(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// Adds up the four pairs of each of four vectors: one word a block, in the order of the blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn add_up([a, b, c, d]: [__m512i; 4]) -> __m512i {
    const FIRST_TWO: i32 = 0b01_00_01_00;
    const LAST_TWO: i32 = 0b11_10_11_10;
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let halves = |a, b| {
        _mm512_add_epi64(
            _mm512_shuffle_i64x2::<FIRST_TWO>(a, b),
            _mm512_shuffle_i64x2::<LAST_TWO>(a, b),
        )
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
    _mm512_add_epi64(_mm512_shuffle_i64x2::<EVEN>(ab, cd), _mm512_shuffle_i64x2::<ODD>(ab, cd))
}

/// The halves of `a * b`, xored.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn fold<const IFMA: bool>(a: __m512i, b: __m512i) -> __m512i {
    if IFMA {
        // SAFETY: `IFMA` is set only by the backend that the CPU must have IFMA for.
        return unsafe { avx512ifma::fold(a, b) };
    }
    let mask = _mm512_set1_epi64(0xffff_ffff);
    let (a_high, b_high) = (_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
    let low_low = _mm512_mul_epu32(a, b);
    let high_high = _mm512_mul_epu32(a_high, b_high);
    let middle = _mm512_add_epi64(_mm512_mul_epu32(a_high, b), _mm512_srli_epi64::<32>(low_low));
    let other = _mm512_add_epi64(_mm512_mul_epu32(a, b_high), _mm512_and_si512(middle, mask));
    let high = _mm512_add_epi64(high_high, _mm512_srli_epi64::<32>(middle));
    let high = _mm512_add_epi64(high, _mm512_srli_epi64::<32>(other));
    const XOR_AND: i32 = 0x78; // a ^ (b & c)
    let folded = _mm512_ternarylogic_epi64::<XOR_AND>(high, low_low, mask);
    _mm512_xor_si512(folded, _mm512_slli_epi64::<32>(other))
}

/// The avalanche up to its product.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn start_avalanche(sum: __m512i) -> __m512i {
    let mixed = _mm512_xor_si512(sum, _mm512_srli_epi64::<37>(sum));
    _mm512_mullo_epi64(mixed, _mm512_set1_epi64(PRIME_AVALANCHE as i64))
}

/// What is left of the avalanche.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn finish(product: __m512i) -> __m512i {
    _mm512_xor_si512(product, _mm512_srli_epi64::<32>(product))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn swap_bytes(words: __m512i) -> __m512i {
    let order = _mm512_set4_epi32(0x0809_0a0b, 0x0c0d_0e0f, 0x0001_0203, 0x0405_0607);
    _mm512_shuffle_epi8(words, order)
}

/// A seed as it enters a row: added to the first word of every pair, taken from the second.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn signed(seed: u64) -> __m512i {
    let seed = _mm512_set1_epi64(seed as i64);
    _mm512_mask_sub_epi64(seed, 0b1010_1010, _mm512_setzero_si512(), seed)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn words(words: &[u64; LANES]) -> __m512i {
    bytemuck::cast(*words)
}

/// # Safety
///
/// There are 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn load_row(row: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(row.cast()) }
}

/// Four pieces, of four blocks.
///
/// # Safety
///
/// Each has 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn load_pieces(pieces: [*const u8; 4]) -> __m512i {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = pieces.map(|piece| unsafe { _mm_loadu_si128(piece.cast()) });
    let all = _mm512_inserti64x2::<1>(_mm512_castsi128_si512(a), b);
    let all = _mm512_inserti64x2::<2>(all, c);
    _mm512_inserti64x2::<3>(all, d)
}

/// The same number, and the compiler cannot know.
#[inline(always)]
fn opaque(mut number: usize) -> usize {
    // SAFETY: there is no instruction; the number comes out of the register that it went into.
    unsafe {
        asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}

/// The same vector, and the compiler cannot know.
#[inline]
#[target_feature(enable = "avx512f")]
fn opaque_vector(mut vector: __m512i) -> __m512i {
    // SAFETY: there is no instruction; the vector comes out of the register that it went into.
    unsafe {
        asm!("/* {0} */", inout(zmm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}

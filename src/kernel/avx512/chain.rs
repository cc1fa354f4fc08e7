//! The chains of eight requests, and the packing of rows.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ptr;

use super::vector::{XOR3, finish, fold, opaque, start_avalanche, swap_bytes, words};
use super::{LANES, of_lanes};
use crate::kernel::Lane;

const ALL_LANES: __mmask8 = 0xff;

/// The truth table of `(a & !c) | (b & c)`.
const SELECT: i32 = 0xD8;
/// The truth table of `a | (b & c)`.
const OR_AND: i32 = 0xF8;

/// The chains of eight requests, and how their rows are packed.
pub(super) struct Chain {
    state: __m512i,
    /// Which lanes have a state; the others begin a lineage.
    begun: __mmask8,
    parent_key: __m512i,
    block_key: __m512i,
    packing: Packing,
    prefix: __m512i,
}

impl Chain {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    pub(super) fn new(lanes: &[Lane<'_>; LANES]) -> Self {
        let of = |get: fn(&Lane<'_>) -> u64| words(&of_lanes(lanes, get));
        let begun = of_lanes(lanes, |lane| lane.state.is_some());
        Self {
            state: of(|lane| lane.state.unwrap_or(0)),
            begun: begun.iter().rev().fold(0, |mask, &begun| mask << 1 | u8::from(begun)),
            parent_key: of(|lane| lane.chain.parent),
            block_key: of(|lane| lane.chain.block),
            packing: Packing::new(of(|lane| lane.fragment_bits.into())),
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
    pub(super) unsafe fn step<const IFMA: bool>(&mut self, product: __m512i) -> (__m512i, __m512i) {
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
            let packed = self.packing.pack(self.prefix, current, self.state);
            let grown = _mm512_add_epi64(self.prefix, self.packing.fragment_mask);
            self.prefix = _mm512_add_epi64(grown, _mm512_set1_epi64(1));
            self.state = current;
            packed
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    pub(super) fn give_back(&self, lanes: &mut [Lane<'_>; LANES]) {
        let states: [u64; LANES] = bytemuck::cast(self.state);
        let prefixes: [u64; LANES] = bytemuck::cast(self.prefix);
        for (i, lane) in lanes.iter_mut().enumerate() {
            lane.state = Some(states[i]);
            lane.prefix = prefixes[i];
        }
    }
}

/// How sequence hashes become rows: `prefix | current << bits | parent & mask`, over 128 bits.
struct Packing {
    fragment_bits: __m512i,
    fragment_mask: __m512i,
}

impl Packing {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(fragment_bits: __m512i) -> Self {
        let one = _mm512_set1_epi64(1);
        let fragment_mask = _mm512_sub_epi64(_mm512_sllv_epi64(one, fragment_bits), one);
        Self { fragment_bits, fragment_mask }
    }

    /// The low and the high halves of eight rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn pack(&self, prefix: __m512i, current: __m512i, parent: __m512i) -> (__m512i, __m512i) {
        let rotated = _mm512_rolv_epi64(current, self.fragment_bits);
        (
            _mm512_ternarylogic_epi64::<SELECT>(rotated, parent, self.fragment_mask),
            _mm512_ternarylogic_epi64::<OR_AND>(prefix, rotated, self.fragment_mask),
        )
    }
}

/// The rows of one request, eight at a time.
pub(super) struct RowsInTurn {
    packing: Packing,
    /// Of the next eight rows.
    prefixes: __m512i,
    /// What they grow by.
    step: __m512i,
}

impl RowsInTurn {
    /// The next ones of a lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    pub(super) fn new(lane: &Lane<'_>) -> Self {
        let step = 1 << lane.fragment_bits;
        Self {
            packing: Packing::new(_mm512_set1_epi64(lane.fragment_bits.into())),
            prefixes: words(&std::array::from_fn(|i| lane.prefix.wrapping_add(step * i as u64))),
            step: _mm512_set1_epi64((step * LANES as u64) as i64),
        }
    }

    /// Packs eight rows, from the sequence hash of the block before and those of their own.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    pub(super) fn pack(&mut self, states: &[u64; LANES + 1], rows: &[Cell<u128>; LANES]) {
        let parents = words(states.first_chunk().expect("eight and one more"));
        let currents = words(states.last_chunk().expect("eight and one more"));
        let (low, high) = self.packing.pack(self.prefixes, currents, parents);
        self.prefixes = _mm512_add_epi64(self.prefixes, self.step);
        // Each low half beside its high half; those are counted on from eight.
        let first_four = words(&[0, 8, 1, 9, 2, 10, 3, 11]);
        let last_four = words(&[4, 12, 5, 13, 6, 14, 7, 15]);
        let packed = [
            _mm512_permutex2var_epi64(low, first_four, high),
            _mm512_permutex2var_epi64(low, last_four, high),
        ];
        // SAFETY: so many cells, next to each other, which may be written by way of a shared reference.
        unsafe { ptr::from_ref(rows).cast_mut().cast::<[__m512i; 2]>().write_unaligned(packed) }
    }

    /// That of the next row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    pub(super) fn prefix(&self) -> u64 {
        let prefixes: [u64; LANES] = bytemuck::cast(self.prefixes);
        prefixes[0]
    }
}

/// Writes a row of every lane.
///
/// # Safety
///
/// Each lane has a row at `index`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn store(
    rows: &[*mut __m128i; LANES],
    index: usize,
    (low, high): (__m512i, __m512i),
) {
    // Opaque, so that each is made by one instruction: the compiler would take the vectors apart
    // first.
    let even = opaque(_mm512_unpacklo_epi64(low, high));
    let odd = opaque(_mm512_unpackhi_epi64(low, high));
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

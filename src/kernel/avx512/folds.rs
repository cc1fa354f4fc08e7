//! Blocks of 17 to 240 bytes: a lane is a request.

use std::arch::asm;
use std::arch::x86_64::*;

use super::side_by_side::{Blocks, walk_eight};
use super::vector::{add_up, finish, fold, fold_pair, load_row, signed, start_avalanche, words};
use super::{LANES, of_lanes};
use crate::kernel::{Arena, Lane};
use crate::xxh3::pieces::{MAX_ROWS, Pass, Pieces};
use crate::xxh3::{LONGEST_ONE_PASS, STRIPE_BYTES};

/// Hashes, chains and packs the next `count` blocks of up to eight lanes.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_folds<const IFMA: bool, const FETCH: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>; LANES],
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
                    if $r2 + $s2 > 0 {
                        let [first_rows, second_rows] = ROWS_OF_TWO_PASSES;
                        assert_eq!(first.row_offsets[..$r1], first_rows[..$r1]);
                        assert_eq!(second.row_offsets[..$r2], second_rows[..$r2]);
                    }
                    walk_eight::<IFMA, FETCH, _>(count, len, lanes, arena, |blocks| {
                        // SAFETY: the pieces of a length do not reach past its end.
                        unsafe {
                            sum_pieces::<IFMA, FETCH, $r1, $s1, $r2, $s2>(
                                blocks, pieces, &first, &second,
                            )
                        }
                    });
                })*
                _ => unreachable!("lanes are folded; a length without a shape: {len}"),
            }
        };
    }
    walk_shapes! {
        (0 2 0 0) (0 4 0 0) (0 6 0 0) (1 0 0 0) (1 2 0 0) (2 0 0 0) (2 0 0 1) (2 0 0 2)
        (2 0 0 3) (2 0 0 4) (2 0 1 1) (2 0 1 2) (2 0 1 3) (2 0 1 4)
    }
}

/// Where the rows of two passes are: known at compile time, since the compiler would otherwise load
/// all rows of a block before it folds the first, and keep them in memory. Of the one pass of a
/// shorter block the second row may begin anywhere.
const ROWS_OF_TWO_PASSES: [[usize; MAX_ROWS]; 2] =
    [[0, STRIPE_BYTES], [LONGEST_ONE_PASS, LONGEST_ONE_PASS + STRIPE_BYTES]];

/// The keys of a pass: of each row a vector for every lane, of each single piece a vector of all
/// lanes' first words and one of their second ones.
struct PassKeys<const ROWS: usize, const SINGLES: usize> {
    rows: [[__m512i; LANES]; ROWS],
    row_offsets: [usize; MAX_ROWS],
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
            row_offsets: std::array::from_fn(|row| rows.get(row).map_or(0, |row| row.offset)),
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
    const FETCH: bool,
    const R1: usize,
    const S1: usize,
    const R2: usize,
    const S2: usize,
>(
    blocks: &Blocks<'_, FETCH>,
    pieces: &Pieces,
    first: &PassKeys<R1, S1>,
    second: &PassKeys<R2, S2>,
) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        let sum = _mm512_set1_epi64(pieces.length_term() as i64);
        if R2 + S2 == 0 {
            return sum_pass::<IFMA, FETCH, R1, S1>(sum, blocks, first, first.row_offsets);
        }
        let [first_rows, second_rows] = ROWS_OF_TWO_PASSES;
        let sum = sum_pass::<IFMA, FETCH, R1, S1>(sum, blocks, first, first_rows);
        let sum = finish(start_avalanche(sum));
        sum_pass::<IFMA, FETCH, R2, S2>(sum, blocks, second, second_rows)
    }
}

/// # Safety
///
/// As [`sum_pieces`].
#[inline(always)]
unsafe fn sum_pass<const IFMA: bool, const FETCH: bool, const ROWS: usize, const SINGLES: usize>(
    mut sum: __m512i,
    blocks: &Blocks<'_, FETCH>,
    keys: &PassKeys<ROWS, SINGLES>,
    row_offsets: [usize; MAX_ROWS],
) -> __m512i {
    // SAFETY: the caller's promises; rows and pieces lie inside their blocks.
    unsafe {
        if ROWS > 0 {
            let mut folds = fold_row::<IFMA, FETCH>(blocks, row_offsets[0], &keys.rows[0]);
            // Spelled out: the compiler would keep a loop over two rows.
            if ROWS > 1 {
                let more = fold_row::<IFMA, FETCH>(blocks, row_offsets[1], &keys.rows[1]);
                for (fold, more) in folds.iter_mut().zip(more) {
                    *fold = _mm512_add_epi64(*fold, more);
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

/// The folds of a row of eight blocks, two blocks to a vector.
///
/// # Safety
///
/// Each block has a row at the offset. The CPU has AVX-512.
#[inline(always)]
unsafe fn fold_row<const IFMA: bool, const FETCH: bool>(
    blocks: &Blocks<'_, FETCH>,
    offset: usize,
    keys: &[__m512i; LANES],
) -> [__m512i; LANES / 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let mut folds = [_mm512_setzero_si512(); LANES / 2];
        for (pair, folded) in folds.iter_mut().enumerate() {
            let (a, b) = (2 * pair, 2 * pair + 1);
            if !IFMA {
                barrier();
            }
            blocks.fetch(a, offset);
            blocks.fetch(b, offset);
            *folded = fold_pair::<IFMA>(
                _mm512_xor_si512(load_row(blocks.at(a, offset)), keys[a]),
                _mm512_xor_si512(load_row(blocks.at(b, offset)), keys[b]),
            );
        }
        folds
    }
}

/// Keeps loads on their side of it. Where registers are short, the compiler would load the rows of
/// all folds before the first one, and have to put them away.
#[inline(always)]
fn barrier() {
    // SAFETY: there is no instruction.
    unsafe { asm!("", options(nostack, preserves_flags)) };
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

//! Blocks of 17 to 240 bytes: a lane is a request, or one of eight consecutive blocks of one.

use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

use super::eights::{Beside, Sum, walk_by_eights};
use super::side_by_side::{Blocks, Eight, walk_eight};
use super::vector::{
    add_up, barrier, finish, fold, fold_pair, load_row, opaque, signed, start_avalanche, words,
};
use super::{LANES, of_lanes};
use crate::fetch::{Hints, fetch_start};
use crate::kernel::Lane;
use crate::xxh3::pieces::{MAX_ROWS, Pass, Pieces};
use crate::xxh3::{LONGEST_ONE_PASS, STRIPE_BYTES};

/// Runs `$run` with the type of the [`Folds`] of some pieces as `$folds`.
///
/// With the numbers of rows and single pieces known at compile time, the loops over them become
/// straight lines. These are all that lengths of 17 to 240 bytes have.
macro_rules! with_folds {
    ($pieces:expr, |$folds:ident| $run:expr) => {
        with_folds!(@shapes $pieces, |$folds| $run,
            (0 2 0 0) (0 4 0 0) (0 6 0 0) (1 0 0 0) (1 2 0 0) (2 0 0 0) (2 0 0 1) (2 0 0 2)
            (2 0 0 3) (2 0 0 4) (2 0 1 1) (2 0 1 2) (2 0 1 3) (2 0 1 4))
    };
    (@shapes $pieces:expr, |$folds:ident| $run:expr,
        $(($r1:literal $s1:literal $r2:literal $s2:literal))*) => {
        match ($pieces.first().counts(), $pieces.second().counts()) {
            $((($r1, $s1), ($r2, $s2)) => {
                type $folds<const SEEDS: usize> = Folds<SEEDS, $r1, $s1, $r2, $s2>;
                $run
            })*
            _ => unreachable!("lanes are folded"),
        }
    };
}

/// Hashes, chains and packs the next `count` blocks of up to eight lanes.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_folds<const IFMA: bool, const FETCH: bool>(
    count: usize,
    lanes: &mut [Lane<'_>; LANES],
    pieces: &Pieces,
) {
    let len = pieces.len();
    let seeds = of_lanes(lanes, |lane| lane.seed);
    with_folds!(pieces, |OfLength| {
        let folds = OfLength::new(pieces, seeds);
        walk_eight::<IFMA, FETCH, _>(count, len, lanes, |blocks| {
            // SAFETY: the pieces of a length do not reach past its end.
            unsafe { folds.sum::<IFMA, FETCH>(blocks, &mut ()) }
        });
    });
}

/// Hashes, chains and packs as many blocks of each of some lanes.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_over<const N: usize, const IFMA: bool, const FETCH: bool>(
    blocks: [&[u8]; N],
    places: [Range<usize>; N],
    lanes: [&mut Lane<'_>; N],
    pieces: &Pieces,
) {
    for lane in &lanes {
        fetch_start(lane.next, Hints(FETCH));
    }
    let len = pieces.len();
    with_folds!(pieces, |OfLength| {
        assert!(N == 1 || OfLength::<1>::PARTS < LANES, "one request by itself is as fast");
        let requests = from_fn(|i| {
            let folds = OfLength::new(pieces, [lanes[i].seed]);
            Request::<IFMA, FETCH, _, _, _, _> { blocks: blocks[i], len, folds }
        });
        walk_by_eights(places, lanes, requests);
    });
}

/// The blocks of one request.
struct Request<
    'a,
    const IFMA: bool,
    const FETCH: bool,
    const R1: usize,
    const S1: usize,
    const R2: usize,
    const S2: usize,
> {
    blocks: &'a [u8],
    len: usize,
    folds: Folds<1, R1, S1, R2, S2>,
}

impl<
    const IFMA: bool,
    const FETCH: bool,
    const R1: usize,
    const S1: usize,
    const R2: usize,
    const S2: usize,
> Sum for Request<'_, IFMA, FETCH, R1, S1, R2, S2>
{
    const PARTS: usize = Folds::<1, R1, S1, R2, S2>::PARTS;

    #[inline(always)]
    unsafe fn sum(&self, blocks: Range<usize>, beside: &mut impl Beside) -> __m512i {
        // What is a row and nothing else is a stripe long: known, it needs no register.
        let len = if (R1, S1) == (1, 0) { STRIPE_BYTES } else { self.len };
        let eight = Eight::of(self.blocks, len, blocks);
        // SAFETY: the pieces of a length do not reach past its end; the caller's promise.
        unsafe { self.folds.sum::<IFMA, FETCH>(&eight.blocks(), beside) }
    }
}

/// What blocks of one length are folded with: a key for each seed, which are eight or one.
struct Folds<const SEEDS: usize, const R1: usize, const S1: usize, const R2: usize, const S2: usize>
{
    length_term: u64,
    first: PassKeys<SEEDS, R1, S1>,
    second: PassKeys<SEEDS, R2, S2>,
}

/// Where the rows of two passes are: known at compile time, since the compiler would otherwise load
/// all rows of a block before it folds the first, and keep them in memory. The second pass has one row
/// at the most. Of the one pass of a shorter block the second row may begin anywhere.
const ROWS_OF_TWO_PASSES: [[usize; MAX_ROWS]; 2] =
    [[0, STRIPE_BYTES], [LONGEST_ONE_PASS; MAX_ROWS]];

impl<const SEEDS: usize, const R1: usize, const S1: usize, const R2: usize, const S2: usize>
    Folds<SEEDS, R1, S1, R2, S2>
{
    const TWO_PASSES: bool = R2 + S2 > 0;
    /// The folds of eight blocks.
    const PARTS: usize = LANES / 2 * (R1 + R2) + S1 + S2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(pieces: &Pieces, seeds: [u64; SEEDS]) -> Self {
        let first = PassKeys::<SEEDS, R1, S1>::new(pieces.first(), seeds);
        let second = PassKeys::<SEEDS, R2, S2>::new(pieces.second(), seeds);
        if Self::TWO_PASSES {
            let [first_rows, second_rows] = ROWS_OF_TWO_PASSES;
            assert_eq!(first.row_offsets[..R1], first_rows[..R1]);
            assert_eq!(second.row_offsets[..R2], second_rows[..R2]);
        }
        Self { length_term: pieces.length_term(), first, second }
    }

    /// The sums of eight blocks, up to the last avalanche.
    ///
    /// # Safety
    ///
    /// At each pointer there are as many bytes as the pieces are for. The CPU has AVX-512.
    #[inline(always)]
    unsafe fn sum<const IFMA: bool, const FETCH: bool>(
        &self,
        blocks: &Blocks<'_, FETCH>,
        beside: &mut impl Beside,
    ) -> __m512i {
        let Self { length_term, first, second } = self;
        // SAFETY: the caller's promises.
        unsafe {
            let start = _mm512_set1_epi64(*length_term as i64);
            if !Self::TWO_PASSES {
                return first.sum::<IFMA, FETCH>(start, blocks, first.row_offsets, beside);
            }
            let [first_rows, second_rows] = ROWS_OF_TWO_PASSES;
            let sum = first.sum::<IFMA, FETCH>(start, blocks, first_rows, beside);
            let sum = finish(start_avalanche(sum));
            second.sum::<IFMA, FETCH>(sum, blocks, second_rows, beside)
        }
    }
}

/// The keys of a pass: of each row a vector for every seed, of each single piece a vector of all
/// lanes' first words and one of their second ones.
struct PassKeys<const SEEDS: usize, const ROWS: usize, const SINGLES: usize> {
    rows: [[__m512i; SEEDS]; ROWS],
    row_offsets: [usize; MAX_ROWS],
    singles: [[__m512i; 2]; SINGLES],
    single_offsets: [usize; SINGLES],
}

impl<const SEEDS: usize, const ROWS: usize, const SINGLES: usize> PassKeys<SEEDS, ROWS, SINGLES> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn new(pass: &Pass, seeds: [u64; SEEDS]) -> Self {
        let (rows, singles) = (pass.rows(), pass.singles());
        let all_seeds = words(&std::array::from_fn(|lane| seeds[lane % SEEDS]));
        let mut row_keys = [[_mm512_setzero_si512(); SEEDS]; ROWS];
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

    /// Adds the folds of the pass.
    ///
    /// # Safety
    ///
    /// Each block has its rows at the offsets, and its pieces. The CPU has AVX-512.
    #[inline(always)]
    unsafe fn sum<const IFMA: bool, const FETCH: bool>(
        &self,
        mut sum: __m512i,
        blocks: &Blocks<'_, FETCH>,
        row_offsets: [usize; MAX_ROWS],
        beside: &mut impl Beside,
    ) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe {
            if ROWS > 0 {
                let mut folds =
                    fold_row::<IFMA, FETCH, SEEDS>(blocks, row_offsets[0], &self.rows[0], beside);
                // Spelled out: the compiler would keep a loop over two rows.
                if ROWS > 1 {
                    let more = fold_row::<IFMA, FETCH, SEEDS>(
                        blocks,
                        row_offsets[1],
                        &self.rows[1],
                        beside,
                    );
                    for (fold, more) in folds.iter_mut().zip(more) {
                        *fold = _mm512_add_epi64(*fold, more);
                    }
                }
                sum = _mm512_add_epi64(sum, add_up(folds));
            }
            for single in 0..SINGLES {
                let offset = self.single_offsets[single];
                if offset.is_multiple_of(STRIPE_BYTES) {
                    (0..LANES).for_each(|lane| blocks.fetch(lane, offset));
                }
                let even = load_pieces([0, 2, 4, 6].map(|lane| blocks.at(lane, offset)));
                let odd = load_pieces([1, 3, 5, 7].map(|lane| blocks.at(lane, offset)));
                let [low_key, high_key] = self.singles[single];
                let low = _mm512_xor_si512(_mm512_unpacklo_epi64(even, odd), low_key);
                let high = _mm512_xor_si512(_mm512_unpackhi_epi64(even, odd), high_key);
                sum = _mm512_add_epi64(sum, fold::<IFMA>(low, high));
                beside.go_on();
            }
            sum
        }
    }
}

/// The folds of a row of eight blocks, two blocks to a vector.
///
/// # Safety
///
/// Each block has a row at the offset. The CPU has AVX-512.
#[inline(always)]
unsafe fn fold_row<const IFMA: bool, const FETCH: bool, const SEEDS: usize>(
    blocks: &Blocks<'_, FETCH>,
    offset: usize,
    keys: &[__m512i; SEEDS],
    beside: &mut impl Beside,
) -> [__m512i; LANES / 2] {
    // SAFETY: the caller's promises.
    unsafe {
        // Spelled out: the compiler would keep a loop where much is done beside.
        [
            fold_rows_of::<IFMA, FETCH, SEEDS>([0, 1], blocks, offset, keys, beside),
            fold_rows_of::<IFMA, FETCH, SEEDS>([2, 3], blocks, offset, keys, beside),
            fold_rows_of::<IFMA, FETCH, SEEDS>([4, 5], blocks, offset, keys, beside),
            fold_rows_of::<IFMA, FETCH, SEEDS>([6, 7], blocks, offset, keys, beside),
        ]
    }
}

/// The folds of the rows of two lanes.
///
/// # Safety
///
/// As [`fold_row`].
#[inline(always)]
unsafe fn fold_rows_of<const IFMA: bool, const FETCH: bool, const SEEDS: usize>(
    [a, b]: [usize; 2],
    blocks: &Blocks<'_, FETCH>,
    offset: usize,
    keys: &[__m512i; SEEDS],
    beside: &mut impl Beside,
) -> __m512i {
    // SAFETY: the caller's promises.
    unsafe {
        if !IFMA {
            barrier();
        }
        blocks.fetch(a, offset);
        blocks.fetch(b, offset);
        let folded = fold_pair::<IFMA>(
            _mm512_xor_si512(load_row(blocks.at(a, offset)), keys[a % SEEDS]),
            _mm512_xor_si512(load_row(blocks.at(b, offset)), keys[b % SEEDS]),
        );
        // One fold after the other: without IFMA a fold takes more registers than there are for two.
        let folded = if IFMA { folded } else { opaque(folded) };
        beside.go_on();
        folded
    }
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

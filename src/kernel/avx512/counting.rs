//! Blocks that are alike but for numbers that count up: eight consecutive ones of one request to
//! a vector, without their bytes ever being written.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::vector::{finish, fold, start_avalanche, words};
use super::{LANES, keep};
use crate::kernel::{Counting, Lane, scalar};
use crate::xxh3::keys::{MAX_FOLDS, length_term};
use crate::xxh3::{FIRST_PASS_FOLDS, LONGEST_ONE_PASS, fold_count, fold_input};

/// How the number in one word of a block comes to its place.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// How far the number is ahead of the block's first one.
    ahead: u64,
    /// How far it is rotated, and which of its bits are in the word.
    rotation: u64,
    mask: u64,
}

/// The places of numbers in the words that the folds of a block read.
#[derive(Debug, Default)]
pub(in crate::kernel) struct Places {
    len: usize,
    slot_bytes: usize,
    offset: usize,
    words: [[Place; 2]; MAX_FOLDS],
}

impl Places {
    /// Makes these the places of another kind of blocks; free of work where they already are.
    fn set(&mut self, counting: &Counting<'_>) {
        let len = counting.block.len();
        let Counting { slot_bytes, offset, .. } = *counting;
        if (self.len, self.slot_bytes, self.offset) == (len, slot_bytes, offset) {
            return;
        }
        *self = Self { len, slot_bytes, offset, ..Self::default() };
        for i in 0..fold_count(len) {
            self.words[i] = [0, 8].map(|half| self.place(fold_input(len, i) + half));
        }
    }

    /// The place in the eight bytes at `word` of a block.
    fn place(&self, word: usize) -> Place {
        // The last slot whose number begins before the word ends. Numbers are at least eight bytes
        // apart, so that a word has a share of one at the most.
        let slots = self.len / self.slot_bytes;
        let slot = ((word + 7).saturating_sub(self.offset) / self.slot_bytes).min(slots - 1);
        let start = slot * self.slot_bytes + self.offset;
        let (rotation, mask) = if (word..word + 8).contains(&start) {
            let shift = 8 * (start - word);
            (shift, 0xffff_ffff << shift)
        } else if (start..start + 4).contains(&word) {
            let shift = 8 * (word - start);
            (64 - shift, 0xffff_ffff >> shift)
        } else {
            (0, 0)
        };
        Place { ahead: slot as u64, rotation: rotation as u64, mask }
    }
}

/// Hashes, chains and packs the next `count` blocks of a lane, of 17 to 240 bytes. The eight
/// before are chained while eight are hashed.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk<const IFMA: bool>(
    count: usize,
    counting: &Counting<'_>,
    lane: &mut Lane<'_>,
    keys: &[[u64; 2]; MAX_FOLDS],
    places: &mut Places,
) {
    let len = counting.block.len();
    let folds = fold_count(len);
    places.set(counting);
    // The bits that all blocks have, xored with the keys.
    let mut fixed = [[0; 2]; MAX_FOLDS];
    for (i, (fixed, keys)) in fixed.iter_mut().zip(keys).enumerate().take(folds) {
        let bytes: &[u8; 16] = counting.block[fold_input(len, i)..].first_chunk().expect("inside");
        let [low, high]: [u64; 2] = bytemuck::pod_read_unaligned(bytes);
        *fixed = [low ^ keys[0], high ^ keys[1]];
    }
    let first_pass = if len <= LONGEST_ONE_PASS { folds } else { FIRST_PASS_FOLDS };
    let add = |sum, folds: Range<usize>, numbers| {
        add_folds::<IFMA>(sum, &fixed[folds.clone()], &places.words[folds], numbers)
    };
    let step = (len / counting.slot_bytes) as u64;
    let mut numbers = words(&std::array::from_fn(|i| counting.first + i as u64 * step));
    let next = _mm512_set1_epi64((LANES as u64 * step) as i64);

    let window = lane.take_places(count);
    let mut hashes = [0; LANES];
    let mut rows: &[Cell<u128>] = &[];
    let mut kept = lane.hashes.map(|hashes| hashes[window.clone()].chunks(LANES));
    for next_rows in lane.rows[window].chunks(LANES) {
        let mut sum = _mm512_set1_epi64(length_term(len) as i64);
        sum = add(sum, 0..first_pass, numbers);
        // In two parts, so that the CPU finds both kinds of work within its reach.
        let half = rows.len() / 2;
        scalar::chain_alone(&hashes[..half], lane, &rows[..half]);
        if first_pass < folds {
            sum = add(finish(start_avalanche(sum)), first_pass..folds, numbers);
        }
        let hashed = finish(start_avalanche(sum));
        numbers = _mm512_add_epi64(numbers, next);
        scalar::chain_alone(&hashes[half..], lane, &rows[half..]);
        hashes = bytemuck::cast(hashed);
        rows = next_rows;
        if let Some(kept) = kept.as_mut().and_then(Iterator::next) {
            keep(kept, &hashes);
        }
    }
    scalar::chain_alone(&hashes, lane, rows);
}

/// Adds some folds; `numbers` are the first of each block.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn add_folds<const IFMA: bool>(
    mut sum: __m512i,
    fixed: &[[u64; 2]],
    places: &[[Place; 2]],
    numbers: __m512i,
) -> __m512i {
    for (fixed, places) in fixed.iter().zip(places) {
        let low = of_blocks(fixed[0], places[0], numbers);
        let high = of_blocks(fixed[1], places[1], numbers);
        sum = _mm512_add_epi64(sum, fold::<IFMA>(low, high));
    }
    sum
}

/// The word of eight blocks, xored with its key.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn of_blocks(fixed: u64, place: Place, numbers: __m512i) -> __m512i {
    const XOR_AND: i32 = 0x78; // a ^ (b & c)
    let all = |number: u64| _mm512_set1_epi64(number as i64);
    let number = _mm512_add_epi64(numbers, all(place.ahead));
    let number = _mm512_rolv_epi64(number, all(place.rotation));
    _mm512_ternarylogic_epi64::<XOR_AND>(all(fixed), number, all(place.mask))
}

//! The loop over the blocks of eight requests.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

use super::chain::{Chain, store};
use super::vector::start_avalanche;
use super::{LANES, of_lanes, rows_of};
use crate::fetch::{FETCH_AHEAD, fetch, fetch_to_write};
use crate::kernel::Lane;

/// Eight blocks, and for each the place whose bytes are to be fetched while it is read.
pub(super) struct Blocks<'a, const FETCH: bool> {
    at: &'a [*const u8; LANES],
    ahead: &'a [*const u8; LANES],
    /// Counted from the pointers on.
    offset: usize,
}

impl<const FETCH: bool> Blocks<'_, FETCH> {
    /// Where a lane's block has a byte.
    #[inline(always)]
    pub(super) fn at(&self, lane: usize, offset: usize) -> *const u8 {
        self.at[lane].wrapping_add(self.offset).wrapping_add(offset)
    }

    /// What is to be fetched while a lane's block is read.
    #[inline(always)]
    pub(super) fn ahead(&self, lane: usize) -> *const u8 {
        self.ahead[lane].wrapping_add(self.offset)
    }

    /// Fetches what lies as far ahead as a byte offset of a lane's block.
    #[inline(always)]
    pub(super) fn fetch(&self, lane: usize, offset: usize) {
        if FETCH {
            fetch(self.ahead(lane).wrapping_add(offset));
        }
    }
}

/// Eight blocks of one request.
pub(super) struct Eight<'t> {
    blocks: [*const u8; LANES],
    ahead: [*const u8; LANES],
    borrowed: PhantomData<&'t [u8]>,
}

impl<'t> Eight<'t> {
    /// The blocks of `len` bytes at one to eight places. Where they are less than eight, the last one
    /// stands for those that are not there.
    #[inline(always)]
    pub(super) fn of(blocks: &'t [u8], len: usize, places: Range<usize>) -> Self {
        let bytes = &blocks[places.start * len..places.end * len];
        let last = places.len() - 1;
        let blocks = std::array::from_fn(|i| bytes.as_ptr().wrapping_add(i.min(last) * len));
        let ahead = blocks.map(|block: *const u8| block.wrapping_add(FETCH_AHEAD));
        Self { blocks, ahead, borrowed: PhantomData }
    }

    #[inline(always)]
    pub(super) fn blocks<const FETCH: bool>(&self) -> Blocks<'_, FETCH> {
        Blocks { at: &self.blocks, ahead: &self.ahead, offset: 0 }
    }
}

/// The blocks of eight requests.
struct Streams<'t> {
    blocks: [*const u8; LANES],
    /// What is fetched, counted from where the blocks are read: first the blocks further on.
    fetched: [*const u8; LANES],
    next: [*const u8; LANES],
    borrowed: PhantomData<&'t [u8]>,
}

impl<'t> Streams<'t> {
    /// Takes `count` blocks of `len` bytes from each lane.
    #[inline(always)]
    fn take(lanes: &mut [Lane<'t>; LANES], count: usize, len: usize) -> Self {
        let next = of_lanes(lanes, |lane| lane.next.as_ptr());
        let mut blocks = [ptr::null(); LANES];
        for (blocks, lane) in blocks.iter_mut().zip(lanes) {
            *blocks = lane.take(count * len).as_ptr();
            lane.take_places(count);
        }
        let fetched = blocks.map(|blocks| blocks.wrapping_add(FETCH_AHEAD));
        Self { blocks, fetched, next, borrowed: PhantomData }
    }
}

/// Hashes, chains and packs `count` blocks of each lane. One block of each is chained while the
/// next is summed: the one waits for its multiplications, the other fills the wait.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_eight<
    const IFMA: bool,
    const FETCH: bool,
    S: Fn(&Blocks<'_, FETCH>) -> __m512i,
>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>; LANES],
    sum: S,
) {
    let mut chain = Chain::new(lanes);
    let rows = rows_of(lanes, count);
    for rows in rows {
        for row in (0..ROWS_AHEAD).step_by(LINE_ROWS) {
            // SAFETY: the CPU has AVX-512.
            unsafe { fetch_to_write(rows.wrapping_add(row)) };
        }
    }
    let mut streams = Streams::take(lanes, count, len);
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
        fetch_rows(&rows, row);
        if offset > 0 {
            // SAFETY: the CPU has what this function has; every lane has `count` rows.
            unsafe { store(&rows, row, chain.step::<IFMA>(product)) };
            row += 1;
        }
        product = start_avalanche(sum);
        // Opaque, so that one offset goes with eight pointers: the compiler would have eight
        // pointers grow, and no registers for them.
        offset = opaque(offset + len);
    }
    // SAFETY: as above; there is at least one block.
    unsafe { store(&rows, row, chain.step::<IFMA>(product)) };
    chain.give_back(lanes);
}

/// How many rows ahead of what is written lines are fetched.
const ROWS_AHEAD: usize = 8;
/// Rows to a cache line.
const LINE_ROWS: usize = 4;

/// Fetches the lines of rows further on: those of two lanes, so that each lane has its turn when it
/// comes to a new line.
#[inline(always)]
fn fetch_rows(rows: &[*mut __m128i; LANES], row: usize) {
    const LANES_AT_ONCE: usize = LANES / LINE_ROWS;
    let first = row % LINE_ROWS * LANES_AT_ONCE;
    for rows in &rows[first..first + LANES_AT_ONCE] {
        // SAFETY: the CPU has AVX-512.
        unsafe { fetch_to_write(rows.wrapping_add(row + ROWS_AHEAD)) };
    }
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

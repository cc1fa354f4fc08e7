//! The loop over the blocks of one request or two: while eight of one are hashed, eights before are chained.

use std::arch::x86_64::*;
use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::chain::RowsInTurn;
use super::vector::{barrier, finish, start_avalanche};
use super::{LANES, keep};
use crate::kernel::{Lane, scalar};
use crate::xxh3::scalar::Chain;

/// Sums eight blocks of one request.
pub(super) trait Sum {
    /// How many parts a sum has.
    const PARTS: usize;

    /// The sums of up to eight blocks, up to the last avalanche. In lanes past the last block is
    /// anything.
    ///
    /// # Safety
    ///
    /// There is at least one block. The CPU has AVX-512.
    unsafe fn sum(&self, blocks: Range<usize>, beside: &mut impl Beside) -> __m512i;
}

/// What is done beside a sum.
pub(super) trait Beside {
    /// After each of its parts.
    fn go_on(&mut self);
}

/// Nothing.
impl Beside for () {
    #[inline(always)]
    fn go_on(&mut self) {}
}

/// The chain of one request, under way.
struct OneChain {
    chain: Chain,
    /// The sequence hash so far; 0 where there is none.
    state: u64,
    begun: bool,
}

/// The sequence hash of the block before, and those of eight blocks.
type States = [u64; LANES + 1];

/// The links of eight blocks of each request, some after each part of their sums.
///
/// A chain waits for each of its links. Links that wait fill the CPU's window, so that vectors behind
/// more than a few of them are not begun; and the other way round.
struct Links<'a, const N: usize, S> {
    lines: &'a mut [OneChain; N],
    hashes: &'a [[u64; LANES]; N],
    states: &'a mut [States; N],
    /// How many of each request are done. One number for all, so that the compiler knows it.
    done: usize,
    sum: PhantomData<S>,
}

impl<'a, const N: usize, S: Sum> Links<'a, N, S> {
    /// Whether two links of a chain come after each part, and not one; what is left of them comes at the
    /// end. They are spelled out, since the compiler would keep a loop and all that it works with in memory.
    const TWO_AT_ONCE: bool = N * S::PARTS < LANES;

    /// The first ones, with which a lineage may begin: its sequence hash is the block's hash.
    #[inline(always)]
    fn begin(
        lines: &'a mut [OneChain; N],
        hashes: &'a [[u64; LANES]; N],
        states: &'a mut [States; N],
    ) -> Self {
        for ((line, hashes), states) in lines.iter_mut().zip(hashes).zip(&mut *states) {
            states[0] = line.state;
            line.state = if line.begun {
                line.chain.step(hashes[0])
            } else {
                line.begun = true;
                line.chain.begin(hashes[0]);
                hashes[0]
            };
            states[1] = line.state;
        }
        Self { lines, hashes, states, done: 1, sum: PhantomData }
    }

    /// The next one of each request.
    #[inline(always)]
    fn next(&mut self) {
        if self.done == LANES {
            return;
        }
        let lines = self.lines.iter_mut().zip(self.hashes).zip(&mut *self.states);
        for ((line, hashes), states) in lines {
            line.state = line.chain.step(hashes[self.done]);
            states[self.done + 1] = line.state;
        }
        self.done += 1;
    }

    #[inline(always)]
    fn end(mut self) {
        while self.done < LANES {
            self.next();
        }
    }
}

impl<const N: usize, S: Sum> Beside for Links<'_, N, S> {
    #[inline(always)]
    fn go_on(&mut self) {
        self.next();
        if Self::TWO_AT_ONCE {
            self.next();
        }
        barrier();
    }
}

/// Hashes, chains and packs as many blocks of each lane, those of the rows at its places.
///
/// Eights of blocks go through three stages, and each stage is behind the one before by as much as it
/// would otherwise wait for it: an eight is hashed; two turns later it is chained; and one turn later
/// its rows are packed, from sequence hashes that were written one by one and are read as vectors. The
/// eights of lanes take turns.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_by_eights<const N: usize, S: Sum>(
    places: [Range<usize>; N],
    lanes: [&mut Lane<'_>; N],
    sums: [S; N],
) {
    let rows: [_; N] = from_fn(|i| lanes[i].rows[places[i].clone()].as_chunks::<LANES>());
    let mut kept: [_; N] =
        from_fn(|i| lanes[i].hashes.map(|hashes| hashes[places[i].clone()].chunks(LANES)));
    let mut keep = |i: usize, hashes: &[u64; LANES]| {
        if let Some(kept) = kept[i].as_mut().and_then(Iterator::next) {
            keep(kept, hashes);
        }
    };
    let (count, rest) = (rows[0].0.len(), rows[0].1.len());
    debug_assert!(rows.iter().all(|rows| (rows.0.len(), rows.1.len()) == (count, rest)));
    let blocks = |eight| LANES * eight..LANES * (eight + 1);
    let mut lines: [_; N] = from_fn(|i| OneChain {
        chain: Chain::new(lanes[i].state.unwrap_or_default(), lanes[i].chain),
        state: lanes[i].state.unwrap_or_default(),
        begun: lanes[i].state.is_some(),
    });
    let mut packing: [_; N] = from_fn(|i| RowsInTurn::new(lanes[i]));
    // Of an eight and the one after it.
    let mut hashes = [[[0; LANES]; N]; 2];
    let mut states = [[[0; LANES + 1]; N]; 2];

    for eight in 0..count.min(2) {
        for i in 0..N {
            hashes[eight][i] = hash_apart(&sums[i], blocks(eight));
            keep(i, &hashes[eight][i]);
        }
    }
    for eight in 2..count {
        let now = eight % 2;
        let mut links = Links::<N, S>::begin(&mut lines, &hashes[now], &mut states[now]);
        let mut next = [_mm512_setzero_si512(); N];
        for i in 0..N {
            // SAFETY: there are eight; the CPU has what this function has.
            let sum = unsafe { sums[i].sum(blocks(eight), &mut links) };
            next[i] = finish(start_avalanche(sum));
        }
        links.end();
        for i in 0..N {
            if eight > 2 {
                packing[i].pack(&states[1 - now][i], &rows[i].0[eight - 3]);
            }
            hashes[now][i] = bytemuck::cast(next[i]);
            keep(i, &hashes[now][i]);
        }
    }
    let mut last_hashes = [[0; LANES]; N];
    if rest > 0 {
        for i in 0..N {
            last_hashes[i] = hash_apart(&sums[i], LANES * count..LANES * count + rest);
            keep(i, &last_hashes[i]);
        }
    }
    if count > 2 {
        for i in 0..N {
            packing[i].pack(&states[(count - 1) % 2][i], &rows[i].0[count - 3]);
        }
    }
    let last_two = count.saturating_sub(2)..count;
    for eight in last_two.clone() {
        Links::<N, S>::begin(&mut lines, &hashes[eight % 2], &mut states[eight % 2]).end();
    }
    for eight in last_two {
        for i in 0..N {
            packing[i].pack(&states[eight % 2][i], &rows[i].0[eight]);
        }
    }
    for (i, lane) in lanes.into_iter().enumerate() {
        lane.state = lines[i].begun.then_some(lines[i].state);
        lane.prefix = packing[i].prefix();
        if rest > 0 {
            scalar::chain_alone(&last_hashes[i], lane, rows[i].1);
        }
    }
}

/// Hashes of blocks, of which there are some, with nothing beside. Once in the program for each kind of
/// sum, not once a call.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn hash_apart<S: Sum>(sum: &S, blocks: Range<usize>) -> [u64; LANES] {
    assert!(!blocks.is_empty());
    // SAFETY: see above; the CPU has what this function has.
    let sum = unsafe { sum.sum(blocks, &mut ()) };
    bytemuck::cast(finish(start_avalanche(sum)))
}

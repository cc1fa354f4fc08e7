//! The loop over the blocks of one request: while eight of them are hashed, eight before are chained.

use std::arch::x86_64::*;
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

/// The links of eight blocks, some after each part of a sum.
///
/// A chain waits for each of its links. Links that wait fill the CPU's window, so that vectors behind
/// more than a few of them are not begun; and the other way round.
struct Links<'a, S> {
    line: &'a mut OneChain,
    hashes: &'a [u64; LANES],
    states: &'a mut States,
    done: usize,
    sum: PhantomData<S>,
}

impl<'a, S: Sum> Links<'a, S> {
    /// How many after each part; what is left of them comes at the end. No more than two, which are
    /// spelled out, since the compiler would keep a loop and all that it works with in memory.
    const AT_ONCE: usize = if S::PARTS < LANES { 2 } else { 1 };

    /// The first one, with which a lineage may begin: its sequence hash is the block's hash.
    #[inline(always)]
    fn begin(line: &'a mut OneChain, hashes: &'a [u64; LANES], states: &'a mut States) -> Self {
        states[0] = line.state;
        line.state = if line.begun {
            line.chain.step(hashes[0])
        } else {
            line.begun = true;
            line.chain.begin(hashes[0]);
            hashes[0]
        };
        states[1] = line.state;
        Self { line, hashes, states, done: 1, sum: PhantomData }
    }

    #[inline(always)]
    fn next(&mut self) {
        if self.done < LANES {
            self.line.state = self.line.chain.step(self.hashes[self.done]);
            self.done += 1;
            self.states[self.done] = self.line.state;
        }
    }

    #[inline(always)]
    fn end(mut self) {
        while self.done < LANES {
            self.next();
        }
    }
}

impl<S: Sum> Beside for Links<'_, S> {
    #[inline(always)]
    fn go_on(&mut self) {
        self.next();
        if Self::AT_ONCE > 1 {
            self.next();
        }
        barrier();
    }
}

/// Hashes, chains and packs the next blocks of a lane, those of the rows at `places`.
///
/// Eights of blocks go through three stages, and each stage is behind the one before by as much as it
/// would otherwise wait for it: an eight is hashed; two turns later it is chained; and one turn later
/// its rows are packed, from sequence hashes that were written one by one and are read as vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_alone<S: Sum>(places: Range<usize>, lane: &mut Lane<'_>, sum: S) {
    let (eights, rest) = lane.rows[places.clone()].as_chunks::<LANES>();
    let mut kept = lane.hashes.map(|hashes| hashes[places].chunks(LANES));
    let mut keep = |hashes: &[u64; LANES]| {
        if let Some(kept) = kept.as_mut().and_then(Iterator::next) {
            keep(kept, hashes);
        }
    };
    let count = eights.len();
    let blocks = |eight| LANES * eight..LANES * (eight + 1);
    let mut line = OneChain {
        chain: Chain::new(lane.state.unwrap_or_default(), lane.chain),
        state: lane.state.unwrap_or_default(),
        begun: lane.state.is_some(),
    };
    let mut packing = RowsInTurn::new(lane);
    // Of an eight and the one after it.
    let mut hashes = [[0; LANES]; 2];
    let mut states = [[0; LANES + 1]; 2];

    for eight in 0..count.min(2) {
        hashes[eight] = hash_apart(&sum, blocks(eight));
        keep(&hashes[eight]);
    }
    for eight in 2..count {
        let now = eight % 2;
        let mut links = Links::<S>::begin(&mut line, &hashes[now], &mut states[now]);
        // SAFETY: there are eight; the CPU has what this function has.
        let sum = unsafe { sum.sum(blocks(eight), &mut links) };
        links.end();
        if eight > 2 {
            packing.pack(&states[1 - now], &eights[eight - 3]);
        }
        hashes[now] = bytemuck::cast(finish(start_avalanche(sum)));
        keep(&hashes[now]);
    }
    let mut last_hashes = [0; LANES];
    if !rest.is_empty() {
        last_hashes = hash_apart(&sum, LANES * count..LANES * count + rest.len());
        keep(&last_hashes);
    }
    if count > 2 {
        packing.pack(&states[(count - 1) % 2], &eights[count - 3]);
    }
    let last_two = count.saturating_sub(2)..count;
    for eight in last_two.clone() {
        Links::<S>::begin(&mut line, &hashes[eight % 2], &mut states[eight % 2]).end();
    }
    for eight in last_two {
        packing.pack(&states[eight % 2], &eights[eight]);
    }
    lane.state = line.begun.then_some(line.state);
    lane.prefix = packing.prefix();
    scalar::chain_alone(&last_hashes, lane, rest);
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

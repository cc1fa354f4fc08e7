//! Blocks of more than 240 bytes whose stripes are absorbed by vectors, and whose accumulators are merged
//! in general registers.
//!
//! Both go on beside each other, and the chain beside both: while one block is absorbed, the one
//! [four](DEPTH) before it is merged and chained. So many lie between, since accumulators go by way of
//! memory: vectors that were just written are slow to read word by word, until they have come to rest in the
//! cache. All is inlined, since it has to be compiled for the vectors' instruction set.

#![allow(unsafe_code)]

use std::cell::Cell;

use bytemuck::{AnyBitPattern, NoUninit};

use super::scalar::{Lineage, ROWS_AT_ONCE, States};
use super::{Lane, Workspace};
use crate::fetch::{FETCH_AHEAD, Hints, fetch, fetch_distance, fetch_start};
use crate::xxh3::keys::StripeKeys;
use crate::xxh3::scalar::{self, avalanche};
use crate::xxh3::secret::STRIPES_PER_SCRAMBLE;
use crate::xxh3::{STRIPE_BYTES, STRIPE_WORDS};

/// Runs `$run` with `$len` as a constant where it is one of the usual lengths in bytes, those of 64, 128 and
/// 256 tokens, and `$stripes` as how many stripes these have before the last one, or 0: the stripes become a
/// straight line.
macro_rules! with_length {
    ($len:ident, |$stripes:ident| $run:expr) => {
        with_length!(@each $len, $stripes, $run, (256, 3) (512, 7) (1024, 15))
    };
    (@each $len:ident, $stripes:ident, $run:expr, $(($length:literal, $count:literal))*) => {
        match $len {
            $($length => {
                let $len: usize = $length;
                const $stripes: usize = $count;
                $run
            })*
            _ => {
                const $stripes: usize = 0;
                $run
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use with_length;

/// The accumulators of one block in vectors. They are kept in two, products and data: the specification adds each
/// data lane to the neighbour of the lane that has its product, which one swap at the end does for all.
///
/// # Safety
///
/// All is called only where the CPU has the instructions that it is made of.
pub(super) trait Accumulators: Sized {
    /// The words of a stripe.
    type Stripe: AnyBitPattern + NoUninit;

    unsafe fn start() -> Self;
    unsafe fn absorb(&mut self, stripe: Self::Stripe, key: Self::Stripe);
    unsafe fn scramble(&mut self, key: Self::Stripe);
    /// Products and data joined, xored with the secret as the merge takes them.
    unsafe fn joined(&self, secret: Self::Stripe) -> Self::Stripe;
}

/// The accumulators of one block of any length. With `FETCH`, what lies `ahead` bytes further is fetched.
///
/// # Safety
///
/// That of [`Accumulators`].
#[inline(always)]
pub(super) unsafe fn absorb<A: Accumulators, const FETCH: bool>(
    block: &[u8],
    ahead: usize,
    keys: &StripeKeys,
) -> A::Stripe {
    // SAFETY: the caller's promise.
    unsafe {
        let mut accumulators = A::start();
        // The last stripe is apart: it may begin inside the one before, and is always there.
        let (stripes, _) = block[..block.len() - 1].as_chunks();
        for stripes in stripes.chunks(STRIPES_PER_SCRAMBLE) {
            for (stripe, key) in stripes.iter().zip(&keys.stripes) {
                absorb_one::<A, FETCH>(&mut accumulators, stripe, ahead, bytemuck::cast(key.0));
            }
            if stripes.len() == STRIPES_PER_SCRAMBLE {
                accumulators.scramble(bytemuck::cast(keys.scramble.0));
            }
        }
        let last = block.last_chunk().expect("longer than a stripe");
        absorb_one::<A, FETCH>(&mut accumulators, last, ahead, bytemuck::cast(keys.last.0));
        accumulators.joined(bytemuck::cast(keys.merge.0))
    }
}

/// Takes lanes to their ends, one after the other, blocks absorbed by `A`.
///
/// # Safety
///
/// That of [`Accumulators`].
#[inline(always)]
pub(super) unsafe fn walk_in_turn<A: Accumulators, const FETCH: bool>(
    len: usize,
    lanes: &mut [Lane<'_>],
    workspace: &mut Workspace,
) {
    with_length!(len, |_STRIPES| {
        let of_one_seed = |keys: &StripeKeys, in_turn: &mut InTurn<'_, '_, '_>| {
            // SAFETY: the caller's promise.
            in_turn.absorb(|block, ahead| unsafe { absorb::<A, FETCH>(block, ahead, keys) });
        };
        walk(len, of_one_seed, lanes, workspace)
    });
}

/// The hashes of blocks of `len` bytes, back to back, absorbed by `A`.
///
/// # Safety
///
/// That of [`Accumulators`].
#[inline(always)]
pub(super) unsafe fn hash_all<A: Accumulators, const FETCH: bool>(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
) {
    with_length!(len, |_STRIPES| {
        // SAFETY: the caller's promise.
        let absorb = |block: &[u8]| unsafe { absorb::<A, FETCH>(block, FETCH_AHEAD, keys) };
        hash(len, absorb, blocks, hashes, waiting)
    });
}

/// Absorbs one stripe. With `FETCH`, what lies `ahead` bytes further is fetched.
///
/// # Safety
///
/// That of [`Accumulators`].
#[inline(always)]
pub(super) unsafe fn absorb_one<A: Accumulators, const FETCH: bool>(
    accumulators: &mut A,
    stripe: &[u8; STRIPE_BYTES],
    ahead: usize,
    key: A::Stripe,
) {
    if FETCH {
        fetch(stripe.as_ptr().wrapping_add(ahead));
    }
    // SAFETY: the caller's promise.
    unsafe { accumulators.absorb(bytemuck::pod_read_unaligned(stripe), key) }
}

/// How many blocks wait between their stripes and their merge.
const DEPTH: usize = 4;

/// The accumulators of the blocks that wait, xored with the secret.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting([Words; DEPTH]);

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Words([u64; STRIPE_WORDS]);

/// Merges of blocks of one length, in the order in which they come.
struct Merges<'w> {
    len: usize,
    waiting: &'w mut [Words; DEPTH],
    /// How many blocks have come.
    count: usize,
}

impl<'w> Merges<'w> {
    #[inline(always)]
    fn new(len: usize, Waiting(waiting): &'w mut Waiting) -> Self {
        Self { len, waiting, count: 0 }
    }

    /// Takes the accumulators of the next block. Gives the hash of the one whose place it has.
    #[inline(always)]
    fn put<T: NoUninit>(&mut self, accumulators: T) -> Option<u64> {
        let place = self.count % DEPTH;
        let hash = (self.count >= DEPTH).then(|| self.hash(place));
        self.waiting[place] = Words(bytemuck::cast(accumulators));
        self.count += 1;
        hash
    }

    /// The hashes of the blocks that still wait.
    #[inline(always)]
    fn rest(&self) -> impl Iterator<Item = u64> {
        (self.count.saturating_sub(DEPTH)..self.count).map(|place| self.hash(place % DEPTH))
    }

    #[inline(always)]
    fn hash(&self, place: usize) -> u64 {
        let Words(words) = &self.waiting[place];
        avalanche(scalar::merge(|i| words[i], self.len))
    }
}

/// The hashes of blocks of `len` bytes, back to back.
#[inline(always)]
pub(super) fn hash<T: NoUninit>(
    len: usize,
    absorb: impl Fn(&[u8]) -> T,
    blocks: &[u8],
    hashes: &[Cell<u64>],
    waiting: &mut Waiting,
) {
    let mut merges = Merges::new(len, waiting);
    let mut places = hashes.iter();
    for block in blocks.chunks_exact(len) {
        if let Some(hash) = merges.put(absorb(block))
            && let Some(place) = places.next()
        {
            place.set(hash);
        }
    }
    merges.rest().zip(places).for_each(|(hash, place)| place.set(hash));
}

/// Takes lanes to their ends, one after the other. Each packs all its rows alike.
///
/// `of_one_seed` is called with the keys of a seed, so that it can load them, and has to have the blocks of
/// the lanes of that seed [absorbed](InTurn::absorb).
#[inline(always)]
pub(super) fn walk(
    len: usize,
    of_one_seed: impl Fn(&StripeKeys, &mut InTurn<'_, '_, '_>),
    lanes: &mut [Lane<'_>],
    workspace: &mut Workspace,
) {
    let Workspace { schedules, waiting, hints, .. } = workspace;
    let mut states = States::default();
    let mut in_turn = InTurn {
        merges: Merges::new(len, waiting),
        chains: Chains::new(&mut states),
        lanes,
        begun: 0,
        hints: *hints,
    };
    while let Some(&Lane { seed, .. }) = in_turn.lanes.get(in_turn.begun) {
        of_one_seed(schedules.alone(seed, len).stripes(), &mut in_turn);
    }
    let InTurn { merges, mut chains, lanes, .. } = in_turn;
    merges.rest().for_each(|hash| chains.link(hash, lanes));
    chains.end(lanes);
}

/// Lanes that go one after the other.
pub(super) struct InTurn<'w, 'l, 'a> {
    lanes: &'l mut [Lane<'a>],
    /// How many of them have begun to be absorbed.
    begun: usize,
    merges: Merges<'w>,
    chains: Chains<'w, 'a>,
    hints: Hints,
}

impl InTurn<'_, '_, '_> {
    /// Has the blocks of the next lanes absorbed, those of one seed. `absorb` is given a block, and how far
    /// ahead of it lies what should be fetched.
    #[inline(always)]
    pub(super) fn absorb<T: NoUninit>(&mut self, absorb: impl Fn(&[u8], usize) -> T) {
        let len = self.merges.len;
        let seed = self.lanes[self.begun].seed;
        while let Some(lane) = self.lanes.get_mut(self.begun)
            && lane.seed == seed
        {
            self.begun += 1;
            let (blocks, next) = (lane.take(lane.left * len), lane.next);
            let next = self.lanes.get(self.begun).map_or(next, |lane| lane.blocks);
            let ahead = fetch_distance(blocks, next).unwrap_or_else(|| {
                fetch_start(next, self.hints);
                FETCH_AHEAD
            });
            for block in blocks.chunks_exact(len) {
                if let Some(hash) = self.merges.put(absorb(block, ahead)) {
                    self.chains.link(hash, self.lanes);
                }
            }
        }
    }
}

/// The chains of lanes, one after the other. Rows are packed eight at a time.
struct Chains<'s, 'a> {
    /// How many lanes have begun; the last of them is under way.
    begun: usize,
    lineage: Lineage,
    /// The rows that are left of it.
    rows: &'a [Cell<u128>],
    /// Its sequence hashes that are not in rows yet, after that of the block before.
    states: &'s mut States,
    count: usize,
    /// How many go into the next rows.
    most: usize,
}

impl<'s, 'a> Chains<'s, 'a> {
    #[inline(always)]
    fn new(states: &'s mut States) -> Self {
        let lineage = Lineage::of(&Lane::default());
        Self { begun: 0, lineage, rows: &[], states, count: 0, most: 0 }
    }

    /// Chains the hash of the next block.
    #[inline(always)]
    fn link(&mut self, hash: u64, lanes: &mut [Lane<'a>]) {
        let state = if self.count == self.most && self.pack() {
            self.begin(lanes);
            self.lineage.next(hash)
        } else {
            self.lineage.step(hash)
        };
        self.count += 1;
        self.states[self.count] = state;
    }

    /// Goes on to the next lane.
    #[inline(always)]
    fn begin(&mut self, lanes: &mut [Lane<'a>]) {
        let lane = &mut lanes[self.begun];
        self.begun += 1;
        self.lineage = Lineage::of(lane);
        self.states[0] = self.lineage.state();
        self.rows = &lane.rows[lane.take_places(lane.left)];
        self.most = self.rows.len().min(ROWS_AT_ONCE);
    }

    /// Packs the rows of what has been chained. Gives whether they are the last ones.
    #[inline(always)]
    fn pack(&mut self) -> bool {
        let (rows, rest) = self.rows.split_at(self.count);
        self.lineage.pack(self.states, rows);
        self.states[0] = self.states[self.count];
        self.count = 0;
        self.rows = rest;
        self.most = rest.len().min(ROWS_AT_ONCE);
        rest.is_empty()
    }

    /// Packs the last rows; the last lane can go on from them.
    #[inline(always)]
    fn end(mut self, lanes: &mut [Lane<'a>]) {
        self.pack();
        if let Some(lane) = lanes.last_mut() {
            self.lineage.give_back(lane);
        }
    }
}

//! AVX-512: eight requests or eight blocks to a vector.
//!
//! The functions are generic over how two vectors are folded: `IFMA` says that the CPU has the
//! 52-bit multiplications.
//!
//! | file | holds |
//! |---|---|
//! | `folds` | blocks of 17 to 240 bytes: a lane is a request, or a block of one |
//! | `stripes` | longer blocks: a vector is the accumulators of one block |
//! | `counting` | blocks that are alike but for numbers that count up |
//! | `side_by_side` | the loop over the blocks of eight requests |
//! | `eights` | the loop over the blocks of one or two, where they are folded |
//! | `chain` | eight chains, and the packing of rows |
//! | `vector` | the arithmetic of all |

#![allow(unsafe_code)]

mod chain;
pub(super) mod counting;
mod eights;
mod folds;
mod side_by_side;
mod stripes;
pub(super) mod vector;

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::__m128i;
use std::cell::Cell;
use std::ops::{Range, RangeInclusive};

use super::merge::Waiting;
use super::{Counting, Lane, SHORTEST_BY_EIGHTS, Workspace, scalar};
use crate::fetch::Hints;
use crate::xxh3::keys::{StripeKeys, Words};
use crate::xxh3::pieces::PIECE_BYTES;
use crate::xxh3::{LONGEST_FOLDED, STRIPE_BYTES};

/// Lanes of a vector.
const LANES: usize = 8;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Calls a function by what it is compiled for, such as the fold, and last of that whether lines are
/// fetched ahead.
macro_rules! call {
    ($hints:expr, $module:ident::$function:ident$(::<$($of:tt),*>)?($($argument:expr),*)) => {
        // SAFETY: a backend is called only where it is available.
        unsafe {
            match $hints {
                Hints(true) => $module::$function::<$($($of,)*)? true>($($argument),*),
                Hints(false) => $module::$function::<$($($of,)*)? false>($($argument),*),
            }
        }
    };
}

/// How many requests go side by side. With dead lanes, a vector of fewer requests costs as much as one of
/// eight; each request by itself costs about a fifth of that (16 tokens a block).
pub(super) const SIDE_BY_SIDE: RangeInclusive<usize> = 6..=LANES;

/// Whether two requests of so many bytes each, with blocks of `len`, go side by side. Their chains fill each
/// other's waits; from 20 tokens a block on, a chain by itself has nothing to wait for.
pub(super) fn goes_by_two(bytes: usize, len: usize) -> bool {
    // The first two eights of each have no chain beside them, and the chain of the last two no eights.
    const SHORTEST: usize = 2 << 10;
    (PIECE_BYTES + 1..=STRIPE_BYTES).contains(&len) && bytes >= SHORTEST
}

/// Hashes, chains and packs two lanes, or up to eight.
pub(super) fn walk<const IFMA: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>],
    workspace: &mut Workspace,
) {
    if let [a, b] = lanes {
        walk_two::<IFMA>(count, len, [a, b], workspace);
    } else if let Ok(eight) = lanes.try_into() {
        walk_eight::<IFMA>(count, len, eight, workspace);
    } else {
        // Lanes without a request are copies of the first one: they work out and write what it
        // does.
        let mut eight = std::array::from_fn(|i| lanes.get(i).copied().unwrap_or(lanes[0]));
        walk_eight::<IFMA>(count, len, &mut eight, workspace);
        lanes.copy_from_slice(&eight[..lanes.len()]);
    }
}

/// Whether one lane's blocks are hashed by vectors; others are faster in general registers.
#[inline(always)]
pub(super) fn walks_over(blocks: &[u8], len: usize) -> bool {
    folds(len) && blocks.len() >= SHORTEST_BY_EIGHTS
}

/// Whether blocks of `len` bytes are folded by vectors.
pub(super) fn folds(len: usize) -> bool {
    (PIECE_BYTES + 1..=LONGEST_FOLDED).contains(&len)
}

/// Hashes, chains and packs blocks of one lane that are folded, eight at a time.
pub(super) fn walk_over<const IFMA: bool>(
    blocks: &[u8],
    places: Range<usize>,
    lane: &mut Lane<'_>,
    workspace: &mut Workspace,
    len: usize,
) {
    scalar::settle(lane, &lane.rows[..places.start]);
    workspace.pieces.set(len);
    let pieces = &workspace.pieces;
    call!(workspace.hints, folds::walk_over::<1, IFMA>([blocks], [places], [lane], pieces));
}

/// Takes lanes to their ends, one after the other: blocks of more than 240 bytes.
pub(super) fn walk_in_turn(len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    call!(workspace.hints, stripes::walk_in_turn(len, lanes, workspace));
}

/// Hashes, chains and packs the next blocks of two lanes, an eight of one and an eight of the other in turn.
fn walk_two<const IFMA: bool>(
    count: usize,
    len: usize,
    [a, b]: [&mut Lane<'_>; 2],
    workspace: &mut Workspace,
) {
    workspace.pieces.set(len);
    let pieces = &workspace.pieces;
    let blocks = [a.take(count * len), b.take(count * len)];
    let places = [a.take_places(count), b.take_places(count)];
    call!(workspace.hints, folds::walk_over::<2, IFMA>(blocks, places, [a, b], pieces));
}

fn walk_eight<const IFMA: bool>(
    count: usize,
    len: usize,
    lanes: &mut [Lane<'_>; LANES],
    workspace: &mut Workspace,
) {
    workspace.pieces.set(len);
    let pieces = &workspace.pieces;
    call!(workspace.hints, folds::walk_folds::<IFMA>(count, lanes, pieces));
}

/// Hashes, chains and packs blocks of 17 to 240 bytes that are alike but for their numbers.
pub(super) fn walk_counting<const IFMA: bool>(
    count: usize,
    counting: &Counting<'_>,
    lane: &mut Lane<'_>,
    workspace: &mut Workspace,
) {
    let Workspace { schedules, places, .. } = workspace;
    let Words::Folds(keys) = schedules.alone(lane.seed, counting.block.len()).words() else {
        unreachable!("only blocks that are folded are counted");
    };
    // SAFETY: a backend is called only where it is available.
    unsafe { counting::walk::<IFMA>(count, counting, lane, keys, places) };
}

/// The hashes of blocks of more than 240 bytes, back to back.
pub(super) fn hash(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
    hints: Hints,
) {
    call!(hints, stripes::hash(blocks, keys, hashes, len, waiting));
}

/// Leaves hashes where they are kept, as many as there is room for.
#[inline(always)]
fn keep(kept: &[Cell<u64>], hashes: &[u64]) {
    kept.iter().zip(hashes).for_each(|(kept, &hash)| kept.set(hash));
}

/// What each lane has of something.
#[inline(always)]
fn of_lanes<T>(lanes: &[Lane<'_>; LANES], get: impl Fn(&Lane<'_>) -> T) -> [T; LANES] {
    std::array::from_fn(|i| get(&lanes[i]))
}

/// Where the next `count` rows of each lane go.
#[inline(always)]
fn rows_of(lanes: &[Lane<'_>; LANES], count: usize) -> [*mut __m128i; LANES] {
    // Cells may be written by way of a shared reference.
    of_lanes(lanes, |lane| lane.rows[lane.row..][..count].as_ptr().cast_mut().cast())
}

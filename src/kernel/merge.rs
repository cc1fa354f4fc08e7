//! Blocks of more than 240 bytes whose stripes are absorbed by vectors, and whose accumulators are merged
//! in general registers.
//!
//! Both go on beside each other: a block is absorbed while the one before is merged, and the one before
//! that is chained. All is inlined, since it has to be compiled for the vectors' instruction set.

use std::cell::Cell;
use std::hint::black_box;

use bytemuck::NoUninit;

use super::Lane;
use super::scalar::{hash_each, in_stages};
use crate::xxh3::STRIPE_WORDS;
use crate::xxh3::scalar::{self, avalanche};

/// Runs `$run` with how many stripes a block of some length has before its last one as the constant
/// `$stripes`, or 0 where it is not one of the usual lengths, 64, 128 and 256 tokens: known, the stripes
/// become a straight line.
macro_rules! with_stripes {
    ($len:expr, |$stripes:ident| $run:expr) => {
        with_stripes!(@each $len, $stripes, $run, (3) (7) (15))
    };
    (@each $len:expr, $stripes:ident, $run:expr, $(($count:literal))*) => {
        match ($len - 1) / $crate::xxh3::STRIPE_BYTES {
            $($count => {
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
pub(super) use with_stripes;

/// Accumulators that were xored with the secret, on their way from vectors to general registers.
#[repr(align(64))]
struct Keyed([u64; STRIPE_WORDS]);

/// The hash of a block of `len` bytes, from its accumulators xored with the secret.
#[inline(always)]
fn merge<T: NoUninit>(accumulators: T, len: usize) -> u64 {
    // By way of memory: the compiler would take vectors apart, which is slower.
    let keyed = Keyed(bytemuck::cast(accumulators));
    let Keyed(words) = black_box(&keyed);
    avalanche(scalar::merge(|i| words[i], len))
}

/// Hashes, chains and packs the next blocks of a lane, of `len` bytes. The rows end with theirs.
#[inline(always)]
pub(super) fn walk<T: NoUninit>(
    len: usize,
    absorb: impl Fn(&[u8]) -> T,
    blocks: &[u8],
    lane: &mut Lane<'_>,
    rows: &[Cell<u128>],
) {
    let finish = |accumulators| merge(accumulators, len);
    in_stages(len, absorb, finish, |_| {}, blocks, lane, rows);
}

/// The hashes of blocks of `len` bytes, back to back.
#[inline(always)]
pub(super) fn hash<T: NoUninit>(
    len: usize,
    absorb: impl Fn(&[u8]) -> T,
    blocks: &[u8],
    hashes: &[Cell<u64>],
) {
    hash_each(len, absorb, |accumulators| merge(accumulators, len), blocks, hashes);
}

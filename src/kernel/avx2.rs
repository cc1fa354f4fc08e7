//! AVX2: vectors of 256 bits for blocks of more than 240 bytes.
//!
//! Shorter ones want multiplications of 64 by 64 bits. Made of four of 32 bits each they cost
//! more than in general registers, where there is one; so there the scalar kernel is called.

#![allow(unsafe_code)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;
use std::cell::Cell;

use super::merge::{self, InTurn, Waiting, with_length};
use super::{Lane, Workspace};
use crate::fetch::{FETCH_AHEAD, Hints, fetch};
use crate::xxh3::keys::{Key, StripeKeys};
use crate::xxh3::secret::STRIPES_PER_SCRAMBLE;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_BYTES, STRIPE_WORDS};

/// Vectors to a stripe.
const VECTORS: usize = STRIPE_WORDS / 4;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Takes lanes to their ends, one after the other: blocks of more than 240 bytes.
pub(super) fn walk_in_turn(len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    // SAFETY: a backend is called only where it is available.
    unsafe {
        match workspace.hints {
            Hints(true) => walk::<true>(len, lanes, workspace),
            Hints(false) => walk::<false>(len, lanes, workspace),
        }
    }
}

#[target_feature(enable = "avx2")]
fn walk<const FETCH: bool>(len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    with_length!(len, |_STRIPES| {
        let absorb = |keys: &StripeKeys, in_turn: &mut InTurn<'_, '_, '_>| {
            // SAFETY: the CPU has what this function has.
            in_turn.absorb(|block, ahead| unsafe { absorb::<FETCH>(block, keys, ahead) });
        };
        merge::walk(len, absorb, lanes, workspace)
    });
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
    // SAFETY: a backend is called only where it is available.
    unsafe {
        match hints {
            Hints(true) => hash_stripes::<true>(blocks, keys, hashes, len, waiting),
            Hints(false) => hash_stripes::<false>(blocks, keys, hashes, len, waiting),
        }
    }
}

#[target_feature(enable = "avx2")]
fn hash_stripes<const FETCH: bool>(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
) {
    with_length!(len, |_STRIPES| {
        // SAFETY: the CPU has what this function has.
        let absorb = |block: &[u8]| unsafe { absorb::<FETCH>(block, keys, FETCH_AHEAD) };
        merge::hash(len, absorb, blocks, hashes, waiting)
    });
}

/// The accumulators of one block, xored with the secret as the merge takes them.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn absorb<const FETCH: bool>(
    block: &[u8],
    keys: &StripeKeys,
    ahead: usize,
) -> [__m256i; VECTORS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut accumulators = Accumulators {
            products: bytemuck::cast(INITIAL_ACCUMULATORS),
            data: [_mm256_setzero_si256(); VECTORS],
        };
        // The last stripe is apart: it may begin inside the one before, and is always there.
        let (stripes, _) = block[..block.len() - 1].as_chunks();
        for stripes in stripes.chunks(STRIPES_PER_SCRAMBLE) {
            accumulators.absorb_all::<FETCH>(stripes, keys, ahead);
            if stripes.len() == STRIPES_PER_SCRAMBLE {
                accumulators.scramble(&keys.scramble);
            }
        }
        let last = block.last_chunk().expect("longer than a stripe");
        if FETCH {
            fetch(last.as_ptr().wrapping_add(ahead));
        }
        accumulators.absorb(last, &keys.last);
        let secret: [__m256i; VECTORS] = bytemuck::cast(keys.merge.0);
        let mut joined = accumulators.joined();
        for (joined, secret) in joined.iter_mut().zip(secret) {
            *joined = _mm256_xor_si256(*joined, secret);
        }
        joined
    }
}

/// The accumulators of one block, in two: the specification adds each data lane to the
/// neighbour of the lane that has its product, which one swap at the end does for all.
struct Accumulators {
    products: [__m256i; VECTORS],
    data: [__m256i; VECTORS],
}

impl Accumulators {
    /// Stripe after stripe.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn absorb_all<const FETCH: bool>(
        &mut self,
        stripes: &[[u8; STRIPE_BYTES]],
        keys: &StripeKeys,
        ahead: usize,
    ) {
        for (stripe, key) in stripes.iter().zip(&keys.stripes) {
            if FETCH {
                fetch(stripe.as_ptr().wrapping_add(ahead));
            }
            self.absorb(stripe, key);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn absorb(&mut self, stripe: &[u8; STRIPE_BYTES], key: &Key) {
        let stripe: [__m256i; VECTORS] = bytemuck::pod_read_unaligned(stripe);
        let key: [__m256i; VECTORS] = bytemuck::cast(key.0);
        for i in 0..VECTORS {
            let keyed = _mm256_xor_si256(stripe[i], key[i]);
            let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
            self.products[i] = _mm256_add_epi64(self.products[i], product);
            self.data[i] = _mm256_add_epi64(self.data[i], stripe[i]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scramble(&mut self, key: &Key) {
        let key: [__m256i; VECTORS] = bytemuck::cast(key.0);
        let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
        let joined = self.joined();
        for i in 0..VECTORS {
            let mixed = _mm256_xor_si256(joined[i], _mm256_srli_epi64::<47>(joined[i]));
            let mixed = _mm256_xor_si256(mixed, key[i]);
            let low = _mm256_mul_epu32(mixed, prime);
            let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
            self.products[i] = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high));
            self.data[i] = _mm256_setzero_si256();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn joined(&self) -> [__m256i; VECTORS] {
        const NEIGHBOURS: i32 = 0b01_00_11_10;
        let mut joined = self.products;
        for i in 0..VECTORS {
            let data = _mm256_shuffle_epi32::<NEIGHBOURS>(self.data[i]);
            joined[i] = _mm256_add_epi64(joined[i], data);
        }
        joined
    }
}

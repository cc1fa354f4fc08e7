//! AVX2: vectors of 256 bits for blocks of more than 240 bytes.
//!
//! Shorter ones want multiplications of 64 by 64 bits. Made of four of 32 bits each they cost
//! more than in general registers, where there is one; so there the scalar kernel is called.

#![allow(unsafe_code)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;
use std::cell::Cell;

use super::merge::{self, Waiting};
use super::{Lane, Workspace};
use crate::fetch::Hints;
use crate::xxh3::keys::StripeKeys;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_WORDS};

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
    // SAFETY: the CPU has what this function has.
    unsafe { merge::walk_in_turn::<Accumulators, FETCH>(len, lanes, workspace) }
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
    // SAFETY: the CPU has what this function has.
    unsafe { merge::hash_all::<Accumulators, FETCH>(blocks, keys, hashes, len, waiting) }
}

/// The accumulators of one block.
///
/// # Safety
///
/// The CPU has AVX2.
struct Accumulators {
    products: [__m256i; VECTORS],
    data: [__m256i; VECTORS],
}

impl merge::Accumulators for Accumulators {
    type Stripe = [__m256i; VECTORS];

    #[inline(always)]
    unsafe fn start() -> Self {
        // SAFETY: the caller's promise.
        let data = unsafe { [_mm256_setzero_si256(); VECTORS] };
        Self { products: bytemuck::cast(INITIAL_ACCUMULATORS), data }
    }

    #[inline(always)]
    unsafe fn absorb(&mut self, stripe: Self::Stripe, key: Self::Stripe) {
        for i in 0..VECTORS {
            // SAFETY: the caller's promise.
            unsafe {
                let keyed = _mm256_xor_si256(stripe[i], key[i]);
                let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                self.products[i] = _mm256_add_epi64(self.products[i], product);
                self.data[i] = _mm256_add_epi64(self.data[i], stripe[i]);
            }
        }
    }

    #[inline(always)]
    unsafe fn scramble(&mut self, key: Self::Stripe) {
        // SAFETY: the caller's promise.
        unsafe {
            let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
            let joined = self.joined([_mm256_setzero_si256(); VECTORS]);
            for i in 0..VECTORS {
                let mixed = _mm256_xor_si256(joined[i], _mm256_srli_epi64::<47>(joined[i]));
                let mixed = _mm256_xor_si256(mixed, key[i]);
                let low = _mm256_mul_epu32(mixed, prime);
                let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
                self.products[i] = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high));
                self.data[i] = _mm256_setzero_si256();
            }
        }
    }

    #[inline(always)]
    unsafe fn joined(&self, secret: Self::Stripe) -> Self::Stripe {
        const NEIGHBOURS: i32 = 0b01_00_11_10;
        let mut joined = self.products;
        for i in 0..VECTORS {
            // SAFETY: the caller's promise.
            unsafe {
                let data = _mm256_shuffle_epi32::<NEIGHBOURS>(self.data[i]);
                joined[i] = _mm256_xor_si256(_mm256_add_epi64(joined[i], data), secret[i]);
            }
        }
        joined
    }
}

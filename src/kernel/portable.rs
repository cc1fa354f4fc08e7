//! Vectors of 128 bits by way of `wide`: SSE2 on x86-64, NEON on 64-bit Arm, and plain Rust
//! elsewhere. Chosen when the library is built, so that it needs no detection.
//!
//! Blocks of more than 240 bytes are absorbed by vectors. Shorter ones want multiplications of
//! 64 by 64 bits, which there are none of, and are faster by general registers.

use std::cell::Cell;

use wide::u64x2;

use super::merge::{self, Waiting};
use super::{Lane, Workspace};
use crate::xxh3::keys::StripeKeys;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_WORDS};

/// Vectors to a stripe.
const VECTORS: usize = STRIPE_WORDS / 2;

/// Takes lanes to their ends, one after the other: blocks of more than 240 bytes.
#[allow(unsafe_code)]
pub(super) fn walk_in_turn(len: usize, lanes: &mut [Lane<'_>], workspace: &mut Workspace) {
    // SAFETY: the accumulators need nothing that the target does not have.
    unsafe { merge::walk_in_turn::<Accumulators, true>(len, lanes, workspace) }
}

/// The hashes of blocks of more than 240 bytes, back to back.
#[allow(unsafe_code)]
pub(super) fn hash(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
) {
    // SAFETY: the accumulators need nothing that the target does not have.
    unsafe { merge::hash_all::<Accumulators, true>(blocks, keys, hashes, len, waiting) }
}

/// The accumulators of one block.
struct Accumulators {
    products: [u64x2; VECTORS],
    data: [u64x2; VECTORS],
}

#[allow(unsafe_code)]
impl merge::Accumulators for Accumulators {
    type Stripe = [u64x2; VECTORS];

    #[inline(always)]
    unsafe fn start() -> Self {
        Self { products: bytemuck::cast(INITIAL_ACCUMULATORS), data: [u64x2::ZERO; VECTORS] }
    }

    #[inline(always)]
    unsafe fn absorb(&mut self, stripe: Self::Stripe, key: Self::Stripe) {
        for i in 0..VECTORS {
            let keyed = stripe[i] ^ key[i];
            self.products[i] += multiply(low(keyed), high(keyed));
            self.data[i] += stripe[i];
        }
    }

    #[inline(always)]
    unsafe fn scramble(&mut self, key: Self::Stripe) {
        let prime = u64x2::splat(PRIME32_1);
        for i in 0..VECTORS {
            let sums = self.products[i] + swap(self.data[i]);
            let mixed = sums ^ (sums >> 47) ^ key[i];
            self.products[i] = multiply(low(mixed), prime) + (multiply(high(mixed), prime) << 32);
            self.data[i] = u64x2::ZERO;
        }
    }

    #[inline(always)]
    unsafe fn joined(&self, secret: Self::Stripe) -> Self::Stripe {
        std::array::from_fn(|i| (self.products[i] + swap(self.data[i])) ^ secret[i])
    }
}

/// The two words in the other order.
#[inline(always)]
#[allow(unsafe_code)]
fn swap(words: u64x2) -> u64x2 {
    // By name, too: the compiler may take the words from memory instead, across two that were just
    // written, and the CPU then waits for both.
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_shuffle_epi32;
        const OTHER_HALF: i32 = 0b01_00_11_10;
        // SAFETY: every x86-64 CPU has SSE2.
        bytemuck::cast(unsafe { _mm_shuffle_epi32::<OTHER_HALF>(bytemuck::cast(words)) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let [first, second] = words.to_array();
        u64x2::new([second, first])
    }
}

/// The products of numbers below 2^32.
#[inline(always)]
#[allow(unsafe_code)]
fn multiply(a: u64x2, b: u64x2) -> u64x2 {
    // `wide` multiplies 64 by 64 bits, lane by lane in general registers. The compiler may see
    // that the factors are halves and take the vector multiplication of 32 by 32 bits, or not: on
    // Arm it does not, and on x86-64 it depends on what stands around.
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_mul_epu32;
        // SAFETY: every x86-64 CPU has SSE2.
        bytemuck::cast(unsafe { _mm_mul_epu32(bytemuck::cast(a), bytemuck::cast(b)) })
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::aarch64::{vmovn_u64, vmull_u32};
        let (a, b) = (bytemuck::cast(a), bytemuck::cast(b));
        // SAFETY: every 64-bit Arm CPU that the standard library is for has NEON.
        bytemuck::cast(unsafe { vmull_u32(vmovn_u64(a), vmovn_u64(b)) })
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        a * b
    }
}

#[inline(always)]
fn low(words: u64x2) -> u64x2 {
    words & u64x2::splat(0xffff_ffff)
}

#[inline(always)]
fn high(words: u64x2) -> u64x2 {
    words >> 32
}

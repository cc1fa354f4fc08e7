//! AVX2: vectors of 256 bits for blocks of more than 240 bytes.
//!
//! Shorter ones want multiplications of 64 by 64 bits. Made of four of 32 bits each they cost
//! more than in general registers, where there is one; so there the scalar kernel is called.

#![allow(unsafe_code)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use crate::fetch::fetch;
use crate::xxh3::keys::StripeKeys;
use crate::xxh3::scalar::merge;
use crate::xxh3::secret::STRIPES_PER_SCRAMBLE;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_BYTES, STRIPE_WORDS};

/// Vectors to a stripe.
const VECTORS: usize = STRIPE_WORDS / 4;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// The sum of one block of more than 240 bytes, up to the last avalanche. What lies `ahead` bytes
/// after it is fetched, if `FETCH` says so.
pub(super) fn sum<const FETCH: bool>(block: &[u8], keys: &StripeKeys, ahead: usize) -> u64 {
    // SAFETY: a backend is called only where it is available.
    merge(unsafe { absorb::<FETCH>(block, keys, ahead) }, &keys.merge, block.len())
}

/// The accumulators of one block.
#[target_feature(enable = "avx2")]
fn absorb<const FETCH: bool>(block: &[u8], keys: &StripeKeys, ahead: usize) -> [u64; STRIPE_WORDS] {
    let mut accumulators = Accumulators {
        products: bytemuck::cast(INITIAL_ACCUMULATORS),
        data: [_mm256_setzero_si256(); VECTORS],
    };
    // The last stripe is apart: it may begin inside the one before, and is always there.
    let (stripes, _) = block[..block.len() - 1].as_chunks();
    // Blocks of 64 and 128 tokens, spelled out: a loop of a known length becomes a straight line.
    // It is beside the loop over scrambles, since the compiler would move all keys out of that.
    match stripes.len() {
        3 => accumulators.absorb_all::<FETCH>(&stripes[..3], keys, ahead),
        7 => accumulators.absorb_all::<FETCH>(&stripes[..7], keys, ahead),
        _ => {
            for stripes in stripes.chunks(STRIPES_PER_SCRAMBLE) {
                accumulators.absorb_all::<FETCH>(stripes, keys, ahead);
                if stripes.len() == STRIPES_PER_SCRAMBLE {
                    accumulators.scramble(&keys.scramble);
                }
            }
        }
    }
    let last = block.last_chunk().expect("longer than a stripe");
    if FETCH {
        fetch(last.as_ptr().wrapping_add(ahead));
    }
    accumulators.absorb(last, &keys.last);
    bytemuck::cast(accumulators.joined())
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
        for (stripe, keys) in stripes.iter().zip(&keys.stripes) {
            if FETCH {
                fetch(stripe.as_ptr().wrapping_add(ahead));
            }
            self.absorb(stripe, keys);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn absorb(&mut self, stripe: &[u8; STRIPE_BYTES], keys: &[u64; STRIPE_WORDS]) {
        let stripe: [__m256i; VECTORS] = bytemuck::pod_read_unaligned(stripe);
        let keys: [__m256i; VECTORS] = bytemuck::cast(*keys);
        for i in 0..VECTORS {
            let keyed = _mm256_xor_si256(stripe[i], keys[i]);
            let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
            self.products[i] = _mm256_add_epi64(self.products[i], product);
            self.data[i] = _mm256_add_epi64(self.data[i], stripe[i]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scramble(&mut self, keys: &[u64; STRIPE_WORDS]) {
        let keys: [__m256i; VECTORS] = bytemuck::cast(*keys);
        let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
        let joined = self.joined();
        for i in 0..VECTORS {
            let mixed = _mm256_xor_si256(joined[i], _mm256_srli_epi64::<47>(joined[i]));
            let mixed = _mm256_xor_si256(mixed, keys[i]);
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

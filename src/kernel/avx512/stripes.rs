//! Blocks of more than 240 bytes: a vector is the accumulators of one block. They are merged in general
//! registers.

use std::arch::x86_64::*;
use std::cell::Cell;

use super::vector::{XOR3, words};
use crate::fetch::FETCH_AHEAD;
use crate::kernel::merge::{self, Accumulators as _, InTurn, Waiting, absorb_one, with_length};
use crate::kernel::{Lane, Workspace};
use crate::xxh3::keys::StripeKeys;
use crate::xxh3::{INITIAL_ACCUMULATORS, PRIME32_1, STRIPE_BYTES};

/// Takes lanes to their ends, one after the other.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn walk_in_turn<const FETCH: bool>(
    len: usize,
    lanes: &mut [Lane<'_>],
    workspace: &mut Workspace,
) {
    with_length!(len, |STRIPES| {
        let absorb = |keys: &StripeKeys, in_turn: &mut InTurn<'_, '_, '_>| {
            let loaded = Keys::<STRIPES>::load(keys);
            // SAFETY: the CPU has what this function has.
            in_turn.absorb(|block, ahead| unsafe { loaded.absorb::<FETCH>(block, ahead, keys) });
        };
        merge::walk(len, absorb, lanes, workspace)
    });
}

/// The hashes of blocks, back to back.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn hash<const FETCH: bool>(
    blocks: &[u8],
    keys: &StripeKeys,
    hashes: &[Cell<u64>],
    len: usize,
    waiting: &mut Waiting,
) {
    with_length!(len, |STRIPES| {
        let loaded = Keys::<STRIPES>::load(keys);
        // SAFETY: the CPU has what this function has.
        let absorb = |block: &[u8]| unsafe { loaded.absorb::<FETCH>(block, FETCH_AHEAD, keys) };
        merge::hash(len, absorb, blocks, hashes, waiting)
    });
}

/// The keys of a seed in vectors, for blocks of `STRIPES` whole stripes and a last one: from memory the
/// compiler would load them again for every block, since it cannot know that no row lies among them. With 0,
/// for blocks of any length, whose keys stay in memory.
struct Keys<const STRIPES: usize> {
    stripes: [__m512i; STRIPES],
    last: __m512i,
    merge: __m512i,
}

impl<const STRIPES: usize> Keys<STRIPES> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn load(keys: &StripeKeys) -> Self {
        let stripes = std::array::from_fn(|i| words(&keys.stripes[i].0));
        Self { stripes, last: words(&keys.last.0), merge: words(&keys.merge.0) }
    }

    /// [`merge::absorb`] of a block that these are for; `keys` are the same ones, in memory.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512.
    #[inline(always)]
    unsafe fn absorb<const FETCH: bool>(
        &self,
        block: &[u8],
        ahead: usize,
        keys: &StripeKeys,
    ) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            if STRIPES == 0 {
                return merge::absorb::<Accumulators, FETCH>(block, ahead, keys);
            }
            let (stripes, []) = block.as_chunks::<STRIPE_BYTES>() else {
                unreachable!("whole stripes");
            };
            let (last, before) = stripes.split_last().expect("a last stripe");
            debug_assert!(before.len() == STRIPES, "{} bytes", block.len());
            let mut accumulators = Accumulators::start();
            for (stripe, &key) in before.iter().zip(&self.stripes) {
                absorb_one::<_, FETCH>(&mut accumulators, stripe, ahead, key);
            }
            absorb_one::<_, FETCH>(&mut accumulators, last, ahead, self.last);
            accumulators.joined(self.merge)
        }
    }
}

/// The accumulators of one block.
///
/// # Safety
///
/// The CPU has AVX-512.
struct Accumulators {
    products: __m512i,
    data: __m512i,
}

impl merge::Accumulators for Accumulators {
    type Stripe = __m512i;

    #[inline(always)]
    unsafe fn start() -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { products: words(&INITIAL_ACCUMULATORS), data: _mm512_setzero_si512() } }
    }

    #[inline(always)]
    unsafe fn absorb(&mut self, stripe: __m512i, key: __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let keyed = _mm512_xor_si512(stripe, key);
            let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
            self.products = _mm512_add_epi64(self.products, product);
            self.data = _mm512_add_epi64(self.data, stripe);
        }
    }

    #[inline(always)]
    unsafe fn scramble(&mut self, key: __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = self.joined(_mm512_setzero_si512());
            let mixed = _mm512_ternarylogic_epi64::<XOR3>(sums, _mm512_srli_epi64::<47>(sums), key);
            let prime = _mm512_set1_epi64(PRIME32_1 as i64);
            let low = _mm512_mul_epu32(mixed, prime);
            let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
            self.products = _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high));
            self.data = _mm512_setzero_si512();
        }
    }

    #[inline(always)]
    unsafe fn joined(&self, secret: __m512i) -> __m512i {
        const NEIGHBOURS: i32 = 0b01_00_11_10;
        // SAFETY: the caller's promise.
        unsafe {
            let data = _mm512_shuffle_epi32::<NEIGHBOURS>(self.data);
            _mm512_xor_si512(_mm512_add_epi64(self.products, data), secret)
        }
    }
}

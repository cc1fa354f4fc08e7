//! Arithmetic on eight 64-bit lanes: the fold, the sum over a block's pieces, the avalanche.

use std::arch::asm;
use std::arch::x86_64::*;

use super::LANES;
use crate::kernel::avx512ifma;
use crate::xxh3::PRIME_AVALANCHE;

/// The truth table of `a ^ b ^ c`.
pub(in crate::kernel) const XOR3: i32 = 0x96;

/// Folds the four pieces of two blocks. A vector of 128-bit pairs: the first block's, the
/// second's.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn fold_pair<const IFMA: bool>(a: __m512i, b: __m512i) -> __m512i {
    fold::<IFMA>(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// Adds up the four pairs of each of four vectors: one word a block, in the order of the blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn add_up([a, b, c, d]: [__m512i; 4]) -> __m512i {
    const FIRST_TWO: i32 = 0b01_00_01_00;
    const LAST_TWO: i32 = 0b11_10_11_10;
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let halves = |a, b| {
        _mm512_add_epi64(
            _mm512_shuffle_i64x2::<FIRST_TWO>(a, b),
            _mm512_shuffle_i64x2::<LAST_TWO>(a, b),
        )
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
    _mm512_add_epi64(_mm512_shuffle_i64x2::<EVEN>(ab, cd), _mm512_shuffle_i64x2::<ODD>(ab, cd))
}

/// The halves of `a * b`, xored.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn fold<const IFMA: bool>(a: __m512i, b: __m512i) -> __m512i {
    if IFMA {
        // SAFETY: `IFMA` is set only by the backend that the CPU must have IFMA for.
        return unsafe { avx512ifma::fold(a, b) };
    }
    let mask = _mm512_set1_epi64(0xffff_ffff);
    let (a_high, b_high) = (_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
    let low_low = _mm512_mul_epu32(a, b);
    let high_high = _mm512_mul_epu32(a_high, b_high);
    let middle = _mm512_add_epi64(_mm512_mul_epu32(a_high, b), _mm512_srli_epi64::<32>(low_low));
    let other = _mm512_add_epi64(_mm512_mul_epu32(a, b_high), _mm512_and_si512(middle, mask));
    let high = _mm512_add_epi64(high_high, _mm512_srli_epi64::<32>(middle));
    let high = _mm512_add_epi64(high, _mm512_srli_epi64::<32>(other));
    const XOR_AND: i32 = 0x78; // a ^ (b & c)
    let folded = _mm512_ternarylogic_epi64::<XOR_AND>(high, low_low, mask);
    _mm512_xor_si512(folded, _mm512_slli_epi64::<32>(other))
}

/// The avalanche up to its product.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn start_avalanche(sum: __m512i) -> __m512i {
    let mixed = _mm512_xor_si512(sum, _mm512_srli_epi64::<37>(sum));
    _mm512_mullo_epi64(mixed, _mm512_set1_epi64(PRIME_AVALANCHE as i64))
}

/// What is left of the avalanche.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn finish(product: __m512i) -> __m512i {
    _mm512_xor_si512(product, _mm512_srli_epi64::<32>(product))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn swap_bytes(words: __m512i) -> __m512i {
    let order = _mm512_set4_epi32(0x0809_0a0b, 0x0c0d_0e0f, 0x0001_0203, 0x0405_0607);
    _mm512_shuffle_epi8(words, order)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn words(words: &[u64; LANES]) -> __m512i {
    bytemuck::cast(*words)
}

/// A seed as it enters a row: added to the first word of every pair, taken from the second.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) fn signed(seed: u64) -> __m512i {
    let seed = _mm512_set1_epi64(seed as i64);
    _mm512_mask_sub_epi64(seed, 0b1010_1010, _mm512_setzero_si512(), seed)
}

/// # Safety
///
/// There are 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn load_row(row: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(row.cast()) }
}

/// Keeps loads on their side of it. Where registers are short, the compiler would load the rows of
/// all folds before the first one, and have to put them away.
#[inline(always)]
pub(super) fn barrier() {
    // SAFETY: there is no instruction.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

/// The same vector, and the compiler cannot know. What makes it comes before the next one of these,
/// as written.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn opaque(mut vector: __m512i) -> __m512i {
    // SAFETY: there is no instruction; the vector comes out of the register that it went into.
    unsafe { asm!("/* {0} */", inout(zmm_reg) vector, options(nomem, nostack, preserves_flags)) };
    vector
}

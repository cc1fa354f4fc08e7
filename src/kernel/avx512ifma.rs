//! The 52-bit multiplications of AVX-512: what the fold gains by them.
//!
//! Everything else is [`avx512`], whose functions take this fold in place of
//! their own. The two multiplications are written as assembly so that those functions can be
//! the same for CPUs that lack them: an intrinsic would have to stand in a function of its own
//! target feature, which is not inlined into one without.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_ternarylogic_epi64,
};

use super::avx512;

pub(super) fn is_available() -> bool {
    avx512::is_available() && is_x86_feature_detected!("avx512ifma")
}

/// The halves of `a * b`, xored: eight products of 64 by 64 bits.
///
/// The multiplier takes the low 52 bits of its operands, so each operand is these and 12 more.
/// Products are summed by where they stand, at bit 0, 52 or 104, inside the multiplications.
///
/// # Safety
///
/// The CPU has AVX-512 IFMA.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn fold(a: __m512i, b: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let (a_top, b_top) = (_mm512_srli_epi64::<52>(a), _mm512_srli_epi64::<52>(b));
    // SAFETY: the caller says that the CPU has the instructions.
    let (at_0, at_52, at_104) = unsafe {
        let at_52 = multiply_add_high(zero, a, b);
        let at_52 = multiply_add_low(at_52, a, b_top);
        let at_104 = multiply_add_high(zero, a, b_top);
        let at_104 = multiply_add_high(at_104, a_top, b);
        (
            multiply_add_low(zero, a, b),
            multiply_add_low(at_52, a_top, b),
            multiply_add_low(at_104, a_top, b_top),
        )
    };
    let high = _mm512_add_epi64(_mm512_srli_epi64::<12>(at_52), _mm512_slli_epi64::<40>(at_104));
    _mm512_ternarylogic_epi64::<{ avx512::vector::XOR3 }>(
        at_0,
        _mm512_slli_epi64::<52>(at_52),
        high,
    )
}

/// Adds the low 52 bits of the 104-bit product.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_add_low(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller says that the CPU has the instruction; it touches registers alone.
    unsafe {
        asm!(
            "vpmadd52luq {0}, {1}, {2}",
            inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Adds the high 52 bits of the 104-bit product.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_add_high(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: as above.
    unsafe {
        asm!(
            "vpmadd52huq {0}, {1}, {2}",
            inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

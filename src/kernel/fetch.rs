//! Early fetching of what will be read.

#![allow(unsafe_code)]

/// Bytes of a cache line, on all CPUs that have a hint below.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the line at an address to be brought into the first-level cache. A hint: it reads
/// nothing and cannot fault, whatever the address.
#[inline(always)]
pub(crate) fn fetch<T>(address: *const T) {
    // SAFETY: see above.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    // SAFETY: see above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) address,
            options(readonly, nostack, preserves_flags)
        );
    }
    let _ = address;
}

/// Fetches the first `lines` lines of a slice, or as many as it has.
#[inline(always)]
pub(crate) fn fetch_start(bytes: &[u8], lines: usize) {
    for line in bytes.chunks(LINE_BYTES).take(lines) {
        fetch(line.as_ptr());
    }
}

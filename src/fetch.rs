//! Early fetching of what will be read.

#![allow(unsafe_code)]

use std::sync::LazyLock;

/// Bytes of a cache line, on all CPUs that have a hint below.
const LINE_BYTES: usize = 64;

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

/// Asks for the line at an address to be brought into the first-level cache to be written. A hint:
/// it reads and writes nothing and cannot fault, whatever the address.
///
/// # Safety
///
/// On x86-64 the CPU has `prefetchw`, as all do that have AVX-512.
#[inline(always)]
pub(crate) unsafe fn fetch_to_write<T>(address: *const T) {
    // SAFETY: the caller's promise.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) address, options(nostack, preserves_flags));
    }
    // SAFETY: all CPUs have it; see above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{0}]",
            in(reg) address,
            options(nostack, preserves_flags)
        );
    }
    let _ = address;
}

/// [`fetch_to_write`], where the CPU has it.
#[inline(always)]
pub(crate) fn fetch_to_write_if_known<T>(address: *const T) {
    // Intel's CPUs have had both since Broadwell. AMD's had `prefetchw` long before.
    #[cfg(target_arch = "x86_64")]
    let is_known = std::arch::is_x86_feature_detected!("adx");
    #[cfg(not(target_arch = "x86_64"))]
    let is_known = true;
    if is_known {
        // SAFETY: it has.
        unsafe { fetch_to_write(address) }
    }
}

/// Whether kernels ask for lines ahead of what they read. Those of AVX2 and AVX-512 are compiled both
/// ways, since a hint that is not given must not leave its address behind to be worked out; the others
/// always ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hints(pub(crate) bool);

impl Hints {
    #[inline(always)]
    pub(crate) fn help(self) -> bool {
        self.0
    }
}

impl Default for Hints {
    /// What the CPU is faster with. Zen 4 reads ahead in as many streams by itself, however busy its
    /// neighbours, and pays for every hint as for a load; Emerald Rapids gains by hints, the more so
    /// the busier its neighbours. Figures: `perf/vectors.md`.
    fn default() -> Self {
        static HINTS_HELP: LazyLock<bool> = LazyLock::new(|| !is_amd());
        Self(*HINTS_HELP)
    }
}

/// AMD's CPUs, and those made after them, have an extension that Intel's lack and the standard library
/// knows. Nothing but speed hangs on it.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("sse4a");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// How far ahead of what is read bytes are fetched: far enough for the last-level cache to
/// answer. CPUs fetch ahead by themselves, but not across the end of a page or of a request.
pub(crate) const FETCH_AHEAD: usize = 1024;

/// Of requests up to so many bytes the first-level cache has room for two.
const SHORT: usize = 8 << 10;

/// While a short request is read, the next is fetched, place by place: how far ahead it lies.
/// `None` where it is not short or the last.
#[inline]
pub(crate) fn fetch_distance(bytes: &[u8], next: &[u8]) -> Option<usize> {
    let distance = next.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
    (bytes.len() <= SHORT && !next.is_empty()).then_some(distance)
}

/// Fetches the first lines of what will be read next, where hints help: from there on it is fetched
/// ahead, too.
#[inline(always)]
pub(crate) fn fetch_start<T>(next: &[T], hints: Hints) {
    if !hints.help() {
        return;
    }
    let (start, bytes) = (next.as_ptr().cast::<u8>(), size_of_val(next));
    for line in (0..bytes.min(FETCH_AHEAD / 2)).step_by(LINE_BYTES) {
        fetch(start.wrapping_add(line));
    }
}

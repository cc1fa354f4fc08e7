//! XXH3-64 as a schedule: everything that depends on the seed and the input length alone is
//! worked out once (`keys`), so that a kernel is left with loads, multiplications and sums.
//!
//! [`secret`] names the slices of the secret, [`keys`] holds the schedules, [`scalar`] is the
//! algorithm in plain Rust, to be read next to the specification.

pub(crate) mod keys;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pieces;
pub(crate) mod scalar;
pub(crate) mod secret;

/// Long inputs are absorbed in stripes of eight 64-bit lanes.
pub(crate) const STRIPE_WORDS: usize = 8;
/// The same in bytes.
pub(crate) const STRIPE_BYTES: usize = 8 * STRIPE_WORDS;

/// The longest input that is hashed as one word.
pub(crate) const LONGEST_IN_A_WORD: usize = 8;
/// The longest input that is hashed as two halves; a chain step's is as long.
pub(crate) const LONGEST_IN_HALVES: usize = 16;
/// The longest input that is hashed by 16-byte folds; above it begin the stripes.
pub(crate) const LONGEST_FOLDED: usize = 240;
/// The longest input whose folds are summed without an avalanche between them.
pub(crate) const LONGEST_ONE_PASS: usize = 128;
/// How many folds come before that avalanche in a longer input.
pub(crate) const FIRST_PASS_FOLDS: usize = 8;

pub(crate) const PRIME32_1: u64 = 0x9E37_79B1;
pub(crate) const PRIME32_2: u64 = 0x85EB_CA77;
pub(crate) const PRIME32_3: u64 = 0xC2B2_AE3D;
pub(crate) const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
pub(crate) const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
pub(crate) const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
pub(crate) const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
pub(crate) const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
/// Multiplies in the avalanche of every path but the shortest.
pub(crate) const PRIME_AVALANCHE: u64 = 0x1656_6791_9E37_79F9;
/// Multiplies in the finish of 4 to 8 bytes.
pub(crate) const PRIME_RRMXMX: u64 = 0x9FB2_1C65_1E98_DF25;

/// What the accumulators of a long input start from.
pub(crate) const INITIAL_ACCUMULATORS: [u64; STRIPE_WORDS] =
    [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];

/// How many 16-byte folds an input of 17 to 240 bytes takes.
pub(crate) const fn fold_count(len: usize) -> usize {
    if len <= LONGEST_ONE_PASS { 2 * len.div_ceil(32) } else { len / 16 + 1 }
}

/// Where in the input the `i`-th fold reads its 16 bytes.
///
/// Up to 128 bytes the folds go in pairs from both ends to the middle; above, they go from
/// front to back, and the last one reads the last 16 bytes again.
pub(crate) const fn fold_input(len: usize, i: usize) -> usize {
    if len <= LONGEST_ONE_PASS {
        if i.is_multiple_of(2) { 8 * i } else { len - 8 * (i + 1) }
    } else if i < len / 16 {
        16 * i
    } else {
        len - 16
    }
}

/// Where in the secret the `i`-th fold reads its 16 bytes.
pub(crate) const fn fold_secret(len: usize, i: usize) -> usize {
    if len <= LONGEST_ONE_PASS || i < FIRST_PASS_FOLDS {
        16 * i
    } else if i < len / 16 {
        16 * (i - FIRST_PASS_FOLDS) + secret::SECOND_PASS
    } else {
        secret::LAST_FOLD
    }
}

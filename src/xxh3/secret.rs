//! The default secret of XXH3 and, by name, every slice of it that the algorithm reads.
//!
//! The offsets are those of the XXH3 specification (64-bit variant). They stand here and
//! nowhere else; equality with `xxhash-rust` at every input length pins them.

use super::STRIPE_WORDS;

/// The secret that XXH3 uses where the caller gives none (`kSecret` in the specification).
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// Length in `u64` words of the secret that long inputs derive from a seed.
const DERIVED_WORDS: usize = SECRET.len() / 8;

/// How many stripes a long input absorbs before its accumulators are scrambled: the secret
/// moves on by 8 bytes a stripe.
pub(crate) const STRIPES_PER_SCRAMBLE: usize = (SECRET.len() - 64) / 8;

/// The little-endian word at a byte offset of `secret`.
const fn word_at(secret: &[u8; 192], offset: usize) -> u64 {
    let mut word = 0;
    let mut i = 0;
    while i < 8 {
        word |= (secret[offset + i] as u64) << (8 * i);
        i += 1;
    }
    word
}

const fn word(offset: usize) -> u64 {
    word_at(&SECRET, offset)
}

/// 0 bytes: two words, combined with the seed.
pub(crate) const EMPTY: u64 = word(56) ^ word(64);

/// 1 to 3 bytes: two 32-bit halves of the first word.
pub(crate) const UP_TO_3: u64 = (word(0) & 0xffff_ffff) ^ (word(0) >> 32);

/// 4 to 8 bytes.
pub(crate) const UP_TO_8: u64 = word(8) ^ word(16);

/// 9 to 16 bytes: the two words that flip the low and the high half. A chain step hashes
/// 16 bytes and uses these too.
pub(crate) const UP_TO_16: [u64; 2] = [word(24) ^ word(32), word(40) ^ word(48)];

/// 17 to 240 bytes: the two words of one 16-byte fold, by where in the secret it stands.
pub(crate) const fn fold(offset: usize) -> [u64; 2] {
    [word(offset), word(offset + 8)]
}

/// 129 to 240 bytes: the folds after the first eight read the secret again from here.
pub(crate) const SECOND_PASS: usize = 3;

/// 129 to 240 bytes: where the fold of the last 16 input bytes reads.
pub(crate) const LAST_FOLD: usize = 136 - 17;

/// The secret as words: what inputs of more than 240 bytes derive theirs from.
const WORDS: [u64; DERIVED_WORDS] = {
    let mut words = [0; DERIVED_WORDS];
    let mut i = 0;
    while i < DERIVED_WORDS {
        words[i] = word(8 * i);
        i += 1;
    }
    words
};

/// A word of the secret that inputs of more than 240 bytes derive from a seed. Seed 0 gives the default.
///
/// What is made of these words is made of each where it is wanted: from a derived secret that was just
/// written, slices at other places would be slow to read.
#[inline(always)]
fn derived(seed: u64, word: usize) -> u64 {
    match word % 2 {
        0 => WORDS[word].wrapping_add(seed),
        _ => WORDS[word].wrapping_sub(seed),
    }
}

/// The eight words of a derived secret that key a stripe: they move on by a word from stripe to stripe.
#[inline(always)]
pub(crate) fn stripe(seed: u64, stripe: usize) -> [u64; STRIPE_WORDS] {
    std::array::from_fn(|i| derived(seed, stripe + i))
}

/// The eight words of a derived secret that scramble the accumulators: its last.
#[inline(always)]
pub(crate) fn scramble(seed: u64) -> [u64; STRIPE_WORDS] {
    stripe(seed, STRIPES_PER_SCRAMBLE)
}

/// The eight words of a derived secret that key the last stripe.
#[inline(always)]
pub(crate) fn last_stripe(seed: u64) -> [u64; STRIPE_WORDS] {
    across(seed, SECRET.len() - 64 - 7)
}

/// The eight words of a derived secret that key the merge of the accumulators.
#[inline(always)]
pub(crate) fn merge(seed: u64) -> [u64; STRIPE_WORDS] {
    across(seed, 11)
}

/// Words that begin at a byte inside a word of a derived secret.
#[inline(always)]
fn across(seed: u64, offset: usize) -> [u64; STRIPE_WORDS] {
    let (first, shift) = (offset / 8, 8 * (offset % 8) as u32);
    std::array::from_fn(|i| {
        derived(seed, first + i) >> shift | derived(seed, first + i + 1) << (u64::BITS - shift)
    })
}

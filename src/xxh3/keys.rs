//! Key schedules: what one seed (and one input length) makes of the secret.

use super::{LONGEST_FOLDED, PRIME64_1, STRIPE_WORDS, fold_count, fold_secret, secret};

/// The most folds that an input takes: the ones of 240 bytes.
pub(crate) const MAX_FOLDS: usize = fold_count(LONGEST_FOLDED);

/// The schedule of one seed for blocks of one byte length.
#[derive(Debug, Clone)]
pub(crate) struct BlockKeys {
    seed: u64,
    len: usize,
    words: Words,
}

/// The words that inputs are combined with, by the path that their length takes.
#[derive(Debug, Clone)]
pub(crate) enum Words {
    /// 0 to 8 bytes: one word.
    One(u64),
    /// 9 to 16 bytes: one word for each half.
    Two([u64; 2]),
    /// 17 to 240 bytes: two words a fold, in the order of [`super::fold_input`].
    Folds([[u64; 2]; MAX_FOLDS]),
    /// Longer: a derived secret.
    Stripes(StripeKeys),
}

/// A secret derived from a seed, and the slices of it that are not word-aligned.
#[derive(Debug, Clone)]
pub(crate) struct StripeKeys {
    pub(crate) derived: [u64; secret::DERIVED_WORDS],
    pub(crate) last: [u64; STRIPE_WORDS],
    pub(crate) merge: [u64; STRIPE_WORDS],
}

impl BlockKeys {
    pub(crate) fn new(seed: u64, len: usize) -> Self {
        Self { seed, len, words: Words::new(seed, len) }
    }

    /// Makes this the schedule of `seed` and `len`; free of work where it already is.
    pub(crate) fn set(&mut self, seed: u64, len: usize) {
        if !self.is(seed, len) {
            *self = Self::new(seed, len);
        }
    }

    /// Whether this is the schedule of `seed` and `len`.
    pub(crate) fn is(&self, seed: u64, len: usize) -> bool {
        (self.seed, self.len) == (seed, len)
    }

    /// The byte length of the blocks that this schedule is for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn words(&self) -> &Words {
        &self.words
    }
}

impl Default for BlockKeys {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Words {
    fn new(seed: u64, len: usize) -> Self {
        match len {
            0 => Self::One(seed ^ secret::EMPTY),
            1..=3 => Self::One(secret::UP_TO_3.wrapping_add(seed)),
            4..=8 => {
                let seed = seed ^ (u64::from((seed as u32).swap_bytes()) << 32);
                Self::One(secret::UP_TO_8.wrapping_sub(seed))
            }
            9..=16 => Self::Two(seeded(secret::UP_TO_16, seed)),
            17..=LONGEST_FOLDED => {
                let mut folds = [[0; 2]; MAX_FOLDS];
                for (i, words) in folds.iter_mut().enumerate().take(fold_count(len)) {
                    *words = seeded(secret::fold(fold_secret(len, i)), seed);
                }
                Self::Folds(folds)
            }
            _ => {
                let derived = secret::derive(seed);
                Self::Stripes(StripeKeys {
                    last: secret::last_stripe(&derived),
                    merge: secret::merge(&derived),
                    derived,
                })
            }
        }
    }
}

/// The two words of a chain step, `XXH3-64(parent ‖ block hash)`: 16 bytes under one seed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChainKeys {
    pub(crate) parent: u64,
    pub(crate) block: u64,
}

impl ChainKeys {
    pub(crate) fn new(seed: u64) -> Self {
        let [parent, block] = seeded(secret::UP_TO_16, seed);
        Self { parent, block }
    }
}

/// A seed enters every pair of secret words alike: added to the first, taken from the second.
fn seeded([low, high]: [u64; 2], seed: u64) -> [u64; 2] {
    [low.wrapping_add(seed), high.wrapping_sub(seed)]
}

/// What the sum of the folds or of the merge starts from: the length, spread.
pub(crate) const fn length_term(len: usize) -> u64 {
    (len as u64).wrapping_mul(PRIME64_1)
}

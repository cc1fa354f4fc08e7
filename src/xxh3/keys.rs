//! Key schedules: what one seed (and one input length) makes of the secret.

use super::secret::{self, STRIPES_PER_SCRAMBLE};
use super::{
    LONGEST_FOLDED, LONGEST_IN_A_WORD, LONGEST_IN_HALVES, PRIME64_1, STRIPE_BYTES, STRIPE_WORDS,
    fold_count, fold_secret,
};

/// The most folds that an input takes: the ones of 240 bytes.
pub(crate) const MAX_FOLDS: usize = fold_count(LONGEST_FOLDED);

/// The schedule of one seed for blocks of one byte length.
#[derive(Debug, Clone)]
pub(crate) struct BlockKeys {
    seed: u64,
    len: usize,
    // What the path of the length takes; the others are what was there before.
    word: u64,
    two: [u64; 2],
    folds: [[u64; 2]; MAX_FOLDS],
    stripes: StripeKeys,
}

/// The words that inputs are combined with, by the path that their length takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Words<'a> {
    /// 0 to 8 bytes: one word.
    One(u64),
    /// 9 to 16 bytes: one word for each half.
    Two(&'a [u64; 2]),
    /// 17 to 240 bytes: two words a fold, in the order of [`super::fold_input`].
    Folds(&'a [[u64; 2]; MAX_FOLDS]),
    /// Longer: slices of a derived secret.
    Stripes(&'a StripeKeys),
}

/// The slices of the secret that is derived from a seed. Cut out once: as they lie in the secret, most reach
/// over the end of a cache line.
#[derive(Debug, Clone, Default)]
pub(crate) struct StripeKeys {
    /// The secret moves on by a word from stripe to stripe.
    pub(crate) stripes: [Key; STRIPES_PER_SCRAMBLE],
    pub(crate) scramble: Key,
    pub(crate) last: Key,
    pub(crate) merge: Key,
}

/// What one stripe is combined with. Aligned by its own type, so that it always can be an operand from memory.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Key(pub(crate) [u64; STRIPE_WORDS]);

impl StripeKeys {
    /// Those that inputs of `len` bytes take; the others are what was there before.
    fn set(&mut self, seed: u64, len: usize) {
        let stripes = (len - 1) / STRIPE_BYTES;
        for (i, key) in self.stripes.iter_mut().enumerate().take(stripes) {
            *key = Key(secret::stripe(seed, i));
        }
        if stripes >= STRIPES_PER_SCRAMBLE {
            self.scramble = Key(secret::scramble(seed));
        }
        self.last = Key(secret::last_stripe(seed));
        self.merge = Key(secret::merge(seed));
    }
}

impl BlockKeys {
    /// Makes this the schedule of `seed` and `len`; free of work where it already is.
    #[inline]
    pub(crate) fn set(&mut self, seed: u64, len: usize) {
        if !self.is(seed, len) {
            self.work_out(seed, len);
        }
    }

    #[inline(never)]
    fn work_out(&mut self, seed: u64, len: usize) {
        (self.seed, self.len) = (seed, len);
        match len {
            0 => self.word = seed ^ secret::EMPTY,
            1..=3 => self.word = secret::UP_TO_3.wrapping_add(seed),
            4..=LONGEST_IN_A_WORD => {
                let seed = seed ^ (u64::from((seed as u32).swap_bytes()) << 32);
                self.word = secret::UP_TO_8.wrapping_sub(seed);
            }
            9..=LONGEST_IN_HALVES => self.two = seeded(secret::UP_TO_16, seed),
            17..=LONGEST_FOLDED => {
                for (i, words) in self.folds.iter_mut().enumerate().take(fold_count(len)) {
                    *words = seeded(secret::fold(fold_secret(len, i)), seed);
                }
            }
            _ => self.stripes.set(seed, len),
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

    /// The slices that blocks of more than 240 bytes take.
    pub(crate) fn stripes(&self) -> &StripeKeys {
        debug_assert!(self.len > LONGEST_FOLDED, "{} bytes have no stripes", self.len);
        &self.stripes
    }

    pub(crate) fn words(&self) -> Words<'_> {
        match self.len {
            0..=LONGEST_IN_A_WORD => Words::One(self.word),
            9..=LONGEST_IN_HALVES => Words::Two(&self.two),
            17..=LONGEST_FOLDED => Words::Folds(&self.folds),
            _ => Words::Stripes(&self.stripes),
        }
    }
}

impl Default for BlockKeys {
    /// The schedule of nothing.
    fn default() -> Self {
        Self {
            seed: 0,
            len: 0,
            word: secret::EMPTY,
            two: [0; 2],
            folds: [[0; 2]; MAX_FOLDS],
            stripes: StripeKeys::default(),
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

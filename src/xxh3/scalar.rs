//! XXH3-64 of one input, in plain Rust: the text of the specification over a key schedule.
//!
//! From 9 bytes on an input comes to a sum, and the hash is the [`avalanche`] of the sum. The two
//! are apart so that a kernel can have sums of one block under way while it finishes another.

use crate::fetch::{FETCH_AHEAD, fetch};

use super::keys::{ChainKeys, Key, MAX_FOLDS, StripeKeys, length_term};
use super::secret::STRIPES_PER_SCRAMBLE;
use super::{
    FIRST_PASS_FOLDS, INITIAL_ACCUMULATORS, LONGEST_ONE_PASS, PRIME_AVALANCHE, PRIME_RRMXMX,
    PRIME32_1, PRIME64_2, PRIME64_3, STRIPE_BYTES, STRIPE_WORDS, fold_count, fold_input,
};

/// 0 to 8 bytes.
#[inline(always)]
pub(crate) fn hash_up_to_8(input: &[u8], word: u64) -> u64 {
    let len = input.len();
    match len {
        0 => avalanche_xxh64(word),
        1..=3 => {
            let byte = |i: usize| u64::from(input[i]);
            let combined = byte(0) << 16 | byte(len / 2) << 24 | byte(len - 1) | (len as u64) << 8;
            avalanche_xxh64(combined ^ word)
        }
        _ => {
            let first = u64::from(read_u32(input, 0));
            let last = u64::from(read_u32(input, len - 4));
            rrmxmx((last | first << 32) ^ word, len)
        }
    }
}

/// 9 to 16 bytes, up to the last avalanche.
#[inline(always)]
pub(crate) fn sum_9_to_16(input: &[u8], &[low, high]: &[u64; 2]) -> u64 {
    let low = read_u64(input, 0) ^ low;
    let high = read_u64(input, input.len() - 8) ^ high;
    halves(low, high, input.len())
}

/// The sum of 9 to 16 bytes and of a chain step.
#[inline(always)]
fn halves(low: u64, high: u64, len: usize) -> u64 {
    beside_fold(low, high, len).wrapping_add(fold64(low, high))
}

#[inline(always)]
fn beside_fold(low: u64, high: u64, len: usize) -> u64 {
    (len as u64).wrapping_add(low.swap_bytes()).wrapping_add(high)
}

/// One step of a chain: `XXH3-64(parent ‖ block hash)`, both little-endian.
#[inline(always)]
pub(crate) fn chain_step(parent: u64, block_hash: u64, keys: ChainKeys) -> u64 {
    avalanche(halves(parent ^ keys.parent, block_hash ^ keys.block, 16))
}

/// A chain by itself. Its steps wait for each other, so each is ordered for the shortest time
/// from state to state; [`chain_step`] has fewer instructions, for chains side by side.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    keys: ChainKeys,
    /// The sequence hash so far, xored with its key.
    keyed: u64,
}

impl Chain {
    #[inline(always)]
    pub(crate) fn new(state: u64, keys: ChainKeys) -> Self {
        Self { keys, keyed: state ^ keys.parent }
    }

    /// Goes on from another sequence hash.
    #[inline(always)]
    pub(crate) fn begin(&mut self, state: u64) {
        *self = Self::new(state, self.keys);
    }

    /// The next sequence hash: that of the parent and `block_hash`.
    #[inline(always)]
    pub(crate) fn step(&mut self, block_hash: u64) -> u64 {
        let block = block_hash ^ self.keys.block;
        // Intel's CPUs swap bytes where they multiply: what is waited for longer goes first.
        let [folded, keyed] = opaque([fold64(self.keyed, block), self.keyed]);
        let [beside] = opaque([beside_fold(keyed, block, 16)]);
        let sum = beside.wrapping_add(folded);
        // The avalanche, and beside its last step the xor with the key.
        let product = (sum ^ (sum >> 37)).wrapping_mul(PRIME_AVALANCHE);
        let high = product >> 32;
        let [keyed] = opaque([product ^ self.keys.parent]);
        self.keyed = keyed ^ high;
        product ^ high
    }
}

/// The same numbers, all worked out before any of them is used. Sums and xors are in the order that
/// they are written in only where the compiler does not see through them.
#[inline(always)]
#[allow(unsafe_code)]
fn opaque<const N: usize>(#[allow(unused_mut)] mut numbers: [u64; N]) -> [u64; N] {
    // SAFETY: there is no instruction; each number comes out of the register that it went into.
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    unsafe {
        use std::arch::asm;
        match &mut numbers[..] {
            [a] => {
                asm!("/* {0} */", inout(reg) * a, options(pure, nomem, nostack, preserves_flags))
            }
            [a, b] => asm!(
                "/* {0} {1} */",
                inout(reg) * a,
                inout(reg) * b,
                options(pure, nomem, nostack, preserves_flags)
            ),
            _ => unreachable!("one or two numbers"),
        }
    }
    numbers
}

/// 17 to 240 bytes, up to the last avalanche. Where the length is known at compile time this
/// unrolls into a straight line of loads at constant offsets.
#[inline(always)]
pub(crate) fn sum_folds(input: &[u8], keys: &[[u64; 2]; MAX_FOLDS]) -> u64 {
    let len = input.len();
    let fold = |i| {
        let at = fold_input(len, i);
        let [low, high]: [u64; 2] = keys[i];
        fold64(read_u64(input, at) ^ low, read_u64(input, at + 8) ^ high)
    };
    let count = fold_count(len);
    let first_pass = if len <= LONGEST_ONE_PASS { count } else { FIRST_PASS_FOLDS };
    let mut sum = length_term(len);
    for i in 0..first_pass {
        sum = sum.wrapping_add(fold(i));
    }
    if len > LONGEST_ONE_PASS {
        sum = avalanche(sum);
        for i in first_pass..count {
            sum = sum.wrapping_add(fold(i));
        }
    }
    sum
}

/// More than 240 bytes, up to the last avalanche.
#[inline(always)]
pub(crate) fn sum_stripes(input: &[u8], keys: &StripeKeys) -> u64 {
    // The last stripe is apart: it may begin inside the one before, and is always there.
    let (stripes, _) = input[..input.len() - 1].as_chunks();
    let last = input.last_chunk().expect("a long input is longer than a stripe");
    let sums = if stripes.len() < STRIPES_PER_SCRAMBLE {
        absorb_short(stripes, last, keys)
    } else {
        absorb_long(stripes, last, keys)
    };
    merge(|i| sums[i] ^ keys.merge.0[i], input.len())
}

/// The accumulators of a long input, split in two: the specification adds each data lane to
/// the *neighbour* of the lane that holds its product, which is the same as summing the data
/// apart and swapping neighbours once, before a scramble or the merge.
#[derive(Clone, Copy)]
struct Accumulators {
    products: [u64; STRIPE_WORDS],
    data: [u64; STRIPE_WORDS],
}

impl Accumulators {
    const START: Self = Self { products: INITIAL_ACCUMULATORS, data: [0; STRIPE_WORDS] };

    #[inline(always)]
    fn absorb(&mut self, stripe: &[u8; STRIPE_BYTES], Key(key): &Key) {
        for lane in 0..STRIPE_WORDS {
            let data = read_u64(stripe, 8 * lane);
            let keyed = data ^ key[lane];
            let product = (keyed & 0xffff_ffff).wrapping_mul(keyed >> 32);
            self.products[lane] = self.products[lane].wrapping_add(product);
            self.data[lane] = self.data[lane].wrapping_add(data);
        }
    }

    /// Stripe after stripe, the secret moving on by one word each time.
    #[inline(always)]
    fn absorb_all(&mut self, stripes: &[[u8; STRIPE_BYTES]], keys: &StripeKeys) {
        for (stripe, key) in stripes.iter().zip(&keys.stripes) {
            // A barrier: the compiler is to make vectors of the lanes of a stripe. It would
            // rather make them of two stripes, which takes gathering.
            std::hint::black_box(());
            fetch(stripe.as_ptr().wrapping_add(FETCH_AHEAD));
            self.absorb(stripe, key);
        }
    }

    /// The accumulators of the specification.
    #[inline(always)]
    fn joined(&self) -> [u64; STRIPE_WORDS] {
        std::array::from_fn(|lane| self.products[lane].wrapping_add(self.data[lane ^ 1]))
    }
}

// The loops over stripes are functions by themselves, since inside a larger one the compiler
// does not make vectors at all: two to three times slower.

/// All stripes of an input that takes no scramble.
#[inline(never)]
fn absorb_short(
    stripes: &[[u8; STRIPE_BYTES]],
    last: &[u8; STRIPE_BYTES],
    keys: &StripeKeys,
) -> [u64; STRIPE_WORDS] {
    let mut accumulators = Accumulators::START;
    accumulators.absorb_all(stripes, keys);
    accumulators.absorb(last, &keys.last);
    accumulators.joined()
}

/// All stripes of an input that takes at least one scramble.
#[inline(never)]
fn absorb_long(
    stripes: &[[u8; STRIPE_BYTES]],
    last: &[u8; STRIPE_BYTES],
    keys: &StripeKeys,
) -> [u64; STRIPE_WORDS] {
    let mut accumulators = Accumulators::START;
    let mut blocks = stripes.chunks_exact(STRIPES_PER_SCRAMBLE);
    for block in &mut blocks {
        accumulators = scramble(absorb_block(accumulators, block, keys), &keys.scramble);
    }
    accumulators.absorb_all(blocks.remainder(), keys);
    accumulators.absorb(last, &keys.last);
    accumulators.joined()
}

/// The stripes before a scramble.
#[inline(never)]
fn absorb_block(
    mut accumulators: Accumulators,
    stripes: &[[u8; STRIPE_BYTES]],
    keys: &StripeKeys,
) -> [u64; STRIPE_WORDS] {
    accumulators.absorb_all(stripes, keys);
    accumulators.joined()
}

#[inline(always)]
fn scramble(sums: [u64; STRIPE_WORDS], Key(key): &Key) -> Accumulators {
    let scrambled = |lane: usize| {
        let sum = sums[lane] ^ (sums[lane] >> 47) ^ key[lane];
        sum.wrapping_mul(PRIME32_1)
    };
    Accumulators { products: std::array::from_fn(scrambled), data: [0; STRIPE_WORDS] }
}

/// The sum of a long input, up to the last avalanche, from its accumulators, each xored with the secret.
#[inline(always)]
pub(crate) fn merge(keyed: impl Fn(usize) -> u64, len: usize) -> u64 {
    let mut sum = length_term(len);
    for i in (0..STRIPE_WORDS).step_by(2) {
        sum = sum.wrapping_add(fold64(keyed(i), keyed(i + 1)));
    }
    sum
}

/// The 128-bit product, folded to its two halves' xor.
#[inline(always)]
fn fold64(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The finish of every input but the shortest, and of a chain step.
#[inline(always)]
pub(crate) fn avalanche(mut hash: u64) -> u64 {
    hash ^= hash >> 37;
    hash = hash.wrapping_mul(PRIME_AVALANCHE);
    hash ^ (hash >> 32)
}

/// The finish of 0 to 3 bytes, taken over from XXH64.
#[inline(always)]
fn avalanche_xxh64(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(PRIME64_2);
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(PRIME64_3);
    hash ^ (hash >> 32)
}

/// The finish of 4 to 8 bytes.
#[inline(always)]
fn rrmxmx(mut hash: u64, len: usize) -> u64 {
    hash ^= hash.rotate_left(49) ^ hash.rotate_left(24);
    hash = hash.wrapping_mul(PRIME_RRMXMX);
    hash ^= (hash >> 35).wrapping_add(len as u64);
    hash = hash.wrapping_mul(PRIME_RRMXMX);
    hash ^ (hash >> 28)
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline(always)]
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

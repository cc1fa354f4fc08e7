//! Every backend that this CPU has against `xxhash-rust`.

use std::env;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Backend, EMPTY_TILES, Lane, MAX_LANES, TILE};
use crate::xxh3::keys::{BlockKeys, ChainKeys};

/// Seeds at the ends of the range, in the middle, and in use: 0 (long inputs take the default
/// secret), 1 and 1337 (the schemes), and one that is all digits.
const SEEDS: [u64; 6] = [0, 1, 1337, 1 << 63, 0x1349_cde1_2770_5c16, u64::MAX];

/// The longest input of the exhaustive tests: past four scrambles of 1,024 bytes each.
const LONGEST: usize = 4300;

fn sample(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn hash_one(backend: Backend, input: &[u8], seed: u64) -> u64 {
    let mut hash = [0];
    backend.hash(input, &BlockKeys::new(seed, input.len()), &mut hash);
    hash[0]
}

#[test]
fn required_backends_are_there() {
    for backend in Backend::available() {
        println!("available: {backend}");
    }
    let required = env::var("KVHASH_REQUIRE_BACKENDS").unwrap_or_default();
    for name in required.split([',', ' ']).filter(|name| !name.is_empty()) {
        name.parse::<Backend>().unwrap_or_else(|error| panic!("required: {error}"));
    }
}

#[test]
fn hash_equals_xxhash_rust_at_every_length() {
    let bytes = sample(LONGEST);
    for &backend in Backend::available() {
        for len in 1..=LONGEST {
            for seed in SEEDS {
                assert_eq!(
                    hash_one(backend, &bytes[..len], seed),
                    xxh3_64_with_seed(&bytes[..len], seed),
                    "{backend}, length {len}, seed {seed}"
                );
            }
        }
    }
}

/// Block lengths on both sides of every change of path: 16/17 (halves, folds), 128/129 (second
/// pass), 240/241 (stripes), 1024/1025 and 2048/2049 (scrambles), and lengths in use.
const LENGTHS: [usize; 17] =
    [4, 8, 16, 20, 64, 128, 132, 208, 236, 240, 244, 247, 256, 1024, 1028, 2048, 2052];

#[test]
fn hash_equals_xxhash_rust_at_every_token_offset() {
    let tokens: Vec<u32> = bytemuck::cast_slice(&sample(4 * 4096)).to_vec();
    for &backend in Backend::available() {
        for offset in 0..16 {
            for len in LENGTHS {
                let bytes: &[u8] = bytemuck::cast_slice(&tokens[offset..]);
                assert_eq!(
                    hash_one(backend, &bytes[..len], 1337),
                    xxh3_64_with_seed(&bytes[..len], 1337),
                    "{backend}, offset {offset}, length {len}"
                );
            }
        }
    }
}

#[test]
fn hash_of_many_is_the_hash_of_each() {
    for &backend in Backend::available() {
        for count in 0..=33 {
            for len in LENGTHS {
                let bytes = sample(count * len);
                let mut hashes = vec![0; count];
                backend.hash(&bytes, &BlockKeys::new(1337, len), &mut hashes);
                let each: Vec<u64> =
                    bytes.chunks_exact(len).map(|block| xxh3_64_with_seed(block, 1337)).collect();
                assert_eq!(hashes, each, "{backend}, {count} blocks of {len}");
            }
        }
    }
}

#[test]
fn a_schedule_that_is_set_again_is_the_new_one() {
    let bytes = sample(300);
    let mut keys = BlockKeys::default();
    for (seed, len) in [(7, 64), (7, 64), (8, 64), (8, 65), (8, 300), (7, 300)] {
        keys.set(seed, len);
        let mut hash = [0];
        Backend::Scalar.hash(&bytes[..len], &keys, &mut hash);
        assert_eq!(hash[0], xxh3_64_with_seed(&bytes[..len], seed));
    }
}

/// One request of the chain test, with what `walk` must make of it.
struct Case {
    bytes: Vec<u8>,
    len: usize,
    seed: u64,
    chain_seed: u64,
    state: Option<u64>,
    prefix: u64,
}

impl Case {
    fn new(i: u64, count: usize) -> Self {
        let len = LENGTHS[i as usize % LENGTHS.len()];
        Self {
            bytes: sample(len * count + i as usize)[i as usize..].to_vec(),
            len,
            seed: SEEDS[i as usize % SEEDS.len()],
            chain_seed: [1337, 0, i][i as usize % 3],
            state: (i % 2 == 1).then(|| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            prefix: i << 56,
        }
    }

    /// Block hashes and rows by the rule: hash, chain, shift into 128 bits.
    fn expected(&self, bits: u32) -> (Vec<u64>, Vec<u128>) {
        let mut state = self.state;
        let mut prefix = self.prefix;
        self.bytes
            .chunks_exact(self.len)
            .map(|block| {
                let hash = xxh3_64_with_seed(block, self.seed);
                let next = match state {
                    None => hash,
                    Some(parent) => {
                        let pair: [u8; 16] = bytemuck::cast([parent, hash]);
                        xxh3_64_with_seed(&pair, self.chain_seed)
                    }
                };
                let parent = u128::from(state.unwrap_or(0)) & ((1 << bits) - 1);
                let row = u128::from(prefix) << 64 | u128::from(next) << bits | parent;
                state = Some(next);
                prefix += 1 << bits;
                (hash, row)
            })
            .unzip()
    }
}

#[test]
fn walk_hashes_chains_and_packs() {
    // Around a tile, in calls of several and of one lane, with and without the hashes kept.
    let counts = [1, 2, 7, TILE - 1, TILE, TILE + 1, 2 * TILE + 3];
    for &backend in Backend::available() {
        for lanes in 1..=MAX_LANES {
            for (round, &count) in counts.iter().enumerate() {
                for bits in [54, 46, 38] {
                    for keep in [false, true] {
                        let cases: Vec<Case> = (0..lanes)
                            .map(|lane| Case::new((round * MAX_LANES + lane) as u64, count))
                            .collect();
                        check_walk(backend, &cases, count, bits, keep);
                    }
                }
            }
        }
    }
}

fn check_walk(backend: Backend, cases: &[Case], count: usize, bits: u32, keep: bool) {
    let mut rows = vec![vec![0; count]; cases.len()];
    let mut hashes = vec![vec![0; count]; cases.len()];
    let mut lanes: Vec<Lane<'_>> = cases
        .iter()
        .zip(rows.iter_mut().zip(&mut hashes))
        .map(|(case, (rows, hashes))| Lane {
            blocks: &case.bytes,
            rows,
            hashes: keep.then_some(hashes.as_mut_slice()),
            chain: ChainKeys::new(case.chain_seed),
            state: case.state,
            prefix: case.prefix,
        })
        .collect();
    let keys: Vec<BlockKeys> =
        cases.iter().map(|case| BlockKeys::new(case.seed, case.len)).collect();
    // In two calls, the second taking up where the first left off.
    let mut tiles = EMPTY_TILES;
    backend.walk(count / 2, bits, &mut lanes, &keys, &mut tiles);
    backend.walk(count - count / 2, bits, &mut lanes, &keys, &mut tiles);
    for lane in &lanes {
        assert!(lane.blocks.is_empty() && lane.rows.is_empty());
    }
    drop(lanes);
    for (i, case) in cases.iter().enumerate() {
        let (expected_hashes, expected_rows) = case.expected(bits);
        let place = format!("{backend}, lane {i} of {}, {count} blocks", cases.len());
        assert_eq!(rows[i], expected_rows, "{place}");
        if keep {
            assert_eq!(hashes[i], expected_hashes, "{place}");
        }
    }
}

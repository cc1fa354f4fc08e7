//! Every backend that this CPU has against `xxhash-rust`.

use std::env;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Arena, Backend, Counting, Lane, MAX_LANES, Workspace};
use crate::xxh3::keys::ChainKeys;

/// Seeds at the ends of the range, in the middle, and in use: 0 (long inputs take the default
/// secret), 1 and 1337 (the schemes), and one that is all digits.
const SEEDS: [u64; 6] = [0, 1, 1337, 1 << 63, 0x1349_cde1_2770_5c16, u64::MAX];

/// The longest input of the exhaustive tests: past four scrambles of 1,024 bytes each.
const LONGEST: usize = 4300;

fn sample(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The block hashes of one lane.
fn hash_all(
    backend: Backend,
    blocks: &[u8],
    len: usize,
    seed: u64,
    workspace: &mut Workspace,
) -> Vec<u64> {
    let count = blocks.len() / len;
    let (mut rows, mut hashes) = (vec![0; count], vec![0; count]);
    let lane = Lane { blocks, left: count, seed, fragment_bits: 54, ..Lane::default() };
    let mut arena = Arena { rows: &mut rows, hashes: Some(&mut hashes) };
    backend.walk(count, len, &mut [lane], &mut arena, workspace);
    hashes
}

fn hash_one(backend: Backend, input: &[u8], seed: u64) -> u64 {
    hash_all(backend, input, input.len(), seed, &mut Workspace::default())[0]
}

#[test]
fn required_backends_are_there() {
    for backend in Backend::ALL {
        println!("{backend}: {}", if backend.is_available() { "available" } else { "absent" });
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
                let hashes = hash_all(backend, &bytes, len, 1337, &mut Workspace::default());
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
    for &backend in Backend::available() {
        let mut workspace = Workspace::default();
        for (seed, len) in [(7, 64), (7, 64), (8, 64), (8, 65), (8, 300), (7, 300)] {
            let hash = hash_all(backend, &bytes[..len], len, seed, &mut workspace);
            assert_eq!(hash[0], xxh3_64_with_seed(&bytes[..len], seed), "{backend}");
        }
    }
}

/// One request of the chain test, with what `walk` must make of it.
struct Case {
    bytes: Vec<u8>,
    len: usize,
    seed: u64,
    chain_seed: u64,
    state: Option<u64>,
    bits: u32,
    prefix: u64,
}

impl Case {
    fn new(i: u64, len: usize, count: usize, bits: u32) -> Self {
        Self {
            bytes: sample(len * count + i as usize)[i as usize..].to_vec(),
            len,
            seed: SEEDS[i as usize % SEEDS.len()],
            chain_seed: [1337, 0, i][i as usize % 3],
            state: (i % 2 == 1).then(|| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            bits,
            prefix: i << 56,
        }
    }

    /// Block hashes and rows by the rule: hash, chain, shift into 128 bits.
    fn expected(&self) -> (Vec<u64>, Vec<u128>) {
        let (mut state, bits) = (self.state, self.bits);
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

/// Block counts around a vector (8), a tile of the scalar kernel (64) and the distance at which
/// streams are fetched ahead (1,024 bytes: 16 blocks of 64).
const COUNTS: [usize; 12] = [1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65, 131];

#[test]
fn walk_hashes_chains_and_packs() {
    for &backend in Backend::available() {
        for len in LENGTHS {
            for lanes in widths(backend, len) {
                for (round, &count) in COUNTS.iter().enumerate() {
                    let cases: Vec<Case> = (0..lanes)
                        .map(|lane| {
                            // Lanes of one layout, and of all three.
                            let bits = [54, 46, 38][(round + lane * (round % 2)) % 3];
                            Case::new((round * MAX_LANES + lane) as u64, len, count, bits)
                        })
                        .collect();
                    check_walk(backend, &cases, count, round % 3 == 0);
                }
            }
        }
    }
}

#[test]
fn walk_takes_every_folded_length() {
    for &backend in Backend::available() {
        for len in 1..=260 {
            for lanes in widths(backend, len) {
                let cases: Vec<Case> =
                    (0..lanes).map(|lane| Case::new(lane as u64, len, 3, 54)).collect();
                check_walk(backend, &cases, 3, false);
            }
        }
    }
}

/// One lane, and every number of lanes that go side by side.
fn widths(backend: Backend, len: usize) -> impl Iterator<Item = usize> {
    [1].into_iter().chain(backend.lanes(len).filter(|&lanes| lanes > 1))
}

fn check_walk(backend: Backend, cases: &[Case], count: usize, keep: bool) {
    // The lanes' rows back to back, the last lane's first.
    let place = |lane: usize| (cases.len() - 1 - lane) * count;
    let mut rows = vec![0; count * cases.len()];
    let mut hashes = vec![0; count * cases.len()];
    let mut lanes: Vec<Lane<'_>> = (0..)
        .zip(cases)
        .map(|(i, case)| Lane {
            blocks: &case.bytes,
            left: count,
            row: place(i),
            position: 7,
            seed: case.seed,
            chain: ChainKeys::new(case.chain_seed),
            state: case.state,
            fragment_bits: case.bits,
            prefix: case.prefix,
            next: &[],
        })
        .collect();
    let mut arena = Arena { rows: &mut rows, hashes: keep.then_some(&mut hashes) };
    // In two calls, the second taking up where the first left off.
    let mut workspace = Workspace::default();
    let len = cases[0].len;
    backend.walk(count / 2, len, &mut lanes, &mut arena, &mut workspace);
    backend.walk(count - count / 2, len, &mut lanes, &mut arena, &mut workspace);
    for lane in &lanes {
        assert!(lane.blocks.is_empty());
        assert_eq!((lane.left, lane.position), (0, 7 + count as u64));
    }
    for (i, case) in cases.iter().enumerate() {
        let (expected_hashes, expected_rows) = case.expected();
        let what = format!("{backend}, lane {i} of {}, {count} blocks of {len}", cases.len());
        let places = place(i)..place(i) + count;
        assert_eq!(rows[places.clone()], expected_rows, "{what}");
        if keep {
            assert_eq!(hashes[places], expected_hashes, "{what}");
        }
    }
}

/// Blocks that count up, never written, against the same ones written: every length of frames of 13
/// bytes that is folded, from one block to more than two vectors, and numbers that end at 32 bits.
#[test]
fn counting_gives_what_the_written_blocks_give() {
    for &backend in Backend::available() {
        for slots in 1..=20 {
            let len = 13 * slots;
            if !backend.counts(len) {
                continue;
            }
            for count in 1..=17 {
                for first in [0, 255, 1 << 16, u64::from(u32::MAX) + 1 - (slots * count) as u64] {
                    check_counting(backend, slots, count, first);
                }
            }
        }
    }
}

fn check_counting(backend: Backend, slots: usize, count: usize, first: u64) {
    let frame = |number: u32| {
        let mut frame = [0; 13];
        frame[0] = 1;
        frame[1..5].copy_from_slice(&number.to_le_bytes());
        frame[5..].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
        frame
    };
    let bytes: Vec<u8> =
        (0..(slots * count) as u64).flat_map(|i| frame((first + i) as u32)).collect();
    let case = Case { bytes, ..Case::new(3, 13 * slots, count, 46) };
    let (expected_hashes, expected_rows) = case.expected();
    for keep in [false, true] {
        let (mut rows, mut hashes) = (vec![0; count], vec![0; count]);
        let mut arena = Arena { rows: &mut rows, hashes: keep.then_some(&mut hashes) };
        let mut lane = Lane {
            left: count,
            seed: case.seed,
            chain: ChainKeys::new(case.chain_seed),
            state: case.state,
            fragment_bits: case.bits,
            prefix: case.prefix,
            ..Lane::default()
        };
        let block: Vec<u8> = (0..slots).flat_map(|_| frame(0)).collect();
        let counting = Counting { block: &block, slot_bytes: 13, offset: 1, first };
        backend.walk_counting(count, &counting, &mut lane, &mut arena, &mut Workspace::default());
        let what = format!("{backend}, {count} blocks of {slots} slots from {first}");
        assert_eq!(rows, expected_rows, "{what}");
        assert!(!keep || hashes == expected_hashes, "{what}");
        assert_eq!((lane.left, lane.position), (0, count as u64));
    }
}

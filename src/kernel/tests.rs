//! Every backend that this CPU has against `xxhash-rust`.

use std::cell::Cell;
use std::{env, slice};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Backend, Counting, Lane, MAX_LANES, SHORTEST_BY_EIGHTS, Workspace};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::fetch::Hints;
use crate::output::cells;
use crate::xxh3::keys::ChainKeys;

/// Seeds at the ends of the range, in the middle, and in use: 0 (long inputs take the default
/// secret), 1 and 1337 (the schemes), and one that is all digits.
const SEEDS: [u64; 6] = [0, 1, 1337, 1 << 63, 0x1349_cde1_2770_5c16, u64::MAX];

/// The longest input of the exhaustive tests: past four scrambles of 1,024 bytes each.
const LONGEST: usize = 4300;

/// All of them; under Miri, which takes thousands of times as long, every so many-th. Steps are
/// prime to 2 and 4, so that no residue is left out.
fn sampled<T>(all: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    all.into_iter().step_by(if cfg!(miri) { step } else { 1 })
}

/// 1 to `LONGEST`; where they are sampled, most of them of those that take folds.
fn every_length() -> impl Iterator<Item = usize> {
    const FEW_STRIPES: usize = 260;
    sampled(1..=FEW_STRIPES, 23).chain(sampled(FEW_STRIPES + 1..=LONGEST, 1621))
}

fn sample(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Every backend that this CPU has: as it is compiled with hints to fetch, and without them.
fn backends() -> impl Iterator<Item = (Backend, Hints)> {
    let backends = Backend::available().iter();
    backends.flat_map(|&backend| [true, false].map(|help| (backend, Hints(help))))
}

fn workspace(hints: Hints) -> Workspace {
    Workspace { hints, ..Workspace::default() }
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
    let mut lane = Lane { rows: cells(&mut rows), hashes: Some(cells(&mut hashes)), ..lane };
    backend.walk(count, len, slice::from_mut(&mut lane), workspace);
    hashes
}

fn hash_one(backend: Backend, hints: Hints, input: &[u8], seed: u64) -> u64 {
    hash_all(backend, input, input.len(), seed, &mut workspace(hints))[0]
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
fn a_backend_that_cannot_run_is_an_error_that_lists_those_that_can() {
    for &backend in Backend::ALL {
        if backend.is_available() {
            assert_eq!(backend.name().parse(), Ok(backend));
            continue;
        }
        // By name and by value, wherever a test run meets a CPU that lacks one: in CI, under
        // Miri, under emulation.
        let error = backend.name().parse::<Backend>().unwrap_err();
        assert_eq!(error, EngineError::UnavailableBackend { name: backend.name().into() });
        assert_eq!(Engine::builder().backend(backend).build().map(|_| ()), Err(error.clone()));
        let text = error.to_string();
        let (_, listed) = text.split_once("; available: ").unwrap();
        let names: Vec<&str> = Backend::available().iter().map(|other| other.name()).collect();
        assert_eq!(listed, names.join(", "));
    }
}

#[test]
fn hash_equals_xxhash_rust_at_every_length() {
    let bytes = sample(LONGEST);
    for (backend, hints) in backends() {
        for len in every_length() {
            for seed in SEEDS {
                assert_eq!(
                    hash_one(backend, hints, &bytes[..len], seed),
                    xxh3_64_with_seed(&bytes[..len], seed),
                    "{backend}, length {len}, seed {seed}"
                );
            }
        }
    }
}

/// Block lengths, in bytes, on both sides of every change of path.
const LENGTHS: [usize; 18] = [
    4,    // one token: a word
    8,    // two tokens, and the last that goes into a word
    16,   // the last in two halves, and the last that AVX-512 leaves to general registers
    20,   // the first with folds, in whole tokens; single pieces alone
    64,   // 16 tokens, in use; one row of a vector
    128,  // 32 tokens, in use; two rows, and the last with one pass
    132,  // the first with two passes, in whole tokens
    208,  // a second pass of a row and of pieces, the last two of which are the same bytes
    236,  // a second pass of a row and three pieces
    240,  // the last with folds, and the most of them
    244,  // the first with stripes, in whole tokens; the last stripe starts inside the one before
    247,  // 19 frames of 13 bytes: stripes, and rows that are not whole words apart
    256,  // 64 tokens, in use; stripes end where the block ends
    512,  // 128 tokens, in use
    1024, // 256 tokens, in use; the last without a scramble
    1028, // the first with a scramble, in whole tokens
    2048, // the last with one scramble: between it and the end there are 15 stripes
    2052, // the first with two scrambles, in whole tokens
];

#[test]
fn hash_equals_xxhash_rust_at_every_token_offset() {
    let bytes = sample(4 * 4096);
    let tokens: Vec<u32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    for (backend, hints) in backends() {
        for offset in sampled(0..16, 5) {
            for len in sampled(LENGTHS, 7) {
                let bytes: &[u8] = bytemuck::cast_slice(&tokens[offset..]);
                assert_eq!(
                    hash_one(backend, hints, &bytes[..len], 1337),
                    xxh3_64_with_seed(&bytes[..len], 1337),
                    "{backend}, offset {offset}, length {len}"
                );
            }
        }
    }
}

#[test]
fn hash_of_many_is_the_hash_of_each() {
    for (backend, hints) in backends() {
        for count in sampled(0..=33, 17) {
            for len in sampled(LENGTHS, 7) {
                let bytes = sample(count * len);
                let hashes = hash_all(backend, &bytes, len, 1337, &mut workspace(hints));
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
    for (backend, hints) in backends() {
        let mut workspace = workspace(hints);
        for (seed, len) in [(7, 64), (7, 64), (8, 64), (8, 65), (8, 300), (7, 300)] {
            let hash = hash_all(backend, &bytes[..len], len, seed, &mut workspace);
            assert_eq!(hash[0], xxh3_64_with_seed(&bytes[..len], seed), "{backend}");
        }
    }
}

/// One request of a walk, with what `walk` must make of it.
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
            // Far enough below the top that no count of blocks here reaches it.
            prefix: (i % 64) << 56,
        }
    }

    /// Before its first block, with bytes that are equal to its own.
    fn lane<'a>(&self, blocks: &'a [u8], rows: &'a [Cell<u128>]) -> Lane<'a> {
        Lane {
            blocks,
            left: rows.len(),
            rows,
            hashes: None,
            row: 0,
            position: 7,
            seed: self.seed,
            chain: ChainKeys::new(self.chain_seed),
            state: self.state,
            unchained: None,
            fragment_bits: self.bits,
            prefix: self.prefix,
            next: &blocks[blocks.len().saturating_sub(1)..],
        }
    }

    /// By the rule: hash, chain, shift into 128 bits.
    fn expected(&self) -> Expected {
        let (mut state, bits) = (self.state, self.bits);
        let mut prefix = self.prefix;
        let (hashes, rows) = self
            .bytes
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
            .unzip();
        Expected { hashes, rows, state, prefix }
    }
}

/// What `walk` must make of a case: block hashes and rows, and what the lane goes on from.
struct Expected {
    hashes: Vec<u64>,
    rows: Vec<u128>,
    state: Option<u64>,
    prefix: u64,
}

/// Block counts past those that are all taken (0 to 33): around a tile of the scalar kernel (64
/// blocks), and such that the halves of two tiles lie around one, too.
const COUNTS: [usize; 6] = [63, 64, 65, 127, 128, 131];

#[test]
fn walk_hashes_chains_and_packs() {
    // All of 0 to 33: around a vector of eight blocks or lanes, twice and four times as many,
    // and around the distance at which streams are fetched ahead (1,024 bytes: 16 blocks of 64).
    let counts = || (0..=33).chain(COUNTS);
    for (backend, hints) in backends() {
        for len in sampled(LENGTHS, 7) {
            for lanes in widths(backend, len) {
                for (round, count) in sampled(counts().enumerate(), 23) {
                    let cases: Vec<Case> = (0..lanes)
                        .map(|lane| {
                            // Lanes of one layout, and of all three.
                            let bits = [54, 46, 38][(round + lane * (round % 2)) % 3];
                            Case::new((round * MAX_LANES + lane) as u64, len, count, bits)
                        })
                        .collect();
                    check_walk(backend, hints, &cases, count, round % 3 == 0);
                }
            }
        }
    }
}

#[test]
fn walk_takes_every_length() {
    // Up to a stripe past the folds every number of lanes, since there the length decides on
    // what becomes of lanes; from there on, one and the most.
    const EVERY_WIDTH: usize = 240 + 64;
    for (backend, hints) in backends() {
        for len in every_length() {
            let most = *backend.lanes(len).end();
            for lanes in widths(backend, len).filter(|&lanes| len <= EVERY_WIDTH || lanes == most) {
                let cases: Vec<Case> =
                    (0..lanes).map(|lane| Case::new(lane as u64, len, 3, 54)).collect();
                check_walk(backend, hints, &cases, 3, false);
            }
        }
    }
}

/// How many blocks of a length make a request one that is hashed eight blocks at a time: the fewest,
/// the fewest but one, and more, to an eight that is full and with each number of blocks past it.
fn counts_by_eights(len: usize) -> impl Iterator<Item = usize> {
    let fewest = SHORTEST_BY_EIGHTS.div_ceil(len);
    fewest - 1..=fewest + MAX_LANES
}

#[test]
fn one_request_and_two_of_every_folded_length_are_walked_by_eights() {
    for (backend, hints) in backends() {
        for len in sampled(17..=240, 47) {
            for count in sampled(counts_by_eights(len), 4) {
                for cases in cases_by_eights(backend, len, count) {
                    check_walk(backend, hints, &cases, count, count.is_multiple_of(2));
                }
            }
        }
    }
}

/// One request, and two that differ in everything, where the backend takes two.
fn cases_by_eights(backend: Backend, len: usize, count: usize) -> impl Iterator<Item = Vec<Case>> {
    let case = move |lane| Case::new((count + lane) as u64, len, count, [54, 38][lane]);
    widths(backend, len)
        .filter(|&lanes| lanes <= 2)
        .map(move |lanes| (0..lanes).map(case).collect())
}

#[test]
fn walk_takes_tokens_at_every_offset() {
    for (backend, hints) in backends() {
        for len in sampled(LENGTHS, 7) {
            for lanes in widths(backend, len) {
                let cases: Vec<Case> =
                    (0..lanes).map(|lane| Case::new(lane as u64, len, 3, 54)).collect();
                let mut memory = vec![Vec::new(); lanes];
                // All lanes at one place in a cache line, and each at another: 5 is prime to 16.
                for (offset, step) in
                    sampled(0..16, 5).flat_map(|offset| [(offset, 0), (offset, 5)])
                {
                    let blocks: Vec<&[u8]> = cases
                        .iter()
                        .zip(&mut memory)
                        .enumerate()
                        .map(|(lane, (case, memory))| {
                            at_token_of_line((offset + step * lane) % 16, &case.bytes, memory)
                        })
                        .collect();
                    let workspace = &mut workspace(hints);
                    check_walk_over(&blocks, backend, &cases, 3, false, workspace);
                }
            }
        }
    }
}

/// A copy that begins at a token (0 to 15) of a cache line.
fn at_token_of_line<'a>(token: usize, bytes: &[u8], memory: &'a mut Vec<u8>) -> &'a [u8] {
    memory.resize(bytes.len() + 128, 0);
    let start = memory.as_ptr().align_offset(64) + 4 * token;
    let copy = &mut memory[start..start + bytes.len()];
    copy.copy_from_slice(bytes);
    copy
}

#[test]
fn lanes_keep_their_seeds() {
    for (backend, hints) in backends() {
        // One for all calls: what it keeps of one must not show in the next.
        let mut workspace = workspace(hints);
        for len in sampled(LENGTHS, 7) {
            for lanes in widths(backend, len) {
                let apart: Vec<u64> =
                    (1..=lanes as u64).map(|i| i.wrapping_mul(SEEDS[4])).collect();
                let turned: Vec<u64> = apart.iter().rev().copied().collect();
                // Every lane its own, in both orders; one for all; all but one, whichever it is.
                let mut rounds = vec![apart, turned, vec![7; lanes]];
                rounds.extend((0..lanes).map(|other| {
                    let seeds = (0..lanes).map(|lane| if lane == other { 8 } else { 7 });
                    seeds.collect()
                }));
                for seeds in rounds {
                    let cases: Vec<Case> = (0..)
                        .zip(seeds)
                        .map(|(lane, seed)| {
                            let case = Case::new(lane, len, 3, 54);
                            // As schemes have it that chain under the salt's hash.
                            Case { seed, chain_seed: seed.rotate_left(17), ..case }
                        })
                        .collect();
                    let blocks: Vec<&[u8]> = cases.iter().map(|case| &case.bytes[..]).collect();
                    check_walk_over(&blocks, backend, &cases, 3, false, &mut workspace);
                }
            }
        }
    }
}

#[test]
fn lanes_in_turn_come_to_their_ends() {
    let counts: [&[usize]; 8] = [
        &[1],                          // of no other lane, and fewer than wait for their merge
        &[4],                          // as many as wait
        &[5],                          // one more
        &[1; 13],                      // more lanes than blocks that wait
        &[3, 1, 5, 2, 2, 1, 4, 6],     // ends everywhere among those that wait
        &[8, 8, 8],                    // as many as are packed at once
        &[7, 9, 16, 17, 1, 15, 24, 8], // on both sides of that
        &[131, 2, 65],                 // many
    ];
    // Where a seed goes over to the next: at every lane, at every third, nowhere.
    let runs = [1, 3, usize::MAX];
    for ((backend, hints), counts) in
        backends().flat_map(|way| sampled(counts, 3).map(move |counts| (way, counts)))
    {
        // Every length around the first ones, and those on both sides of a change.
        let lengths = sampled(241..=330, 41).chain(sampled(LENGTHS, 7));
        for (len, run) in lengths.flat_map(|len| sampled(runs, 3).map(move |run| (len, run))) {
            if !backend.goes_in_turn(len, false) {
                continue;
            }
            let cases: Vec<Case> = counts
                .iter()
                .enumerate()
                .map(|(i, &count)| {
                    let bits = [54, 46, 38][i % 3];
                    let case = Case::new(i as u64, len, count, bits);
                    Case { seed: SEEDS[i / run % SEEDS.len()], ..case }
                })
                .collect();
            let ended = check_ends(&cases, |lanes| {
                backend.walk_in_turn(len, lanes, &mut workspace(hints));
            });
            // Only the last one can go on.
            assert!(ended > 0, "{backend}, {counts:?} blocks of {len}, seeds for {run}");
        }
    }
}

/// Checks lanes that `walk` takes to their ends: what is written and what is not. Gives how many of them, from
/// the last on, can go on from there.
fn check_ends(cases: &[Case], walk: impl FnOnce(&mut [Lane<'_>])) -> usize {
    let counts: Vec<usize> = cases.iter().map(|case| case.bytes.len() / case.len).collect();
    let total = counts.iter().sum::<usize>() + 1;
    let mut rows = vec![u128::from_ne_bytes([UNTOUCHED; 16]); total];
    let mut expected_rows = rows.clone();
    let mut row = 0;
    let mut lanes = Vec::new();
    let row_cells = cells(&mut rows);
    // A prompt may go on past the blocks that are asked for.
    let longer: Vec<Vec<u8>> =
        cases.iter().map(|case| [&case.bytes[..], &sample(2 * case.len)].concat()).collect();
    for ((case, &count), bytes) in cases.iter().zip(&counts).zip(&longer) {
        let places = row..row + count;
        lanes.push(case.lane(bytes, &row_cells[places.clone()]));
        expected_rows[places].copy_from_slice(&case.expected().rows);
        row += count;
    }
    walk(&mut lanes);
    let ended = lanes.iter().zip(cases).rev().take_while(|(lane, case)| {
        let Expected { state, prefix, .. } = case.expected();
        assert_eq!(lane.left, 0);
        (lane.state, lane.prefix) == (state, prefix)
    });
    let ended = ended.count();
    assert_eq!(rows, expected_rows, "{counts:?}");
    ended
}

/// One lane, and every number of lanes that go side by side, for however long.
fn widths(backend: Backend, len: usize) -> impl Iterator<Item = usize> {
    let two = backend.goes_by_two(usize::MAX / len, len, false).then_some(2);
    let several = two.into_iter().chain(backend.lanes(len).filter(|&lanes| lanes > 1));
    [1].into_iter().chain(several)
}

fn check_walk(backend: Backend, hints: Hints, cases: &[Case], count: usize, keep: bool) {
    let blocks: Vec<&[u8]> = cases.iter().map(|case| &case.bytes[..]).collect();
    check_walk_over(&blocks, backend, cases, count, keep, &mut workspace(hints));
}

/// What is where no lane may write.
const UNTOUCHED: u8 = 0xa5;

/// Checks a walk over copies of the cases' bytes: what it writes, what it leaves alone, and what
/// it would go on from.
fn check_walk_over(
    blocks: &[&[u8]],
    backend: Backend,
    cases: &[Case],
    count: usize,
    keep: bool,
    workspace: &mut Workspace,
) {
    let expected: Vec<Expected> = cases.iter().map(Case::expected).collect();
    let len = cases[0].len;
    // The lanes' rows one after the other, the last lane's first; before and after each, one
    // that belongs to none.
    let place = |lane: usize| (cases.len() - 1 - lane) * (count + 1) + 1;
    let room = cases.len() * (count + 1) + 1;
    // In one call (after one for no block), and in two, the second taking up where the first
    // left off.
    for first in [0, count / 2] {
        let mut rows = vec![u128::from_ne_bytes([UNTOUCHED; 16]); room];
        let mut hashes = vec![u64::from_ne_bytes([UNTOUCHED; 8]); room];
        let (mut expected_rows, mut expected_hashes) = (rows.clone(), hashes.clone());
        let (row_cells, hash_cells) = (cells(&mut rows), cells(&mut hashes));
        let mut lanes: Vec<Lane<'_>> = cases
            .iter()
            .enumerate()
            .map(|(i, case)| {
                let hashes = keep.then_some(&hash_cells[place(i)..][..count]);
                Lane { hashes, ..case.lane(blocks[i], &row_cells[place(i)..][..count]) }
            })
            .collect();
        backend.walk(first, len, &mut lanes, workspace);
        backend.walk(count - first, len, &mut lanes, workspace);
        for (i, (lane, expected)) in lanes.iter().zip(&expected).enumerate() {
            let what = format!(
                "{backend}, lane {i} of {}, {first} of {count} blocks of {len}",
                cases.len()
            );
            assert!(lane.blocks.is_empty(), "{what}");
            assert_eq!((lane.left, lane.position), (0, 7 + count as u64), "{what}");
            assert_eq!((lane.state, lane.prefix), (expected.state, expected.prefix), "{what}");
            assert_eq!(lane.unchained, None, "{what}");
            assert_eq!(lane.row, count, "{what}");
            assert!(lane.rows.iter().map(Cell::get).eq(expected.rows.iter().copied()), "{what}");
            let places = place(i)..place(i) + count;
            expected_rows[places.clone()].copy_from_slice(&expected.rows);
            if keep {
                expected_hashes[places].copy_from_slice(&expected.hashes);
            }
        }
        // Nothing else was written.
        assert_eq!(rows, expected_rows, "{backend}, {count} blocks of {len}");
        assert_eq!(hashes, expected_hashes, "{backend}, {count} blocks of {len}");
    }
}

/// Tokens beside pages that cannot be read. A read outside of a lane's tokens ends the test
/// process with a signal; `--nocapture` and a debugger say which case it was.
#[cfg(all(unix, not(miri)))]
mod guarded {
    #![allow(unsafe_code)]

    use std::ptr::NonNull;
    use std::{io, ptr, slice};

    use super::*;

    /// Memory between two pages that cannot be read.
    struct Guarded {
        /// The first of the pages.
        mapping: NonNull<u8>,
        page: usize,
        /// What can be read: whole pages.
        size: usize,
    }

    impl Guarded {
        /// Room for so many bytes at the least.
        fn new(room: usize) -> Self {
            // SAFETY: asks for a number.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let size = room.next_multiple_of(page);
            // SAFETY: a new mapping, wherever the system likes: no memory of anybody's.
            let mapping = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    size + 2 * page,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(mapping, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            // SAFETY: all of the mapping but its first page and its last.
            let opened = unsafe {
                libc::mprotect(mapping.byte_add(page), size, libc::PROT_READ | libc::PROT_WRITE)
            };
            assert_eq!(opened, 0, "{}", io::Error::last_os_error());
            Self { mapping: NonNull::new(mapping.cast()).expect("a mapping"), page, size }
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: these pages can be read and written, are zeroed by the system, and borrowed
            // as `self` is.
            unsafe { slice::from_raw_parts_mut(self.mapping.as_ptr().add(self.page), self.size) }
        }

        /// A copy right before the page that cannot be read.
        fn at_the_end(&mut self, bytes: &[u8]) -> &[u8] {
            let start = self.size - bytes.len();
            let copy = &mut self.bytes()[start..];
            copy.copy_from_slice(bytes);
            copy
        }

        /// A copy right after the page that cannot be read.
        fn at_the_start(&mut self, bytes: &[u8]) -> &[u8] {
            let copy = &mut self.bytes()[..bytes.len()];
            copy.copy_from_slice(bytes);
            copy
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: the whole mapping, which nobody borrows any more.
            unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.size + 2 * self.page) };
        }
    }

    /// The most blocks of a call: a vector of eight, and one more.
    const MOST_BLOCKS: usize = 9;

    fn check(
        memory: &mut [Guarded],
        (backend, hints): (Backend, Hints),
        cases: &[Case],
        count: usize,
    ) {
        for place in [Guarded::at_the_end, Guarded::at_the_start] {
            let blocks: Vec<&[u8]> = (memory.iter_mut().zip(cases))
                .map(|(memory, case)| place(memory, &case.bytes))
                .collect();
            // With the hashes kept, and without: paths of their own.
            let keep = count.is_multiple_of(2);
            check_walk_over(&blocks, backend, cases, count, keep, &mut workspace(hints));
        }
    }

    #[test]
    fn lanes_read_nothing_outside_their_tokens() {
        let mut memory: Vec<Guarded> = (0..MAX_LANES)
            .map(|_| Guarded::new(MOST_BLOCKS * LENGTHS[LENGTHS.len() - 1]))
            .collect();
        // Every length that takes folds, since each lies in other pieces; and one length on
        // either side of where stripes begin and accumulators are scrambled.
        let lengths = (1..=240).chain([241, 244, 247, 255, 256, 257, 1023, 1024, 1025, 2048, 2052]);
        for (backend, hints) in backends() {
            for len in lengths.clone() {
                for lanes in widths(backend, len) {
                    for count in 1..=MOST_BLOCKS {
                        let cases: Vec<Case> =
                            (0..lanes).map(|lane| Case::new(lane as u64, len, count, 54)).collect();
                        check(&mut memory, (backend, hints), &cases, count);
                    }
                }
                for count in counts_by_eights(len).filter(|_| (17..=240).contains(&len)) {
                    for cases in cases_by_eights(backend, len, count) {
                        check(&mut memory, (backend, hints), &cases, count);
                    }
                }
            }
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
    let expected = case.expected();
    for keep in [false, true] {
        let (mut rows, mut hashes) = (vec![0; count], vec![0; count]);
        let mut lane = Lane {
            rows: cells(&mut rows),
            hashes: keep.then_some(cells(&mut hashes)),
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
        backend.walk_counting(count, &counting, &mut lane, &mut Workspace::default());
        let what = format!("{backend}, {count} blocks of {slots} slots from {first}");
        assert_eq!((lane.left, lane.position), (0, count as u64));
        assert_eq!(rows, expected.rows, "{what}");
        assert!(!keep || hashes == expected.hashes, "{what}");
    }
}

//! The rows of a batch by the rule as it is worded, with none of our kernels: `xxhash-rust`, a
//! block at a time. Slow enough to be simple, fast enough to check every block.

use std::fmt;

use kvhash::{Backend, Lineages, MmRun, PositionalLineageHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::shapes::{Batch, Case};

/// The seed of block hashes, where there is neither salt nor LoRA name, and of chain steps.
const SEED: u64 = 1337;

/// A row that is not what the rule makes of its block.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) backend: Backend,
    pub(crate) case: Case,
    pub(crate) place: Place,
}

/// Where it is, and what stands there; nothing where there is no row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    prompt: usize,
    block: usize,
    expected: Option<u128>,
    found: Option<u128>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, case, place: Place { prompt, block, expected, found } } = self;
        let row = |row: &Option<u128>| row.map_or("nothing".into(), |row| format!("{row:032x}"));
        write!(
            f,
            "backend {backend} differs from the rule: {case}, block {block} of prompt {prompt} \
             is {} and should be {}; nothing was measured",
            row(found),
            row(expected)
        )
    }
}

/// The rows of every prompt.
pub(crate) fn rows(batch: &Batch) -> Vec<Vec<u128>> {
    let block_size = batch.block_size();
    batch.prompts.iter().map(|prompt| lineage(prompt, &batch.runs, block_size)).collect()
}

/// The first place where the results are not what they should be.
pub(crate) fn compare(expected: &[Vec<u128>], lineages: &Lineages) -> Result<(), Place> {
    for (prompt, expected) in expected.iter().enumerate() {
        let lineage = lineages.get(prompt);
        let found = lineage.map_or(&[][..], |lineage| lineage.plhs());
        let found = PositionalLineageHash::as_u128s(found);
        for block in 0..expected.len().max(found.len()) {
            let (expected, found) = (expected.get(block).copied(), found.get(block).copied());
            if expected != found {
                return Err(Place { prompt, block, expected, found });
            }
        }
    }
    Ok(())
}

fn lineage(tokens: &[u32], runs: &[MmRun], block_size: usize) -> Vec<u128> {
    let mut parent = None;
    let blocks = tokens.chunks_exact(block_size).enumerate();
    let rows = blocks.map(|(position, block)| {
        let block_hash = xxh3_64_with_seed(&block_bytes(block, position * block_size, runs), SEED);
        let current = match parent {
            None => block_hash,
            Some(parent) => xxh3_64_with_seed(&chain_bytes(parent, block_hash), SEED),
        };
        let row = pack(position as u128, current, parent);
        parent = Some(current);
        row
    });
    rows.collect()
}

fn chain_bytes(parent: u64, block_hash: u64) -> Vec<u8> {
    [parent.to_le_bytes(), block_hash.to_le_bytes()].concat()
}

/// The token ids, or a frame of 13 bytes a slot where a run touches the block.
fn block_bytes(block: &[u32], start: usize, runs: &[MmRun]) -> Vec<u8> {
    let run_at = |position| {
        runs.iter().find(|run| (run.offset..run.offset + run.length).contains(&position))
    };
    if (start..start + block.len()).all(|position| run_at(position).is_none()) {
        return block.iter().flat_map(|id| id.to_le_bytes()).collect();
    }
    let mut bytes = Vec::new();
    for (position, id) in (start..).zip(block) {
        let (tag, value, mm_hash) = match run_at(position) {
            None => (0, *id, 0),
            Some(run) => (1, (position - run.offset) as u32, run.mm_hash),
        };
        bytes.push(tag);
        bytes.extend(value.to_le_bytes());
        bytes.extend(mm_hash.to_le_bytes());
    }
    bytes
}

/// From the top: mode, position, sequence hash, and what there is room for of the parent's.
fn pack(position: u128, current: u64, parent: Option<u64>) -> u128 {
    let (mode, fragment_bits) = match position {
        0..=0xff => (0, 54),
        0x100..=0xffff => (1, 46),
        _ => (2, 38),
    };
    let fragment = parent.unwrap_or(0) & ((1 << fragment_bits) - 1);
    mode << 126
        | position << (64 + fragment_bits)
        | u128::from(current) << fragment_bits
        | u128::from(fragment)
}

#[cfg(test)]
mod tests {
    use kvhash::{BlockSize, Engine, Request};

    use super::super::shapes::Shape;
    use super::*;

    #[test]
    fn a_wrong_row_and_a_missing_one_are_found_and_named() {
        let prompts = [vec![7; 40], vec![8; 64]];
        let requests = prompts.each_ref().map(|prompt| Request::new(prompt));
        let mut lineages = Lineages::new();
        Engine::builder().build().unwrap().hash(&requests, &mut lineages);
        let mut expected: Vec<_> = prompts.iter().map(|prompt| lineage(prompt, &[], 16)).collect();
        assert_eq!(compare(&expected, &lineages), Ok(()));

        expected[1].push(9);
        let missing = compare(&expected, &lineages).unwrap_err();
        assert_eq!(missing, Place { prompt: 1, block: 4, expected: Some(9), found: None });

        expected[1][2] ^= 1;
        let place = compare(&expected, &lineages).unwrap_err();
        assert_eq!((place.prompt, place.block), (1, 2));
        let case = Case { shape: Shape::Even, block_size: BlockSize::DEFAULT };
        let message = Difference { backend: Backend::Scalar, case, place }.to_string();
        for part in ["scalar", "even", "16 tokens a block", "block 2 of prompt 1"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

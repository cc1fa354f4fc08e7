//! Which bytes a block is hashed from.
//!
//! A block that no multimodal run touches is its token ids, four little-endian bytes each,
//! hashed where they lie. In any other block every slot becomes a 13-byte frame:
//!
//! | slot | byte 0 | bytes 1 to 4 | bytes 5 to 12 |
//! |---|---|---|---|
//! | token | 0 | token id | 0 |
//! | placeholder | 1 | place within the run | the object's hash |
//!
//! all little-endian (`compute_block_bytes_with_mm` in `dynamo-tokens`).

use std::ops::Range;

use crate::request::MmRun;

/// Bytes a slot of a block that a run touches.
pub(crate) const FRAME_BYTES: usize = 13;
/// Bytes a slot of any other block.
pub(crate) const TOKEN_BYTES: usize = size_of::<u32>();

/// Where in a frame the token id or the place is.
pub(crate) const PLACE_OFFSET: usize = 1;

pub(crate) const TOKEN_TAG: u8 = 0;
pub(crate) const PLACEHOLDER_TAG: u8 = 1;

/// How many blocks so many tokens fill. Most sizes are powers of two, which spares a division:
/// that takes longer than all else that is done for a short request or run.
#[inline(always)]
pub(crate) fn whole_blocks(tokens: usize, block_size: usize) -> usize {
    if block_size.is_power_of_two() {
        tokens >> block_size.trailing_zeros()
    } else {
        tokens / block_size
    }
}

/// Consecutive blocks that are hashed from bytes of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stretch<'a> {
    /// From their token ids.
    Text(Range<usize>),
    /// From frames. The runs are in order, and the first is the first to touch the stretch.
    Framed(Range<usize>, &'a [MmRun]),
}

/// Cuts blocks into stretches, in one pass over the runs.
#[derive(Debug)]
pub(crate) struct Stretches<'a> {
    runs: &'a [MmRun],
    /// The block in which the first of the runs starts; past all blocks where there is none.
    first_framed: usize,
    /// The position of the first token of block 0.
    start: usize,
    block_size: usize,
    blocks: Range<usize>,
    #[cfg(test)]
    steps: usize,
}

impl<'a> Stretches<'a> {
    /// The stretches of `blocks` blocks, the first of which starts at position `start`. The
    /// runs have been validated and are in the order of their offsets.
    pub(crate) fn new(runs: &'a [MmRun], start: usize, block_size: usize, blocks: usize) -> Self {
        let mut stretches = Self {
            runs,
            first_framed: 0,
            start,
            block_size,
            blocks: 0..blocks,
            #[cfg(test)]
            steps: 0,
        };
        while stretches.runs.first().is_some_and(|run| end_of(run) <= start) {
            stretches.pop_run();
        }
        stretches.find_first_framed();
        stretches
    }

    /// Tokens a block.
    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    /// The position of the first token of all.
    pub(crate) fn first_token(&self) -> usize {
        self.start
    }

    fn pop_run(&mut self) {
        self.runs = &self.runs[1..];
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    fn find_first_framed(&mut self) {
        self.first_framed =
            self.runs.first().map_or(self.blocks.end, |run| self.block_of(run.offset));
    }

    /// The block that holds a position, or block 0 for what comes before it.
    fn block_of(&self, position: usize) -> usize {
        whole_blocks(position.saturating_sub(self.start), self.block_size)
    }

    fn take(&mut self, end: usize) -> Range<usize> {
        let end = end.min(self.blocks.end);
        let taken = self.blocks.start..end;
        self.blocks.start = end;
        taken
    }
}

impl<'a> Iterator for Stretches<'a> {
    type Item = Stretch<'a>;

    #[inline]
    fn next(&mut self) -> Option<Stretch<'a>> {
        if self.blocks.is_empty() {
            return None;
        }
        #[cfg(test)]
        {
            self.steps += 1;
        }
        if self.first_framed > self.blocks.start {
            return Some(Stretch::Text(self.take(self.first_framed)));
        }
        // Runs that start in the block where the last one ends, or in the one after it, belong
        // to the same stretch.
        let runs = self.runs;
        let mut end = self.blocks.start;
        while self.first_framed <= end
            && let Some(run) = self.runs.first()
        {
            end = self.block_of(end_of(run) - 1) + 1;
            self.pop_run();
            self.find_first_framed();
        }
        Some(Stretch::Framed(self.take(end), runs))
    }
}

/// The first blocks of `blocks` that lie inside the first of `runs`, past the blocks that begin
/// before it; drops the runs that ended before. Block 0 starts at position `start`.
pub(crate) fn blocks_inside(
    runs: &mut &[MmRun],
    start: usize,
    block_size: usize,
    blocks: Range<usize>,
) -> Range<usize> {
    let here = start + blocks.start * block_size;
    while let [run, later @ ..] = runs
        && end_of(run) <= here
    {
        *runs = later;
    }
    let Some(run) = runs.first() else { return blocks.end..blocks.end };
    let block_after = |position: usize| position.saturating_sub(start).div_ceil(block_size);
    let first = block_after(run.offset).clamp(blocks.start, blocks.end);
    let end = ((end_of(run) - start) / block_size).clamp(first, blocks.end);
    first..end
}

/// The position after a validated run.
pub(crate) fn end_of(run: &MmRun) -> usize {
    run.offset + run.length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: usize, length: usize) -> MmRun {
        MmRun { mm_hash: offset as u64, offset, length }
    }

    /// Text and framed blocks, by the rule as it is worded: a block is framed if a run
    /// overlaps it.
    fn framed(runs: &[MmRun], start: usize, block_size: usize, blocks: usize) -> Vec<bool> {
        (0..blocks)
            .map(|block| {
                let begin = start + block * block_size;
                runs.iter()
                    .any(|run| run.offset < begin + block_size && run.offset + run.length > begin)
            })
            .collect()
    }

    #[test]
    fn stretches_are_the_blocks_that_runs_touch() {
        // Every pair of runs in 12 tokens, from the start and resumed one block later.
        let all = |from: usize| {
            (from..12).flat_map(|offset| (1..=12 - offset).map(move |length| run(offset, length)))
        };
        for first in all(0) {
            for second in all(first.offset + first.length).map(Some).chain([None]) {
                let runs: Vec<MmRun> = [Some(first), second].into_iter().flatten().collect();
                for (start, blocks) in [(0, 3), (4, 2), (0, 2)] {
                    let mut found = Vec::new();
                    for stretch in Stretches::new(&runs, start, 4, blocks) {
                        let (range, is_framed) = match stretch {
                            Stretch::Text(range) => (range, false),
                            Stretch::Framed(range, _) => (range, true),
                        };
                        assert_eq!(range.start, found.len());
                        found.resize(range.end, is_framed);
                    }
                    assert_eq!(found, framed(&runs, start, 4, blocks), "{runs:?} {start}");
                }
            }
        }
    }

    #[test]
    fn stretches_take_one_step_a_run_and_a_block_at_the_most() {
        // A million tokens, 10,000 runs of 64: what scanning every run for every block makes
        // 625 million steps of.
        let runs: Vec<MmRun> = (0..10_000).map(|i| run(100 * i + 7, 64)).collect();
        let (blocks, block_size) = (62_500, 16);
        let mut stretches = Stretches::new(&runs, 0, block_size, blocks);
        assert!(stretches.by_ref().count() > 10_000);
        assert!(stretches.steps <= runs.len() + blocks, "{} steps", stretches.steps);
    }
}

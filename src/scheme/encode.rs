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

pub(crate) const TOKEN_TAG: u8 = 0;
pub(crate) const PLACEHOLDER_TAG: u8 = 1;

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
        position.saturating_sub(self.start) / self.block_size
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

/// Writes the frames of `tokens`, whose first stands at `position`. Drops the runs that ended
/// before it.
pub(crate) fn encode_frames(
    tokens: &[u32],
    position: usize,
    runs: &mut &[MmRun],
    frames: &mut [[u8; FRAME_BYTES]],
) {
    let mut done = 0;
    while done < tokens.len() {
        let here = position + done;
        while let [run, later @ ..] = runs
            && end_of(run) <= here
        {
            *runs = later;
        }
        let stop = |at: usize| (at - position).min(tokens.len());
        match runs.first() {
            Some(run) if run.offset <= here => {
                let end = stop(end_of(run));
                for (frame, place) in frames[done..end].iter_mut().zip(here - run.offset..) {
                    // The frame has 32 bits for the place; a longer run wraps, as in the peer.
                    write_frame(frame, PLACEHOLDER_TAG, place as u32, run.mm_hash);
                }
                done = end;
            }
            next => {
                let end = next.map_or(tokens.len(), |run| stop(run.offset));
                for (frame, &token) in frames[done..end].iter_mut().zip(&tokens[done..end]) {
                    write_frame(frame, TOKEN_TAG, token, 0);
                }
                done = end;
            }
        }
    }
}

/// Two stores of 8 bytes, overlapping, rather than three of 1, 4 and 8.
fn write_frame(frame: &mut [u8; FRAME_BYTES], tag: u8, value: u32, mm_hash: u64) {
    let head = u64::from(tag) | u64::from(value) << 8 | mm_hash << 40;
    frame[..8].copy_from_slice(&head.to_le_bytes());
    frame[5..].copy_from_slice(&mm_hash.to_le_bytes());
}

/// The position after a validated run.
fn end_of(run: &MmRun) -> usize {
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

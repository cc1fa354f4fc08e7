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

use wide::u8x16;

use crate::request::MmRun;

/// Bytes a slot of a block that a run touches.
pub(crate) const FRAME_BYTES: usize = 13;
/// Bytes a slot of any other block.
pub(crate) const TOKEN_BYTES: usize = size_of::<u32>();

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

/// Writes the frames of the first `count` of `tokens`, whose first stands at `position`. Drops the
/// runs that ended before it. Where `frames` go on, what comes right after the last one may be
/// overwritten: see [`SLACK`].
pub(crate) fn encode_frames(
    tokens: &[u32],
    count: usize,
    position: usize,
    runs: &mut &[MmRun],
    frames: &mut [[u8; FRAME_BYTES]],
) {
    let mut done = 0;
    while done < count {
        let here = position + done;
        while let [run, later @ ..] = runs
            && end_of(run) <= here
        {
            *runs = later;
        }
        let stop = |at: usize| (at - position).min(count);
        match runs.first() {
            Some(run) if run.offset <= here => {
                let end = stop(end_of(run));
                encode_places(here - run.offset, run.mm_hash, done..end, frames);
                done = end;
            }
            next => {
                let end = next.map_or(count, |run| stop(run.offset));
                encode_tokens(tokens, done..end, frames);
                done = end;
            }
        }
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

/// Writes the frames of a block inside a run, with 0 for every place. The places are four bytes
/// at [`PLACE_OFFSET`] of each frame.
pub(crate) fn encode_without_places(mm_hash: u64, frames: &mut [[u8; FRAME_BYTES]]) {
    frames.iter_mut().for_each(|frame| write(frame, head(PLACEHOLDER_TAG, 0, mm_hash), mm_hash));
}

/// Where in a frame the token id or the place is.
pub(crate) const PLACE_OFFSET: usize = 1;

/// Room for so many frames more than are asked for lets the last ones be written together.
pub(crate) const SLACK: usize = VECTOR_FRAMES - 1;

/// The first eight bytes of a frame, as a number.
#[inline(always)]
fn head(tag: u8, value: u32, mm_hash: u64) -> u64 {
    u64::from(tag) | u64::from(value) << (8 * PLACE_OFFSET) | mm_hash << 40
}

/// One frame, in two stores that overlap.
#[inline(always)]
fn write(frame: &mut [u8; FRAME_BYTES], head: u64, mm_hash: u64) {
    frame[..8].copy_from_slice(&head.to_le_bytes());
    frame[5..].copy_from_slice(&mm_hash.to_le_bytes());
}

/// So many frames take whole vectors of as many bytes.
const VECTOR_FRAMES: usize = 16;

/// What so many frames differ in from the ones before, as vectors: places are so many more.
const STEPS: [[u8; VECTOR_FRAMES]; FRAME_BYTES] = {
    let mut steps = [[0; VECTOR_FRAMES]; FRAME_BYTES];
    let mut slot = 0;
    while slot < VECTOR_FRAMES {
        let byte = slot * FRAME_BYTES + PLACE_OFFSET;
        steps[byte / VECTOR_FRAMES][byte % VECTOR_FRAMES] = VECTOR_FRAMES as u8;
        slot += 1;
    }
    steps
};

/// Writes the frames of placeholders, the first of which has the place `place`. The last ones may
/// be followed by more of them, over slots that are written later.
fn encode_places(
    place: usize,
    mm_hash: u64,
    slots: Range<usize>,
    frames: &mut [[u8; FRAME_BYTES]],
) {
    let mut slot = slots.start;
    while slot < slots.end {
        // A frame has 32 bits for the place; a longer run wraps, as in the peer.
        let here = (place + slot - slots.start) as u32;
        let mut head = head(PLACEHOLDER_TAG, here, mm_hash);
        // Until the lowest bytes of places wrap, nothing else of them changes.
        let alike = (256 - here as usize % 256) / VECTOR_FRAMES;
        let wanted = (slots.end - slot).div_ceil(VECTOR_FRAMES);
        let (vectors, _) = frames[slot..].as_chunks_mut::<VECTOR_FRAMES>();
        let count = alike.min(wanted).min(vectors.len());
        let Some((first, others)) = vectors[..count].split_first_mut() else {
            write(&mut frames[slot], head, mm_hash);
            slot += 1;
            continue;
        };
        for frame in first.iter_mut() {
            write(frame, head, mm_hash);
            head = head.wrapping_add(1 << (8 * PLACE_OFFSET));
        }
        let mut vectors: [u8x16; FRAME_BYTES] = bytemuck::cast(*first);
        for frames in others {
            for (vector, step) in vectors.iter_mut().zip(STEPS) {
                *vector += u8x16::new(step);
            }
            *frames = bytemuck::cast(vectors);
        }
        slot += count * VECTOR_FRAMES;
    }
}

/// So many frames take whole words.
const GROUP: usize = 8;
const GROUP_WORDS: usize = GROUP * FRAME_BYTES / 8;

/// Writes the frames of tokens. The last ones may be followed by those of later tokens.
fn encode_tokens(tokens: &[u32], slots: Range<usize>, frames: &mut [[u8; FRAME_BYTES]]) {
    let mut slot = slots.start;
    while slot < slots.end {
        if let (Some(tokens), Some(frames)) =
            (tokens[slot..].first_chunk::<GROUP>(), frames[slot..].first_chunk_mut::<GROUP>())
        {
            // A word at a time: fewer stores than frames would take one by one.
            let mut words = [0; GROUP_WORDS];
            for (i, &token) in tokens.iter().enumerate() {
                put(&mut words, i * FRAME_BYTES + PLACE_OFFSET, token.into(), TOKEN_BYTES);
            }
            for (bytes, word) in frames.as_flattened_mut().chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            slot += GROUP;
        } else {
            write(&mut frames[slot], head(TOKEN_TAG, tokens[slot], 0), 0);
            slot += 1;
        }
    }
}

/// Puts the `len` bytes of a number at a byte offset, where there are zeros.
#[inline(always)]
fn put(words: &mut [u64; GROUP_WORDS], offset: usize, number: u64, len: usize) {
    let (word, shift) = (offset / 8, 8 * (offset % 8));
    words[word] |= number << shift;
    if shift + 8 * len > 64 {
        words[word + 1] |= number >> (64 - shift);
    }
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
    fn frames_hold_their_places() {
        // Where a place's low one, two or three bytes wrap, and where all four do, as in the peer:
        // places lie in one word or two, and grow without being put there anew.
        let starts = [0, 0x100, 0x1_0000, 0x100_0000, 1 << 32].map(|wrap: usize| wrap.max(40) - 40);
        let mm_hash = 0xfedc_ba98_7654_3210;
        for start in starts {
            for (count, before) in (1..=90).flat_map(|count| [(count, 0), (count, 1), (count, 7)]) {
                // So many tokens, then the run, from its place `start` on.
                let from = before + start;
                let run = MmRun { mm_hash, offset: before, length: usize::MAX / 2 };
                let position = if start == 0 { 0 } else { from };
                let tokens: Vec<u32> = (0..count as u32).map(|i| i << 24 | 0xff).collect();
                let mut frames = vec![[0xa5; FRAME_BYTES]; count + SLACK];
                encode_frames(&tokens, count, position, &mut &[run][..], &mut frames);
                for (slot, (frame, token)) in frames.iter().zip(&tokens).enumerate() {
                    let place = (position + slot).checked_sub(before);
                    let (tag, value, hash) = match place {
                        Some(place) => (PLACEHOLDER_TAG, place as u32, mm_hash),
                        None => (TOKEN_TAG, *token, 0),
                    };
                    let expected = [&[tag][..], &value.to_le_bytes(), &hash.to_le_bytes()].concat();
                    assert_eq!(frame[..], expected, "slot {slot} of {count} from {position}");
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

//! Frames, written: what the blocks that a run touches are hashed from.

use std::ops::Range;

use wide::u8x16;

use super::encode::{FRAME_BYTES, PLACE_OFFSET, PLACEHOLDER_TAG, TOKEN_BYTES, TOKEN_TAG, end_of};
use crate::request::MmRun;

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

/// Writes the frames of a block inside a run, with 0 for every place. The places are four bytes
/// at [`PLACE_OFFSET`] of each frame.
pub(crate) fn encode_without_places(mm_hash: u64, frames: &mut [[u8; FRAME_BYTES]]) {
    frames.iter_mut().for_each(|frame| write(frame, head(PLACEHOLDER_TAG, 0, mm_hash), mm_hash));
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_their_places() {
        // Where a place's low one, two or three bytes wrap, and where all four do, as in the peer:
        // only the lowest one is counted up.
        let starts = [0, 0x100, 0x1_0000, 0x100_0000, 1 << 32].map(|wrap: usize| wrap.max(40) - 40);
        let mm_hash = 0xfedc_ba98_7654_3210;
        // Up to five times the frames of a vector and some; a few under Miri, which is slow.
        let counts = (1..=90).step_by(if cfg!(miri) { 23 } else { 1 });
        for start in starts {
            for (count, before) in
                counts.clone().flat_map(|count| [(count, 0), (count, 1), (count, 7)])
            {
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
}

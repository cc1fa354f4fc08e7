//! Requests with multimodal runs: what of them is hashed from where.

use std::ops::Range;
use std::slice;

use crate::engine::room;
use crate::kernel::{Backend, Counting, Lane, Workspace};
use crate::request::{MmRun, Request};
use crate::scheme::encode::{
    FRAME_BYTES, PLACE_OFFSET, Stretch, Stretches, TOKEN_BYTES, blocks_inside,
};
use crate::scheme::frames::{SLACK, encode_frames, encode_without_places};
use crate::walk::{Walker, lay_out};

/// How many bytes of frames are written before they are hashed: few enough to stay in the
/// first-level cache.
const FRAMES_AT_ONCE: usize = 8 << 10;

/// How many blocks inside a run make it worth while to count rather than to write their frames.
const SHORTEST_COUNT: usize = 6;

/// A thread's memory for frames.
pub(crate) type Frames = Vec<[u8; FRAME_BYTES]>;

impl Walker<'_> {
    /// Takes a request with multimodal runs to its end. Text stretches are hashed where they lie,
    /// framed ones by way of the scratch memory.
    pub(crate) fn walk_stretches(
        &mut self,
        request: &Request<'_>,
        stretches: Stretches<'_>,
        lane: Lane<'_>,
        frames: &mut Frames,
    ) {
        let block_size = stretches.block_size();
        let workspace = &mut *self.workspace;
        let mut walk = Walk { backend: self.backend, lane, packed_alike: 0, workspace };
        let mut framed = Framed {
            tokens: request.tokens,
            first_token: stretches.first_token(),
            block_size,
            at_once: (FRAMES_AT_ONCE / (block_size * FRAME_BYTES)).max(1),
            counted: self.backend.counts(block_size * FRAME_BYTES),
            runs: &[],
            frames,
        };
        for stretch in stretches {
            match stretch {
                Stretch::Text(range) => {
                    let tokens = &request.tokens[range.start * block_size..range.end * block_size];
                    walk.over(bytemuck::cast_slice(tokens), range.len(), block_size * TOKEN_BYTES);
                }
                Stretch::Framed(range, runs) => {
                    framed.runs = runs;
                    walk.over_framed(range, &mut framed);
                }
            }
        }
        walk.settle();
    }
}

/// A lane by itself, on its way over blocks that lie here and there.
struct Walk<'w> {
    backend: Backend,
    lane: Lane<'w>,
    /// How many of its next rows are packed alike.
    packed_alike: usize,
    workspace: &'w mut Workspace,
}

impl Walk<'_> {
    /// Goes over a stretch of framed blocks. Where many of them lie inside one run they are
    /// counted, if the backend can; the others are written.
    #[inline]
    fn over_framed(&mut self, range: Range<usize>, framed: &mut Framed<'_>) {
        let len = framed.block_size * FRAME_BYTES;
        let mut start = range.start;
        while start < range.end {
            let inside = framed.inside(start..range.end);
            if inside.start == start && inside.len() >= SHORTEST_COUNT {
                self.counting(inside.len(), framed.count(start));
                start = inside.end;
            } else {
                let end = if inside.len() >= SHORTEST_COUNT { inside.start } else { range.end };
                let blocks = start..end.min(start + framed.at_once);
                start = blocks.end;
                let count = blocks.len();
                self.over(framed.write(blocks), count, len);
            }
        }
    }

    /// Goes over `count` blocks.
    fn over(&mut self, mut blocks: &[u8], mut count: usize, len: usize) {
        while count > 0 {
            let now = self.next_alike(count);
            let bytes = blocks.split_off(..now * len).expect("so many blocks");
            self.backend.walk_over(now, len, bytes, &mut self.lane, self.workspace);
            count -= now;
        }
    }

    /// Goes over `count` blocks that need not lie anywhere.
    fn counting(&mut self, mut count: usize, mut counting: Counting<'_>) {
        self.settle();
        let slots = (counting.block.len() / counting.slot_bytes) as u64;
        while count > 0 {
            let now = self.next_alike(count);
            self.backend.walk_counting(now, &counting, &mut self.lane, self.workspace);
            counting.first += now as u64 * slots;
            count -= now;
        }
    }

    /// How many of the next `count` blocks have their rows packed alike.
    fn next_alike(&mut self, count: usize) -> usize {
        if self.packed_alike == 0 {
            self.pack_on();
        }
        let now = count.min(self.packed_alike);
        self.packed_alike -= now;
        now
    }

    /// Sets how the next rows are packed.
    #[cold]
    fn pack_on(&mut self) {
        self.settle();
        self.packed_alike = lay_out(slice::from_mut(&mut self.lane), usize::MAX);
    }

    /// Chains what has not been chained yet.
    fn settle(&mut self) {
        self.backend.settle(&mut self.lane);
    }
}

/// Framed blocks of a request: what their frames are made of, and how.
struct Framed<'a> {
    tokens: &'a [u32],
    /// The position of the first of them.
    first_token: usize,
    block_size: usize,
    /// How many blocks are written before they are hashed.
    at_once: usize,
    /// Whether the backend can count them.
    counted: bool,
    /// The runs that have not ended where the stretch has come to.
    runs: &'a [MmRun],
    frames: &'a mut Frames,
}

impl Framed<'_> {
    /// Which of `blocks` lie inside the first run, to be counted; none where they cannot be, as
    /// where their places need more than 32 bits.
    fn inside(&mut self, blocks: Range<usize>) -> Range<usize> {
        let none = blocks.end..blocks.end;
        if !self.counted {
            return none;
        }
        let inside = blocks_inside(&mut self.runs, self.first_token, self.block_size, blocks);
        let fits = |run: &MmRun| run.length <= u32::MAX as usize;
        if self.runs.first().is_some_and(fits) { inside } else { none }
    }

    /// The blocks from `start` on, which lie inside the first run.
    fn count(&mut self, start: usize) -> Counting<'_> {
        let block_size = self.block_size;
        let run = &self.runs[0];
        let frames = room(self.frames, block_size);
        encode_without_places(run.mm_hash, frames);
        Counting {
            block: frames.as_flattened(),
            slot_bytes: FRAME_BYTES,
            offset: PLACE_OFFSET,
            first: (self.first_token + start * block_size - run.offset) as u64,
        }
    }

    /// The bytes of some blocks.
    fn write(&mut self, blocks: Range<usize>) -> &[u8] {
        let block_size = self.block_size;
        let (start, count) = (blocks.start * block_size, blocks.len() * block_size);
        let frames = room(self.frames, count + SLACK);
        let position = self.first_token + start;
        encode_frames(&self.tokens[start..], count, position, &mut self.runs, frames);
        frames[..count].as_flattened()
    }
}

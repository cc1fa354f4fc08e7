//! From requests to rows of numbers: what is hashed from where to where, under which seed.

use std::ops::Range;

use crate::digest::SaltHash;
use crate::error::RequestError;
use crate::plh::MAX_POSITION;
use crate::request::{MmRun, Request};
use crate::scheme::Scheme;
use crate::scheme::encode::TOKEN_BYTES;

/// One request, planned. What of it is in the request is not here again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    /// Where its rows start among those of the batch.
    pub(crate) first_row: usize,
    /// Tokens after the last block.
    pub(crate) tail: usize,
    /// The seed of its block hashes.
    pub(crate) salt_hash: SaltHash,
    /// Tokens a block.
    pub(crate) block_size: u32,
    /// How many blocks it has, and rows.
    pub(crate) blocks: u32,
}

/// A plan, or why there is none.
pub(crate) type Planned = Result<Plan, RequestError>;

impl Plan {
    /// Where its rows stand among those of the batch: one a block.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.blocks as usize
    }

    /// How many bytes a block of tokens has.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_size as usize * TOKEN_BYTES
    }

    /// The position of the request's first token, in tokens.
    pub(crate) fn first_token(&self, request: &Request<'_>) -> usize {
        // In range: checked when the plan was made.
        request.first_block() as usize * self.block_size as usize
    }
}

impl Request<'_> {
    /// The position of its first block, in blocks.
    pub(crate) fn first_block(&self) -> u64 {
        self.parent.map_or(0, |parent| parent.position() + 1)
    }
}

/// By what rules requests are planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planner<S> {
    pub(crate) scheme: S,
    /// Tokens a block, for requests that do not say so themselves.
    pub(crate) block_size: u32,
}

/// What planning writes, kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct PlanMemory {
    /// A copy of the runs of a request that gave them out of order.
    sorted_runs: Vec<MmRun>,
    salt_buffer: Vec<u8>,
}

impl<S: Scheme> Planner<S> {
    fn block_size(&self, request: &Request<'_>) -> u32 {
        request.block_size.unwrap_or(self.block_size)
    }

    /// How many rows are set aside for a request: one for each of its blocks, though it may turn
    /// out to have none since it fails.
    #[inline]
    pub(crate) fn rows(&self, request: &Request<'_>) -> usize {
        match self.block_size(request) {
            0 => 0,
            block_size => match blocks(request, block_size) {
                blocks if blocks as u64 > MAX_POSITION + 1 => 0,
                blocks => blocks,
            },
        }
    }

    /// How many bytes a request's blocks are hashed from, frames taken for tokens.
    #[inline]
    pub(crate) fn bytes(&self, request: &Request<'_>) -> usize {
        self.rows(request) * self.block_bytes(request)
    }

    /// How many bytes a request's block of tokens has.
    pub(crate) fn block_bytes(&self, request: &Request<'_>) -> usize {
        self.block_size(request) as usize * TOKEN_BYTES
    }

    /// Plans a request. Gives its runs, too, in order.
    #[inline]
    pub(crate) fn plan<'a>(
        &self,
        request: &Request<'a>,
        first_row: usize,
        memory: &'a mut PlanMemory,
    ) -> Result<(Plan, &'a [MmRun]), RequestError> {
        let PlanMemory { sorted_runs, salt_buffer } = memory;
        let block_size = self.block_size(request);
        let first_block = request.first_block();
        let tokens = request.tokens.len();
        let runs = match request.mm_runs {
            [] => &[],
            runs => {
                let before = first_block as usize * block_size as usize;
                check_runs(runs, before + tokens, sorted_runs)?
            }
        };
        if block_size == 0 {
            return Err(RequestError::ZeroBlockSize);
        }
        let blocks = blocks(request, block_size);
        let end = first_block + blocks as u64;
        if blocks > 0 && end > MAX_POSITION + 1 {
            return Err(RequestError::PositionLimit { position: end - 1 });
        }
        let plan = Plan {
            first_row,
            tail: tokens - blocks * block_size as usize,
            salt_hash: self.scheme.salt_hash(request, salt_buffer),
            block_size,
            // Positions, and so numbers of blocks, have 24 bits.
            blocks: blocks as u32,
        };
        Ok((plan, runs))
    }
}

/// How many blocks of its tokens a request is to be hashed to.
#[inline]
fn blocks(request: &Request<'_>, block_size: u32) -> usize {
    (request.tokens.len() / block_size as usize).min(request.max_blocks)
}

/// Puts the runs in order and checks each against the one before and the prompt's length.
fn check_runs<'a>(
    runs: &'a [MmRun],
    tokens_len: usize,
    sorted: &'a mut Vec<MmRun>,
) -> Result<&'a [MmRun], RequestError> {
    let runs = if runs.is_sorted_by_key(|run| run.offset) {
        runs
    } else {
        sorted.clear();
        sorted.extend_from_slice(runs);
        // Stable, as the peer's: of two runs with the same offset the second one overlaps.
        sorted.sort_by_key(|run| run.offset);
        sorted
    };
    check_in_order(runs, tokens_len)?;
    Ok(runs)
}

/// Checks runs that are in the order of their offsets; the first one that fails decides.
pub(crate) fn check_in_order(runs: &[MmRun], tokens_len: usize) -> Result<(), RequestError> {
    let mut previous_end = 0;
    for &MmRun { offset, length, .. } in runs {
        if length == 0 {
            return Err(RequestError::EmptyRun { offset });
        }
        let Some(end) = offset.checked_add(length) else {
            return Err(RequestError::OffsetOverflow { offset, length });
        };
        if end > tokens_len {
            return Err(RequestError::OutOfBounds { offset, length, tokens_len });
        }
        if offset < previous_end {
            return Err(RequestError::Overlapping { position: offset });
        }
        previous_end = end;
    }
    Ok(())
}

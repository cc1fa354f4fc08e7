//! From requests to rows of numbers: what is hashed from where to where, under which seeds.

use std::ops::Range;

use crate::error::RequestError;
use crate::plh::MAX_POSITION;
use crate::request::{MmRun, Request};
use crate::scheme::encode::TOKEN_BYTES;
use crate::scheme::sealed::General;
use crate::scheme::{Scheme, Seeds};

/// One request, planned. Holds no reference into the request, so that the memory serves the
/// next batch too.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seeds: Seeds,
    /// Tokens a block.
    pub(crate) block_size: u32,
    /// The position of its first block, in blocks.
    pub(crate) first_block: u32,
    /// How many blocks it has, and rows.
    pub(crate) blocks: u32,
    /// Where its rows start among those of the batch.
    pub(crate) first_row: usize,
    /// The sequence hash of the block before its first, if there is one.
    pub(crate) state: Option<u64>,
    /// Tokens after the last block.
    pub(crate) tail: usize,
    runs: Runs,
}

/// Where a request's runs are found in the order of their offsets.
#[derive(Debug, Clone)]
enum Runs {
    /// In the request.
    InOrder,
    /// Among the sorted runs of the batch, from here on.
    Sorted(usize),
}

/// What planning a batch writes, kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    pub(crate) plans: Vec<Result<Plan, RequestError>>,
    /// Copies of the runs of requests that gave them out of order.
    sorted_runs: Vec<MmRun>,
    salt_buffer: Vec<u8>,
    /// How many rows the batch takes.
    pub(crate) rows: usize,
    /// How many bytes it is hashed from, frames taken for tokens.
    pub(crate) bytes: usize,
}

impl Plan {
    /// Where its rows stand among those of the batch: one a block.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.blocks as usize
    }

    /// How many bytes a block of tokens has.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_size as usize * TOKEN_BYTES
    }

    /// How many bytes the request's blocks are hashed from, frames taken for tokens.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks as usize * self.block_bytes()
    }

    /// The position of its first token, in tokens.
    pub(crate) fn first_token(&self) -> usize {
        // In range: checked when the plan was made.
        self.first_block as usize * self.block_size as usize
    }
}

impl Plans {
    /// Plans a batch.
    pub(crate) fn make<S: Scheme>(
        &mut self,
        scheme: &S,
        block_size: u32,
        requests: &[S::Request<'_>],
    ) {
        self.plans.clear();
        self.sorted_runs.clear();
        (self.rows, self.bytes) = (0, 0);
        for request in requests {
            let plan = self.plan_one(scheme, block_size, request.general());
            if let Ok(plan) = &plan {
                self.rows += plan.blocks as usize;
                self.bytes += plan.bytes();
            }
            self.plans.push(plan);
        }
    }

    #[inline]
    fn plan_one<S: Scheme>(
        &mut self,
        scheme: &S,
        block_size: u32,
        request: &Request<'_>,
    ) -> Result<Plan, RequestError> {
        let block_size = request.block_size.unwrap_or(block_size);
        let first_block = request.parent.map_or(0, |parent| parent.position() + 1);
        let tokens = request.tokens.len();
        let runs = match request.mm_runs {
            [] => Runs::InOrder,
            runs => self.check_runs(runs, first_block as usize * block_size as usize + tokens)?,
        };
        if block_size == 0 {
            return Err(RequestError::ZeroBlockSize);
        }
        let blocks = (tokens / block_size as usize).min(request.max_blocks);
        let end = first_block + blocks as u64;
        if blocks > 0 && end > MAX_POSITION + 1 {
            return Err(RequestError::PositionLimit { position: end - 1 });
        }
        Ok(Plan {
            seeds: scheme.seeds(request, &mut self.salt_buffer),
            block_size,
            // Positions, and so numbers of blocks, have 24 bits.
            first_block: first_block as u32,
            blocks: blocks as u32,
            first_row: self.rows,
            state: request.parent.map(|parent| parent.current_sequence_hash().0),
            tail: tokens - blocks * block_size as usize,
            runs,
        })
    }

    /// Puts the runs in order and checks each against the one before and the prompt's length.
    fn check_runs(&mut self, runs: &[MmRun], tokens_len: usize) -> Result<Runs, RequestError> {
        if runs.is_sorted_by_key(|run| run.offset) {
            check_in_order(runs, tokens_len)?;
            return Ok(Runs::InOrder);
        }
        let start = self.sorted_runs.len();
        self.sorted_runs.extend_from_slice(runs);
        let sorted = &mut self.sorted_runs[start..];
        // Stable, as the peer's: of two runs with the same offset the second one overlaps.
        sorted.sort_by_key(|run| run.offset);
        check_in_order(sorted, tokens_len)?;
        Ok(Runs::Sorted(start))
    }

    /// The runs of a planned request, in order.
    pub(crate) fn runs<'a>(&'a self, plan: &Plan, request: &Request<'a>) -> &'a [MmRun] {
        match plan.runs {
            Runs::InOrder => request.mm_runs,
            Runs::Sorted(start) => &self.sorted_runs[start..start + request.mm_runs.len()],
        }
    }
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

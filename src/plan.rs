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
    pub(crate) block_size: usize,
    /// Where its rows stand among those of the batch: one a block.
    pub(crate) rows: Range<usize>,
    /// The position of its first block, in blocks.
    pub(crate) first_block: u64,
    /// The sequence hash of the block before that one, if there is one.
    pub(crate) state: Option<u64>,
    /// Tokens after the last block.
    pub(crate) tail: usize,
    runs: Runs,
}

/// Where a request's runs are found in the order of their offsets.
#[derive(Debug, Clone)]
enum Runs {
    InOrder,
    Sorted(Range<usize>),
}

/// What planning a batch writes, kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    pub(crate) plans: Vec<Result<Plan, RequestError>>,
    /// Copies of the runs of requests that gave them out of order.
    sorted_runs: Vec<MmRun>,
    salt_buffer: Vec<u8>,
}

impl Plan {
    /// How many bytes the request's blocks are hashed from, frames taken for tokens.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.len() * self.block_size * TOKEN_BYTES
    }

    /// The position of its first token, in tokens.
    pub(crate) fn first_token(&self) -> usize {
        // In range: checked when the plan was made.
        self.first_block as usize * self.block_size
    }
}

impl Plans {
    /// Plans a batch; returns how many rows it takes.
    pub(crate) fn make<S: Scheme>(
        &mut self,
        scheme: &S,
        block_size: u32,
        requests: &[S::Request<'_>],
    ) -> usize {
        self.plans.clear();
        self.sorted_runs.clear();
        let mut rows = 0;
        for request in requests {
            let request = request.general();
            let plan = self.plan_one(scheme, block_size, request, rows);
            if let Ok(plan) = &plan {
                rows = plan.rows.end;
            }
            self.plans.push(plan);
        }
        rows
    }

    fn plan_one<S: Scheme>(
        &mut self,
        scheme: &S,
        block_size: u32,
        request: &Request<'_>,
        first_row: usize,
    ) -> Result<Plan, RequestError> {
        let block_size = request.block_size.unwrap_or(block_size) as usize;
        let first_block = request.parent.map_or(0, |parent| parent.position() + 1);
        let first_token = first_block as usize * block_size;
        let runs = self.check_runs(request.mm_runs, first_token + request.tokens.len())?;
        if block_size == 0 {
            return Err(RequestError::ZeroBlockSize);
        }
        let blocks = (request.tokens.len() / block_size).min(request.max_blocks);
        let end = first_block + blocks as u64;
        if blocks > 0 && end > MAX_POSITION + 1 {
            return Err(RequestError::PositionLimit { position: end - 1 });
        }
        Ok(Plan {
            seeds: scheme.seeds(request, &mut self.salt_buffer),
            block_size,
            rows: first_row..first_row + blocks,
            first_block,
            state: request.parent.map(|parent| parent.current_sequence_hash().0),
            tail: request.tokens.len() - blocks * block_size,
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
        Ok(Runs::Sorted(start..self.sorted_runs.len()))
    }

    /// The runs of a planned request, in order.
    pub(crate) fn runs<'a>(&'a self, plan: &Plan, request: &Request<'a>) -> &'a [MmRun] {
        match &plan.runs {
            Runs::InOrder => request.mm_runs,
            Runs::Sorted(range) => &self.sorted_runs[range.clone()],
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

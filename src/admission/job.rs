//! A request on its way through the queue.

use super::{Answer, TicketError};
use crate::engine::PlannedRequest;
use crate::lineages::OwnedLineage;
use crate::owned_request::OwnedRequest;

/// A request that was planned, and its lineage, whose hashes are to come.
///
/// Its memory is the caller's: the lineage is made when the request is submitted, and becomes the answer,
/// with which the request is freed. (A worker frees only what was cancelled.) A worker that made and freed
/// it would do little else, and memory that one thread makes and another frees costs both. For the same
/// reason a worker writes hashes to the lineage and nothing to the rest.
pub(super) struct Job {
    pub(super) request: OwnedRequest,
    lineage: OwnedLineage,
}

impl Job {
    pub(super) fn new(request: OwnedRequest, lineage: OwnedLineage) -> Self {
        Self { request, lineage }
    }

    /// What is to be hashed, and where to.
    #[inline(always)]
    pub(super) fn planned(&mut self) -> PlannedRequest<'_> {
        (&self.request, &mut self.lineage)
    }
}

/// What came of jobs that left the queue together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Hashed,
    /// A panic ended them.
    Panicked,
    /// The queue was aborted.
    Aborted,
}

/// A job that has ended, and what came of it.
pub(super) struct EndedJob {
    pub(super) job: Job,
    pub(super) outcome: Outcome,
}

impl EndedJob {
    /// The answer. The request is freed.
    pub(super) fn into_answer(self) -> Answer {
        match self.outcome {
            Outcome::Hashed => Ok(self.job.lineage),
            Outcome::Panicked => Err(TicketError::Panicked),
            Outcome::Aborted => Err(TicketError::Aborted),
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job to be known again.
    pub(super) fn numbered(number: u32) -> Self {
        Self::new(OwnedRequest::new([number]), OwnedLineage::empty())
    }

    pub(super) fn number(&self) -> u32 {
        self.request.tokens()[0]
    }
}

//! A request on its way through the queue.

use super::{Answer, TicketError};
use crate::lineages::Room;
use crate::owned_request::OwnedRequest;
use crate::plan::Planned;
use crate::request::Request;

/// A request, and room for its hashes.
///
/// Its memory is the caller's: the room is made when the request is submitted, and all of it is freed
/// by whoever takes the answer. (A worker frees only what was cancelled.) A worker that made and freed
/// it would do little else, and memory that one thread makes and another frees costs both. For the same
/// reason a worker writes hashes to the room and nothing to the rest; what it has to say of a job it says
/// [elsewhere](Outcomes).
pub(super) struct Job {
    pub(super) request: OwnedRequest,
    room: Room,
}

impl Job {
    pub(super) fn new(request: OwnedRequest, room: Room) -> Self {
        Self { request, room }
    }

    /// What is to be hashed, and the room for its hashes.
    pub(super) fn parts(&mut self) -> (Request<'_>, &mut Room) {
        (self.request.as_request(), &mut self.room)
    }
}

/// What came of some jobs, one after the other: the plans by which they were hashed to their rooms, or
/// why none of them was.
pub(super) type Outcomes = Result<Vec<Planned>, TicketError>;

/// A job that has ended, and what came of it.
pub(super) struct EndedJob {
    pub(super) job: Job,
    pub(super) outcome: Result<Planned, TicketError>,
}

impl EndedJob {
    /// The answer. The request is freed.
    pub(super) fn into_answer(self) -> Answer {
        let plan = self.outcome??;
        Ok(self.job.room.into_lineage(&plan))
    }
}

#[cfg(test)]
impl Job {
    /// A job to be known again.
    pub(super) fn numbered(number: u32) -> Self {
        Self::new(OwnedRequest::new([number]), Room::default())
    }

    pub(super) fn number(&self) -> u32 {
        self.request.tokens()[0]
    }
}

//! A request on its way through the queue.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oneshot::Sender;

use super::{Answer, TicketError};
use crate::error::RequestError;
use crate::lineages::OwnedLineage;
use crate::owned_request::OwnedRequest;
use crate::request::Request;

/// A request, and its answer.
///
/// Its memory is the caller's: the room for the hashes is made when the request is submitted, and all
/// of it is freed by whoever takes the answer. (A worker frees only what was cancelled.) A worker that
/// made and freed it would do little else, and memory that one thread makes and another frees costs
/// both.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: OwnedRequest,
    /// Room for hashes until they are there.
    lineage: OwnedLineage,
    /// Whether they are. `None` as long as no worker has come to it.
    outcome: Option<Result<(), Box<TicketError>>>,
}

impl Job {
    pub(super) fn new(request: OwnedRequest, room: OwnedLineage) -> Self {
        Self { request, lineage: room, outcome: None }
    }

    /// What is to be hashed, and the room for its hashes.
    pub(super) fn parts(&mut self) -> (Request<'_>, &mut OwnedLineage) {
        (self.request.as_request(), &mut self.lineage)
    }

    /// Says that its room has its hashes, or why not.
    pub(super) fn end(&mut self, outcome: Result<(), RequestError>) {
        self.outcome = Some(outcome.map_err(|error| Box::new(error.into())));
    }

    /// The answer. The request is freed.
    pub(super) fn into_answer(self) -> Answer {
        match self.outcome {
            Some(Ok(())) => Ok(self.lineage),
            Some(Err(error)) => Err(*error),
            None => Err(TicketError::Panicked),
        }
    }
}

/// A job in the queue. Where it is dropped before it is answered, its ticket says that a panic ended
/// it.
pub(super) struct Entry {
    pub(super) job: Job,
    ticket: Sender<Job>,
}

impl Entry {
    pub(super) fn new(job: Job, ticket: Sender<Job>) -> Self {
        Self { job, ticket }
    }

    /// Whether its ticket was dropped.
    pub(super) fn is_cancelled(&self) -> bool {
        self.ticket.is_closed()
    }

    /// Hands the job over, and wakes whoever waits for it.
    fn answer(self) {
        // Where the ticket was dropped, so is the job. Wakers are the caller's: one that panics costs
        // the others nothing.
        _ = survives(|| drop(self.ticket.send(self.job)));
    }
}

/// Answers all, from the last to the first: a thread that waits for one after the other sleeps on the
/// first, and is woken when all are there. To wake it sooner takes longer than to hash a prompt, and the
/// rest would wait for that.
pub(super) fn answer_all(batch: &mut Vec<Entry>) {
    batch.drain(..).rev().for_each(Entry::answer);
}

/// Answers all with an error.
pub(super) fn fail_all(batch: &mut Vec<Entry>, error: TicketError) {
    batch.iter_mut().for_each(|entry| entry.job.outcome = Some(Err(Box::new(error))));
    answer_all(batch);
}

/// Whether a function ended without a panic. What it panicked with is leaked: dropped, it might panic
/// again.
pub(super) fn survives(function: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(function)).map_err(mem::forget).is_ok()
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use super::*;
    use crate::engine::Engine;

    #[test]
    fn room_that_was_never_filled_is_no_answer() {
        let job = || {
            let request = OwnedRequest::new([7; 40]);
            let room = Engine::builder().build().unwrap().room_for(&request.as_request());
            assert_eq!(room.plhs().len(), 2);
            Job::new(request, room)
        };
        assert_eq!(job().into_answer(), Err(TicketError::Panicked));
        let mut hashed = job();
        hashed.end(Ok(()));
        assert!(hashed.into_answer().is_ok());
    }
}

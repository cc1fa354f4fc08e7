//! A request on its way through the queue.

use super::{Answer, TicketError};
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
    pub(super) fn end(&mut self, outcome: Result<(), TicketError>) {
        self.outcome = Some(outcome.map_err(Box::new));
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

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use std::time::{Duration, Instant};

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

    #[test]
    fn an_entry_that_is_dropped_has_no_hashes_and_wakes_its_ticket() {
        let engine = Engine::builder().build().unwrap();
        let request = OwnedRequest::new([7; 40]);
        let room = engine.room_for(&request.as_request());
        assert_eq!(room.plhs().len(), 2);
        let slot = Arc::new(Slot::new());
        let entry = Entry::new(Job::new(request, room), Arc::clone(&slot));
        assert!(!entry.is_cancelled());
        std::thread::scope(|scope| {
            let deadline = Instant::now() + Duration::from_secs(10);
            let waiting = scope.spawn(move || slot.wait_until(deadline));
            drop(entry);
            let job = waiting.join().unwrap().unwrap().expect("an answer");
            assert_eq!(job.into_answer(), Err(TicketError::Panicked));
        });
    }
}

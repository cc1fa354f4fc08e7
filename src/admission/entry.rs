//! A request on its way through the queue.

use std::sync::Arc;

use super::slot::{Slot, Waiter};
use super::{Answer, TicketError};
use crate::fetch::fetch_all_to_write;
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

/// A job in the queue. However it leaves, its ticket is answered.
pub(super) struct Entry {
    /// `None` once it is answered, or given back.
    job: Option<Box<Job>>,
    slot: Arc<Slot<Box<Job>>>,
}

impl Entry {
    pub(super) fn new(job: Job, slot: Arc<Slot<Box<Job>>>) -> Self {
        Self { job: Some(Box::new(job)), slot }
    }

    /// Asks for the lines of the job and the slot, which another core wrote and this one will.
    pub(super) fn fetch(&self) {
        if let Some(job) = &self.job {
            fetch_all_to_write(&**job);
        }
        fetch_all_to_write(&*self.slot);
    }

    /// Whether its ticket was dropped: nobody else has the slot.
    pub(super) fn is_cancelled(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    /// The job, as long as it is not answered.
    pub(super) fn job(&mut self) -> &mut Job {
        self.job.as_mut().expect("an entry that is not answered")
    }

    /// The request, which was not accepted.
    pub(super) fn into_request(mut self) -> OwnedRequest {
        self.job.take().expect("an entry that is not answered").request
    }

    /// Hands the job over; gives whoever waits for it.
    fn answer(&mut self) -> Option<Waiter> {
        self.slot.answer(self.job.take()?)
    }

    /// Hands the job over and lets go of the slot; gives whoever waits for it.
    fn answered(mut self) -> Option<Sleeper> {
        self.answer().map(|waiter| Sleeper { slot: Arc::clone(&self.slot), waiter: Some(waiter) })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(waiter) = self.answer() {
            self.slot.wake(waiter);
        }
    }
}

/// Somebody who waits for an answer that is there now. Woken when this is dropped, so that nobody
/// sleeps on whatever happens in between.
struct Sleeper {
    slot: Arc<Slot<Box<Job>>>,
    waiter: Option<Waiter>,
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.slot.wake(waiter);
        }
    }
}

/// Answers all, and then wakes those who wait.
///
/// From the last to the first: whoever is awake and waits for one after the other then finds all
/// of them, and does not ask for each slot while it is written.
pub(super) fn answer_all(batch: &mut Vec<Entry>) {
    let mut sleepers: Vec<Sleeper> = batch.drain(..).rev().filter_map(Entry::answered).collect();
    // Who came first is woken first.
    sleepers.reverse();
    drop(sleepers);
}

/// Answers all with an error.
pub(super) fn fail_all(batch: &mut Vec<Entry>, error: TicketError) {
    batch.iter_mut().for_each(|entry| entry.job().end(Err(error)));
    answer_all(batch);
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

//! The threads behind the queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::Receiver;

use super::slot::Slot;
use super::{Answer, TicketError};
use crate::engine::Engine;
use crate::lineages::Lineages;
use crate::request::{OwnedRequest, Request};

/// How many blocks of room a worker keeps from batch to batch: 16 MiB of rows.
const ROOM_KEPT: usize = 1 << 20;

/// A request in the queue, and where its answer goes.
pub(super) struct Entry {
    pub(super) request: OwnedRequest,
    pub(super) slot: Arc<Slot<Answer>>,
}

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Receiver<Entry>,
    pub(super) aborted: Arc<AtomicBool>,
    pub(super) largest_batch: usize,
    pub(super) fault: Option<fn(&OwnedRequest)>,
}

impl Worker {
    /// Hashes what comes until the queue is closed and empty.
    pub(super) fn run(self) {
        let mut lineages = Lineages::new();
        let mut batch = Vec::new();
        while let Ok(first) = self.queue.recv() {
            // Whatever has come in the meantime. What was cancelled takes no place.
            let waiting = self.queue.try_iter();
            batch.extend(
                [first]
                    .into_iter()
                    .chain(waiting)
                    .filter(|entry| !entry.slot.is_cancelled())
                    .take(self.largest_batch),
            );
            if self.aborted.load(Ordering::Relaxed) {
                answer_all(&batch, TicketError::Aborted);
            } else if catch_unwind(AssertUnwindSafe(|| self.hash(&batch, &mut lineages))).is_err() {
                // What the panic left of them is not to be used again.
                lineages = Lineages::new();
                answer_all(&batch, TicketError::Panicked);
            }
            batch.clear();
            if lineages.room() > ROOM_KEPT {
                lineages.shrink_to(ROOM_KEPT);
            }
        }
    }

    fn hash(&self, batch: &[Entry], lineages: &mut Lineages) {
        if let Some(fault) = self.fault {
            batch.iter().for_each(|entry| fault(&entry.request));
        }
        let requests: Vec<Request<'_>> =
            batch.iter().map(|entry| entry.request.as_request()).collect();
        self.engine.hash(&requests, lineages);
        for (entry, lineage) in batch.iter().zip(lineages.iter()) {
            let answer = lineage.map(|lineage| lineage.detach()).map_err(TicketError::Request);
            answer_one(entry, answer);
        }
    }
}

/// Answers all that are not answered yet.
fn answer_all(batch: &[Entry], error: TicketError) {
    batch.iter().for_each(|entry| answer_one(entry, Err(error)));
}

/// Wakers are the caller's: one that panics costs the others nothing.
fn answer_one(entry: &Entry, answer: Answer) {
    let _ = catch_unwind(AssertUnwindSafe(|| entry.slot.answer(answer)));
}

//! The threads behind the queue.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::Receiver;
use crossbeam::queue::ArrayQueue;

use super::slot::Slot;
use super::{Answer, TicketError};
use crate::engine::Engine;
use crate::lineages::Lineages;
use crate::plh::PositionalLineageHash;
use crate::request::{OwnedRequest, Request};

/// How many blocks of room a worker keeps from batch to batch: 16 MiB of rows.
const ROOM_KEPT: usize = 1 << 20;

/// A request in the queue, room for its rows, and where its answer goes.
///
/// Its memory is the caller's, from first to last: the room for the rows is made when it is
/// submitted, and what is done with is freed by callers, too. A worker that made and freed it would
/// do little else, and memory that one thread makes and another frees costs both.
pub(super) struct Entry {
    pub(super) request: OwnedRequest,
    pub(super) rows: Vec<PositionalLineageHash>,
    pub(super) slot: Arc<Slot<Answer>>,
}

/// Requests that are done with, to be freed by whoever submits one or is done with a ticket.
pub(super) type Spent = ArrayQueue<OwnedRequest>;

/// How many of those are kept at the most; the worker frees the others.
pub(super) const MOST_SPENT: usize = 256;

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Receiver<Entry>,
    pub(super) spent: Arc<Spent>,
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
                fail_all(&batch, TicketError::Aborted);
            } else if catch_unwind(AssertUnwindSafe(|| self.hash(&mut batch, &mut lineages)))
                .is_err()
            {
                // What the panic left of them is not to be used again.
                lineages = Lineages::new();
                fail_all(&batch, TicketError::Panicked);
            }
            for entry in batch.drain(..) {
                // Where there is no place it is freed here.
                let _ = self.spent.push(entry.request);
            }
            if lineages.room() > ROOM_KEPT {
                lineages.shrink_to(ROOM_KEPT);
            }
        }
    }

    fn hash(&self, batch: &mut [Entry], lineages: &mut Lineages) {
        if let Some(fault) = self.fault {
            batch.iter().for_each(|entry| fault(&entry.request));
        }
        let requests: Vec<Request<'_>> =
            batch.iter().map(|entry| entry.request.as_request()).collect();
        self.engine.hash(&requests, lineages);
        // First all rows, then all answers: those take locks, and a lock waits for what was
        // written before it.
        let answers: Vec<Answer> = batch
            .iter_mut()
            .zip(lineages.iter())
            .map(|(entry, lineage)| Ok(lineage?.detach_into(mem::take(&mut entry.rows))))
            .collect();
        answer_all(batch.iter().zip(answers));
    }
}

/// Answers all that are not answered yet, and then wakes those who wait.
fn answer_all<'a>(answers: impl Iterator<Item = (&'a Entry, Answer)>) {
    let sleepers: Vec<_> =
        answers.filter_map(|(entry, answer)| entry.slot.answer(answer)).collect();
    drop(sleepers);
}

/// Answers all that are not answered yet with an error.
fn fail_all(batch: &[Entry], error: TicketError) {
    answer_all(batch.iter().map(|entry| (entry, Err(error))));
}

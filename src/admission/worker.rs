//! The threads behind the queue.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::Receiver;

use super::slot::Slot;
use super::{Answer, TicketError};
use crate::engine::Engine;
use crate::lineages::Lineages;
use crate::plh::PositionalLineageHash;
use crate::request::{OwnedRequest, Request};
use crate::scheme::Row;

/// How many blocks of room a worker keeps from batch to batch: 16 MiB of rows.
const ROOM_KEPT: usize = 1 << 20;

/// A request, and where its answer goes: what a worker and a ticket share.
///
/// Its memory is the caller's, from first to last. A worker that made and freed it would do little
/// else, and memory that one thread makes and another frees costs both.
#[derive(Debug)]
pub(super) struct Job<R: Row = PositionalLineageHash> {
    pub(super) request: OwnedRequest,
    pub(super) slot: Slot<Answer<R>>,
}

/// A job in the queue, and room for its rows.
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    pub(super) rows: Vec<PositionalLineageHash>,
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
                    .filter(|entry| !entry.job.slot.is_cancelled())
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
            batch.clear();
            if lineages.room() > ROOM_KEPT {
                lineages.shrink_to(ROOM_KEPT);
            }
        }
    }

    fn hash(&self, batch: &mut [Entry], lineages: &mut Lineages) {
        if let Some(fault) = self.fault {
            batch.iter().for_each(|entry| fault(&entry.job.request));
        }
        let requests: Vec<Request<'_>> =
            batch.iter().map(|entry| entry.job.request.as_request()).collect();
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
        answers.filter_map(|(entry, answer)| entry.job.slot.answer(answer)).collect();
    drop(sleepers);
}

/// Answers all that are not answered yet with an error.
fn fail_all(batch: &[Entry], error: TicketError) {
    answer_all(batch.iter().map(|entry| (entry, Err(error))));
}

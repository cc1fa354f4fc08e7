//! The threads behind the queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::Receiver;

use super::TicketError;
use super::entry::{Entry, answer_all, fail_all};
use crate::engine::Engine;
use crate::lineages::{Lineages, OwnedLineage};
use crate::request::{OwnedRequest, Request};

/// How many blocks of large requests a worker keeps room for from batch to batch: 8 MiB of hashes.
const ROOM_KEPT: usize = 1 << 20;

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
        let mut memory = Lineages::new();
        let mut batch = Vec::new();
        while let Ok(first) = self.queue.recv() {
            // Whatever has come in the meantime. What was cancelled takes no place.
            let waiting = self.queue.try_iter();
            batch.extend(
                [first]
                    .into_iter()
                    .chain(waiting)
                    .filter(|entry| !entry.is_cancelled())
                    .take(self.largest_batch),
            );
            if self.aborted.load(Ordering::Relaxed) {
                fail_all(&mut batch, TicketError::Aborted);
            } else if catch_unwind(AssertUnwindSafe(|| self.hash(&mut batch, &mut memory))).is_err()
            {
                // What the panic left of it is not to be used again.
                memory = Lineages::new();
                fail_all(&mut batch, TicketError::Panicked);
            } else {
                answer_all(&mut batch);
            }
            batch.clear();
            memory.memory.shrink_past(ROOM_KEPT);
        }
    }

    /// Hashes a batch to where its answers stay.
    fn hash(&self, batch: &mut [Entry], memory: &mut Lineages) {
        if let Some(fault) = self.fault {
            batch.iter_mut().for_each(|entry| fault(&entry.job().request));
        }
        let (requests, mut rooms): (Vec<Request<'_>>, Vec<&mut OwnedLineage>) =
            batch.iter_mut().map(|entry| entry.job().parts()).unzip();
        let plans = self.engine.hash_apart(&requests, &mut rooms, memory);
        for (entry, plan) in batch.iter_mut().zip(plans) {
            if let &Err(error) = plan {
                entry.job().answer = Err(error.into());
            }
        }
    }
}

//! The threads behind the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::TicketError;
use super::entry::{Entry, answer_all, fail_all};
use super::queue::{ENTRIES_KEPT, Queue};
use super::slot::survives;
use super::waits::Waits;
use crate::engine::Engine;
use crate::lineages::OwnedLineage;
use crate::owned_request::OwnedRequest;
use crate::plan::Planned;
use crate::request::Request;
use crate::run::Memory;

/// How much memory a worker keeps from batch to batch that is made for what requests hold: a large one
/// comes once.
const BYTES_KEPT: usize = 8 << 20;

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Arc<Queue<Entry>>,
    pub(super) aborted: Arc<AtomicBool>,
    pub(super) fault: Option<fn(&OwnedRequest)>,
}

impl Worker {
    /// Hashes what comes until the queue is closed and empty.
    pub(super) fn run(self) {
        let (mut plans, mut memory) = (Vec::new(), Memory::default());
        let mut batch = Vec::new();
        let mut waits = Waits::default();
        loop {
            waits.take(&self.queue, &mut batch);
            if batch.is_empty() {
                return;
            }
            batch.iter().for_each(Entry::fetch);
            batch.retain(|entry| !entry.is_cancelled());
            if self.aborted.load(Ordering::Relaxed) {
                fail_all(&mut batch, TicketError::Aborted);
            } else if survives(|| self.hash(&mut batch, &mut plans, &mut memory)) {
                answer_all(&mut batch);
            } else {
                // What the panic left of it is not to be used again.
                (plans, memory) = (Vec::new(), Memory::default());
                fail_all(&mut batch, TicketError::Panicked);
            }
            memory.shrink_past(BYTES_KEPT);
            batch.shrink_to(ENTRIES_KEPT);
            plans.truncate(ENTRIES_KEPT);
            plans.shrink_to(ENTRIES_KEPT);
        }
    }

    /// Hashes a batch to where its answers stay.
    fn hash(&self, batch: &mut [Entry], plans: &mut Vec<Planned>, memory: &mut Memory) {
        if let Some(fault) = self.fault {
            batch.iter_mut().for_each(|entry| fault(&entry.job().request));
        }
        let mut requests: Vec<Request<'_>> = Vec::with_capacity(batch.len());
        let mut rooms: Vec<&mut OwnedLineage> = Vec::with_capacity(batch.len());
        for entry in &mut *batch {
            let (request, room) = entry.job().parts();
            requests.push(request);
            rooms.push(room);
        }
        self.engine.hash_apart(&requests, &mut rooms, plans, memory);
        for (entry, plan) in batch.iter_mut().zip(plans) {
            entry.job().end(plan.map(|_| ()).map_err(TicketError::from));
        }
    }
}

//! The threads behind the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::TicketError;
use super::answers::survives;
use super::group::{Group, answer_all};
use super::queue::{GROUPS_KEPT, Queue};
use super::waits::Waits;
use crate::engine::Engine;
use crate::lineages::Room;
use crate::owned_request::OwnedRequest;
use crate::plan::Planned;
use crate::request::Request;
use crate::run::Memory;

/// How much memory a worker keeps from batch to batch that is made for what requests hold: a large one
/// comes once.
const BYTES_KEPT: usize = 8 << 20;

/// How many plans a worker keeps room for: what one burst made larger is given back.
const PLANS_KEPT: usize = 1024;

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Arc<Queue>,
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
            batch.iter_mut().for_each(Group::drop_cancelled);
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
            batch.shrink_to(GROUPS_KEPT);
            plans.truncate(PLANS_KEPT);
            plans.shrink_to(PLANS_KEPT);
        }
    }

    /// Hashes a batch to where its answers stay.
    fn hash(&self, batch: &mut [Group], plans: &mut Vec<Planned>, memory: &mut Memory) {
        if let Some(fault) = self.fault {
            batch.iter_mut().flat_map(Group::jobs).for_each(|job| fault(&job.request));
        }
        let size = batch.iter().map(Group::len).sum();
        let mut requests: Vec<Request<'_>> = Vec::with_capacity(size);
        let mut rooms: Vec<&mut Room> = Vec::with_capacity(size);
        for job in batch.iter_mut().flat_map(Group::jobs) {
            let (request, room) = job.parts();
            requests.push(request);
            rooms.push(room);
        }
        self.engine.hash_apart(&requests, rooms, plans, memory);
        let mut plans = plans.iter();
        batch.iter_mut().for_each(|group| group.hashed(&mut plans));
    }
}

/// Answers all with an error.
fn fail_all(batch: &mut Vec<Group>, error: TicketError) {
    batch.iter_mut().for_each(|group| group.failed(error));
    answer_all(batch);
}

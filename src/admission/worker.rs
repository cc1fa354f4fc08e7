//! The threads behind the queue.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answers::survives;
use super::group::{Group, answer_all};
use super::job::Outcome;
use super::queue::{GROUPS_KEPT, Queue};
use super::waits::Waits;
use crate::engine::Engine;
use crate::run::Memory;

/// How much memory a worker keeps from batch to batch that is made for what requests hold: a large one
/// comes once.
const BYTES_KEPT: usize = 8 << 20;

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Arc<Queue>,
    pub(super) aborted: Arc<AtomicBool>,
    pub(super) is_only_one: bool,
    pub(super) fault: Option<fn(&[u32])>,
}

impl Worker {
    /// Hashes what comes until the queue is closed and empty.
    pub(super) fn run(self) {
        let (mut memory, mut batch) = (Memory::default(), Vec::new());
        let (mut waits, mut next) = (Waits::default(), Vec::new());
        loop {
            if batch.is_empty() {
                waits.take(&self.queue, &mut batch);
                if batch.is_empty() {
                    return;
                }
            }
            batch.iter_mut().for_each(Group::drop_cancelled);
            let outcome = if self.aborted.load(Ordering::Relaxed) {
                Outcome::Aborted
            } else if survives(|| self.hash(&mut batch, &mut memory)) {
                Outcome::Hashed
            } else {
                // What the panic left of it is not to be used again.
                memory = Memory::default();
                Outcome::Panicked
            };
            if self.is_only_one {
                // Where requests come faster than they are hashed, now: whoever waits for this batch submits
                // nothing until it is answered, so that the two are not under the lock at once. (Where they
                // do not, the worker looks again afterwards, and others who want the CPU have their turn.)
                // Where there are other workers the next batch is theirs: wakers take as long as they take.
                waits.take_full(&self.queue, &mut next);
                next.iter().for_each(Group::fetch_start);
            }
            answer_all(&mut batch, outcome);
            mem::swap(&mut batch, &mut next);
            memory.shrink_past(BYTES_KEPT);
            next.shrink_to(GROUPS_KEPT);
        }
    }

    /// Hashes a batch to where its answers stay.
    fn hash(&self, batch: &mut [Group], memory: &mut Memory) {
        if let Some(fault) = self.fault {
            batch.iter_mut().flat_map(Group::planned).for_each(|planned| fault(planned.tokens));
        }
        let count = batch.iter().map(Group::len).sum();
        let planned = batch.iter_mut().flat_map(Group::planned);
        self.engine.hash_apart(count, planned, memory);
    }
}

//! The threads behind the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, TryRecvError};
use crossbeam::utils::Backoff;

use super::TicketError;
use super::entry::{Entry, answer_all, fail_all};
use super::slot::survives;
use crate::engine::Engine;
use crate::lineages::OwnedLineage;
use crate::plan::Planned;
use crate::request::{OwnedRequest, Request};
use crate::run::Memory;

/// How much memory a worker keeps from batch to batch that is made for what requests hold: a large one
/// comes once.
const BYTES_KEPT: usize = 8 << 20;

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) queue: Receiver<Entry>,
    pub(super) aborted: Arc<AtomicBool>,
    /// How many workers are asleep.
    pub(super) asleep: Arc<AtomicUsize>,
    pub(super) largest_batch: usize,
    pub(super) fault: Option<fn(&OwnedRequest)>,
}

impl Worker {
    /// Hashes what comes until the queue is closed and empty.
    pub(super) fn run(self) {
        let (mut plans, mut memory) = (Vec::new(), Memory::default());
        let mut batch = Vec::new();
        let mut waits = Waits::default();
        while let Some(first) = waits.next(&self.queue, &self.asleep) {
            // Whatever has come in the meantime. Nothing is read on the way: whatever is taken out of
            // the queue waits for what was read before, and another core wrote it.
            let others = self.queue.try_iter().take(self.largest_batch - 1);
            batch.extend([first].into_iter().chain(others).inspect(Entry::fetch));
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
            batch.clear();
            memory.shrink_past(BYTES_KEPT);
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
            entry.job().outcome = plan.map(|_| ()).map_err(TicketError::from);
        }
    }
}

/// How long a worker that waits stays awake at the most: about what it takes until a thread that sleeps
/// is at work, so that staying awake never costs more than twice what sleeping would.
const LONGEST_SPIN: Duration = Duration::from_micros(100);

/// How a worker waits: awake, as long as what it waits for keeps coming soon. Where requests are far
/// apart it sleeps at once, and costs nothing.
#[derive(Default)]
struct Waits {
    last_was_short: bool,
}

impl Waits {
    /// The next that comes; `None` when nothing more can come.
    fn next<T>(&mut self, queue: &Receiver<T>, asleep: &AtomicUsize) -> Option<T> {
        let start = Instant::now();
        let backoff = Backoff::new();
        while self.last_was_short && start.elapsed() < LONGEST_SPIN {
            match queue.try_recv() {
                // Leaves the CPU to others who want it.
                Err(TryRecvError::Empty) => backoff.snooze(),
                received => return received.ok(),
            }
        }
        asleep.fetch_add(1, Ordering::Relaxed);
        let received = queue.recv();
        asleep.fetch_sub(1, Ordering::Relaxed);
        self.last_was_short = start.elapsed() < LONGEST_SPIN;
        received.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam::channel;

    use super::*;

    #[test]
    fn a_worker_stays_awake_while_requests_come_soon() {
        let (sender, receiver) = channel::bounded(1);
        let (mut waits, asleep) = (Waits::default(), AtomicUsize::new(0));
        // What is there at once was a short wait, unless something came between.
        while !waits.last_was_short {
            sender.send(()).unwrap();
            assert_eq!(waits.next(&receiver, &asleep), Some(()));
        }
        // And what comes late was not: awake at first, and then asleep.
        for awake in [true, false] {
            assert_eq!(waits.last_was_short, awake);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let start = Instant::now();
                    while asleep.load(Ordering::Relaxed) == 0 {
                        assert!(start.elapsed() < Duration::from_secs(10), "it never sleeps");
                        thread::yield_now();
                    }
                    thread::sleep(2 * LONGEST_SPIN);
                    sender.send(()).unwrap();
                });
                assert_eq!(waits.next(&receiver, &asleep), Some(()));
            });
            assert!(!waits.last_was_short);
        }
        assert_eq!(asleep.load(Ordering::Relaxed), 0);
        // Awake or asleep, it sees the end.
        drop(sender);
        for last_was_short in [true, false] {
            assert_eq!(Waits { last_was_short }.next(&receiver, &asleep), None);
        }
    }
}

//! What waits for a worker, in the order in which it came.
//!
//! One lock, held as long as it takes to put an entry in or to move a batch out. A queue without
//! a lock hands entries over one by one: each of them is a locked instruction and waits for a line
//! of the other core, where a batch comes out of here in one go. Figures: `perf/threads.md`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(kvhash_loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use crossbeam::utils::CachePadded;
#[cfg(kvhash_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

/// A bounded queue that any number of threads put entries into, and workers take batches from.
#[derive(Debug)]
pub(super) struct Queue<T> {
    capacity: usize,
    state: CachePadded<Mutex<State<T>>>,
    /// Tells workers that sleep.
    came: Condvar,
    glance: Glance,
}

#[derive(Debug)]
struct State<T> {
    entries: VecDeque<T>,
    is_closed: bool,
    /// How many workers are asleep, or on their way back.
    asleep: usize,
    /// How many of those were told to come back.
    called: usize,
}

/// What is to be seen without locking, a moment old at the most.
#[derive(Debug, Default)]
struct Glance {
    waiting: AtomicUsize,
    is_closed: AtomicBool,
    has_sleepers: AtomicBool,
}

/// Why an entry was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let state = State { entries: VecDeque::new(), is_closed: false, asleep: 0, called: 0 };
        Self {
            capacity,
            state: CachePadded::new(Mutex::new(state)),
            came: Condvar::new(),
            glance: Glance::default(),
        }
    }

    /// How many entries wait.
    pub(super) fn len(&self) -> usize {
        self.glance.waiting.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to do for a worker, neither now nor at the end.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == 0 && !self.glance.is_closed.load(Ordering::Relaxed)
    }

    /// Whether a worker sleeps.
    pub(super) fn has_sleepers(&self) -> bool {
        self.glance.has_sleepers.load(Ordering::Relaxed)
    }

    /// Whether an entry would be taken in now: does not lock.
    pub(super) fn admits(&self) -> Result<(), Refused> {
        self.admits_beside(self.len(), self.glance.is_closed.load(Ordering::Relaxed))
    }

    fn admits_beside(&self, waiting: usize, is_closed: bool) -> Result<(), Refused> {
        match is_closed {
            true => Err(Refused::Closed),
            false if waiting >= self.capacity => Err(Refused::Full),
            false => Ok(()),
        }
    }

    /// Puts an entry in. Gives it back where it is refused.
    pub(super) fn push(&self, entry: T) -> Result<(), (Refused, T)> {
        let mut state = self.lock();
        if let Err(refused) = self.admits_beside(state.entries.len(), state.is_closed) {
            return Err((refused, entry));
        }
        state.entries.push_back(entry);
        self.glance.waiting.store(state.entries.len(), Ordering::Relaxed);
        // To call takes microseconds: nobody is called twice.
        let calls = state.asleep > state.called;
        state.called += usize::from(calls);
        drop(state);
        if calls {
            self.came.notify_one();
        }
        Ok(())
    }

    /// Takes in no more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.glance.is_closed.store(true, Ordering::Relaxed);
        drop(state);
        self.came.notify_all();
    }

    /// Moves up to `most` entries to the end of a batch. Sleeps until there are any; there is none
    /// once the queue is closed and empty.
    pub(super) fn take(&self, most: usize, batch: &mut Vec<T>) {
        let mut state = self.lock();
        if state.entries.is_empty() && !state.is_closed {
            state = self.sleep(state);
        }
        let count = most.min(state.entries.len());
        batch.extend(state.entries.drain(..count));
        self.glance.waiting.store(state.entries.len(), Ordering::Relaxed);
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        state.asleep += 1;
        self.glance.has_sleepers.store(true, Ordering::Relaxed);
        while state.entries.is_empty() && !state.is_closed {
            state = self.came.wait(state).unwrap_or_else(|error| error.into_inner());
            // Whoever comes back answers one call, even where it was not the one that was meant.
            state.called = state.called.saturating_sub(1);
        }
        state.asleep -= 1;
        self.glance.has_sleepers.store(state.asleep > 0, Ordering::Relaxed);
        state
    }

    /// Under the lock nothing panics and nothing of the caller's runs.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_and_no_more_than_asked_for() {
        let queue = Queue::new(3);
        assert!(queue.is_idle());
        for entry in 1..=3 {
            assert_eq!(queue.admits(), Ok(()));
            assert_eq!(queue.push(entry), Ok(()));
        }
        assert_eq!((queue.len(), queue.admits()), (3, Err(Refused::Full)));
        assert_eq!(queue.push(4), Err((Refused::Full, 4)));
        let mut batch = vec![0];
        queue.take(2, &mut batch);
        assert_eq!(batch, [0, 1, 2]);
        assert_eq!(queue.push(5), Ok(()));
        assert!(!queue.is_idle());
        queue.close();
        assert_eq!(queue.admits(), Err(Refused::Closed));
        assert_eq!(queue.push(6), Err((Refused::Closed, 6)));
        queue.take(usize::MAX, &mut batch);
        assert_eq!((batch, queue.len()), (vec![0, 1, 2, 3, 5], 0));
        let mut rest = Vec::new();
        queue.take(1, &mut rest);
        assert!(rest.is_empty() && !queue.is_idle());
    }
}

/// Every order in which workers and those who submit can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What a worker takes until the queue is closed, in batches of up to `most`.
    fn take_all(queue: &Queue<u32>, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            queue.take(most, &mut taken);
            if taken.len() == before {
                return taken;
            }
        }
    }

    #[test]
    fn a_worker_takes_all_that_two_put_in() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2));
            let worker = {
                let queue = queue.clone();
                thread::spawn(move || take_all(&queue, 2))
            };
            let other = {
                let queue = queue.clone();
                thread::spawn(move || queue.push(1).unwrap())
            };
            queue.push(2).unwrap();
            other.join().unwrap();
            queue.close();
            let mut taken = worker.join().unwrap();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn two_workers_take_each_entry_once_and_both_end() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2));
            let workers = [(); 2].map(|()| {
                let queue = queue.clone();
                thread::spawn(move || take_all(&queue, 1))
            });
            queue.push(1).unwrap();
            queue.push(2).unwrap();
            queue.close();
            let mut taken = workers.map(|worker| worker.join().unwrap()).concat();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }
}

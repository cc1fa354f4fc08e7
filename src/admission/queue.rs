//! What waits for a worker, in the order in which it came.
//!
//! One lock, held as long as it takes to put a job in or to move some groups: jobs wait in the groups that
//! they leave in. A queue without a lock hands jobs over one by one: each of them is a locked instruction
//! and waits for a line of the other core, where a worker reads a group of this one from its first to its
//! last byte. Figures: `perf/threads.md`.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(kvhash_loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use crossbeam::utils::CachePadded;
#[cfg(kvhash_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

use super::group::{Group, LARGEST_GROUP, Place};

/// For how many groups room is kept: what one burst made larger is given back.
const GROUPS_KEPT: usize = 64;

/// A bounded queue that any number of threads put jobs into, and workers take batches from.
pub(super) struct Queue<T> {
    capacity: usize,
    largest_batch: usize,
    largest_group: usize,
    state: CachePadded<Mutex<State<T>>>,
    /// Tells workers that sleep.
    came: Condvar,
    glance: Glance,
}

struct State<T> {
    /// All but the last are full.
    groups: VecDeque<Group<T>>,
    /// How many jobs there are in them.
    waiting: usize,
    /// How many the last of them has, or had: the next one has room for as many.
    usual: usize,
    is_closed: bool,
    /// How many workers are asleep, or on their way back.
    asleep: usize,
    /// How many of those were told to come back.
    called: usize,
}

/// What is to be seen without locking, a moment old at the most.
#[derive(Default)]
struct Glance {
    waiting: AtomicUsize,
    is_closed: AtomicBool,
    has_sleepers: AtomicBool,
}

/// Why a job was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize, largest_batch: usize) -> Self {
        let state = State {
            groups: VecDeque::new(),
            waiting: 0,
            usual: 0,
            is_closed: false,
            asleep: 0,
            called: 0,
        };
        Self {
            capacity,
            largest_batch,
            // As many whole ones to a batch as that has room for.
            largest_group: largest_batch / largest_batch.div_ceil(LARGEST_GROUP),
            state: CachePadded::new(Mutex::new(state)),
            came: Condvar::new(),
            glance: Glance::default(),
        }
    }

    /// How many jobs wait.
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

    /// Whether a job would be taken in now: does not lock.
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

    /// Puts a job in. Gives it back where it is refused.
    pub(super) fn push(&self, job: T) -> Result<Place<T>, (Refused, T)> {
        let mut state = self.lock();
        if let Err(refused) = self.admits_beside(state.waiting, state.is_closed) {
            return Err((refused, job));
        }
        let place = self.last_group(&mut state).push(job);
        state.usual = place.index + 1;
        state.waiting += 1;
        self.glance.waiting.store(state.waiting, Ordering::Relaxed);
        // To call takes microseconds: nobody is called twice.
        let calls = state.asleep > state.called;
        state.called += usize::from(calls);
        drop(state);
        if calls {
            self.came.notify_one();
        }
        Ok(place)
    }

    /// The group that the next job goes to.
    fn last_group<'a>(&self, state: &'a mut State<T>) -> &'a mut Group<T> {
        if state.groups.back().is_none_or(|last| last.len() >= self.largest_group) {
            state.groups.push_back(Group::with_room(state.usual));
        }
        state.groups.back_mut().expect("a group that is not full")
    }

    /// Takes in no more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.glance.is_closed.store(true, Ordering::Relaxed);
        drop(state);
        self.came.notify_all();
    }

    /// Moves the next groups to a batch that is empty. Sleeps until there are some; there are none once
    /// the queue is closed and empty.
    pub(super) fn take(&self, batch: &mut Vec<Group<T>>) {
        let mut state = self.lock();
        if state.waiting == 0 && !state.is_closed {
            state = self.sleep(state);
        }
        let mut size = 0;
        while let Some(next) = state.groups.front()
            && size + next.len() <= self.largest_batch
        {
            size += next.len();
            batch.extend(state.groups.pop_front());
        }
        state.waiting -= size;
        self.glance.waiting.store(state.waiting, Ordering::Relaxed);
        if state.groups.is_empty() && state.groups.capacity() > GROUPS_KEPT {
            let emptied = mem::take(&mut state.groups);
            // It is freed without the lock.
            drop(state);
            drop(emptied);
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        state.asleep += 1;
        self.glance.has_sleepers.store(true, Ordering::Relaxed);
        while state.waiting == 0 && !state.is_closed {
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
    fn entries_come_out_in_order_and_no_more_than_a_batch() {
        let queue = Queue::new(5, 2);
        assert!(queue.is_idle());
        for entry in 1..=5 {
            assert_eq!(queue.admits(), Ok(()));
            assert_eq!(queue.push(entry), Ok(()));
        }
        assert_eq!((queue.len(), queue.admits()), (5, Err(Refused::Full)));
        assert_eq!(queue.push(6), Err((Refused::Full, 6)));
        let mut batch = Vec::new();
        let mut next = || {
            batch.clear();
            queue.take(&mut batch);
            batch.clone()
        };
        assert_eq!(next(), [1, 2]);
        // A batch that is not full is added to; one that was taken is filled again.
        assert_eq!(queue.push(7), Ok(()));
        assert_eq!(queue.push(8), Ok(()));
        assert!(!queue.is_idle());
        queue.close();
        assert_eq!(queue.admits(), Err(Refused::Closed));
        assert_eq!(queue.push(9), Err((Refused::Closed, 9)));
        assert_eq!([next(), next(), next()], [vec![3, 4], vec![5, 7], vec![8]]);
        assert_eq!((queue.len(), next()), (0, vec![]));
        assert!(!queue.is_idle());
    }

    #[test]
    fn few_batches_are_kept() {
        let queue = Queue::new(100, 1);
        (0..100).for_each(|entry| queue.push(entry).unwrap());
        let mut batch = Vec::new();
        for _ in 0..100 {
            batch.clear();
            queue.take(&mut batch);
            assert_eq!(batch.capacity(), 1);
        }
        let state = queue.lock();
        assert_eq!((state.spare.len(), state.batches.len()), (SPARE_BATCHES, 0));
    }
}

/// Every order in which workers and those who submit can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What a worker takes until the queue is closed.
    fn take_all(queue: &Queue<u32>) -> Vec<u32> {
        let (mut taken, mut batch) = (Vec::new(), Vec::new());
        loop {
            queue.take(&mut batch);
            if batch.is_empty() {
                return taken;
            }
            taken.append(&mut batch);
        }
    }

    #[test]
    fn a_worker_takes_all_that_two_put_in() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2, 2));
            let worker = {
                let queue = queue.clone();
                thread::spawn(move || take_all(&queue))
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
            let queue = Arc::new(Queue::new(2, 1));
            let workers = [(); 2].map(|()| {
                let queue = queue.clone();
                thread::spawn(move || take_all(&queue))
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

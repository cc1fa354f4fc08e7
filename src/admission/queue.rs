//! What waits for a worker, in the order in which it came.
//!
//! One lock, held as long as it takes to put a job in or to move some groups: jobs wait in the groups that
//! they leave in. A worker reads a group from its first to its last byte. A queue without a lock hands jobs
//! over one by one, and each of them is a locked instruction and waits for a line of the other core.
//! Figures: `perf/threads.md`.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(kvhash_loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use crossbeam::utils::CachePadded;
#[cfg(kvhash_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

use super::group::{Group, LARGEST_GROUP, Place};
use super::job::Job;

/// For how many groups room is kept: what one burst made larger is given back.
pub(super) const GROUPS_KEPT: usize = 64;

/// A bounded queue that any number of threads put jobs into, and workers take batches from.
pub(super) struct Queue {
    capacity: usize,
    largest_batch: usize,
    largest_group: usize,
    /// Tells workers that sleep.
    came: Condvar,
    /// Written under the lock alone, and seldom: to be looked at from every core.
    is_closed: AtomicBool,
    /// Whether workers are asleep, or on their way back. Written as [`is_closed`](Self::is_closed) is.
    has_sleepers: AtomicBool,
    traffic: CachePadded<Traffic>,
}

/// What is written with each job: one cache line, which goes to the core of whoever puts in or takes.
struct Traffic {
    state: Mutex<State>,
    /// How many jobs wait. Written under the lock alone.
    waiting: AtomicUsize,
}

// Elsewhere a lock may be larger, which costs time and nothing else.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(kvhash_loom)))]
const _: () = assert!(size_of::<Traffic>() <= 64);

struct State {
    /// All but the last are full.
    groups: VecDeque<Group>,
    /// How many jobs the newest group has got so far, or had when it was taken: the next one is made with
    /// room for as many.
    usual: u32,
    /// How many workers are asleep, or on their way back.
    asleep: u32,
    /// How many of those were told to come back.
    called: u32,
}

/// Why a job was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

impl Queue {
    pub(super) fn new(capacity: usize, largest_batch: usize) -> Self {
        let state = State { groups: VecDeque::new(), usual: 0, asleep: 0, called: 0 };
        let traffic = Traffic { state: Mutex::new(state), waiting: AtomicUsize::new(0) };
        Self {
            capacity,
            largest_batch,
            // As many whole ones to a batch as that has room for.
            largest_group: largest_batch / largest_batch.div_ceil(LARGEST_GROUP),
            came: Condvar::new(),
            is_closed: AtomicBool::new(false),
            has_sleepers: AtomicBool::new(false),
            traffic: CachePadded::new(traffic),
        }
    }

    /// How many jobs wait. Without the lock, a moment ago.
    pub(super) fn len(&self) -> usize {
        self.traffic.waiting.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to do for a worker, neither now nor at the end.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == 0 && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether there are as many jobs as a group has, or as there may be.
    pub(super) fn has_full_group(&self) -> bool {
        self.len() >= self.largest_group.min(self.capacity)
    }

    /// Whether a worker sleeps.
    pub(super) fn has_sleepers(&self) -> bool {
        self.has_sleepers.load(Ordering::Relaxed)
    }

    /// Whether a job would be taken in.
    pub(super) fn admits(&self) -> Result<(), Refused> {
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(Refused::Closed),
            false if self.len() >= self.capacity => Err(Refused::Full),
            false => Ok(()),
        }
    }

    /// Puts a job in. Gives it back where it is refused.
    #[allow(clippy::result_large_err, reason = "the job is given back whole")]
    pub(super) fn push(&self, job: Job) -> Result<Place, (Refused, Job)> {
        let mut state = self.lock();
        if let Err(refused) = self.admits() {
            return Err((refused, job));
        }
        let place = self.last_group(&mut state).push(job);
        state.usual = place.index as u32 + 1;
        self.set_len(self.len() + 1);
        // To call takes microseconds: nobody is called twice.
        let calls = state.asleep > state.called;
        state.called += u32::from(calls);
        drop(state);
        if calls {
            self.came.notify_one();
        }
        Ok(place)
    }

    /// The group that the next job goes to.
    fn last_group<'a>(&self, state: &'a mut State) -> &'a mut Group {
        if state.groups.back().is_none_or(|last| last.len() >= self.largest_group) {
            // What it grows to is then no more than the largest one takes, either.
            let room = (state.usual as usize).next_power_of_two().min(self.largest_group);
            state.groups.push_back(Group::with_room(room));
        }
        state.groups.back_mut().expect("a group that is not full")
    }

    /// Takes in no more.
    pub(super) fn close(&self) {
        let state = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        drop(state);
        self.came.notify_all();
    }

    /// Moves the next groups to a batch that is empty. Sleeps until there are some; there are none once
    /// the queue is closed and empty.
    pub(super) fn take(&self, batch: &mut Vec<Group>) {
        let mut state = self.lock();
        if self.is_idle() {
            state = self.sleep(state);
        }
        self.take_some(state, batch);
    }

    /// Moves the next groups to a batch that is empty, if there are enough to fill it.
    pub(super) fn take_full(&self, batch: &mut Vec<Group>) {
        if self.len() >= self.largest_batch {
            self.take_some(self.lock(), batch);
        }
    }

    fn take_some(&self, mut state: MutexGuard<'_, State>, batch: &mut Vec<Group>) {
        let mut size = 0;
        while let Some(next) = state.groups.front()
            && size + next.len() <= self.largest_batch
        {
            size += next.len();
            batch.extend(state.groups.pop_front());
        }
        self.set_len(self.len() - size);
        if state.groups.is_empty() && state.groups.capacity() > GROUPS_KEPT {
            let emptied = mem::take(&mut state.groups);
            // It is freed without the lock.
            drop(state);
            drop(emptied);
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asleep += 1;
        self.has_sleepers.store(true, Ordering::Relaxed);
        while self.is_idle() {
            state = self.came.wait(state).unwrap_or_else(|error| error.into_inner());
            // Whoever comes back answers one call, even where it was not the one that was meant.
            state.called = state.called.saturating_sub(1);
        }
        state.asleep -= 1;
        self.has_sleepers.store(state.asleep > 0, Ordering::Relaxed);
        state
    }

    /// With the lock held.
    fn set_len(&self, waiting: usize) {
        self.traffic.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Under the lock nothing panics and nothing of the caller's runs.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.traffic.state.lock().unwrap_or_else(|error| error.into_inner())
    }
}

#[cfg(test)]
fn numbers(batch: &mut Vec<Group>) -> Vec<u32> {
    let number = |mut group: Group| group.planned().map(|job| job.tokens[0]).collect::<Vec<u32>>();
    batch.drain(..).flat_map(number).collect()
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use super::*;

    fn refused(pushed: Result<Place, (Refused, Job)>) -> Option<(Refused, u32)> {
        pushed.err().map(|(refused, job)| (refused, job.number()))
    }

    #[test]
    fn jobs_come_out_in_order_and_no_more_than_a_batch() {
        let queue = Queue::new(5, 2);
        let push = |number| refused(queue.push(Job::numbered(number)));
        assert!(queue.is_idle());
        for number in 1..=5 {
            assert_eq!(queue.admits(), Ok(()));
            assert_eq!(push(number), None);
        }
        assert_eq!((queue.len(), queue.admits()), (5, Err(Refused::Full)));
        assert_eq!(push(6), Some((Refused::Full, 6)));
        let mut batch = Vec::new();
        let mut next = || {
            queue.take(&mut batch);
            numbers(&mut batch)
        };
        assert_eq!(next(), [1, 2]);
        // A group that is not full is added to.
        assert_eq!((push(7), push(8)), (None, None));
        assert!(!queue.is_idle());
        queue.close();
        assert_eq!(queue.admits(), Err(Refused::Closed));
        assert_eq!(push(9), Some((Refused::Closed, 9)));
        assert_eq!([next(), next(), next()], [vec![3, 4], vec![5, 7], vec![8]]);
        assert_eq!((queue.len(), next()), (0, vec![]));
        assert!(!queue.is_idle());
    }

    #[test]
    fn a_batch_is_of_whole_groups() {
        // The largest batch, the groups that a thousand jobs make, and the batches of those.
        for (largest_batch, groups, batches) in [
            // Up to the largest group, a batch is one.
            (1, [1; 1000].to_vec(), [1; 1000].to_vec()),
            (64, [&[64; 15][..], &[40]].concat(), [&[64; 15][..], &[40]].concat()),
            // Past it they are cut so that a batch is full, or nearly so.
            (65, [&[32; 31][..], &[8]].concat(), [&[64; 15][..], &[40]].concat()),
            (256, [&[64; 15][..], &[40]].concat(), vec![256, 256, 256, 232]),
            (100_000, [&[63; 15][..], &[55]].concat(), vec![1000]),
        ] {
            let queue = Queue::new(1000, largest_batch);
            (0..1000).for_each(|number| assert!(queue.push(Job::numbered(number)).is_ok()));
            let waiting: Vec<usize> = queue.lock().groups.iter().map(Group::len).collect();
            assert_eq!(waiting, groups, "{largest_batch}");
            let (mut batch, mut next) = (Vec::new(), 0..);
            for size in batches {
                queue.take(&mut batch);
                assert!(numbers(&mut batch).into_iter().eq(next.by_ref().take(size)));
            }
            assert_eq!((queue.len(), next.next()), (0, Some(1000)));
        }
    }

    #[test]
    fn a_full_group_has_room_for_no_more_whatever_came_before() {
        let queue = Queue::new(1000, LARGEST_GROUP);
        for before in 1..LARGEST_GROUP {
            for count in [before, LARGEST_GROUP] {
                (0..count).for_each(|_| assert!(queue.push(Job::numbered(1)).is_ok()));
                let mut batch = Vec::new();
                queue.take(&mut batch);
                assert_eq!((batch.len(), batch[0].len()), (1, count));
                assert!(batch[0].room() <= LARGEST_GROUP, "{}", batch[0].room());
            }
        }
    }

    #[test]
    fn the_room_of_a_burst_is_given_back() {
        let queue = Queue::new(1000, 1);
        (0..1000).for_each(|number| assert!(queue.push(Job::numbered(number)).is_ok()));
        assert!(queue.lock().groups.capacity() >= 1000);
        (0..1000).for_each(|_| queue.take(&mut Vec::new()));
        assert!(queue.lock().groups.capacity() <= GROUPS_KEPT);
    }
}

/// Every order in which workers and those who submit can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What a worker takes until the queue is closed.
    fn take_all(queue: &Queue) -> Vec<u32> {
        let (mut taken, mut batch) = (Vec::new(), Vec::new());
        loop {
            queue.take(&mut batch);
            if batch.is_empty() {
                return taken;
            }
            taken.append(&mut numbers(&mut batch));
        }
    }

    fn push(queue: &Queue, number: u32) {
        assert!(queue.push(Job::numbered(number)).is_ok());
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
                thread::spawn(move || push(&queue, 1))
            };
            push(&queue, 2);
            other.join().unwrap();
            queue.close();
            let mut taken = worker.join().unwrap();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn two_workers_take_each_job_once_and_both_end() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2, 1));
            let workers = [(); 2].map(|()| {
                let queue = queue.clone();
                thread::spawn(move || take_all(&queue))
            });
            push(&queue, 1);
            push(&queue, 2);
            queue.close();
            let mut taken = workers.map(|worker| worker.join().unwrap()).concat();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }
}

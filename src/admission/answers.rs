//! Where the answers of a group are handed over: from the worker that has them to the tickets that want
//! one each.
//!
//! Both sides go through one short lock, a worker once for all of a group. Whichever comes second finds
//! what the first has left: the answers, or who is to be woken.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
#[cfg(not(kvhash_loom))]
use std::time::Instant;

#[cfg(kvhash_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(kvhash_loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use super::job::{EndedJob, Job, Jobs, Outcome};

/// The answers of a group, in the order of its requests.
pub(super) struct Answers {
    state: Mutex<State>,
    /// Tells threads that sleep.
    came: Condvar,
    /// Whether they are there: for those who look without locking.
    are_there: AtomicBool,
    /// Whether somebody wanted none any more while they were not there: as above.
    some_given_up: AtomicBool,
}

enum State {
    Awaited(Waiters),
    There(Ended),
}

/// The jobs of a group when they have ended, and what came of them.
pub(super) struct Ended {
    pub(super) jobs: Jobs,
    pub(super) outcome: Outcome,
}

impl Ended {
    /// The job at an index, which its ticket alone takes.
    fn take(&mut self, index: usize) -> EndedJob {
        self.jobs.fetch_behind(index);
        let job = self.jobs.take(index).expect("a job that its ticket takes once");
        EndedJob { job, outcome: self.outcome }
    }
}

/// Who waits for the answers of a group.
#[derive(Default)]
#[must_use = "whoever waits has to be woken"]
pub(super) struct Waiters {
    /// By index, up to the highest one that was polled.
    wakers: Vec<Option<Waker>>,
    /// Whether threads sleep, or did.
    threads: bool,
    /// At which indices nobody wants an answer any more.
    given_up: Vec<usize>,
}

impl Waiters {
    /// Puts a waker at an index, or none. Gives the one that was there: to be dropped without the lock.
    fn set(&mut self, index: usize, waker: Option<Waker>) -> Option<Waker> {
        if index >= self.wakers.len() {
            // Where nobody polls, nothing is made.
            waker.as_ref()?;
            self.wakers.resize(index + 1, None);
        }
        mem::replace(&mut self.wakers[index], waker)
    }

    /// Whether nobody is to be woken.
    pub(super) fn are_none(&self) -> bool {
        !self.threads && self.wakers.is_empty()
    }

    fn has(&self, index: usize, waker: &Waker) -> bool {
        self.wakers
            .get(index)
            .is_some_and(|old| old.as_ref().is_some_and(|old| old.will_wake(waker)))
    }
}

impl Answers {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::Awaited(Waiters::default())),
            came: Condvar::new(),
            are_there: AtomicBool::new(false),
            some_given_up: AtomicBool::new(false),
        }
    }

    /// Leaves the answers; gives whoever waits for them: threads to be [woken](Self::wake_threads), and
    /// then [wakers](Self::wake). Only the first ones count.
    pub(super) fn give(&self, mut ended: Ended) -> Waiters {
        let mut state = self.lock();
        let State::Awaited(waiters) = &mut *state else { return Waiters::default() };
        let waiters = mem::take(waiters);
        let unwanted: Vec<Job> =
            waiters.given_up.iter().filter_map(|&index| ended.jobs.take(index)).collect();
        *state = State::There(ended);
        drop(state);
        self.are_there.store(true, Ordering::Release);
        drop(unwanted);
        waiters
    }

    /// Wakes the threads that slept until the answers were there.
    pub(super) fn wake_threads(&self, waiters: &Waiters) {
        if waiters.threads {
            self.came.notify_all();
        }
    }

    /// Wakes all others who waited for the answers.
    pub(super) fn wake(waiters: Waiters) {
        for waker in waiters.wakers.into_iter().flatten() {
            // Wakers are the caller's: one that panics costs the others nothing.
            survives(|| waker.wake());
        }
    }

    /// At which indices nobody wants an answer any more, beside those that were said before.
    pub(super) fn take_given_up(&self) -> Vec<usize> {
        if !self.some_given_up.load(Ordering::Relaxed) {
            return Vec::new();
        }
        match &mut *self.lock() {
            State::Awaited(waiters) => mem::take(&mut waiters.given_up),
            State::There(_) => Vec::new(),
        }
    }

    /// Wants no answer any more: neither now, nor when it comes.
    pub(super) fn give_up(&self, index: usize) {
        let mut state = self.lock();
        match &mut *state {
            State::There(ended) => {
                let job = ended.jobs.take(index);
                drop(state);
                drop(job);
            }
            State::Awaited(waiters) => {
                waiters.given_up.push(index);
                self.some_given_up.store(true, Ordering::Relaxed);
                let waker = waiters.set(index, None);
                drop(state);
                drop(waker);
            }
        }
    }

    /// Takes an answer if it is there.
    pub(super) fn try_take(&self, index: usize) -> Option<EndedJob> {
        match &mut *self.lock() {
            State::There(ended) => Some(ended.take(index)),
            State::Awaited(_) => None,
        }
    }

    /// Takes an answer if it is there; otherwise has `waker` woken when it is, and no other.
    pub(super) fn poll(&self, index: usize, waker: &Waker) -> Poll<EndedJob> {
        match &mut *self.lock() {
            State::There(ended) => return Poll::Ready(ended.take(index)),
            State::Awaited(waiters) if waiters.has(index, waker) => return Poll::Pending,
            State::Awaited(_) => {}
        }
        let waker = waker.clone();
        let mut state = self.lock();
        if let State::Awaited(waiters) = &mut *state {
            let old = waiters.set(index, Some(waker));
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        drop(state);
        // First, since it is the caller's and may panic: the answer is then still there.
        drop(waker);
        Poll::Ready(self.try_take(index).expect("answers that are there stay there"))
    }

    /// Has nobody woken who was to be: before an answer is waited for otherwise.
    pub(super) fn forget_waker(&self, index: usize) {
        let mut state = self.lock();
        if let State::Awaited(waiters) = &mut *state {
            let old = waiters.set(index, None);
            drop(state);
            drop(old);
        }
    }

    /// Waits for an answer and takes it.
    pub(super) fn wait(&self, index: usize) -> EndedJob {
        let mut state = self.lock();
        loop {
            match &mut *state {
                State::There(ended) => return ended.take(index),
                State::Awaited(waiters) => waiters.threads = true,
            }
            state = self.came.wait(state).unwrap_or_else(|error| error.into_inner());
        }
    }

    /// Waits for an answer and takes it, unless it is not there by `deadline`.
    #[cfg(not(kvhash_loom))]
    pub(super) fn wait_until(&self, index: usize, deadline: Instant) -> Option<EndedJob> {
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match &mut *state {
                State::There(ended) => return Some(ended.take(index)),
                State::Awaited(_) if left.is_zero() => return None,
                State::Awaited(waiters) => waiters.threads = true,
            }
            let waited = self.came.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(|error| error.into_inner());
        }
    }

    /// Whether the answers are there.
    pub(super) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Acquire)
    }

    /// Under the lock nothing panics and nothing of the caller's runs: wakers are made and dropped
    /// outside of it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }
}

/// Whether a function ended without a panic. What it panicked with is leaked: dropped, it might panic
/// again.
pub(super) fn survives(function: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(function)).map_err(mem::forget).is_ok()
}

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

/// The answers of a group, each at its place: that of its request.
pub(super) struct Answers<T> {
    state: Mutex<State<T>>,
    /// Tells threads that sleep.
    came: Condvar,
    /// Whether they are there: for those who look without locking.
    are_there: AtomicBool,
}

enum State<T> {
    Awaited(Waiters),
    /// `None` where an answer was taken, or nobody wants it.
    There(Vec<Option<T>>),
}

/// Who waits for the answers of a group.
#[derive(Default)]
#[must_use = "whoever waits has to be woken"]
pub(super) struct Waiters {
    /// By place, up to the last one that was polled.
    wakers: Vec<Option<Waker>>,
    /// Whether threads sleep, or did.
    threads: bool,
    /// Places that nobody wants an answer for any more.
    given_up: Vec<usize>,
}

impl Waiters {
    /// Puts a waker at a place, or none. Gives the one that was there: to be dropped without the lock.
    fn set(&mut self, place: usize, waker: Option<Waker>) -> Option<Waker> {
        if place >= self.wakers.len() {
            // Where nobody polls, nothing is made.
            waker.as_ref()?;
            self.wakers.resize(place + 1, None);
        }
        mem::replace(&mut self.wakers[place], waker)
    }

    fn has(&self, place: usize, waker: &Waker) -> bool {
        self.wakers.get(place).is_some_and(|old| old.as_ref().is_some_and(|old| old.will_wake(waker)))
    }
}

impl<T> Answers<T> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::Awaited(Waiters::default())),
            came: Condvar::new(),
            are_there: AtomicBool::new(false),
        }
    }

    /// Leaves the answers; gives whoever waits for them. Only the first ones count.
    ///
    /// To wake a thread takes longer than to hash a request. So whoever has many answers leaves
    /// all of them first: a thread that waits for one after the other sleeps once.
    pub(super) fn give(&self, mut answers: Vec<Option<T>>) -> Waiters {
        let mut state = self.lock();
        let State::Awaited(waiters) = &mut *state else { return Waiters::default() };
        let waiters = mem::take(waiters);
        let unwanted: Vec<T> =
            waiters.given_up.iter().filter_map(|&place| answers[place].take()).collect();
        *state = State::There(answers);
        drop(state);
        self.are_there.store(true, Ordering::Release);
        drop(unwanted);
        waiters
    }

    /// Wakes those who waited for the answers, which are there.
    pub(super) fn wake(&self, waiters: Waiters) {
        if waiters.threads {
            self.came.notify_all();
        }
        for waker in waiters.wakers.into_iter().flatten() {
            // Wakers are the caller's: one that panics costs the others nothing.
            survives(|| waker.wake());
        }
    }

    /// The places that nobody wants an answer for any more.
    pub(super) fn take_given_up(&self) -> Vec<usize> {
        match &mut *self.lock() {
            State::Awaited(waiters) => mem::take(&mut waiters.given_up),
            State::There(_) => Vec::new(),
        }
    }

    /// Wants no answer any more: neither now, nor when it comes.
    pub(super) fn give_up(&self, place: usize) {
        let mut state = self.lock();
        match &mut *state {
            State::There(answers) => {
                let answer = answers[place].take();
                drop(state);
                drop(answer);
            }
            State::Awaited(waiters) => {
                waiters.given_up.push(place);
                let waker = waiters.set(place, None);
                drop(state);
                drop(waker);
            }
        }
    }

    /// Takes an answer, once it is there. Nobody takes one twice.
    pub(super) fn try_take(&self, place: usize) -> Option<T> {
        match &mut *self.lock() {
            State::There(answers) => Some(take(answers, place)),
            State::Awaited(_) => None,
        }
    }

    /// Takes an answer if it is there; otherwise has `waker` woken when it is, and no other.
    pub(super) fn poll(&self, place: usize, waker: &Waker) -> Poll<T> {
        match &mut *self.lock() {
            State::There(answers) => return Poll::Ready(take(answers, place)),
            State::Awaited(waiters) if waiters.has(place, waker) => return Poll::Pending,
            State::Awaited(_) => {}
        }
        let waker = waker.clone();
        let mut state = self.lock();
        match &mut *state {
            State::There(answers) => {
                let answer = take(answers, place);
                drop(state);
                drop(waker);
                Poll::Ready(answer)
            }
            State::Awaited(waiters) => {
                let old = waiters.set(place, Some(waker));
                drop(state);
                drop(old);
                Poll::Pending
            }
        }
    }

    /// Has nobody woken who was to be: before an answer is waited for otherwise.
    pub(super) fn forget_waker(&self, place: usize) {
        let mut state = self.lock();
        if let State::Awaited(waiters) = &mut *state {
            let old = waiters.set(place, None);
            drop(state);
            drop(old);
        }
    }

    /// Waits for an answer and takes it.
    pub(super) fn wait(&self, place: usize) -> T {
        let mut state = self.lock();
        loop {
            match &mut *state {
                State::There(answers) => return take(answers, place),
                State::Awaited(waiters) => waiters.threads = true,
            }
            state = self.came.wait(state).unwrap_or_else(|error| error.into_inner());
        }
    }

    /// Waits for an answer and takes it, unless it is not there by `deadline`.
    #[cfg(not(kvhash_loom))]
    pub(super) fn wait_until(&self, place: usize, deadline: Instant) -> Option<T> {
        let mut state = self.lock();
        loop {
            match &mut *state {
                State::There(answers) => return Some(take(answers, place)),
                State::Awaited(waiters) => waiters.threads = true,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
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
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }
}

fn take<T>(answers: &mut [Option<T>], place: usize) -> T {
    answers[place].take().expect("an answer that nobody else takes")
}

/// Whether a function ended without a panic. What it panicked with is leaked: dropped, it might panic
/// again.
pub(super) fn survives(function: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(function)).map_err(mem::forget).is_ok()
}

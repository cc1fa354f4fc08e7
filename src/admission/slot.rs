//! Where one answer is handed over: from the worker that has it to the ticket that wants it.
//!
//! Both sides hold the slot; each goes through one short lock. Whichever comes second finds what
//! the first has left: the answer, or whom to wake. A side that is gone does not hold the slot.

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

/// A place for one answer.
#[derive(Debug)]
pub(super) struct Slot<T> {
    state: Mutex<State<T>>,
    /// Tells the one thread that sleeps.
    answered: Condvar,
    /// Whether there is an answer, or was: for those who look without locking.
    is_answered: AtomicBool,
}

#[derive(Debug)]
enum State<T> {
    /// No answer yet; and whom to wake when there is.
    Waiting(Waiter),
    /// An answer that nobody has taken.
    Answered(T),
    Taken,
}

/// Who waits for an answer: whoever asked last.
#[derive(Debug)]
#[must_use = "whoever waits has to be woken"]
pub(super) enum Waiter {
    Nobody,
    /// A thread, on the slot's condition.
    Thread,
    Task(Waker),
}

/// That an answer was taken already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken;

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::Waiting(Waiter::Nobody)),
            answered: Condvar::new(),
            is_answered: AtomicBool::new(false),
        }
    }

    /// Leaves the answer; gives whoever waits for it. Only the first answer counts.
    ///
    /// To wake a thread takes longer than to hash a request. So whoever has many answers leaves
    /// all of them first: a thread that waits for one after the other sleeps once.
    pub(super) fn answer(&self, answer: T) -> Option<Waiter> {
        let mut state = self.lock();
        let State::Waiting(waiter) = &mut *state else { return None };
        let waiter = mem::replace(waiter, Waiter::Nobody);
        *state = State::Answered(answer);
        drop(state);
        self.is_answered.store(true, Ordering::Release);
        (!matches!(waiter, Waiter::Nobody)).then_some(waiter)
    }

    /// Wakes whoever waited for the answer, which is there.
    pub(super) fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Nobody => {}
            Waiter::Thread => self.answered.notify_one(),
            // Wakers are the caller's: one that panics costs the others nothing.
            Waiter::Task(waker) => _ = survives(|| waker.wake()),
        }
    }

    /// Takes the answer if it is there.
    pub(super) fn try_take(&self) -> Result<Option<T>, Taken> {
        take(&mut self.lock())
    }

    /// Takes the answer if it is there; otherwise has `waker` woken when it is, and no other.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<T, Taken>> {
        if let State::Waiting(Waiter::Task(old)) = &*self.lock()
            && old.will_wake(waker)
        {
            return Poll::Pending;
        }
        let waker = waker.clone();
        let mut state = self.lock();
        let State::Waiting(waiter) = &mut *state else {
            let taken = take(&mut state);
            drop(state);
            return Poll::Ready(taken.and_then(|answer| answer.ok_or(Taken)));
        };
        let old = mem::replace(waiter, Waiter::Task(waker));
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Has nobody woken who was to be: before the slot is waited for otherwise, or let go of.
    pub(super) fn forget_waker(&self) {
        let mut state = self.lock();
        if let State::Waiting(waiter) = &mut *state {
            let old = mem::replace(waiter, Waiter::Nobody);
            drop(state);
            drop(old);
        }
    }

    /// Waits for the answer and takes it.
    pub(super) fn wait(&self) -> Result<T, Taken> {
        let mut state = self.lock();
        while let State::Waiting(waiter) = &mut *state {
            *waiter = Waiter::Thread;
            state = self.answered.wait(state).unwrap_or_else(|error| error.into_inner());
        }
        take(&mut state)?.ok_or(Taken)
    }

    /// Waits for the answer and takes it, unless it is not there by `deadline`.
    #[cfg(not(kvhash_loom))]
    pub(super) fn wait_until(&self, deadline: Instant) -> Result<Option<T>, Taken> {
        let mut state = self.lock();
        while let State::Waiting(waiter) = &mut *state {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            *waiter = Waiter::Thread;
            let waited = self.answered.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(|error| error.into_inner());
        }
        take(&mut state)
    }

    /// Whether there is an answer, or was.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    /// Under the lock nothing panics and nothing of the caller's runs: wakers are made and dropped
    /// outside of it.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }
}

/// Whether a function ended without a panic. What it panicked with is leaked: dropped, it might panic
/// again.
pub(super) fn survives(function: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(function)).map_err(mem::forget).is_ok()
}

fn take<T>(state: &mut State<T>) -> Result<Option<T>, Taken> {
    match mem::replace(state, State::Taken) {
        waiting @ State::Waiting(_) => {
            *state = waiting;
            Ok(None)
        }
        State::Answered(answer) => Ok(Some(answer)),
        State::Taken => Err(Taken),
    }
}

/// Every order in which the two sides can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// A drop is counted, so that an answer that is lost or doubled shows.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Notify(loom::sync::Arc<loom::sync::Notify>);

    impl Wake for Notify {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    fn check(ticket: impl Fn(&loom::sync::Arc<Slot<Counted>>) + Send + Sync + Copy + 'static) {
        loom::model(move || {
            let drops = Arc::new(AtomicUsize::new(0));
            let slot = loom::sync::Arc::new(Slot::new());
            let worker = {
                let (slot, drops) = (slot.clone(), drops.clone());
                loom::thread::spawn(move || {
                    if let Some(waiter) = slot.answer(Counted(drops)) {
                        slot.wake(waiter);
                    }
                })
            };
            ticket(&slot);
            worker.join().unwrap();
            drop(slot);
            assert_eq!(drops.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn a_thread_that_waits_gets_the_answer() {
        check(|slot| assert!(slot.wait().is_ok()));
    }

    #[test]
    fn a_future_is_woken_and_gets_the_answer() {
        check(|slot| {
            let notify = loom::sync::Arc::new(loom::sync::Notify::new());
            let waker = Waker::from(Arc::new(Notify(notify.clone())));
            loop {
                match slot.poll(&waker) {
                    Poll::Ready(answer) => break assert!(answer.is_ok()),
                    Poll::Pending => notify.wait(),
                }
            }
        });
    }

    #[test]
    fn an_answer_that_was_polled_for_can_be_waited_for() {
        check(|slot| {
            if slot.poll(Waker::noop()).is_pending() {
                assert!(slot.wait().is_ok());
            }
        });
    }

    #[test]
    fn an_answer_is_taken_once() {
        check(|slot| {
            if slot.try_take().is_ok_and(|answer| answer.is_some()) {
                assert_eq!(slot.try_take().err(), Some(Taken));
            }
        });
    }
}

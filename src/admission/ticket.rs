//! What a caller holds while its request is under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
#[cfg(not(kvhash_loom))]
use std::time::{Duration, Instant};

use super::entry::Job;
use super::slot::{Slot, Taken};
use super::waits::linger;
use super::{Answer, TicketError};

/// A claim to the hashes of one request.
///
/// It can be waited for, with and without a deadline, asked, and awaited under any async runtime.
/// Dropped, it cancels the request if that has not begun: a worker that comes to it frees it. The
/// request's memory is otherwise freed when its answer is taken.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket {
    pub(super) slot: Arc<Slot<Box<Job>>>,
    /// Whether no worker slept when the request came: its answer may be there in a moment. To fall
    /// asleep and be woken takes longer, and whoever wakes has less time to hash. A worker that sleeps
    /// is better made room for.
    pub(super) lingers: bool,
    /// Whether it may have left a waker.
    pub(super) polled: bool,
}

impl Ticket {
    /// Waits for the hashes.
    ///
    /// # Errors
    ///
    /// What was wrong with the request, or why there are no hashes.
    pub fn wait(mut self) -> Answer {
        self.wait_for_it()
    }

    /// Waits for the hashes until `deadline`; `None` where they are not there by then. The ticket
    /// stays good; whoever polled it before is not woken any more.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and [`TicketError::Taken`] where they were taken before.
    #[cfg(not(kvhash_loom))]
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Answer> {
        self.forget_waker();
        self.linger(|| Instant::now() < deadline);
        self.slot.wait_until(deadline).transpose().map(answer_of)
    }

    /// Waits for the hashes no longer than `timeout`; otherwise as [`wait_until`](Self::wait_until).
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    #[cfg(not(kvhash_loom))]
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Answer> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.wait_until(deadline),
            // Further off than the clock goes.
            None => Some(self.wait_for_it()),
        }
    }

    fn wait_for_it(&mut self) -> Answer {
        self.forget_waker();
        self.linger(|| true);
        answer_of(self.slot.wait())
    }

    fn forget_waker(&mut self) {
        if self.polled {
            self.slot.forget_waker();
            self.polled = false;
        }
    }

    fn linger(&self, may: impl Fn() -> bool) {
        if self.lingers {
            linger(|| !self.slot.is_answered() && may());
        }
    }

    /// The hashes if they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    pub fn try_take(&mut self) -> Option<Answer> {
        self.slot.try_take().transpose().map(answer_of)
    }
}

impl Future for Ticket {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.polled = true;
        self.slot.poll(context.waker()).map(answer_of)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.forget_waker();
    }
}

fn answer_of(job: Result<Box<Job>, Taken>) -> Answer {
    job?.into_answer()
}

impl From<Taken> for TicketError {
    fn from(_: Taken) -> Self {
        Self::Taken
    }
}

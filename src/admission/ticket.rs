//! What a caller holds while its request is under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
#[cfg(not(kvhash_loom))]
use std::time::{Duration, Instant};

use super::entry::Job;
use super::slot::{Slot, Taken};
use super::{Answer, TicketError};
use crate::plh::PositionalLineageHash;
use crate::scheme::Row;

/// A claim to the hashes of one request.
///
/// It can be waited for, with and without a deadline, asked, and awaited under any async runtime.
/// Dropped, it cancels the request if that has not begun. The request's memory is freed when its
/// answer is taken or its ticket dropped.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket<R: Row = PositionalLineageHash> {
    pub(super) slot: Arc<Slot<Box<Job<R>>>>,
    /// Whether a worker was awake to take the request: its answer may be there in a moment. To fall
    /// asleep and be woken takes longer, and whoever wakes has less time to hash. A worker that sleeps
    /// is better made room for.
    pub(super) lingers: bool,
}

impl<R: Row> Ticket<R> {
    /// Waits for the hashes.
    ///
    /// # Errors
    ///
    /// What was wrong with the request, or why there are no hashes.
    pub fn wait(self) -> Answer<R> {
        self.linger();
        answer_of(self.slot.wait())
    }

    /// Waits for the hashes until `deadline`; `None` where they are not there by then. The ticket
    /// stays good.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and [`TicketError::Taken`] where they were taken before.
    #[cfg(not(kvhash_loom))]
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Answer<R>> {
        if Instant::now() < deadline {
            self.linger();
        }
        self.slot.wait_until(deadline).transpose().map(answer_of)
    }

    /// Waits for the hashes no longer than `timeout`; otherwise as [`wait_until`](Self::wait_until).
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    #[cfg(not(kvhash_loom))]
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Answer<R>> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.wait_until(deadline),
            // Further off than the clock goes.
            None => Some(answer_of(self.slot.wait())),
        }
    }

    fn linger(&self) {
        if self.lingers {
            self.slot.linger();
        }
    }

    /// The hashes if they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    pub fn try_take(&mut self) -> Option<Answer<R>> {
        self.slot.try_take().transpose().map(answer_of)
    }
}

impl<R: Row> Future for Ticket<R> {
    type Output = Answer<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<R>> {
        self.slot.poll(context.waker()).map(answer_of)
    }
}

fn answer_of<R: Row>(job: Result<Box<Job<R>>, Taken>) -> Answer<R> {
    job?.into_answer()
}

impl From<Taken> for TicketError {
    fn from(_: Taken) -> Self {
        Self::Taken
    }
}

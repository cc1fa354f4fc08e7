//! What a caller holds while its request is under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::slot::{Slot, Taken};
use super::worker::Spent;
use super::{Answer, TicketError};
use crate::plh::PositionalLineageHash;
use crate::scheme::Row;

/// A claim to the hashes of one request.
///
/// It can be waited for, with and without a deadline, asked, and awaited under any async runtime.
/// Dropped, it cancels the request if that has not begun.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket<R: Row = PositionalLineageHash> {
    pub(super) slot: Arc<Slot<Answer<R>>>,
    pub(super) spent: Arc<Spent>,
}

impl<R: Row> Ticket<R> {
    /// Waits for the hashes.
    ///
    /// # Errors
    ///
    /// What was wrong with the request, or why there are no hashes.
    pub fn wait(self) -> Answer<R> {
        flat(self.slot.wait())
    }

    /// Waits for the hashes until `deadline`; `None` where they are not there by then. The ticket
    /// stays good.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and [`TicketError::Taken`] where they were taken before.
    #[cfg(not(kvhash_loom))]
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Answer<R>> {
        self.slot.wait_until(deadline).transpose().map(flat)
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
            None => Some(flat(self.slot.wait())),
        }
    }

    /// The hashes if they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    pub fn try_take(&mut self) -> Option<Answer<R>> {
        self.slot.try_take().transpose().map(flat)
    }
}

impl<R: Row> Future for Ticket<R> {
    type Output = Answer<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<R>> {
        self.slot.poll(context.waker()).map(flat)
    }
}

impl<R: Row> Drop for Ticket<R> {
    fn drop(&mut self) {
        self.slot.cancel();
        drop(self.spent.pop());
    }
}

fn flat<R: Row>(answer: Result<Answer<R>, Taken>) -> Answer<R> {
    answer?
}

impl From<Taken> for TicketError {
    fn from(_: Taken) -> Self {
        Self::Taken
    }
}

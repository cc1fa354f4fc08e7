//! What a caller holds while its request is under way.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
#[cfg(not(kvhash_loom))]
use std::thread::{self, Thread};
#[cfg(not(kvhash_loom))]
use std::time::{Duration, Instant};

#[cfg(kvhash_loom)]
use loom::thread::{self, Thread};
use oneshot::AsyncReceiver;

use super::entry::Job;
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
    /// Where the answer comes; `None` once it was taken.
    answer: Option<AsyncReceiver<Job>>,
    /// Whether no worker slept when the request came: its answer may be there in a moment. To fall
    /// asleep and be woken takes longer, and whoever wakes has less time to hash. A worker that sleeps
    /// is better made room for.
    lingers: bool,
}

impl Ticket {
    pub(super) fn new(answer: AsyncReceiver<Job>, lingers: bool) -> Self {
        Self { answer: Some(answer), lingers }
    }

    /// Waits for the hashes.
    ///
    /// # Errors
    ///
    /// What was wrong with the request, or why there are no hashes.
    pub fn wait(mut self) -> Answer {
        self.wait_for_it()
    }

    /// Waits for the hashes until `deadline`; `None` where they are not there by then. The ticket
    /// stays good.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and [`TicketError::Taken`] where they were taken before.
    #[cfg(not(kvhash_loom))]
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Answer> {
        let left = || {
            Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
        };
        self.linger(|| left().is_some());
        self.sleep(|| left().map(thread::park_timeout).ok_or(())).ok()
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
        self.linger(|| true);
        let Ok(answer) = self.sleep(|| {
            thread::park();
            Ok::<_, Infallible>(())
        });
        answer
    }

    fn linger(&self, may: impl Fn() -> bool) {
        if self.lingers {
            linger(|| !self.is_answered() && may());
        }
    }

    /// Has the thread `park` until the answer is there, or as long as it may. Whoever was to be woken
    /// before is not any more.
    fn sleep<E>(&mut self, mut park: impl FnMut() -> Result<(), E>) -> Result<Answer, E> {
        if let Some(answer) = self.try_take() {
            return Ok(answer);
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match Pin::new(&mut *self).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return Ok(answer),
                Poll::Pending => park()?,
            }
        }
    }

    /// The hashes if they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    pub fn try_take(&mut self) -> Option<Answer> {
        // As long as there is no answer, whoever is to be woken stays the same.
        if !self.is_answered() {
            return None;
        }
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Whether there is an answer, or was, or will be none.
    fn is_answered(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| answer.has_message() || answer.is_closed())
    }
}

impl Future for Ticket {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(answer) = &mut self.answer else { return Poll::Ready(Err(TicketError::Taken)) };
        let Poll::Ready(job) = Pin::new(answer).poll(context) else { return Poll::Pending };
        self.answer = None;
        // A job that is lost ended in a panic.
        Poll::Ready(job.map_or(Err(TicketError::Panicked), Job::into_answer))
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use super::*;
    use crate::admission::entry::Entry;
    use crate::engine::Engine;
    use crate::owned_request::OwnedRequest;

    #[test]
    fn an_entry_that_is_dropped_has_no_hashes_and_wakes_its_ticket() {
        let engine = Engine::builder().build().unwrap();
        let request = OwnedRequest::new([7; 40]);
        let room = engine.room_for(&request.as_request());
        assert_eq!(room.plhs().len(), 2);
        let (sender, answer) = oneshot::async_channel();
        let entry = Entry::new(Job::new(request, room), sender);
        assert!(!entry.is_cancelled());
        let mut ticket = Ticket::new(answer, false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || ticket.wait_timeout(Duration::from_secs(10)));
            drop(entry);
            assert_eq!(waiting.join().unwrap(), Some(Err(TicketError::Panicked)));
        });
    }
}

/// Every order in which a worker and a ticket can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use std::sync::OnceLock;

    use super::*;
    use crate::admission::entry::{Entry, answer_all};
    use crate::engine::Engine;
    use crate::owned_request::OwnedRequest;

    struct Notify(loom::sync::Arc<loom::sync::Notify>);

    impl Wake for Notify {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    fn check(ask: impl Fn(Ticket) + Send + Sync + Copy + 'static) {
        // Made once: it is not what is checked.
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        let engine = ENGINE.get_or_init(|| Engine::builder().build().unwrap());
        loom::model(move || {
            let tokens: Arc<[u32]> = [7; 40].into();
            let request = OwnedRequest::shared(Arc::clone(&tokens));
            let room = engine.room_for(&request.as_request());
            let (sender, answer) = oneshot::async_channel();
            let mut entry = Entry::new(Job::new(request, room), sender);
            let worker = thread::spawn(move || {
                entry.job.end(Ok(()));
                answer_all(&mut vec![entry]);
            });
            ask(Ticket::new(answer, false));
            worker.join().unwrap();
            assert_eq!(Arc::strong_count(&tokens), 1, "the job was not dropped once");
        });
    }

    #[test]
    fn a_thread_that_waits_gets_the_answer() {
        check(|ticket| assert!(ticket.wait().is_ok()));
    }

    #[test]
    fn a_future_is_woken_and_gets_the_answer() {
        check(|mut ticket| {
            let notify = loom::sync::Arc::new(loom::sync::Notify::new());
            let waker = Waker::from(Arc::new(Notify(notify.clone())));
            loop {
                match Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(answer) => break assert!(answer.is_ok()),
                    Poll::Pending => notify.wait(),
                }
            }
        });
    }

    #[test]
    fn an_answer_that_was_polled_for_can_be_waited_for() {
        check(|mut ticket| {
            if Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                assert!(ticket.wait().is_ok());
            }
        });
    }

    #[test]
    fn an_answer_is_taken_once() {
        check(|mut ticket| {
            if let Some(answer) = ticket.try_take() {
                assert!(answer.is_ok());
                assert_eq!(ticket.try_take(), Some(Err(TicketError::Taken)));
            }
        });
    }

    #[test]
    fn a_ticket_can_be_dropped() {
        check(drop);
        check(|mut ticket| {
            _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
        });
    }
}

//! What a caller holds while its request is under way.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
#[cfg(not(kvhash_loom))]
use std::time::{Duration, Instant};

use super::group::Place;
use super::job::EndedJob;
use super::waits::linger;
use super::{Answer, TicketError};
use crate::error::RequestError;

/// A claim to the hashes of one request.
///
/// It can be waited for, with and without a deadline, asked, and awaited under any async runtime.
/// Dropped, it cancels the request if that has not begun: a worker that comes to it frees it. The
/// request is otherwise freed when its answer is taken, or when it has been hashed for nobody. A ticket
/// that is kept, even after its answer is there, keeps the record of a group of up to 64: up to 7 KB.
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket {
    /// Where its answer will be; what it is answered with where there is no such place.
    place: Result<Place, TicketError>,
    /// Whether no worker slept when the request came: its answer may be there in a moment. To fall
    /// asleep and be woken takes longer, and whoever wakes has less time to hash. A worker that sleeps
    /// is better made room for.
    lingers: bool,
    /// Whether it may have left a waker.
    polled: bool,
}

impl Ticket {
    pub(super) fn new(place: Place, lingers: bool) -> Self {
        Self { place: Ok(place), lingers, polled: false }
    }

    /// That of a request that cannot be hashed.
    pub(super) fn failed(error: RequestError) -> Self {
        Self { place: Err(error.into()), lingers: false, polled: false }
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
    /// stays good, and whoever polled it before is then not woken any more.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and [`TicketError::Taken`] where they were taken before.
    #[cfg(not(kvhash_loom))]
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Answer> {
        self.prepare_to_wait(|| Instant::now() < deadline);
        self.take_by(|place| place.answers.wait_until(place.index, deadline))
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
        self.prepare_to_wait(|| true);
        let place = self.give_place_up()?;
        place.answers.wait(place.index).into_answer()
    }

    /// Has nobody else woken, and gives the answer some time to come, as long as it `may`.
    fn prepare_to_wait(&mut self, may: impl Fn() -> bool) {
        let Ok(place) = &self.place else { return };
        if mem::take(&mut self.polled) {
            place.answers.forget_waker(place.index);
        }
        if self.lingers {
            linger(|| !place.answers.are_there() && may());
        }
    }

    /// The hashes if they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_until`](Self::wait_until).
    pub fn try_take(&mut self) -> Option<Answer> {
        self.take_by(|place| place.answers.try_take(place.index))
    }

    fn take_by(&mut self, take: impl FnOnce(&Place) -> Option<EndedJob>) -> Option<Answer> {
        let job = match &self.place {
            Ok(place) => Ok(take(place)?),
            Err(error) => Err(*error),
        };
        self.place = Err(TicketError::Taken);
        Some(job.and_then(EndedJob::into_answer))
    }

    /// Its place, if its answer is still to be taken there.
    fn give_place_up(&mut self) -> Result<Place, TicketError> {
        mem::replace(&mut self.place, Err(TicketError::Taken))
    }
}

impl Future for Ticket {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.polled = true;
        let poll = |place: &Place| match place.answers.poll(place.index, context.waker()) {
            Poll::Ready(job) => Some(job),
            Poll::Pending => None,
        };
        self.take_by(poll).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Ok(place) = self.give_place_up() {
            place.answers.give_up(place.index);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("has_place", &self.place.is_ok()).finish_non_exhaustive()
    }
}

/// Every order in which a ticket and its worker can meet.
#[cfg(all(test, kvhash_loom))]
mod orders {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::admission::group::{Group, answer_all};
    use crate::admission::job::{Job, Outcome};
    use crate::lineages::OwnedLineage;
    use crate::owned_request::OwnedRequest;

    struct Notify(loom::sync::Arc<loom::sync::Notify>);

    impl Wake for Notify {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    fn poll(ticket: &mut Ticket, waker: &Waker) -> Poll<Answer> {
        pin!(ticket).poll(&mut Context::from_waker(waker))
    }

    /// Two tickets of a group, which does with them what it is to do while a worker ends the group.
    /// Whatever that is, the requests are freed.
    fn check(run: impl Fn([Ticket; 2]) + Send + Sync + Copy + 'static) {
        loom::model(move || {
            let tokens: Arc<[u32]> = [1].into();
            let mut group = Group::with_room(2);
            let tickets = [(); 2].map(|()| {
                let request = OwnedRequest::shared(Arc::clone(&tokens));
                Ticket::new(group.push(Job::new(request, OwnedLineage::empty())), false)
            });
            let worker = loom::thread::spawn(move || {
                group.drop_cancelled();
                answer_all(&mut vec![group], Outcome::Hashed);
            });
            run(tickets);
            worker.join().unwrap();
            assert_eq!(Arc::strong_count(&tokens), 1);
        });
    }

    #[test]
    fn a_thread_that_waits_gets_the_answers() {
        check(|tickets| tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok())));
    }

    #[test]
    fn two_threads_that_wait_get_the_answers() {
        check(|[first, second]| {
            let other = loom::thread::spawn(|| assert!(second.wait().is_ok()));
            assert!(first.wait().is_ok());
            other.join().unwrap();
        });
    }

    #[test]
    fn a_future_is_woken_and_gets_the_answer() {
        check(|[mut ticket, _dropped]| {
            let notify = loom::sync::Arc::new(loom::sync::Notify::new());
            let waker = Waker::from(Arc::new(Notify(notify.clone())));
            loop {
                match poll(&mut ticket, &waker) {
                    Poll::Ready(answer) => break assert!(answer.is_ok()),
                    Poll::Pending => notify.wait(),
                }
            }
        });
    }

    #[test]
    fn an_answer_that_was_polled_for_can_be_waited_for() {
        check(|[mut ticket, _dropped]| {
            if poll(&mut ticket, Waker::noop()).is_pending() {
                assert!(ticket.wait().is_ok());
            }
        });
    }

    #[test]
    fn an_answer_is_taken_once() {
        check(|[mut ticket, _dropped]| {
            if ticket.try_take().is_some_and(|answer| answer.is_ok()) {
                assert_eq!(ticket.try_take(), Some(Err(TicketError::Taken)));
            }
        });
    }

    #[test]
    fn a_ticket_is_dropped_with_and_without_a_waker() {
        check(|[mut polled, dropped]| {
            drop(dropped);
            _ = poll(&mut polled, Waker::noop());
        });
    }
}

//! Requests that leave the queue together and are answered together.

use std::mem;
use std::sync::Arc;

use super::answers::{Answers, Ended, Waiters};
use super::job::{Job, Jobs, Outcome};
use crate::engine::PlannedRequest;

/// How many requests make a group at the most. As long as one ticket of a group is there, so is the
/// record of all: up to a hundred bytes a request.
pub(super) const LARGEST_GROUP: usize = 64;

/// Requests with one place for their answers. However a group ends, its tickets are answered.
pub(super) struct Group {
    /// None when they are handed over.
    jobs: Jobs,
    answers: Arc<Answers>,
}

/// Where the answer of one job will be.
pub(super) struct Place {
    pub(super) answers: Arc<Answers>,
    pub(super) index: usize,
}

impl Group {
    pub(super) fn with_room(jobs: usize) -> Self {
        Self { jobs: Jobs::with_room(jobs), answers: Arc::new(Answers::new()) }
    }

    /// How many jobs came, those included whose tickets were dropped.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Adds a job.
    pub(super) fn push(&mut self, job: Job) -> Place {
        self.jobs.push(job);
        Place { answers: Arc::clone(&self.answers), index: self.jobs.len() - 1 }
    }

    /// Has the first jobs fetched, while there is something else to do.
    pub(super) fn fetch_start(&self) {
        self.jobs.fetch_start();
    }

    /// For how many jobs there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.jobs.room()
    }

    /// Drops the jobs whose tickets were dropped.
    pub(super) fn drop_cancelled(&mut self) {
        for index in self.answers.take_given_up() {
            drop(self.jobs.take(index));
        }
    }

    /// The requests that are to be hashed, in the order in which they came.
    pub(super) fn planned(&mut self) -> impl Iterator<Item = PlannedRequest<'_>> {
        self.jobs.planned()
    }

    /// Hands the jobs over, and gives whoever is to be woken.
    fn answer(&mut self, outcome: Outcome) -> Waiters {
        self.answers.give(Ended { jobs: mem::take(&mut self.jobs), outcome })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.jobs.len() > 0 {
            // As if a panic had ended it, which it may have.
            let waiters = self.answer(Outcome::Panicked);
            self.answers.wake_threads(&waiters);
            Answers::wake(waiters);
        }
    }
}

/// Answers all, and then wakes those who wait, the first ones first: threads before wakers, which are the
/// caller's and may take a lock that such a thread holds.
///
/// To wake a thread takes longer than to hash a request: one that waits for one answer after the other
/// is to sleep once. From the last group to the first, so that one that is awake then finds all of
/// them, and does not ask for each while it is handed over.
pub(super) fn answer_all(batch: &mut Vec<Group>, outcome: Outcome) {
    let mut waiting = Vec::new();
    for mut group in batch.drain(..).rev() {
        let waiters = group.answer(outcome);
        if !waiters.are_none() {
            waiting.push((Arc::clone(&group.answers), waiters));
        }
    }
    for (answers, waiters) in waiting.iter().rev() {
        answers.wake_threads(waiters);
    }
    waiting.into_iter().rev().for_each(|(_, waiters)| Answers::wake(waiters));
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::task::Wake;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::admission::TicketError;
    use crate::lineages::OwnedLineage;
    use crate::owned_request::OwnedRequest;

    #[test]
    fn a_group_that_is_dropped_has_no_hashes_and_wakes_its_tickets() {
        let mut group = Group::with_room(2);
        let places = [1, 2].map(|number| group.push(Job::numbered(number)));
        thread::scope(|scope| {
            let deadline = Instant::now() + Duration::from_secs(10);
            let waiting = places
                .map(|place| scope.spawn(move || place.answers.wait_until(place.index, deadline)));
            drop(group);
            for waits in waiting {
                let ended = waits.join().unwrap().expect("an answer");
                assert_eq!(ended.into_answer(), Err(TicketError::Panicked));
            }
        });
    }

    #[test]
    fn threads_are_woken_before_wakers_of_any_group_run() {
        /// Waits for a thread that waits for the other group.
        struct Waits(Mutex<Receiver<()>>, AtomicBool);
        impl Wake for Waits {
            fn wake(self: Arc<Self>) {
                let came = self.0.lock().unwrap().recv_timeout(Duration::from_secs(10)).is_ok();
                self.1.store(came, Ordering::SeqCst);
            }
        }
        let mut groups = [1, 2].map(|_| Group::with_room(1));
        let [polled, waited] = [0, 1].map(|i| groups[i].push(Job::numbered(1)));
        let (sender, receiver) = channel();
        let waker = Arc::new(Waits(Mutex::new(receiver), AtomicBool::new(false)));
        assert!(polled.answers.poll(polled.index, &Arc::clone(&waker).into()).is_pending());
        thread::scope(|scope| {
            scope.spawn(move || {
                waited.answers.wait(waited.index);
                sender.send(()).unwrap();
            });
            // It is asleep by then; where it is not, it needs nobody.
            thread::sleep(Duration::from_millis(50));
            answer_all(&mut groups.into(), Outcome::Hashed);
        });
        assert!(waker.1.load(Ordering::SeqCst), "the thread slept on");
    }

    #[test]
    fn each_has_its_own_job_and_what_came_of_it() {
        let mut group = Group::with_room(0);
        let places = [1, 2, 3].map(|number| group.push(Job::numbered(number)));
        places[1].answers.give_up(places[1].index);
        assert!(!places[0].answers.are_there());
        answer_all(&mut vec![group], Outcome::Aborted);
        assert!(places[0].answers.are_there());
        for i in [2, 0] {
            let ended = places[i].answers.try_take(places[i].index).unwrap();
            assert_eq!(ended.job.number() as usize, i + 1);
            assert_eq!(ended.into_answer(), Err(TicketError::Aborted));
        }
    }

    #[test]
    fn what_nobody_wants_is_freed_as_soon_as_it_is_not_worked_on() {
        let tokens: Arc<[u32]> = [1].into();
        let job = || Job::new(OwnedRequest::shared(Arc::clone(&tokens)), OwnedLineage::empty());
        let held = || Arc::strong_count(&tokens) - 1;
        let mut group = Group::with_room(3);
        let places = [(); 3].map(|()| group.push(job()));
        let give_up = |place: &Place| place.answers.give_up(place.index);
        // Before it is worked on,
        give_up(&places[2]);
        group.drop_cancelled();
        assert_eq!((group.len(), held()), (3, 2));
        // while it is,
        give_up(&places[0]);
        assert_eq!(held(), 2);
        answer_all(&mut vec![group], Outcome::Hashed);
        assert_eq!(held(), 1);
        // and later, whoever else holds the group.
        give_up(&places[1]);
        assert_eq!(held(), 0);
    }
}

//! Requests that leave the queue together and are answered together.

use std::mem;
use std::sync::Arc;

use super::answers::{Answers, Waiters};
use crate::fetch::fetch_all_to_write;

/// How many requests make a group at the most. As long as one ticket of a group is there, so is the
/// record of all: some hundred bytes a request.
pub(super) const LARGEST_GROUP: usize = 64;

/// Jobs that lie one after the other, so that a worker reads them as one piece. However a group ends,
/// its tickets are answered.
pub(super) struct Group<T> {
    /// `None` where a ticket was dropped.
    jobs: Vec<Option<T>>,
    answers: Arc<Answers<T>>,
}

/// Where the answer of one job will be.
pub(super) struct Place<T> {
    pub(super) answers: Arc<Answers<T>>,
    pub(super) index: usize,
}

impl<T> Group<T> {
    pub(super) fn with_room(jobs: usize) -> Self {
        Self { jobs: Vec::with_capacity(jobs), answers: Arc::new(Answers::new()) }
    }

    /// How many jobs came.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Adds a job.
    pub(super) fn push(&mut self, job: T) -> Place<T> {
        self.jobs.push(Some(job));
        Place { answers: Arc::clone(&self.answers), index: self.jobs.len() - 1 }
    }

    /// Asks for the lines of the jobs, which other cores wrote and this one will.
    pub(super) fn fetch(&self) {
        self.jobs.iter().for_each(fetch_all_to_write);
    }

    /// Drops the jobs whose tickets were dropped.
    pub(super) fn drop_cancelled(&mut self) {
        for index in self.answers.take_given_up() {
            self.jobs[index] = None;
        }
    }

    /// The jobs, without those that were dropped.
    pub(super) fn jobs(&mut self) -> impl Iterator<Item = &mut T> {
        self.jobs.iter_mut().flatten()
    }

    /// Hands the jobs over; gives whoever waits for them.
    fn answer(&mut self) -> Waiters {
        self.answers.give(mem::take(&mut self.jobs))
    }

    fn answered(mut self) -> Sleepers<T> {
        let waiters = self.answer();
        Sleepers { answers: Arc::clone(&self.answers), waiters }
    }
}

impl<T> Drop for Group<T> {
    fn drop(&mut self) {
        let waiters = self.answer();
        self.answers.wake(waiters);
    }
}

/// Those who wait for answers that are there now. Woken when this is dropped, so that nobody sleeps on
/// whatever happens in between.
struct Sleepers<T> {
    answers: Arc<Answers<T>>,
    waiters: Waiters,
}

impl<T> Drop for Sleepers<T> {
    fn drop(&mut self) {
        self.answers.wake(mem::take(&mut self.waiters));
    }
}

/// Answers all, and then wakes those who wait.
///
/// From the last to the first: whoever is awake and waits for one after the other then finds all
/// of them, and does not ask for each group while it is handed over.
pub(super) fn answer_all<T>(batch: &mut Vec<Group<T>>) {
    let mut sleepers: Vec<Sleepers<T>> = batch.drain(..).rev().map(Group::answered).collect();
    // Who came first is woken first.
    sleepers.reverse();
    drop(sleepers);
}

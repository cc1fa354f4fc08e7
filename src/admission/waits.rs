//! Who waits stays awake for a while: to fall asleep and be woken takes longer than to hash a prompt,
//! and takes from whoever wakes the time to hash some.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem};

use crossbeam::utils::Backoff;

use super::group::Group;
use super::queue::Queue;

/// How long somebody who waits stays awake at the most: about what it takes until a thread that sleeps
/// is at work, so that staying awake never costs more than twice what sleeping would.
const LONGEST_SPIN: Duration = Duration::from_micros(100);

/// Requests that come so soon one after the other are worth waiting for: see
/// [`let_group_fill`](Waits::let_group_fill).
const SOON: Duration = Duration::from_micros(1);

/// How many batches are taken as they are after one that was waited for in vain: a single request that
/// comes after the answer to the last one pays little.
const TAKEN_AS_THEY_ARE: u32 = 7;

/// Stays awake as long as it `may`: some microseconds, and a turn or two of others who want the CPU;
/// where it is to be `long`, up to [`LONGEST_SPIN`].
fn stay_awake(may: impl Fn() -> bool, long: bool) {
    let (start, backoff) = (Instant::now(), Backoff::new());
    while may() && (!backoff.is_completed() || long && start.elapsed() < LONGEST_SPIN) {
        // Leaves the CPU to others who want it.
        backoff.snooze();
    }
}

/// Does nothing for a time that is too short to do anything else.
fn while_away(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        hint::spin_loop();
    }
}

/// How a worker waits: awake, as long as what it waits for keeps coming soon. Where requests are far
/// apart it sleeps after some microseconds: of a few that come together it takes the first alone.
#[derive(Default)]
pub(super) struct Waits {
    last_was_short: bool,
    /// How many batches are still [`TAKEN_AS_THEY_ARE`].
    as_they_are: u32,
}

impl Waits {
    /// Takes the next groups that come; none when nothing more can come.
    pub(super) fn take(&mut self, queue: &Queue, batch: &mut Vec<Group>) {
        let start = Instant::now();
        stay_awake(|| queue.is_idle(), self.last_was_short);
        if start.elapsed() < SOON {
            self.let_group_fill(queue, || while_away(SOON));
        }
        queue.take(batch);
        self.last_was_short = start.elapsed() < LONGEST_SPIN;
    }

    /// Gives requests that keep coming the time to be a group. Where whoever submits takes longer for a
    /// request than a worker, that would otherwise find one or two each time, and have the other pay for a
    /// group, for the lock and for its answers with each: which makes it slower still.
    fn let_group_fill(&mut self, queue: &Queue, pause: impl Fn()) {
        if self.as_they_are > 0 {
            self.as_they_are -= 1;
            return;
        }
        let first = queue.len();
        let mut waiting = first;
        while !queue.has_full_group() {
            pause();
            let before = mem::replace(&mut waiting, queue.len());
            if waiting <= before {
                // These are all. Where some came, the next ones are waited for, too.
                self.as_they_are = if waiting > first { 0 } else { TAKEN_AS_THEY_ARE };
                return;
            }
        }
    }

    /// Takes the next groups if they fill a batch.
    pub(super) fn take_full(&mut self, queue: &Queue, batch: &mut Vec<Group>) {
        queue.take_full(batch);
        self.last_was_short |= !batch.is_empty();
    }
}

/// Gives something some time to come, as long as it `may`. One thread of the process at a time stays
/// awake for long: more would keep CPUs from those who work.
pub(super) fn linger(may: impl Fn() -> bool) {
    // Most often it is there.
    if may() {
        let seat = Seat::take();
        stay_awake(may, seat.is_some());
    }
}

/// Whether somebody stays awake for long.
static SEAT_IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The one place of a thread that stays awake for long, as long as it is held.
struct Seat(());

impl Seat {
    fn take() -> Option<Self> {
        (!SEAT_IS_TAKEN.swap(true, Ordering::Relaxed)).then(|| Self(()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SEAT_IS_TAKEN.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;
    use crate::admission::job::Job;

    fn push(queue: &Queue) {
        assert!(queue.push(Job::numbered(1)).is_ok());
    }

    fn next(waits: &mut Waits, queue: &Queue) -> usize {
        let mut batch = Vec::new();
        waits.take(queue, &mut batch);
        batch.iter().map(Group::len).sum()
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes time, and Miri takes more")]
    fn a_worker_stays_awake_while_requests_come_soon() {
        let (queue, mut waits) = (Queue::new(1, 1), Waits::default());
        // What is there at once was a short wait, unless something came between.
        while !waits.last_was_short {
            push(&queue);
            assert_eq!(next(&mut waits, &queue), 1);
        }
        // And what comes late was not: awake at first, and then asleep.
        for awake in [true, false] {
            assert_eq!(waits.last_was_short, awake);
            waits.as_they_are = 2;
            thread::scope(|scope| {
                scope.spawn(|| {
                    let start = Instant::now();
                    while !queue.has_sleepers() {
                        assert!(start.elapsed() < Duration::from_secs(10), "it never sleeps");
                        thread::yield_now();
                    }
                    thread::sleep(2 * LONGEST_SPIN);
                    push(&queue);
                });
                assert_eq!(next(&mut waits, &queue), 1);
            });
            assert!(!waits.last_was_short);
            // Whoever waited for long does not wait for more of it.
            assert_eq!(waits.as_they_are, 2);
        }
        assert!(!queue.has_sleepers());
        // A full batch that is taken in passing is a short wait; less is left where it is.
        let (queue_of_two, mut batch) = (Queue::new(2, 2), Vec::new());
        for (was_short, groups) in [(false, 0), (true, 1), (true, 0)] {
            push(&queue_of_two);
            waits.take_full(&queue_of_two, &mut batch);
            assert_eq!((batch.drain(..).len(), waits.last_was_short), (groups, was_short));
        }
        // What comes soon is given time to be more, unless something came between.
        let (queue_of_nine, mut waits) = (Queue::new(9, 4), Waits::default());
        assert!((0..10_000).any(|_| {
            push(&queue_of_nine);
            assert_eq!(next(&mut waits, &queue_of_nine), 1);
            waits.as_they_are == TAKEN_AS_THEY_ARE
        }));
        let start = Instant::now();
        while_away(SOON);
        assert!(start.elapsed() >= SOON);
        // Awake or asleep, it sees the end.
        queue.close();
        for last_was_short in [true, false] {
            assert_eq!(next(&mut Waits { last_was_short, as_they_are: 0 }, &queue), 0);
        }
    }

    #[test]
    fn what_keeps_coming_becomes_a_group() {
        for (capacity, largest_batch, before, come, pauses, as_they_are) in [
            // Full groups are not waited for,
            (9, 4, 4, &[][..], 0, 0),
            (9, 4, 5, &[], 0, 0),
            // nor are those that cannot become full.
            (2, 4, 2, &[], 0, 0),
            // Others are until they are full,
            (9, 4, 1, &[1, 2], 2, 0),
            // or no more come. That is tried again at once where some came.
            (9, 4, 1, &[1, 0], 2, 0),
            (9, 4, 1, &[0], 1, TAKEN_AS_THEY_ARE),
            (9, 4, 3, &[0], 1, TAKEN_AS_THEY_ARE),
        ] {
            let (queue, mut waits) = (Queue::new(capacity, largest_batch), Waits::default());
            (0..before).for_each(|_| push(&queue));
            let paused = Cell::new(0);
            let pause = || {
                (0..come[paused.replace(paused.get() + 1)]).for_each(|_| push(&queue));
            };
            waits.let_group_fill(&queue, pause);
            assert_eq!(
                (paused.get(), waits.as_they_are),
                (pauses, as_they_are),
                "{before} {come:?}"
            );
            // After one in vain some are taken as they are, and then it is tried again.
            for left in (0..as_they_are).rev() {
                waits.let_group_fill(&queue, || panic!("a pause"));
                assert_eq!(waits.as_they_are, left);
            }
            if as_they_are > 0 {
                waits.let_group_fill(&queue, || (before..4).for_each(|_| push(&queue)));
                assert_eq!((queue.len(), waits.as_they_are), (4, 0));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes time, and Miri takes more")]
    fn one_thread_at_a_time_lingers_for_long() {
        let how_long = || {
            let start = Instant::now();
            linger(|| start.elapsed() < Duration::from_secs(10));
            start.elapsed()
        };
        // Whatever the system puts in between, sooner or later one is undisturbed.
        let some = |is: fn(Duration) -> bool| (0..10_000).any(|_| is(how_long()));
        assert!(some(|time| time >= LONGEST_SPIN), "nobody stays awake");
        let seat = (0..10_000).find_map(|_| {
            thread::yield_now();
            Seat::take()
        });
        let seat = seat.expect("a seat that other tests leave");
        assert!((0..2).all(|_| Seat::take().is_none()));
        assert!(some(|time| time < LONGEST_SPIN), "all stay awake");
        drop(seat);
        // And what is there is not waited for.
        linger(|| false);
    }
}

//! Who waits stays awake for a while: to fall asleep and be woken takes longer than to hash a prompt,
//! and takes from whoever wakes the time to hash some.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam::utils::Backoff;

use super::group::Group;
use super::queue::Queue;

/// How long somebody who waits stays awake at the most: about what it takes until a thread that sleeps
/// is at work, so that staying awake never costs more than twice what sleeping would.
const LONGEST_SPIN: Duration = Duration::from_micros(100);

/// Stays awake as long as it `may`: some microseconds, and a turn or two of others who want the CPU;
/// where it is to be `long`, up to [`LONGEST_SPIN`].
fn stay_awake(may: impl Fn() -> bool, long: bool) {
    let (start, backoff) = (Instant::now(), Backoff::new());
    while may() && (!backoff.is_completed() || long && start.elapsed() < LONGEST_SPIN) {
        // Leaves the CPU to others who want it.
        backoff.snooze();
    }
}

/// How a worker waits: awake, as long as what it waits for keeps coming soon. Where requests are far
/// apart it sleeps after some microseconds: of a few that come together it takes the first alone.
#[derive(Default)]
pub(super) struct Waits {
    last_was_short: bool,
}

impl Waits {
    /// Takes the next groups that come; none when nothing more can come.
    pub(super) fn take(&mut self, queue: &Queue, batch: &mut Vec<Group>) {
        let start = Instant::now();
        stay_awake(|| queue.is_idle(), self.last_was_short);
        queue.take(batch);
        self.last_was_short = start.elapsed() < LONGEST_SPIN;
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
        }
        assert!(!queue.has_sleepers());
        // A full batch that is taken in passing is a short wait; less is left where it is.
        let (queue_of_two, mut batch) = (Queue::new(2, 2), Vec::new());
        for (was_short, groups) in [(false, 0), (true, 1), (true, 0)] {
            push(&queue_of_two);
            waits.take_full(&queue_of_two, &mut batch);
            assert_eq!((batch.drain(..).len(), waits.last_was_short), (groups, was_short));
        }
        // Awake or asleep, it sees the end.
        queue.close();
        for last_was_short in [true, false] {
            assert_eq!(next(&mut Waits { last_was_short }, &queue), 0);
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

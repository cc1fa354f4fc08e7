//! The shortest time that something takes, on a machine that is shared.

use std::time::{Duration, Instant};

/// How often every contender gets its turn: a machine that slows down for a while should not
/// slow down one of them alone. With one repetition a turn it is also the least number of them.
const ROUNDS: u32 = 3;

/// What is shorter is repeated within a sample: reading the clock takes some 50 ns, which
/// should stay under 1 %.
const SHORTEST_SAMPLE: Duration = Duration::from_micros(20);

/// The shortest time of each contender, in nanoseconds, from about `budget` for all together.
/// `run` runs the contender of a number once.
pub(crate) fn shortest_times(
    contenders: usize,
    budget: Duration,
    mut run: impl FnMut(usize),
) -> Vec<f64> {
    let turn = budget / (ROUNDS * contenders as u32);
    let mut shortest = vec![f64::INFINITY; contenders];
    for _ in 0..ROUNDS {
        for (contender, shortest) in shortest.iter_mut().enumerate() {
            *shortest = shortest.min(take_turn(turn, || run(contender)));
        }
    }
    shortest
}

/// The shortest time of one run, after one that is not counted: it brings back the data and the
/// threads.
fn take_turn(turn: Duration, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    let runs = SHORTEST_SAMPLE.as_nanos().div_ceil(start.elapsed().as_nanos().max(1));
    let mut shortest = f64::INFINITY;
    loop {
        let sample = Instant::now();
        for _ in 0..runs {
            run();
        }
        shortest = shortest.min(sample.elapsed().as_nanos() as f64 / runs as f64);
        if start.elapsed() >= turn {
            return shortest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_is_warmed_up_and_runs_three_times_at_the_least() {
        let mut runs = [0; 2];
        let times = shortest_times(2, Duration::ZERO, |contender| {
            runs[contender] += 1;
            std::thread::sleep(SHORTEST_SAMPLE);
        });
        assert_eq!(runs, [6, 6]);
        assert!(times.iter().all(|time| *time >= SHORTEST_SAMPLE.as_nanos() as f64));
    }
}

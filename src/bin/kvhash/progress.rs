//! Progress on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::ProgressWhen;

/// How often a line is written where progress is asked for and there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// How far the work is.
pub(crate) struct Progress {
    pub(crate) bar: ProgressBar,
    unit: Unit,
    /// When the last line was written, where lines are.
    last_line: Option<Instant>,
}

impl Progress {
    /// `total` is the size of the inputs in bytes, where it is known.
    pub(crate) fn new(when: ProgressWhen, quiet: bool, total: Option<u64>) -> Self {
        Self::in_units(Unit::Bytes, when, quiet, total)
    }

    /// `total` is the number of steps, each with a message of its own.
    pub(crate) fn of_steps(when: ProgressWhen, quiet: bool, total: u64) -> Self {
        Self::in_units(Unit::Steps, when, quiet, Some(total))
    }

    fn in_units(unit: Unit, when: ProgressWhen, quiet: bool, total: Option<u64>) -> Self {
        let terminal = io::stderr().is_terminal();
        let wanted = match when {
            ProgressWhen::Auto => terminal && !quiet,
            ProgressWhen::Always => true,
            ProgressWhen::Never => false,
        };
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        if wanted && terminal {
            let template = match (unit, total) {
                (Unit::Bytes, Some(_)) => {
                    "{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}"
                }
                (Unit::Bytes, None) => "{spinner} {bytes} {binary_bytes_per_sec}",
                (Unit::Steps, _) => "{bar:40} {pos}/{len} {msg}",
            };
            bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar, unit, last_line: (wanted && !terminal).then(Instant::now) }
    }

    /// Called as results come in.
    pub(crate) fn tick(&mut self) {
        if let Some(last) = &mut self.last_line
            && last.elapsed() >= BETWEEN_LINES
        {
            *last = Instant::now();
            let done = self.unit.text(self.bar.position());
            match self.bar.length() {
                Some(total) => say(&format!("{done} of {}", self.unit.text(total))),
                None => say(&done),
            }
        }
    }

    /// Says something above the bar.
    pub(crate) fn say(&self, text: &str) {
        self.bar.suspend(|| say(text));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What progress is counted in.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Bytes,
    Steps,
}

impl Unit {
    fn text(self, count: u64) -> String {
        match self {
            Self::Bytes => HumanBytes(count).to_string(),
            Self::Steps => count.to_string(),
        }
    }
}

/// Says something on standard error. Where nobody can hear it, the work is worth no less; and
/// what comes from the input does not get to move the cursor.
pub(crate) fn say(text: &str) {
    let printable: String = text
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    let _ = writeln!(io::stderr(), "kvhash: {printable}");
}

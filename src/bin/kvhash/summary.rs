//! What a run did, in figures.

use std::ops::AddAssign;
use std::time::Duration;

use kvhash::Backend;
use serde_json::{Value, json};

/// Counts and times, of a chunk or of a run. The times of several threads add up.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    /// Lines that are not blank.
    pub(crate) requests: u64,
    /// Tokens of the requests that have their hashes.
    pub(crate) tokens: u64,
    pub(crate) blocks: u64,
    pub(crate) errors: u64,
    pub(crate) decode: Duration,
    pub(crate) hash: Duration,
    /// Making records and writing them.
    pub(crate) write: Duration,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.blocks += other.blocks;
        self.errors += other.errors;
        self.decode += other.decode;
        self.hash += other.hash;
        self.write += other.write;
    }
}

/// A run at its end.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) totals: Totals,
    /// From start to end by the clock.
    pub(crate) elapsed: Duration,
    pub(crate) scheme: &'static str,
    pub(crate) backend: Backend,
    pub(crate) threads: usize,
}

impl Summary {
    fn tokens_per_second(&self) -> f64 {
        self.totals.tokens as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Of token ids, 4 bytes each.
    fn gigabytes_per_second(&self) -> f64 {
        4.0 * self.tokens_per_second() / 1e9
    }

    pub(crate) fn to_line(&self) -> String {
        let Totals { requests, tokens, blocks, errors, decode, hash, write } = self.totals;
        format!(
            "{}, {}, {}, {} in {:.3} s (decode {:.3}, hash {:.3}, write {:.3}); {:.1} M tokens/s, \
             {:.3} GB/s; {}, {}, {}",
            count(requests, "request"),
            count(tokens, "token"),
            count(blocks, "block"),
            count(errors, "error"),
            self.elapsed.as_secs_f64(),
            decode.as_secs_f64(),
            hash.as_secs_f64(),
            write.as_secs_f64(),
            self.tokens_per_second() / 1e6,
            self.gigabytes_per_second(),
            self.scheme,
            self.backend,
            count(self.threads as u64, "thread"),
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        let totals = &self.totals;
        json!({
            "requests": totals.requests,
            "tokens": totals.tokens,
            "blocks": totals.blocks,
            "errors": totals.errors,
            "seconds": {
                "total": self.elapsed.as_secs_f64(),
                "decode": totals.decode.as_secs_f64(),
                "hash": totals.hash.as_secs_f64(),
                "write": totals.write.as_secs_f64(),
            },
            "tokens_per_second": self.tokens_per_second(),
            "gb_per_second": self.gigabytes_per_second(),
            "scheme": self.scheme,
            "backend": self.backend.name(),
            "threads": self.threads,
        })
    }
}

fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

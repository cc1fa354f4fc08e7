//! The command line. Each file is one step: `args` reads flags, `hash`, `inspect`, `synth` and
//! `bench` are the commands; under `hash`, `input` cuts files into chunks of lines, `decode` turns lines into
//! requests, `record` writes results, `pipeline` runs these on threads, and `output` puts the
//! bytes where they belong.

mod args;
mod bench;
mod decode;
mod digits;
mod fault;
mod fields;
mod hash;
mod input;
mod inspect;
mod json;
mod output;
mod pipeline;
mod progress;
mod record;
mod scheme;
mod summary;
mod synth;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

/// How a command ended that had what it needed to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All well.
    Good,
    /// Some requests or comparisons failed.
    SomeFailed,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Hash(args) => hash::run(args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::SomeFailed) => ExitCode::from(1),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            progress::say(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Whoever reads our output has seen enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

//! The flags, as clap reads them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kvhash::{Backend, BlockSize};

use crate::bench::LARGEST_BLOCK;
use crate::synth::LengthsFlag;

/// Hashes of KV-cache blocks, identical to the engines' own.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hashes a file of requests, one JSON object a line.
    Hash(HashArgs),
    /// Takes lineage hashes apart, or says why they are none.
    Inspect(InspectArgs),
    /// Writes a file of requests to measure with, the same from the same seed.
    Synth(SynthArgs),
    /// Measures how fast this machine hashes, beside how fast it reads.
    ///
    /// All blocks are compared with the published rule first. What counts is the shortest time.
    /// The read limit is the time to read the same tokens and to write 16 bytes a block; tokens
    /// are counted in complete blocks.
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HashArgs {
    /// Files of requests; `-` is standard input, and so is none. Read as gzip or zstd where
    /// the name ends in .gz or .zst.
    pub(crate) inputs: Vec<PathBuf>,

    /// Where the hashes go: standard output, or a file that appears under this name once it
    /// is complete. Compressed where the name ends in .gz or .zst.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// The rule to hash by.
    #[arg(long, value_enum, default_value_t = SchemeName::DynamoPlh)]
    pub(crate) scheme: SchemeName,

    /// Tokens a block, for requests that do not say so.
    #[arg(long, alias = "page-size", value_name = "TOKENS", default_value = "16",
          allow_negative_numbers = true, value_parser = parse_block_size)]
    pub(crate) block_size: BlockSize,

    /// The most blocks to hash of a request that does not say so.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_blocks: Option<usize>,

    /// What to write of each block, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "plh")]
    pub(crate) columns: Vec<Column>,

    /// How to write hashes: hex digits, the peer's text for lineage hashes (hex for others),
    /// or decimal.
    #[arg(long, value_enum, default_value_t = Encoding::Hex)]
    pub(crate) encoding: Encoding,

    /// What to do at a request that cannot be hashed: write an error record in its place, or
    /// stop there.
    #[arg(long, value_enum, default_value_t = OnError::Report)]
    pub(crate) on_error: OnError,

    /// Let fields pass that no scheme knows, in place of refusing their request.
    #[arg(long)]
    pub(crate) ignore_unknown: bool,

    /// The longest line to read, in bytes; a longer one is an error of its own.
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 20)]
    pub(crate) max_line_bytes: usize,

    /// Threads for decoding and hashing together, up to 1024; 0 is what the process may use.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) threads: usize,

    /// The implementation of the hash: auto, or one that this machine has.
    #[arg(long, env = "KVHASH_BACKEND", default_value = "auto", value_parser = parse_backend)]
    pub(crate) backend: Backend,

    /// Write the summary to this file too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,

    /// Whether to show progress: on a terminal, always or never.
    #[arg(long, value_enum, default_value_t = ProgressWhen::Auto)]
    pub(crate) progress: ProgressWhen,

    /// Say nothing but errors that end the run.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say what the run is set to before it begins, and every request's error as it is found.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Where the requests go: standard output, or a file; compressed where the name ends in .gz
    /// or .zst.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// How many requests to write.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    pub(crate) requests: u64,

    /// What decides everything that is random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Tokens a prompt, or a turn of a session: const:TOKENS, lognormal:MEDIAN,DEVIATION (of
    /// the logarithm) or azure:FILE.csv (a trace with a column ContextTokens).
    #[arg(long, default_value = "const:1024")]
    pub(crate) lengths: LengthsFlag,

    /// Token ids are below this.
    #[arg(long, value_name = "N", default_value_t = 128_256)]
    pub(crate) vocabulary: u32,

    /// Tokens of a prefix that sessions share.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(crate) shared_prefix: usize,

    /// How many such prefixes there are.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) prefixes: usize,

    /// The share of sessions that begin with one.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) shared_share: f64,

    /// Turns a session. Turns after the first have the new tokens alone, and continue the
    /// lineage of the ones before by `parent_plh`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) turns: u64,

    /// Tokens a block, which decides where lineages are continued.
    #[arg(long, alias = "page-size", value_name = "TOKENS", default_value = "16",
          allow_negative_numbers = true, value_parser = parse_block_size)]
    pub(crate) block_size: BlockSize,

    /// The share of sessions with a salt, one of 100.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) salt_share: f64,

    /// The share of sessions with a LoRA adapter, one of 10.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) lora_share: f64,

    /// The share of turns with an image, if they are long enough for one.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) image_share: f64,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Lineage hashes in any encoding; `-` reads them from standard input, one a line.
    #[arg(required = true, value_name = "PLH")]
    pub(crate) hashes: Vec<String>,

    /// The rule that the hashes were made by.
    #[arg(long, value_enum, default_value_t = SchemeName::DynamoPlh)]
    pub(crate) scheme: SchemeName,

    /// The encoding that the hashes are in. By default text with a colon is the peer's text,
    /// 32 digits are hex, and other digits are decimal.
    #[arg(long, value_enum)]
    pub(crate) encoding: Option<Encoding>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The implementations of the hash, separated by commas: all that this machine has, auto, or
    /// some by name.
    #[arg(long = "backend", env = "KVHASH_BACKEND", value_name = "BACKENDS",
          default_value = "all", value_parser = parse_backends)]
    backends: Vec<Backends>,

    /// Tokens a block in the even batch, separated by commas; the other shapes have 16.
    #[arg(long = "block-size", alias = "page-size", value_name = "TOKENS", value_delimiter = ',',
          default_value = "16,32,64,128,256", allow_negative_numbers = true,
          value_parser = parse_bench_block_size)]
    pub(crate) block_sizes: Vec<BlockSize>,

    /// Threads to hash and to read on, up to 1024; 0 is what the process may use. Small batches
    /// stay on one in any case.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) threads: usize,

    /// About how long to measure, all together; 0 repeats everything three times.
    #[arg(long, value_name = "SECONDS", default_value = "20", allow_negative_numbers = true,
          value_parser = parse_seconds)]
    pub(crate) seconds: Duration,

    /// Write one JSON document in place of the table.
    #[arg(long)]
    pub(crate) json: bool,

    /// Whether to show progress: on a terminal, always or never.
    #[arg(long, value_enum, default_value_t = ProgressWhen::Auto)]
    pub(crate) progress: ProgressWhen,

    /// Say nothing but errors that end the run.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl BenchArgs {
    /// The chosen backends, each once, the fastest last.
    pub(crate) fn backends(&self) -> Vec<Backend> {
        let chosen = |backend: &Backend| self.backends.iter().any(|list| list.0.contains(backend));
        Backend::available().iter().copied().filter(chosen).collect()
    }
}

/// Backends as one use of the flag, or the environment, names them.
#[derive(Debug, Clone)]
struct Backends(Vec<Backend>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(clippy::enum_variant_names, reason = "they are the names that the flag takes")]
pub(crate) enum SchemeName {
    /// Dynamo's lineage hashes as published since 1.3.0.
    DynamoPlh,
    /// The same by the rule that their README describes: JSON salt, chain seed 0.
    DynamoPlhReadme,
    /// Those of dynamo-tokens up to 1.2.1: old layout, chain seeded by the salt.
    DynamoPlhLegacy,
}

impl SchemeName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DynamoPlh => "dynamo-plh",
            Self::DynamoPlhReadme => "dynamo-plh-readme",
            Self::DynamoPlhLegacy => "dynamo-plh-legacy",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Column {
    /// The lineage hashes.
    Plh,
    /// What each block is by itself.
    BlockHashes,
    /// What each block is with all before it.
    SequenceHashes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    Hex,
    Display,
    Dec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    Report,
    Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    Auto,
    Always,
    Never,
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let tokens = text.parse().map_err(|_| {
        format!("{text:?} is no block size: it is a number of tokens from 1 to {}", u32::MAX)
    })?;
    BlockSize::new(tokens).map_err(|error| error.to_string())
}

fn parse_backend(name: &str) -> Result<Backend, String> {
    match name {
        "auto" | "" => Ok(Backend::detect()),
        _ => name.parse().map_err(|error: kvhash::EngineError| error.to_string()),
    }
}

fn parse_backends(names: &str) -> Result<Backends, String> {
    match names {
        "all" | "" => Ok(Backends(Backend::available().to_vec())),
        _ => names.split(',').map(parse_backend).collect::<Result<_, _>>().map(Backends),
    }
}

fn parse_bench_block_size(text: &str) -> Result<BlockSize, String> {
    let block_size = parse_block_size(text)?;
    if block_size.tokens() > LARGEST_BLOCK {
        return Err(format!("the prompts that are measured have {LARGEST_BLOCK} tokens, no more"));
    }
    Ok(block_size)
}

/// The longest that a run is asked to measure: an hour.
const MOST_SECONDS: f64 = 3600.0;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        format!(
            "{text:?} is no time to measure: it is a number of seconds from 0 to {MOST_SECONDS}"
        )
    })?;
    Ok(Duration::from_secs_f64(seconds))
}

/// The most threads that a run takes, whatever it is told.
const MOST_THREADS: usize = 1024;

/// The threads that `--threads` asks for; 0 is what the process may use.
pub(crate) fn thread_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads.min(MOST_THREADS),
    }
}

//! `kvhash hash`: requests in, hashes out.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use kvhash::{Columns, DynamoPlh, DynamoPlhLegacy, Engine, Lineages};

use crate::Outcome;
use crate::args::{Column, HashArgs, OnError, SchemeName, thread_count};
use crate::decode::{self, Buffers, Decoded, Line, Rules};
use crate::fault::Fault;
use crate::input::{self, Chunk, Chunks, Lines};
use crate::output::Output;
use crate::pipeline::{self, Flow, Sink};
use crate::progress::Progress;
use crate::record::{Layout, write_fault};
use crate::scheme::LineScheme;
use crate::summary::{Summary, Totals};

pub(crate) fn run(args: HashArgs) -> Result<Outcome> {
    match args.scheme {
        SchemeName::DynamoPlh => run_scheme(args, DynamoPlh::PUBLISHED),
        SchemeName::DynamoPlhReadme => run_scheme(args, DynamoPlh::README),
        SchemeName::DynamoPlhLegacy => run_scheme(args, DynamoPlhLegacy::PUBLISHED),
    }
}

fn run_scheme<S: LineScheme>(args: HashArgs, scheme: S) -> Result<Outcome> {
    let start = Instant::now();
    let threads = thread_count(args.threads);
    let paths = inputs(&args)?;
    let mut progress = Progress::new(args.progress, args.quiet, total_bytes(&paths));
    paths.iter().try_for_each(|path| input::check(path))?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let output = Output::create(args.output.as_deref())?;
    let summary_file = args.summary.as_deref().map(|path| summary_file(path, &args)).transpose()?;
    // The threads are those of the pipeline: a chunk is hashed on the one that decoded it.
    let engine = Engine::builder()
        .scheme(scheme)
        .block_size(args.block_size)
        .backend(args.backend)
        .columns(columns(&args.columns))
        .threads(1)
        .build()?;
    let job = Job {
        engine,
        rules: Rules {
            scheme: args.scheme,
            ignore_unknown: args.ignore_unknown,
            max_blocks: args.max_blocks,
            max_line_bytes: args.max_line_bytes,
        },
        layout: Layout {
            scheme: args.scheme,
            columns: args.columns.clone(),
            encoding: args.encoding,
        },
        input_names: (names.len() > 1).then_some(names),
        verbose: args.verbose,
    };
    if args.verbose {
        let (scheme, block_size) = (args.scheme.name(), args.block_size.tokens());
        progress.say(&format!(
            "{scheme}, {block_size} tokens a block, {}, {threads} threads",
            args.backend
        ));
    }

    let progress_bar = progress.bar.clone();
    let mut writer = Writer {
        output,
        progress: &mut progress,
        totals: Totals::default(),
        on_error: args.on_error,
        stopped_at: None,
    };
    let chunks = Chunks::new(paths, progress_bar, args.max_line_bytes);
    pipeline::run(chunks, Chunk::bytes, threads, || job.worker(), &mut writer)?;

    let Writer { output, totals, stopped_at, .. } = writer;
    progress.finish();
    if let Some(fault) = stopped_at {
        // What there is of a file is not what was asked for, so it does not get its name.
        progress.say(&format!("stopped at {fault}"));
        return Ok(Outcome::SomeFailed);
    }
    output.finish()?;
    let (scheme, backend) = (args.scheme.name(), args.backend);
    let summary = Summary { totals, elapsed: start.elapsed(), scheme, backend, threads };
    if !args.quiet {
        progress.say(&summary.to_line());
    }
    if let Some(mut file) = summary_file {
        file.write(format!("{:#}\n", summary.to_json()).as_bytes())?;
        file.finish()?;
    }
    Ok(if totals.errors == 0 { Outcome::Good } else { Outcome::SomeFailed })
}

fn inputs(args: &HashArgs) -> Result<Vec<PathBuf>> {
    if args.inputs.is_empty() {
        return Ok(vec!["-".into()]);
    }
    if args.inputs.iter().filter(|path| input::is_stdin(path)).count() > 1 {
        bail!("standard input (-) can be read only once");
    }
    Ok(args.inputs.clone())
}

/// The file of the summary, made before the work so that what is wrong with it is known.
fn summary_file(path: &Path, args: &HashArgs) -> Result<Output> {
    if input::is_stdin(path) || Some(path) == args.output.as_deref() {
        bail!("--summary {}: the summary goes to a file of its own", path.display());
    }
    Output::create(Some(path))
}

/// The size of all inputs together, if all have one.
fn total_bytes(paths: &[PathBuf]) -> Option<u64> {
    paths
        .iter()
        .map(|path| path.metadata().ok().filter(|file| file.is_file()).map(|file| file.len()))
        .sum()
}

/// The columns that the records need. A column that the rows hold costs nothing.
fn columns(columns: &[Column]) -> Columns {
    columns.iter().fold(Columns::NONE, |all, column| match column {
        Column::Plh => all,
        Column::BlockHashes => all | Columns::BLOCK_HASHES,
        Column::SequenceHashes => all | Columns::SEQUENCE_HASHES,
    })
}

/// What is done with every chunk.
struct Job<S: LineScheme> {
    engine: Engine<S>,
    rules: Rules,
    layout: Layout,
    /// The names of the inputs, where records need them: with several.
    input_names: Option<Vec<String>>,
    /// Whether every error is to be said, besides its record.
    verbose: bool,
}

/// The records of a chunk.
struct Piece {
    records: Vec<u8>,
    totals: Totals,
    /// The first of its requests that failed: where its record begins, and a description.
    first_fault: Option<(usize, String)>,
    /// All errors, described, where they are to be said.
    faults: Vec<String>,
}

impl<S: LineScheme> Job<S> {
    /// A function that a thread calls for chunk after chunk, with memory of its own.
    fn worker(&self) -> impl FnMut(Chunk) -> Piece {
        let mut buffers = Buffers::default();
        let mut lineages = Lineages::default();
        move |chunk| {
            let piece = self.work(&chunk, &mut buffers, &mut lineages);
            // A giant line does not keep its memory from the chunks after it.
            if buffers.bytes() > KEPT_BYTES {
                buffers = Buffers::default();
                lineages.shrink_to(0);
            }
            piece
        }
    }

    fn work(&self, chunk: &Chunk, buffers: &mut Buffers, lineages: &mut Lineages<S::Row>) -> Piece {
        let start = Instant::now();
        buffers.tokens.clear();
        let lines = self.decode(chunk, buffers);
        let tokens = &buffers.tokens;
        let decoded = Instant::now();

        let requests: Vec<S::Request<'_>> = lines
            .iter()
            .filter_map(|line| line.decoded.as_ref().ok())
            .map(|decoded| S::request(decoded, &tokens[decoded.tokens.clone()]))
            .collect();
        self.engine.hash(&requests, lineages);
        let hashed = Instant::now();

        let mut piece = Piece {
            records: Vec::new(),
            totals: Totals { requests: lines.len() as u64, ..Totals::default() },
            first_fault: None,
            faults: Vec::new(),
        };
        let input = self.input_names.as_ref().map(|names| names[chunk.input].as_str());
        let mut results = lineages.iter();
        for line in &lines {
            let lineage = match &line.decoded {
                Err(fault) => {
                    self.write_fault(&mut piece, line, input, fault);
                    continue;
                }
                Ok(_) => results.next().expect("every request has a result"),
            };
            match lineage {
                Ok(lineage) => {
                    piece.totals.blocks += lineage.plhs().len() as u64;
                    piece.totals.tokens += line.decoded.as_ref().map_or(0, Decoded::len) as u64;
                    self.layout.write_lineage(&mut piece.records, line, input, lineage);
                }
                Err(error) => self.write_fault(&mut piece, line, input, &error.into()),
            }
        }
        piece.totals.decode = decoded - start;
        piece.totals.hash = hashed - decoded;
        piece.totals.write = hashed.elapsed();
        piece
    }

    fn decode(&self, chunk: &Chunk, buffers: &mut Buffers) -> Vec<Line> {
        let bytes = match &chunk.lines {
            Lines::Whole(bytes) => bytes,
            Lines::TooLong(bytes) => {
                let limit = self.rules.max_line_bytes;
                return vec![decode::too_long(chunk.first_line, *bytes, limit)];
            }
        };
        split_lines(bytes)
            .zip(chunk.first_line..)
            .filter_map(|(line, number)| {
                if line.len() > self.rules.max_line_bytes {
                    let limit = self.rules.max_line_bytes;
                    return Some(decode::too_long(number, line.len() as u64, limit));
                }
                decode::decode_line(line, number, &self.rules, buffers)
            })
            .collect()
    }

    fn write_fault(&self, piece: &mut Piece, line: &Line, input: Option<&str>, fault: &Fault) {
        let place = match input {
            Some(input) => format!("{input}: line {}", line.number),
            None => format!("line {}", line.number),
        };
        let describe = || format!("{place}: {}: {}", fault.kind, fault.message);
        if piece.first_fault.is_none() {
            piece.first_fault = Some((piece.records.len(), describe()));
        }
        if self.verbose {
            piece.faults.push(describe());
        }
        piece.totals.errors += 1;
        write_fault(&mut piece.records, line, input, fault);
    }
}

/// The lines of a chunk, without their ends.
fn split_lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        let line = &bytes[..end];
        bytes = bytes.get(end + 1..).unwrap_or_default();
        Some(line)
    })
}

/// How much room a thread keeps from chunk to chunk.
const KEPT_BYTES: usize = 16 << 20;

/// Puts pieces where they belong, in order.
struct Writer<'a> {
    output: Output,
    progress: &'a mut Progress,
    totals: Totals,
    on_error: OnError,
    /// The error that ended the run.
    stopped_at: Option<String>,
}

impl Sink<Piece> for Writer<'_> {
    fn take(&mut self, piece: Piece) -> Result<Flow> {
        let start = Instant::now();
        self.totals += piece.totals;
        if let (OnError::Stop, Some((end, fault))) = (self.on_error, piece.first_fault) {
            self.output.write(&piece.records[..end])?;
            self.stopped_at = Some(fault);
            return Ok(Flow::Stop);
        }
        piece.faults.iter().for_each(|fault| self.progress.say(fault));
        self.output.write(&piece.records)?;
        self.totals.write += start.elapsed();
        self.progress.tick();
        Ok(Flow::Continue)
    }

    fn idle(&mut self) -> Result<()> {
        self.output.flush()
    }
}

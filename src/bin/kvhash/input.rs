//! From files to chunks of whole lines.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;

/// How much is read at once, and about how much a chunk holds: little enough that what becomes
/// of it, which may be many times as much, is little too.
const CHUNK_BYTES: usize = 256 << 10;

/// A file of requests.
struct Input {
    name: String,
    reader: Box<dyn Read + Send>,
}

/// Whole lines of one input, in order.
pub(crate) struct Chunk {
    /// Which input they are from.
    pub(crate) input: usize,
    /// The number of the first line, from 1.
    pub(crate) first_line: u64,
    pub(crate) lines: Lines,
}

pub(crate) enum Lines {
    /// The bytes of the lines, line ends included.
    Whole(Vec<u8>),
    /// One line that was not kept, and how long it was.
    TooLong(u64),
}

impl Chunk {
    /// The memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.lines {
            Lines::Whole(bytes) => bytes.len(),
            Lines::TooLong(_) => 0,
        }
    }
}

/// Whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Finds out whether an input can be opened, without keeping it open.
pub(crate) fn check(path: &Path) -> Result<()> {
    if is_stdin(path) {
        return Ok(());
    }
    let name = path.display();
    let failure = || format!("cannot read {name}");
    let metadata = path.metadata().with_context(failure)?;
    if metadata.is_dir() {
        bail!("cannot read {name}: it is a directory");
    }
    // Opening a named pipe would be seen at its other end.
    if metadata.is_file() {
        File::open(path).with_context(failure)?;
    }
    Ok(())
}

/// Opens an input. What is read of it moves `progress` on.
fn open(path: &Path, progress: &ProgressBar) -> Result<Input> {
    let name = path.display().to_string();
    if is_stdin(path) {
        return Ok(Input { name, reader: Box::new(progress.wrap_read(io::stdin())) });
    }
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let file = progress.wrap_read(file);
    let reader: Box<dyn Read + Send> = match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("gz") => Box::new(MultiGzDecoder::new(file)),
        Some("zst") => Box::new(
            zstd::Decoder::new(file).with_context(|| format!("cannot read {name} as zstd"))?,
        ),
        _ => Box::new(file),
    };
    Ok(Input { name, reader })
}

/// Cuts inputs, one after the other, into chunks. Each is opened when its turn comes.
pub(crate) struct Chunks {
    paths: std::vec::IntoIter<PathBuf>,
    progress: ProgressBar,
    input: usize,
    current: Option<LineReader>,
    max_line_bytes: usize,
}

impl Chunks {
    pub(crate) fn new(paths: Vec<PathBuf>, progress: ProgressBar, max_line_bytes: usize) -> Self {
        Self { paths: paths.into_iter(), progress, input: 0, current: None, max_line_bytes }
    }
}

impl Iterator for Chunks {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Result<Chunk>> {
        loop {
            let reader = match &mut self.current {
                Some(reader) => reader,
                none => {
                    let input = match open(&self.paths.next()?, &self.progress) {
                        Ok(input) => input,
                        Err(error) => return Some(Err(error)),
                    };
                    none.insert(LineReader::new(input, self.max_line_bytes))
                }
            };
            let first_line = reader.line;
            match reader.next_lines() {
                Ok(Some(lines)) => return Some(Ok(Chunk { input: self.input, first_line, lines })),
                Ok(None) => {
                    self.current = None;
                    self.input += 1;
                }
                Err(error) => {
                    let name = &reader.input.name;
                    return Some(Err(error).with_context(|| format!("cannot read {name}")));
                }
            }
        }
    }
}

/// Reads whole lines, as many as come at once.
struct LineReader {
    input: Input,
    /// What was read past the last line end.
    rest: Vec<u8>,
    /// What reads read into, made once: clearing new memory for every read costs more than
    /// copying what was read.
    buffer: Box<[u8]>,
    /// The number of the line that comes next.
    line: u64,
    max_line_bytes: usize,
}

impl LineReader {
    fn new(input: Input, max_line_bytes: usize) -> Self {
        let buffer = vec![0; CHUNK_BYTES].into();
        Self { input, rest: Vec::new(), buffer, line: 1, max_line_bytes }
    }

    fn next_lines(&mut self) -> io::Result<Option<Lines>> {
        let mut bytes = std::mem::take(&mut self.rest);
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memrchr(b'\n', &bytes[searched..]) {
                self.rest = bytes.split_off(searched + end + 1);
                return Ok(Some(self.take_lines(bytes)));
            }
            searched = bytes.len();
            if searched > self.max_line_bytes {
                return self.skip_line(searched as u64).map(Some);
            }
            if self.read_some(&mut bytes)? == 0 {
                // The last line needs no line end.
                return Ok((!bytes.is_empty()).then(|| self.take_lines(bytes)));
            }
        }
    }

    /// Appends what one read gives; nothing at the end.
    fn read_some(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            match self.input.reader.read(&mut self.buffer) {
                Ok(read) => {
                    bytes.extend_from_slice(&self.buffer[..read]);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take_lines(&mut self, bytes: Vec<u8>) -> Lines {
        self.line += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        Lines::Whole(bytes)
    }

    /// Reads on to the end of a line of which `seen` bytes were too many.
    fn skip_line(&mut self, mut seen: u64) -> io::Result<Lines> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = self.read_some(&mut bytes)?;
            let end = memchr::memchr(b'\n', &bytes);
            seen += end.unwrap_or(read) as u64;
            if end.is_some() || read == 0 {
                self.rest = bytes.split_off(end.map_or(0, |end| end + 1));
                self.line += 1;
                return Ok(Lines::TooLong(seen));
            }
        }
    }
}

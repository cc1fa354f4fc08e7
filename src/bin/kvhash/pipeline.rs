//! Work on chunks by several threads, its results taken in order.

use std::collections::BTreeMap;
use std::thread;

use anyhow::{Context, Result};
use crossbeam::channel::{self, Receiver, Sender, TryRecvError};

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Stop,
}

/// What takes the results.
pub(crate) trait Sink<T> {
    fn take(&mut self, result: T) -> Result<Flow>;

    /// There is nothing more to take for now.
    fn idle(&mut self) -> Result<()>;
}

/// How many bytes of chunks may be on their way at once for each thread, and one chunk more:
/// this bounds the memory, whatever the size of the input.
const BYTES_ON_THE_WAY: usize = 1 << 20;

/// Takes chunks from `source`, works on them with `threads` threads, and gives the results to
/// `sink` in the order of the chunks. With one thread everything happens on the calling one.
///
/// `start_worker` is called once a thread. `size` is the memory a chunk takes.
pub(crate) fn run<C, T, W, S>(
    source: S,
    size: fn(&C) -> usize,
    threads: usize,
    start_worker: impl Fn() -> W + Sync,
    sink: &mut impl Sink<T>,
) -> Result<()>
where
    C: Send + 'static,
    T: Send,
    W: FnMut(C) -> T,
    S: Iterator<Item = Result<C>> + Send + 'static,
{
    if threads == 1 {
        let mut work = start_worker();
        for chunk in source {
            if sink.take(work(chunk?))? == Flow::Stop {
                break;
            }
        }
        return sink.idle();
    }

    let (chunk_sender, chunks) = channel::bounded(2 * threads);
    let (result_sender, results) = channel::unbounded();
    let (credit_sender, credits) = channel::unbounded();
    // Nothing is sent: that its other end is gone is the message.
    let (end_sender, ended) = channel::bounded::<()>(0);
    // Not joined: where the sink has had enough, the reader may be waiting for input that
    // never comes.
    let most = threads * BYTES_ON_THE_WAY;
    thread::Builder::new()
        .spawn(move || read(source, size, most, &chunk_sender, &credits))
        .context("cannot start a thread")?;
    let start_worker = &start_worker;
    thread::scope(move |scope| {
        // Dropped where the scope's body ends, in whatever way, and before workers are joined.
        let _end_sender = end_sender;
        for worker in 0..threads {
            let (chunks, result_sender, start_worker, ended) =
                (chunks.clone(), result_sender.clone(), start_worker, ended.clone());
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                let mut work = start_worker();
                // Where the sink has had enough, no more chunks need ever come.
                while let Some(Numbered { number, bytes, item }) = channel::select! {
                    recv(chunks) -> chunk => chunk.ok(),
                    recv(ended) -> _ => None,
                } {
                    let item = item.map(&mut work);
                    if result_sender.send(Numbered { number, bytes, item }).is_err() {
                        return;
                    }
                }
            });
            match started {
                Ok(_) => {}
                Err(error) if worker == 0 => {
                    return Err(error).context("cannot start a thread");
                }
                // Fewer do the work as well.
                Err(_) => break,
            }
        }
        drop((chunks, result_sender));
        write(results, &credit_sender, sink)
    })
}

struct Numbered<T> {
    number: u64,
    bytes: usize,
    item: Result<T>,
}

fn read<C>(
    source: impl Iterator<Item = Result<C>>,
    size: fn(&C) -> usize,
    most: usize,
    chunks: &Sender<Numbered<C>>,
    credits: &Receiver<usize>,
) {
    let mut on_the_way = 0;
    for (number, item) in (0..).zip(source) {
        let bytes = item.as_ref().map_or(0, size);
        let failed = item.is_err();
        on_the_way += bytes;
        while on_the_way > bytes.max(most) {
            match credits.recv() {
                Ok(credit) => on_the_way -= credit,
                Err(_) => return,
            }
        }
        if chunks.send(Numbered { number, bytes, item }).is_err() || failed {
            return;
        }
    }
}

fn write<T>(
    results: Receiver<Numbered<T>>,
    credits: &Sender<usize>,
    sink: &mut impl Sink<T>,
) -> Result<()> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    loop {
        let result = match results.try_recv() {
            Err(TryRecvError::Empty) => {
                sink.idle()?;
                results.recv().ok()
            }
            result => result.ok(),
        };
        let Some(result) = result else { return sink.idle() };
        early.insert(result.number, result);
        while let Some(Numbered { bytes, item, .. }) = early.remove(&next) {
            next += 1;
            if sink.take(item?)? == Flow::Stop {
                return sink.idle();
            }
            // The reader is gone where it has read everything.
            let _ = credits.send(bytes);
        }
    }
}

//! A queue in front of an engine, for callers that must not compute on their own threads.
//!
//! Any number of threads [`submit`](Admission::submit) requests, without waiting, and get a
//! [`Ticket`] for each. Workers take whatever has come in the meantime and hash it as one batch.
//! There is no timer: while nothing is under way a request is begun at once, and the more there
//! is to do, the larger the batches are. (As long as requests come within a microsecond of each other, a
//! worker leaves them that long to be more: a few at a time cost whoever submits more than they save.)
//!
//! Every request that was accepted is answered exactly once: with its hashes, with its error, or
//! with the reason that there are none. The queue is bounded; what does not fit is given back. Wakers
//! run on threads of the queue: one that waits for a ticket, or for a lock that is held by whoever does, or
//! shuts another queue down, may wait for ever.
//!
//! A request is checked when it is submitted, and its lineage is made there; workers write its hashes,
//! and it becomes the answer, with which the request is freed.
//!
//! To wake a thread takes longer than to hash a prompt: so a worker looks at the queue for up to 100 µs
//! as long as requests keep coming that soon, and so does one thread at a time that waits for a ticket,
//! where workers are awake; others sleep after some microseconds. Where requests are further apart,
//! workers sleep.
//!
//! ```
//! use kvhash::admission::{Admission, Options};
//! use kvhash::{Engine, OwnedRequest};
//!
//! let admission = Admission::start(Engine::builder().build()?, Options::default())?;
//! let ticket = admission.submit(OwnedRequest::new([7; 40]))?;
//! let lineage = ticket.wait()?; // or `ticket.await`
//! assert_eq!(lineage.plhs().len(), 2);
//! admission.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answers;
mod group;
mod job;
mod queue;
mod ticket;
mod waits;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use thiserror::Error;

use crate::engine::Engine;
use crate::error::RequestError;
use crate::lineages::OwnedLineage;
use crate::owned_request::OwnedRequest;
use crate::scheme::DynamoPlh;
use job::Job;
use queue::{Queue, Refused};
pub use ticket::Ticket;
use worker::Worker;

/// What a ticket yields.
pub type Answer = Result<OwnedLineage, TicketError>;

/// The settings of an [`Admission`].
#[derive(Debug, Clone)]
pub struct Options {
    capacity: usize,
    workers: usize,
    largest_batch: usize,
    fault: Option<fn(&[u32])>,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity: 1024, workers: 1, largest_batch: 256, fault: None }
    }
}

impl Options {
    /// How many requests wait at the most, beside those that workers have taken, with their lineages, 16
    /// bytes a block and more; one whose ticket was dropped counts until a worker comes to it. (An only
    /// worker may take the next batch before it answers the last.) Default: 1,024.
    pub fn capacity(self, requests: usize) -> Self {
        Self { capacity: requests, ..self }
    }

    /// How many threads take requests from the queue. Each hashes batches of its own, on as many
    /// threads as the engine has, if those are the engine's own: threads of a pool that it was given
    /// may be waiting for tickets. Default: 1.
    pub fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// How many requests make a batch at the most: the answers of a batch come together, and
    /// while one batch is taken the next is hashed. Default: 256.
    pub fn largest_batch(self, requests: usize) -> Self {
        Self { largest_batch: requests, ..self }
    }

    /// Has a worker call this with the tokens of every request of a batch before it hashes the batch, so that
    /// tests see what a panic does.
    #[doc(hidden)]
    pub fn fault(self, fault: fn(&[u32])) -> Self {
        Self { fault: Some(fault), ..self }
    }
}

/// Why there is no queue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// A queue without a place would reject everything.
    #[error("capacity is 0; a queue has at least one place")]
    ZeroCapacity,
    /// Without a worker nothing would be answered.
    #[error("there are 0 workers; a queue has at least one")]
    ZeroWorkers,
    /// A batch of nothing would never end.
    #[error("the largest batch is 0; a batch has at least one request")]
    ZeroBatch,
    /// The system has no thread to give.
    #[error("no thread for a worker: {0}")]
    NoThread(#[source] std::io::Error),
}

/// Why a request was not accepted. It is given back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Rejected {
    /// The queue is full: the workers are behind.
    #[error("the queue is full")]
    Full(OwnedRequest),
    /// The queue was shut down.
    #[error("the queue is shut down")]
    Closed(OwnedRequest),
}

impl Rejected {
    fn new(refused: Refused, request: OwnedRequest) -> Self {
        match refused {
            Refused::Full => Self::Full(request),
            Refused::Closed => Self::Closed(request),
        }
    }

    /// The request.
    pub fn into_request(self) -> OwnedRequest {
        match self {
            Self::Full(request) | Self::Closed(request) => request,
        }
    }
}

/// Why a ticket has no hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The request has an error.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A panic ended the batch that the request was in.
    #[error("the batch of this request ended in a panic")]
    Panicked,
    /// The queue was aborted before the request was hashed.
    #[error("the queue was aborted before this request was hashed")]
    Aborted,
    /// The ticket has given its answer already.
    #[error("the answer was taken already")]
    Taken,
}

/// A bounded queue in front of an [`Engine`], with threads of its own that hash what is in it.
///
/// See the [module](self). Dropped, it shuts down.
pub struct Admission {
    engine: Arc<Engine>,
    queue: Arc<Queue>,
    aborted: Arc<AtomicBool>,
    workers: Vec<ThreadId>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Admission {
    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// Where an option is 0, or no thread is to be had.
    pub fn start(engine: Engine<DynamoPlh>, options: Options) -> Result<Self, AdmissionError> {
        if options.capacity == 0 {
            return Err(AdmissionError::ZeroCapacity);
        }
        if options.workers == 0 {
            return Err(AdmissionError::ZeroWorkers);
        }
        if options.largest_batch == 0 {
            return Err(AdmissionError::ZeroBatch);
        }
        let engine = Arc::new(engine);
        let mut admission = Self {
            engine: Arc::clone(&engine),
            queue: Arc::new(Queue::new(options.capacity, options.largest_batch)),
            aborted: Arc::default(),
            workers: Vec::new(),
            handles: Mutex::default(),
        };
        for i in 0..options.workers {
            let worker = Worker {
                engine: Arc::clone(&engine),
                queue: Arc::clone(&admission.queue),
                aborted: Arc::clone(&admission.aborted),
                is_only_one: options.workers == 1,
                fault: options.fault,
            };
            // Dropped on the way out, the workers that did start are ended.
            let handle = thread::Builder::new()
                .name(format!("kvhash-admit-{i}"))
                .spawn(move || worker.run())
                .map_err(AdmissionError::NoThread)?;
            admission.workers.push(handle.thread().id());
            admission.handles().push(handle);
        }
        Ok(admission)
    }

    /// Puts a request into the queue. Does not wait.
    ///
    /// Where there is a place, it is checked: one that has an error is answered at once, and takes none.
    ///
    /// # Errors
    ///
    /// [`Rejected::Full`] where there is no place, [`Rejected::Closed`] after
    /// [`shutdown`](Self::shutdown) or [`abort`](Self::abort); the request is in the error.
    #[allow(clippy::result_large_err, reason = "the request is given back whole")]
    pub fn submit(&self, request: OwnedRequest) -> Result<Ticket, Rejected> {
        self.submit_into(request, OwnedLineage::empty())
    }

    /// [Submits](Self::submit) a request whose hashes go to the memory of a lineage that is needed no more, as
    /// those of a batch go to the memory of the [batch before](crate::Lineages). Whoever takes an answer with
    /// each request that it submits so needs no new memory, and workers write to what their caches still
    /// have: under load more goes through (`perf/threads.md`).
    ///
    /// The lineage may have been any request's. Where it is too small it is replaced; where it is larger, the
    /// answer keeps all of its memory.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit). The lineage is dropped then, and where the request has an error.
    ///
    /// ```
    /// # use kvhash::admission::{Admission, Options};
    /// # use kvhash::{Engine, OwnedRequest};
    /// # let admission = Admission::start(Engine::builder().build()?, Options::default())?;
    /// let mut lineage = admission.submit(OwnedRequest::new([7; 400]))?.wait()?;
    /// for prompt in [[8; 320], [9; 320]] {
    ///     // ... what is to be done with the last one ...
    ///     lineage = admission.submit_into(OwnedRequest::new(prompt), lineage)?.wait()?;
    ///     assert_eq!(lineage.plhs().len(), 20);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::result_large_err, reason = "the request is given back whole")]
    pub fn submit_into(
        &self,
        request: OwnedRequest,
        lineage: OwnedLineage,
    ) -> Result<Ticket, Rejected> {
        // Before anything is made: callers try again and again.
        if let Err(refused) = self.queue.admits() {
            return Err(Rejected::new(refused, request));
        }
        let lineage = match self.engine.plan(&request.as_request(), lineage) {
            Ok(lineage) => lineage,
            Err(error) => return Ok(Ticket::failed(error)),
        };
        let lingers = !self.queue.has_sleepers();
        match self.queue.push(Job::new(request, lineage)) {
            Ok(place) => Ok(Ticket::new(place, lingers)),
            Err((refused, job)) => Err(Rejected::new(refused, job.into_request())),
        }
    }

    /// How many requests wait to be taken by a worker.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Accepts no more requests, and returns when all that were accepted are answered. On a thread of
    /// the queue, where wakers run, it returns at once.
    pub fn shutdown(&self) {
        // The workers end when they have taken what is there, since nobody can add to it.
        self.queue.close();
        // A worker would wait for itself, or for one that waits for it.
        if self.workers.contains(&thread::current().id()) {
            return;
        }
        // Whoever comes second waits for the first, under the lock.
        for handle in self.handles().drain(..) {
            // Panics are caught where they happen.
            let _ = handle.join();
        }
    }

    /// Accepts no more requests, answers those that are not being hashed with
    /// [`TicketError::Aborted`], and returns as [`shutdown`](Self::shutdown) does.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.shutdown();
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

//! Requests on their way through the queue.

use std::mem;

use super::{Answer, TicketError};
use crate::digest::SaltHash;
use crate::engine::{Aside, PlannedRequest};
use crate::fetch::{Hints, fetch, fetch_start, fetch_to_write_if_known};
use crate::lineages::OwnedLineage;
use crate::owned_request::{OwnedRequest, Tokens};
use crate::plan::{Plan, Shape};
use crate::plh::PositionalLineageHash;

/// A request that was planned, and its lineage, whose hashes are to come.
///
/// Its memory is the caller's: the lineage is made when the request is submitted, and becomes the answer,
/// with which the request is freed. (A worker frees only what was cancelled.) A worker that made and freed
/// it would do little else, and memory that one thread makes and another frees costs both. For the same
/// reason a worker writes hashes to the lineage and nothing to the rest.
pub(super) struct Job {
    line: Line,
    aside: Aside,
}

/// What of most jobs is all that a worker reads: one [cache line](Slot), since each comes from another core.
struct Line {
    tokens: Tokens,
    plhs: Vec<PositionalLineageHash>,
    salt_hash: SaltHash,
    block_size: u32,
    /// Whether the terms are to be read, too.
    needs_terms: bool,
}

/// Where the line of a job lies until the job is taken. (Aligned here alone: elsewhere it is moved.)
#[repr(align(64))]
struct Slot(Option<Line>);

const _: () = assert!(size_of::<Slot>() == 64);

impl Job {
    #[inline(always)]
    pub(super) fn new(request: OwnedRequest, lineage: OwnedLineage) -> Self {
        let OwnedRequest { tokens, terms } = request;
        // The tail is what blocks leave of the tokens.
        let OwnedLineage { plhs, kept, salt_hash, block_size, tail: _ } = lineage;
        let needs_terms = terms.say_more_than_a_plan();
        // Block sizes are numbers of 32 bits.
        let line = Line { tokens, plhs, salt_hash, block_size: block_size as u32, needs_terms };
        Self { line, aside: Aside { terms, kept } }
    }

    /// The request as it was.
    pub(super) fn into_request(self) -> OwnedRequest {
        OwnedRequest { tokens: self.line.tokens, terms: self.aside.terms }
    }

    /// The lineage. The request is freed.
    #[inline(always)]
    fn into_lineage(self) -> OwnedLineage {
        let Plan { tail, shape, salt_hash, .. } = self.line.plan();
        let Self { line: Line { plhs, .. }, aside: Aside { kept, .. } } = self;
        OwnedLineage { plhs, kept, salt_hash, block_size: shape.block_size(), tail }
    }
}

impl Line {
    /// The plan of the request.
    #[inline(always)]
    fn plan(&self) -> Plan {
        let shape = Shape::new(self.block_size, self.plhs.len());
        let tail = self.tokens.as_slice().len() - shape.blocks() * shape.block_size();
        Plan { first_row: 0, tail, salt_hash: self.salt_hash, shape }
    }
}

/// Jobs whose lines lie one after the other: a worker reads them as one piece.
#[derive(Default)]
pub(super) struct Jobs {
    lines: Vec<Slot>,
    /// By index, up to the highest one that has something aside. Most stay in the caches of those who
    /// submit and take answers: a worker reads one where runs, a parent or block hashes are in it, or where
    /// a batch is hashed on more threads.
    asides: Vec<Aside>,
}

impl Jobs {
    pub(super) fn with_room(jobs: usize) -> Self {
        Self { lines: Vec::with_capacity(jobs), asides: Vec::new() }
    }

    /// For how many jobs there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.lines.capacity()
    }

    /// How many jobs came, those included that were taken.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    #[inline(always)]
    pub(super) fn push(&mut self, Job { line, aside }: Job) {
        self.lines.push(Slot(Some(line)));
        // Where there is nothing, nothing is made; where there is, room for as many as there may be lines.
        if !aside.is_nothing() {
            self.asides.reserve_exact(self.lines.capacity() - self.asides.len());
            self.asides.resize_with(self.lines.len() - 1, Aside::default);
            self.asides.push(aside);
        }
    }

    /// The job at an index, unless it was taken.
    #[inline(always)]
    pub(super) fn take(&mut self, index: usize) -> Option<Job> {
        let line = self.lines[index].0.take()?;
        let aside = self.asides.get_mut(index).map(mem::take).unwrap_or_default();
        Some(Job { line, aside })
    }

    /// What is to be hashed, and where to, in the order in which it came.
    #[inline(always)]
    pub(super) fn planned(&mut self) -> impl Iterator<Item = PlannedRequest<'_>> {
        let mut asides = self.asides.iter_mut();
        self.lines.iter_mut().filter_map(move |slot| {
            fetch((&raw const *slot).wrapping_add(READ_AHEAD));
            let Slot(line) = slot;
            let aside = asides.next();
            let line = line.as_mut()?;
            Some(PlannedRequest {
                plan: line.plan(),
                tokens: line.tokens.as_slice(),
                rows: &mut line.plhs,
                aside,
                needs_terms: line.needs_terms,
            })
        })
    }

    /// Has the first jobs fetched, while there is something else to do: those behind them come ahead of
    /// their being read, but these are waited for.
    pub(super) fn fetch_start(&self) {
        fetch_start(&self.lines, Hints::default());
    }

    /// Has that of a job fetched which will be written when it is taken, and the first hashes, which will be
    /// read: the worker's core has them all, and is asked for each. Jobs are most often taken in their
    /// order.
    #[inline(always)]
    pub(super) fn fetch_behind(&self, index: usize) {
        if let Some(Slot(Some(later))) = self.lines.get(index + FETCHED_BEHIND) {
            fetch_to_write_if_known(later);
            let tokens = later.tokens.as_slice().as_ptr();
            fetch_to_write_if_known(tokens.wrapping_byte_sub(BEFORE_TOKENS));
            fetch_start(&later.plhs, Hints::default());
        }
    }
}

/// How many lines ahead of the one that is read are fetched. A core fetches ahead by itself, but not as far
/// as another core's caches are away. By trying.
const READ_AHEAD: usize = 12;

/// How far behind the job that is taken lies the one that is fetched: the first ones of a group are not. By
/// trying.
const FETCHED_BEHIND: usize = 2;

/// How many bytes before tokens that which is written when they are freed begins: the counts of those who
/// share them, or what the allocator notes.
const BEFORE_TOKENS: usize = 2 * size_of::<usize>();

/// What came of jobs that left the queue together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Hashed,
    /// A panic ended them.
    Panicked,
    /// The queue was aborted.
    Aborted,
}

/// A job that has ended, and what came of it.
pub(super) struct EndedJob {
    pub(super) job: Job,
    pub(super) outcome: Outcome,
}

impl EndedJob {
    /// The answer. The request is freed.
    #[inline(always)]
    pub(super) fn into_answer(self) -> Answer {
        match self.outcome {
            Outcome::Hashed => Ok(self.job.into_lineage()),
            Outcome::Panicked => Err(TicketError::Panicked),
            Outcome::Aborted => Err(TicketError::Aborted),
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job to be known again.
    pub(super) fn numbered(number: u32) -> Self {
        Self::new(OwnedRequest::new([number]), OwnedLineage::empty())
    }

    pub(super) fn number(&self) -> u32 {
        self.line.tokens.as_slice()[0]
    }
}

#[cfg(all(test, not(kvhash_loom)))]
mod tests {
    use super::*;
    use crate::digest::BlockHash;
    use crate::engine::{Columns, Engine};
    use crate::request::{MmRun, Request};

    #[test]
    fn there_is_no_more_room_aside_than_for_lines() {
        for salted in [0, 1, 40, 63] {
            let mut jobs = Jobs::with_room(64);
            for i in 0..64 {
                let request = OwnedRequest::new([1]);
                let request = if i == salted { request.salt("a") } else { request };
                jobs.push(Job::new(request, OwnedLineage::empty()));
            }
            assert_eq!((jobs.asides.len(), jobs.asides.capacity()), (salted + 1, 64));
        }
        let mut jobs = Jobs::with_room(64);
        jobs.push(Job::numbered(1));
        assert_eq!(jobs.asides.capacity(), 0);
    }

    #[test]
    fn each_job_has_its_own_parts_whoever_was_taken_before() {
        let tokens = |i: usize| vec![i as u32; 40 + i];
        let plain = |i: usize| OwnedRequest::new(tokens(i));
        let run = |i: usize| MmRun { mm_hash: i as u64, offset: 1, length: 2 };
        let request = |i: usize| match i % 8 {
            1 => plain(i).salt(i.to_string()),
            3 => plain(i).mm_runs([run(i)]),
            4 => plain(i).block_size(i as u32).max_blocks(2),
            5 => plain(i).resume(PositionalLineageHash::root(BlockHash(i as u64))),
            6 => OwnedRequest::shared(tokens(i).into()).lora_name(i.to_string()),
            _ => plain(i),
        };
        for columns in [Columns::NONE, Columns::BLOCK_HASHES] {
            let engine = Engine::builder().columns(columns).build().unwrap();
            let lineage = |i| engine.plan(&request(i).as_request(), OwnedLineage::empty()).unwrap();
            let mut jobs = Jobs::with_room(0);
            (0..32).for_each(|i| jobs.push(Job::new(request(i), lineage(i))));
            assert_eq!(jobs.len(), 32);
            let taken = [31, 0, 9, 11, 12, 14];
            for i in taken {
                assert_eq!(jobs.take(i).unwrap().into_request(), request(i));
                assert!(jobs.take(i).is_none());
            }
            let left: Vec<usize> = (0..32).filter(|i| !taken.contains(i)).collect();
            let planned: Vec<PlannedRequest<'_>> = jobs.planned().collect();
            assert_eq!(planned.len(), left.len());
            for (planned, &i) in planned.iter().zip(&left) {
                assert_eq!(planned.tokens, tokens(i));
                let request = request(i);
                match &planned.aside {
                    None => assert_eq!(request.as_request(), Request::new(planned.tokens)),
                    Some(Aside { terms, kept }) => {
                        assert_eq!(terms.request(planned.tokens), request.as_request());
                        assert_eq!(kept.is_some(), columns == Columns::BLOCK_HASHES);
                    }
                }
                assert_eq!(planned.needs_terms, matches!(i % 8, 3 | 5));
                let (Plan { salt_hash, shape, tail, .. }, lineage) = (planned.plan, lineage(i));
                let blocks = lineage.plhs().len();
                assert_eq!((planned.rows.len(), shape.blocks()), (blocks, blocks));
                assert_eq!((shape.block_size(), tail), (lineage.block_size(), lineage.tail()));
                assert_eq!(salt_hash, lineage.salt_hash());
            }
            for i in left {
                assert_eq!(jobs.take(i).unwrap().into_lineage(), lineage(i));
            }
        }
    }
}

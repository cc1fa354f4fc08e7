//! Requests that are planned one by one, as they come, and hashed together later, each to a lineage of its
//! own: those of a queue.

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;

use super::{Columns, Engine, Pool};
use crate::digest::BlockHash;
use crate::error::RequestError;
use crate::fan_out::Grain;
use crate::kernel::Lane;
use crate::lineages::{Kept, OwnedLineage};
use crate::output::{Column, Output, Place, cells};
use crate::owned_request::Terms;
use crate::plan::{Plan, PlanMemory, Planner};
use crate::plh::PositionalLineageHash;
use crate::request::Request;
use crate::run::{Batch, Memory, Scratch};
use crate::scheme::DynamoPlh;
use crate::walk::{Lanes, Walker};

/// A request that was [planned](Engine::plan), and where its hashes go.
pub(crate) struct PlannedRequest<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) plan: Plan,
    pub(crate) rows: &'a mut [PositionalLineageHash],
    /// Maybe `None` where there is nothing in it. It may be far away: on one thread it is read only for terms
    /// that are needed and for block hashes.
    pub(crate) aside: Option<&'a mut Aside>,
    /// Whether the terms say more than the plan does.
    pub(crate) needs_terms: bool,
}

/// What most requests do not have.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    pub(crate) terms: Terms,
    /// Where columns go beside the rows.
    pub(crate) kept: Option<Box<Kept>>,
}

impl Aside {
    #[inline(always)]
    pub(crate) fn is_nothing(&self) -> bool {
        self.kept.is_none() && self.terms.are_plain()
    }
}

/// Where block hashes go. None may be without: all later requests would get their neighbours' places.
fn hashes(kept: &mut Option<Box<Kept>>) -> &mut [BlockHash] {
    let hashes = kept.as_deref_mut().and_then(|kept| kept.block_hashes.as_deref_mut());
    hashes.expect("a column that was planned")
}

/// A planned request, and the cells that its hashes go to.
struct Unhashed<'a> {
    tokens: &'a [u32],
    terms: Option<&'a Terms>,
    plan: Plan,
    place: Place<'a>,
}

impl<'a> Unhashed<'a> {
    #[inline(always)]
    fn new(planned: PlannedRequest<'a>, keeps_hashes: bool) -> Self {
        let PlannedRequest { tokens, plan, rows, aside, needs_terms } = planned;
        let rows = cells(PositionalLineageHash::words_mut(rows));
        if !keeps_hashes && !needs_terms {
            return Self { tokens, terms: None, plan, place: (rows, None) };
        }
        let Aside { terms, kept } = aside.expect(PLANNED_ASIDE);
        let hashes = keeps_hashes.then(|| cells(BlockHash::peel_slice_mut(hashes(kept))));
        Self { tokens, terms: needs_terms.then_some(terms), plan, place: (rows, hashes) }
    }

    #[inline(always)]
    fn request(&self) -> Request<'a> {
        match self.terms {
            None => Request::new(self.tokens),
            Some(terms) => terms.request(self.tokens),
        }
    }

    /// It before its first block.
    #[inline(always)]
    fn lane(&self, planner: &Planner<DynamoPlh>) -> Lane<'a> {
        planner.lane(&self.request(), &self.plan, self.place)
    }
}

impl Engine {
    /// Checks and plans a request, and makes its lineage, in the memory of another. The hashes are not in
    /// it yet: see [`hash_apart`](Self::hash_apart).
    #[inline(always)]
    pub(crate) fn plan(
        &self,
        request: &Request<'_>,
        memory: OwnedLineage,
    ) -> Result<OwnedLineage, RequestError> {
        let plan = self.planner.plan(0, request, 0, &mut PlanMemory::default())?;
        Ok(OwnedLineage::unhashed(&plan, self.columns, memory))
    }

    /// Hashes `count` planned requests. On a thread that others wait for: it does not go to a pool that was
    /// given, whose threads may be among those.
    pub(crate) fn hash_apart<'a>(
        &self,
        count: usize,
        planned: impl Iterator<Item = PlannedRequest<'a>>,
        memory: &mut Memory,
    ) {
        if self.threads == 1 || matches!(self.pool, Pool::Given(_)) {
            return self.hash_apart_here(count, planned, memory);
        }
        let planned: Vec<PlannedRequest<'_>> = planned.collect();
        let bytes = planned.iter().map(|planned| planned.plan.shape.bytes()).sum();
        match self.pool_for(bytes) {
            Some((pool, grain)) => self.fan_out_apart(pool, grain, planned, memory),
            None => self.hash_apart_here(count, planned.into_iter(), memory),
        }
    }

    /// Hashes planned requests on the calling thread.
    fn hash_apart_here<'a>(
        &self,
        count: usize,
        planned: impl Iterator<Item = PlannedRequest<'a>>,
        memory: &mut Memory,
    ) {
        let keeps_hashes = self.columns.contains(Columns::BLOCK_HASHES);
        let mut unhashed = Vec::with_capacity(count);
        planned.for_each(|planned| unhashed.push(Unhashed::new(planned, keeps_hashes)));
        let Scratch { plans, workspace, frames } = &mut memory.scratches.at_least(1)[0];
        let mut walker = Walker { backend: self.backend, keeps_hashes, workspace };
        plans.begin(count);
        for (index, one) in unhashed.iter().enumerate() {
            let shape = one.plan.shape;
            if shape.blocks() == 0 {
                continue;
            }
            if one.terms.is_some()
                && let request = one.request()
                && !request.mm_runs.is_empty()
            {
                let runs = plans.note_runs(index, request.mm_runs);
                let stretches = one.plan.stretches(&request, runs);
                walker.walk_stretches(&request, stretches, one.lane(&self.planner), frames);
                continue;
            }
            plans.order.push(shape, index);
        }
        let lanes = Each { planner: &self.planner, unhashed: &unhashed };
        walker.walk_all(&mut plans.order, &lanes);
    }

    /// Hashes planned requests on threads of a pool, too. Each thread plans again what it hashes.
    fn fan_out_apart(
        &self,
        pool: &ThreadPool,
        grain: Grain,
        planned: Vec<PlannedRequest<'_>>,
        memory: &mut Memory,
    ) {
        let kept = self.columns.contains(Columns::BLOCK_HASHES);
        let (mut requests, mut rows, mut block_hashes) = (Vec::new(), Vec::new(), Vec::new());
        for planned in planned {
            rows.push(planned.rows);
            let Some(aside) = planned.aside else {
                assert!(!kept, "{PLANNED_ASIDE}");
                requests.push(Request::new(planned.tokens));
                continue;
            };
            requests.push(aside.terms.request(planned.tokens));
            if kept {
                block_hashes.push(hashes(&mut aside.kept));
            }
        }
        let batch: Batch<'_, '_, DynamoPlh> =
            Batch { backend: self.backend, planner: &self.planner, requests: &requests };
        batch.count_chunks(&mut memory.chunks);
        let output = Output {
            plans: &mut vec![Ok(Plan::default()); requests.len()],
            first_row: 0,
            rows: Column::Apart(rows),
            block_hashes: kept.then_some(Column::Apart(block_hashes)),
            sequence_hashes: None,
        };
        batch.run_on(pool, self.threads - 1, grain, output, memory);
    }
}

const PLANNED_ASIDE: &str = "an aside that was planned with";

/// Planned requests that become lanes one by one.
struct Each<'e, 'a> {
    planner: &'e Planner<DynamoPlh>,
    unhashed: &'e [Unhashed<'a>],
}

impl<'a> Lanes<'a> for Each<'_, 'a> {
    #[inline(always)]
    fn lane(&self, index: usize) -> Lane<'a> {
        self.unhashed[index].lane(self.planner)
    }

    #[inline(always)]
    fn blocks(&self, index: usize) -> &'a [u8] {
        bytemuck::cast_slice(self.unhashed[index].tokens)
    }
}

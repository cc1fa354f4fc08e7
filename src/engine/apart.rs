//! Requests that are planned one by one, as they come, and hashed together later, each to a lineage of its
//! own: those of a queue.

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;

use super::{Columns, Engine, Pool};
use crate::digest::BlockHash;
use crate::error::RequestError;
use crate::fan_out::Grain;
use crate::kernel::Lane;
use crate::lineages::OwnedLineage;
use crate::output::{Column, Output, Place, cells};
use crate::owned_request::OwnedRequest;
use crate::plan::{Plan, PlanMemory, Planner};
use crate::plh::PositionalLineageHash;
use crate::request::Request;
use crate::run::{Batch, Memory, Scratch};
use crate::scheme::DynamoPlh;
use crate::walk::{Lanes, Walker};

/// A request, and the lineage that was [planned](Engine::plan) for it.
pub(crate) type PlannedRequest<'a> = (&'a OwnedRequest, &'a mut OwnedLineage);

/// A planned request, and where its hashes go: what of it is in many places, in one.
struct Unhashed<'a> {
    request: &'a OwnedRequest,
    tokens: &'a [u32],
    parent: Option<&'a PositionalLineageHash>,
    plan: Plan,
    place: Place<'a>,
}

impl<'a> Unhashed<'a> {
    #[inline(always)]
    fn new((request, lineage): PlannedRequest<'a>) -> Self {
        let plan = lineage.plan();
        let (rows, hashes) = lineage.places();
        let rows = cells(PositionalLineageHash::words_mut(rows));
        let hashes = hashes.map(|hashes| cells(BlockHash::peel_slice_mut(hashes)));
        let (tokens, parent) = (request.tokens(), request.parent());
        Self { request, tokens, parent, plan, place: (rows, hashes) }
    }

    /// It before its first block.
    #[inline(always)]
    fn lane(&self, planner: &Planner<DynamoPlh>) -> Lane<'a> {
        let request = Request { parent: self.parent.copied(), ..Request::new(self.tokens) };
        planner.lane(&request, &self.plan, self.place)
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
        let bytes = planned.iter().map(|(_, lineage)| lineage.plan().shape.bytes()).sum();
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
        let mut unhashed = Vec::with_capacity(count);
        unhashed.extend(planned.map(Unhashed::new));
        let Scratch { plans, workspace, frames } = &mut memory.scratches.at_least(1)[0];
        let keeps_hashes = self.columns.contains(Columns::BLOCK_HASHES);
        let mut walker = Walker { backend: self.backend, keeps_hashes, workspace };
        plans.begin(count);
        for (index, one) in unhashed.iter().enumerate() {
            let shape = one.plan.shape;
            if shape.blocks() == 0 {
                continue;
            }
            if one.request.has_runs() {
                let request = one.request.as_request();
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
        for (request, lineage) in planned {
            let (places, hashes) = lineage.places();
            requests.push(request.as_request());
            rows.push(places);
            if kept {
                // None may be left out: all later requests would get their neighbours' places.
                block_hashes.push(hashes.expect("a column that was planned"));
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

//! Requests that are planned one by one, as they come, and hashed together later, each to a lineage of its
//! own: those of a queue.

use std::mem;

use bytemuck::TransparentWrapper;
use rayon::ThreadPool;

use super::{Columns, Engine, Pool};
use crate::digest::BlockHash;
use crate::error::RequestError;
use crate::fan_out::Grain;
use crate::kernel::Lane;
use crate::lineages::OwnedLineage;
use crate::output::{Column, Output, cells};
use crate::owned_request::OwnedRequest;
use crate::plan::{Plan, PlanMemory, Planner, Shape, Waiting};
use crate::plh::PositionalLineageHash;
use crate::request::Request;
use crate::run::{Batch, Memory, Scratch};
use crate::scheme::DynamoPlh;
use crate::walk::{Lanes, Walker};

/// A planned request, and where its hashes go.
pub(crate) struct Unhashed<'a> {
    request: &'a OwnedRequest,
    plan: Plan,
    rows: &'a mut [PositionalLineageHash],
    block_hashes: Option<&'a mut [BlockHash]>,
}

impl<'a> Unhashed<'a> {
    /// A request, and the lineage that was [planned](Engine::plan) for it.
    #[inline(always)]
    pub(crate) fn new(request: &'a OwnedRequest, lineage: &'a mut OwnedLineage) -> Self {
        let plan = lineage.plan();
        let (rows, block_hashes) = lineage.places();
        Self { request, plan, rows, block_hashes }
    }

    /// It before its first block. To be had once.
    #[inline(always)]
    fn lane(&mut self, planner: &Planner<DynamoPlh>) -> Lane<'a> {
        let rows = PositionalLineageHash::words_mut(mem::take(&mut self.rows));
        let hashes = self.block_hashes.take().map(BlockHash::peel_slice_mut);
        let place = (cells(rows), hashes.map(cells));
        planner.lane(&self.request.as_request(), &self.plan, place)
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

    /// Hashes planned requests. On a thread that others wait for: it does not go to a pool that was given,
    /// whose threads may be among those.
    pub(crate) fn hash_apart(&self, unhashed: &mut [Unhashed<'_>], memory: &mut Memory) {
        if self.threads > 1 && matches!(self.pool, Pool::Own(..)) {
            let bytes = unhashed.iter().map(|one| one.plan.shape.bytes()).sum();
            if let Some((pool, grain)) = self.pool_for(bytes) {
                return self.fan_out_apart(pool, grain, unhashed, memory);
            }
        }
        let Scratch { plans, workspace, frames } = &mut memory.scratches.at_least(1)[0];
        let keeps_hashes = self.columns.contains(Columns::BLOCK_HASHES);
        let mut walker = Walker { backend: self.backend, keeps_hashes, workspace };
        plans.clear();
        plans.order.waiting.reserve(unhashed.len());
        let (mut is_by_shape, mut last) = (true, Shape::default());
        for (index, one) in unhashed.iter_mut().enumerate() {
            let shape = one.plan.shape;
            if shape.blocks() == 0 {
                continue;
            }
            if !one.request.has_runs() {
                plans.order.waiting.push(Waiting { shape, index });
                is_by_shape &= last <= shape;
                last = shape;
                continue;
            }
            let request = one.request.as_request();
            let lane = one.lane(&self.planner);
            let runs = plans.note_runs(index, request.mm_runs);
            walker.walk_stretches(&request, one.plan.stretches(&request, runs), lane, frames);
        }
        plans.order.is_by_shape = is_by_shape;
        walker.walk_all(&mut plans.order, &mut Each { planner: &self.planner, unhashed });
    }

    /// Hashes planned requests on threads of a pool, too. Each thread plans again what it hashes.
    fn fan_out_apart(
        &self,
        pool: &ThreadPool,
        grain: Grain,
        unhashed: &mut [Unhashed<'_>],
        memory: &mut Memory,
    ) {
        let requests: Vec<Request<'_>> =
            unhashed.iter().map(|one| one.request.as_request()).collect();
        let batch: Batch<'_, '_, DynamoPlh> =
            Batch { backend: self.backend, planner: &self.planner, requests: &requests };
        batch.count_chunks(&mut memory.chunks);
        let mut plans = vec![Ok(Plan::default()); unhashed.len()];
        let kept = self.columns.contains(Columns::BLOCK_HASHES);
        let (mut rows, mut block_hashes) = (Vec::new(), Vec::new());
        for one in unhashed {
            rows.push(mem::take(&mut one.rows));
            if kept {
                // None may be left out: all later requests would get their neighbours' places.
                block_hashes.push(one.block_hashes.take().expect("a column that was planned"));
            }
        }
        let output = Output {
            plans: &mut plans,
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
    unhashed: &'e mut [Unhashed<'a>],
}

impl<'a> Lanes<'a> for Each<'_, 'a> {
    #[inline(always)]
    fn lane(&mut self, index: usize) -> Lane<'a> {
        self.unhashed[index].lane(self.planner)
    }

    #[inline(always)]
    fn blocks(&self, index: usize) -> &'a [u8] {
        bytemuck::cast_slice(self.unhashed[index].request.tokens())
    }
}

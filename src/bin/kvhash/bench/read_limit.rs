//! The read limit: adding up the same tokens and writing 16 bytes a block, compiled as it
//! comes. No hash of those tokens can be faster than the machine at this.

use std::hint::black_box;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::shapes::Batch;

/// Parts a thread, so that one that is held up is not waited for.
const PARTS_PER_THREAD: usize = 4;

pub(crate) struct ReadLimit<'a> {
    parts: Vec<Part<'a>>,
    pool: Option<&'a ThreadPool>,
}

/// Some of the prompts, and the rows of their blocks.
struct Part<'a> {
    prompts: &'a [Vec<u32>],
    block_size: usize,
    rows: Vec<u128>,
}

impl<'a> ReadLimit<'a> {
    /// `pool` has the threads where there are several.
    pub(crate) fn new(batch: &'a Batch, threads: usize, pool: Option<&'a ThreadPool>) -> Self {
        let block_size = batch.block_size();
        let count = pool.map_or(1, |_| threads * PARTS_PER_THREAD);
        let part = |prompts: &'a [Vec<u32>]| {
            let blocks = prompts.iter().map(|prompt| prompt.len() / block_size).sum();
            Part { prompts, block_size, rows: vec![0; blocks] }
        };
        let parts: Vec<_> =
            batch.prompts.chunks(batch.prompts.len().div_ceil(count)).map(part).collect();
        // Waking a thread for a single prompt takes longer than reading it.
        let pool = pool.filter(|_| parts.len() > 1);
        Self { parts, pool }
    }

    pub(crate) fn run(&mut self) {
        match self.pool {
            None => self.parts.iter_mut().for_each(Part::read),
            Some(pool) => pool.install(|| self.parts.par_iter_mut().for_each(Part::read)),
        }
    }
}

impl Part<'_> {
    fn read(&mut self) {
        let prompts = black_box(self.prompts);
        let blocks = prompts.iter().flat_map(|prompt| prompt.chunks_exact(self.block_size));
        for (block, row) in blocks.zip(black_box(&mut self.rows)) {
            let sum = block.iter().fold(0u32, |sum, &token| sum.wrapping_add(token));
            *row = u128::from(sum);
        }
    }
}

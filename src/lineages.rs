//! The results of a batch.

use bytemuck::Zeroable;

use crate::digest::{BlockHash, SaltHash, SequenceHash};
use crate::engine::{Columns, room};
use crate::error::RequestError;
use crate::plan::{Plan, Planned};
use crate::plh::{LegacyLineageHash, PositionalLineageHash};
use crate::run::Memory;
use crate::scheme::Row;

/// The results of a batch, in the order of its requests: for each request its lineage, or why
/// it has none.
///
/// Made once and handed to [`Engine::hash`](crate::Engine::hash) again and again: its memory is
/// kept from batch to batch, so that hashing allocates nothing once it has seen a batch as
/// large.
#[derive(Debug)]
pub struct Lineages<R: Row = PositionalLineageHash> {
    pub(crate) plans: Vec<Planned>,
    /// As long as the largest batch so far; the plans say which rows count.
    pub(crate) rows: Vec<R>,
    pub(crate) block_hashes: Vec<BlockHash>,
    pub(crate) sequence_hashes: Vec<SequenceHash>,
    pub(crate) columns: Columns,
    pub(crate) memory: Memory,
}

impl<R: Row> Default for Lineages<R> {
    fn default() -> Self {
        Self {
            plans: Vec::new(),
            rows: Vec::new(),
            block_hashes: Vec::new(),
            sequence_hashes: Vec::new(),
            columns: Columns::NONE,
            memory: Memory::default(),
        }
    }
}

impl Lineages {
    /// No results yet. For the rows of another scheme use [`Default`].
    pub fn new() -> Self {
        Self::default()
    }
}

impl<R: Row> Lineages<R> {
    /// How many requests the batch had.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether the batch had no request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lineage of request `index`.
    ///
    /// # Errors
    ///
    /// What is wrong with the request; [`RequestError::NoSuchRequest`] past the batch.
    pub fn get(&self, index: usize) -> Result<Lineage<'_, R>, RequestError> {
        let requests = self.len();
        let plan = self.plans.get(index);
        self.lineage(plan.ok_or(RequestError::NoSuchRequest { index, requests })?)
    }

    /// The lineages of all requests, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<Lineage<'_, R>, RequestError>> {
        self.plans.iter().map(|plan| self.lineage(plan))
    }

    fn lineage<'a>(&'a self, plan: &'a Planned) -> Result<Lineage<'a, R>, RequestError> {
        let plan = plan.as_ref().map_err(|&error| error)?;
        let rows = plan.rows();
        Ok(Lineage {
            plan,
            rows: &self.rows[rows.clone()],
            block_hashes: self
                .columns
                .contains(Columns::BLOCK_HASHES)
                .then(|| &self.block_hashes[rows.clone()]),
            sequence_hashes: (R::LOSES_SEQUENCE_HASHES
                && self.columns.contains(Columns::SEQUENCE_HASHES))
            .then(|| &self.sequence_hashes[rows]),
        })
    }

    /// Forgets the results and gives memory back, down to room for `blocks` blocks.
    pub fn shrink_to(&mut self, blocks: usize) {
        self.plans = Vec::new();
        self.rows.truncate(blocks);
        self.rows.shrink_to(blocks);
        self.block_hashes.truncate(blocks);
        self.block_hashes.shrink_to(blocks);
        self.sequence_hashes.truncate(blocks);
        self.sequence_hashes.shrink_to(blocks);
        self.memory.shrink();
    }
}

/// The hashes of one request, one a block, from its first complete block to its last.
#[derive(Debug, Clone, Copy)]
pub struct Lineage<'a, R: Row = PositionalLineageHash> {
    plan: &'a Plan,
    rows: &'a [R],
    block_hashes: Option<&'a [BlockHash]>,
    sequence_hashes: Option<&'a [SequenceHash]>,
}

impl<'a, R: Row> Lineage<'a, R> {
    /// The lineage hashes. Empty where the tokens do not fill a block.
    pub fn plhs(&self) -> &'a [R] {
        self.rows
    }

    /// The block hashes, if the engine was asked for [`Columns::BLOCK_HASHES`].
    pub fn block_hashes(&self) -> Option<&'a [BlockHash]> {
        self.block_hashes
    }

    /// The seed of the block hashes: what salt and LoRA name come down to.
    pub fn salt_hash(&self) -> SaltHash {
        self.plan.salt_hash
    }

    /// Tokens a block.
    pub fn block_size(&self) -> usize {
        self.plan.shape.block_size()
    }

    /// How many tokens come after the last hashed block.
    pub fn tail(&self) -> usize {
        self.plan.tail
    }
}

impl<'a> Lineage<'a> {
    /// The sequence hashes. They stand in the lineage hashes, so they are always there.
    pub fn sequence_hashes(&self) -> impl ExactSizeIterator<Item = SequenceHash> + use<'a> {
        self.rows.iter().map(PositionalLineageHash::current_sequence_hash)
    }
}

impl<'a> Lineage<'a, LegacyLineageHash> {
    /// The sequence hashes, which a legacy lineage hash has no room for: there if the engine
    /// was asked for [`Columns::SEQUENCE_HASHES`].
    pub fn sequence_hashes(&self) -> Option<&'a [SequenceHash]> {
        self.sequence_hashes
    }
}

impl<R: Row> Lineage<'_, R> {
    /// A copy that outlives the batch.
    pub fn detach(&self) -> OwnedLineage<R> {
        let kept = Kept {
            block_hashes: self.block_hashes.map(Into::into),
            sequence_hashes: self.sequence_hashes.map(Into::into),
        };
        OwnedLineage {
            plhs: self.rows.into(),
            kept: (kept != Kept::default()).then(|| Box::new(kept)),
            salt_hash: self.salt_hash(),
            block_size: self.block_size(),
            tail: self.tail(),
        }
    }
}

/// The hashes of one request, apart from those of its batch: what [`Lineage`] borrows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedLineage<R: Row = PositionalLineageHash> {
    pub(crate) plhs: Vec<R>,
    /// What few ask for. It lies apart, as what few [requests](crate::OwnedRequest) have.
    pub(crate) kept: Option<Box<Kept>>,
    pub(crate) salt_hash: SaltHash,
    pub(crate) block_size: usize,
    pub(crate) tail: usize,
}

/// The columns that were asked for beside the rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) block_hashes: Option<Vec<BlockHash>>,
    sequence_hashes: Option<Box<[SequenceHash]>>,
}

impl<R: Row> OwnedLineage<R> {
    /// One of nothing.
    pub(crate) fn empty() -> Self {
        Self { plhs: Vec::new(), kept: None, salt_hash: SaltHash(0), block_size: 0, tail: 0 }
    }

    /// The lineage of a request with this plan, in the memory of another. Its hashes are not there yet.
    #[inline(always)]
    pub(crate) fn unhashed(plan: &Plan, columns: Columns, memory: Self) -> Self {
        let blocks = plan.shape.blocks();
        let kept = columns.contains(Columns::BLOCK_HASHES).then(|| {
            let mut kept = memory.kept.unwrap_or_default();
            let hashes = in_place_of(kept.block_hashes.take().unwrap_or_default(), blocks);
            *kept = Kept { block_hashes: Some(hashes), sequence_hashes: None };
            kept
        });
        Self {
            plhs: in_place_of(memory.plhs, blocks),
            kept,
            salt_hash: plan.salt_hash,
            block_size: plan.shape.block_size(),
            tail: plan.tail,
        }
    }

    /// A lineage hash a block.
    pub fn plhs(&self) -> &[R] {
        &self.plhs
    }

    /// A hash a block; `None` unless [`Columns::BLOCK_HASHES`] were asked for.
    pub fn block_hashes(&self) -> Option<&[BlockHash]> {
        self.kept.as_deref()?.block_hashes.as_deref()
    }

    /// A sequence hash a block, where the rows do not hold them and
    /// [`Columns::SEQUENCE_HASHES`] were asked for.
    pub fn kept_sequence_hashes(&self) -> Option<&[SequenceHash]> {
        self.kept.as_deref()?.sequence_hashes.as_deref()
    }

    /// The seed of the block hashes.
    pub fn salt_hash(&self) -> SaltHash {
        self.salt_hash
    }

    /// Tokens a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// How many tokens come after the last block.
    pub fn tail(&self) -> usize {
        self.tail
    }
}

impl OwnedLineage {
    /// A sequence hash a block, read from the rows.
    pub fn sequence_hashes(&self) -> impl ExactSizeIterator<Item = SequenceHash> + '_ {
        self.plhs.iter().map(PositionalLineageHash::current_sequence_hash)
    }
}

/// So many elements in the memory of others, where it is enough. As [ever](room) in place of results, what
/// is there is not cleared.
#[inline(always)]
fn in_place_of<T: Zeroable + Copy>(mut others: Vec<T>, count: usize) -> Vec<T> {
    if others.capacity() < count {
        // One that grew would be copied.
        return vec![T::zeroed(); count];
    }
    room(&mut others, count);
    others.truncate(count);
    others
}

//! Schemes: the rules by which requests become hashes.
//!
//! A scheme is a type. It fixes what a request can hold and what a row of the result is, so
//! that a field which a scheme does not know is a compile error. Planning, scheduling and the
//! kernels are the same for all.

mod dynamo_plh;
pub(crate) mod encode;
pub(crate) mod frames;
mod salt;

use std::fmt::Debug;

use bytemuck::Zeroable;

use crate::digest::{SaltHash, SequenceHash};
use crate::plh::{LegacyLineageHash, PositionalLineageHash};
use crate::request::Request;

pub use dynamo_plh::{ChainSeed, DynamoPlh, DynamoPlhLegacy};
pub use salt::SaltRule;

/// The seed of a chain step as published: `CHAIN_XXH3_SEED` of `dynamo-tokens`, `XXH3_SEED` of
/// `dynamo-kv-router`. The salt hash of a request without salt and LoRA name is the same
/// number.
pub(crate) const CHAIN_SEED: u64 = 1337;

/// A rule by which requests become hashes. See [`DynamoPlh`] and [`DynamoPlhLegacy`].
///
/// The trait is sealed: the schemes are the ones of this crate.
pub trait Scheme: sealed::Rules + Copy + Debug + Send + Sync + 'static {
    /// What is hashed.
    type Request<'a>: sealed::General<'a> + Copy + Send + Sync;
    /// What a block becomes.
    type Row: Row;
}

/// What a scheme makes of a block: one row of a [`Lineage`](crate::Lineage). Sealed.
pub trait Row: sealed::Layout + Copy + Debug + Zeroable + Send + Sync + 'static {}

pub(crate) mod sealed {
    use super::{Request, SaltHash, SequenceHash};

    /// What planning and running ask of a request.
    pub trait General<'a> {
        /// The request in its most general form.
        fn general(&self) -> &Request<'a>;
    }

    /// What planning asks of a scheme.
    pub trait Rules {
        /// The seed of a request's block hashes. `buffer` is for what has to be written to be
        /// hashed.
        fn salt_hash(&self, request: &Request<'_>, buffer: &mut Vec<u8>) -> SaltHash;

        /// The seed of the chain steps of a request.
        fn chain_seed(&self, salt_hash: SaltHash) -> u64;
    }

    /// What running asks of a row.
    pub trait Layout: Sized {
        /// The 128-bit words that a kernel fills, in the layout of
        /// [`PositionalLineageHash`](crate::PositionalLineageHash).
        fn words_mut(rows: &mut [Self]) -> &mut [u128];

        /// Brings freshly filled words, the first of them at `position`, into this type's own
        /// layout. `sequence_hashes` gets what that layout has no room for.
        fn lay_out(words: &mut [u128], position: u64, sequence_hashes: Option<&mut [SequenceHash]>);

        /// Whether sequence hashes have to be kept beside the rows, since the rows lose them.
        const LOSES_SEQUENCE_HASHES: bool;
    }
}

impl Row for PositionalLineageHash {}

impl sealed::Layout for PositionalLineageHash {
    fn words_mut(rows: &mut [Self]) -> &mut [u128] {
        Self::words_mut(rows)
    }

    fn lay_out(_: &mut [u128], _: u64, _: Option<&mut [SequenceHash]>) {}

    const LOSES_SEQUENCE_HASHES: bool = false;
}

impl Row for LegacyLineageHash {}

impl sealed::Layout for LegacyLineageHash {
    fn words_mut(rows: &mut [Self]) -> &mut [u128] {
        Self::words_mut(rows)
    }

    fn lay_out(words: &mut [u128], position: u64, sequence_hashes: Option<&mut [SequenceHash]>) {
        crate::plh::lay_out_legacy(words, position, sequence_hashes);
    }

    const LOSES_SEQUENCE_HASHES: bool = true;
}

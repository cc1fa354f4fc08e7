//! The peer's lineage hash: ours, with plain numbers.

use std::fmt;

use crate::digest;
use crate::plh;

/// [`PositionalLineageHash`](crate::PositionalLineageHash) with the signatures of
/// `dynamo-tokens`: plain `u64`s, and panics where that type has errors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct PositionalLineageHash(plh::PositionalLineageHash);

impl PositionalLineageHash {
    /// Packs a sequence hash, its parent's and its position.
    ///
    /// # Panics
    ///
    /// Where [`PositionalLineageHash::new`](crate::PositionalLineageHash::new) has an error: at
    /// a position of 2^24 or more, as the original does, and where position 0 would get a
    /// parent fragment.
    pub fn new(current_seq_hash: u64, parent_seq_hash: Option<u64>, position: u64) -> Self {
        let current = digest::SequenceHash(current_seq_hash);
        let parent = parent_seq_hash.map(digest::SequenceHash);
        match plh::PositionalLineageHash::new(current, parent, position) {
            Ok(hash) => Self(hash),
            Err(error) => panic!("{error}"),
        }
    }

    /// The lineage of a first block.
    pub fn root(block_hash: u64) -> Self {
        Self(plh::PositionalLineageHash::root(digest::BlockHash(block_hash)))
    }

    /// The lineage of the block that follows this one.
    ///
    /// # Panics
    ///
    /// At the last position, as the original does.
    pub fn extend(&self, child_block_hash: u64) -> Self {
        match self.0.extend(digest::BlockHash(child_block_hash)) {
            Ok(hash) => Self(hash),
            Err(error) => panic!("{error}"),
        }
    }

    /// The block's position.
    pub fn position(&self) -> u64 {
        self.0.position()
    }

    /// The block's sequence hash.
    pub fn current_sequence_hash(&self) -> u64 {
        self.0.current_sequence_hash().0
    }

    /// The low bits of the parent's sequence hash.
    pub fn parent_hash_fragment(&self) -> u64 {
        self.0.parent_hash_fragment()
    }

    /// The fragment that a child of this block holds at `child_position`.
    pub fn parent_fragment_for_child_position(&self, child_position: u64) -> u64 {
        self.0.parent_fragment_for_child_position(child_position)
    }

    /// The mode: 0, 1 or 2.
    pub fn mode(&self) -> u8 {
        self.0.mode()
    }

    /// All 128 bits, as a number.
    pub fn as_u128(&self) -> u128 {
        self.0.as_u128()
    }
}

impl From<plh::PositionalLineageHash> for PositionalLineageHash {
    fn from(hash: plh::PositionalLineageHash) -> Self {
        Self(hash)
    }
}

impl From<PositionalLineageHash> for plh::PositionalLineageHash {
    fn from(hash: PositionalLineageHash) -> Self {
        hash.0
    }
}

impl fmt::Display for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As the original.
        fmt::Display::fmt(&self.0, f)
    }
}

//! The kernels: blocks of bytes to hashes, hashes to chained and packed rows.
//!
//! A kernel knows bytes, keys, 64-bit states and shifts. It does not know tokens, requests,
//! schemes or modes: what differs between those comes in as keys and as the two numbers of a
//! row's packing. Every kernel file has the same three entries; [`Backend`] is the one place
//! that knows the files.
//!
//! | entry | does |
//! |---|---|
//! | `hash` | many blocks of one key schedule → 64-bit block hashes |
//! | `chain` | block hashes of several requests → sequence hashes → packed rows |
//! | `walk` | `chain` after `hash`, for the next blocks of several requests |

mod scalar;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::error::EngineError;
use crate::xxh3::keys::{BlockKeys, ChainKeys};

/// An implementation of the hash kernels. All give the same bits; they differ in speed and in
/// what they need of the CPU.
///
/// A backend is a value, so any of the [available](Self::available) ones can be chosen in one
/// process.
///
/// ```
/// use kvhash::Backend;
///
/// let backend: Backend = "scalar".parse()?;
/// assert!(Backend::available().contains(&backend));
/// # Ok::<(), kvhash::EngineError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Plain Rust, on every CPU.
    Scalar,
}

impl Backend {
    /// The backends that this build has and this CPU can run, the fastest last.
    pub fn available() -> &'static [Self] {
        &[Self::Scalar]
    }

    /// The fastest available backend: what an engine takes unless told otherwise.
    pub fn detect() -> Self {
        *Self::available().last().expect("the scalar backend is always there")
    }

    /// The name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
        }
    }

    /// Hashes blocks of one schedule that lie back to back.
    #[cfg(test)]
    pub(crate) fn hash(self, blocks: &[u8], keys: &BlockKeys, hashes: &mut [u64]) {
        match self {
            Self::Scalar => scalar::hash(blocks, keys, hashes),
        }
    }

    /// How many requests go best side by side, with blocks of so many bytes.
    pub(crate) fn lanes(self, block_bytes: usize) -> usize {
        match self {
            Self::Scalar => scalar::lanes(block_bytes),
        }
    }

    /// Hashes the next `count` blocks of every lane and chains and packs them, each under its
    /// own schedule in `keys`. Advances the lanes past those blocks.
    pub(crate) fn walk(
        self,
        count: usize,
        fragment_bits: u32,
        lanes: &mut [Lane<'_>],
        keys: &[BlockKeys],
        tiles: &mut Tiles,
    ) {
        match self {
            Self::Scalar => scalar::walk(count, fragment_bits, lanes, keys, tiles),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Self, EngineError> {
        Self::available()
            .iter()
            .copied()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| EngineError::UnavailableBackend { name: name.into() })
    }
}

/// The most lanes that a call of `walk` takes.
pub(crate) const MAX_LANES: usize = 4;

/// How many block hashes of a lane are kept between `hash` and `chain`.
const TILE: usize = 64;

/// Room for the block hashes between `hash` and `chain`, where they are not an output.
pub(crate) type Tiles = [[u64; TILE]; MAX_LANES];

pub(crate) const EMPTY_TILES: Tiles = [[0; TILE]; MAX_LANES];

/// One request under way: what is left of its blocks and of its place in the output.
#[derive(Debug, Default)]
pub(crate) struct Lane<'a> {
    /// The blocks still to hash, back to back.
    pub(crate) blocks: &'a [u8],
    /// Where their rows go, one a block.
    pub(crate) rows: &'a mut [u128],
    /// Where their hashes go, one a block, if they are an output.
    pub(crate) hashes: Option<&'a mut [u64]>,
    /// The keys of its chain steps.
    pub(crate) chain: ChainKeys,
    /// The sequence hash of the block before; `None` where there is none. The first block's
    /// sequence hash is its block hash, and its row has no parent.
    pub(crate) state: Option<u64>,
    /// The bits of the next row's high half that come from its position alone. From row to
    /// row it grows by one, shifted left by the fragment bits.
    pub(crate) prefix: u64,
}

impl<'a> Lane<'a> {
    fn take_blocks(&mut self, bytes: usize) -> &'a [u8] {
        self.blocks.split_off(..bytes).expect("a lane has the blocks that it was asked for")
    }

    fn take_rows(&mut self, count: usize) -> &'a mut [u128] {
        self.rows.split_off_mut(..count).expect("a lane has a row for every block")
    }

    fn take_hashes(&mut self, count: usize) -> Option<&'a mut [u64]> {
        let hashes = self.hashes.as_mut()?;
        Some(hashes.split_off_mut(..count).expect("a lane has a hash for every block"))
    }
}

//! The layout of `dynamo-tokens` 0.9.0 to 1.2.1.

use bytemuck::{NoUninit, Pod, TransparentWrapper, Zeroable};

use super::Mode;
use crate::digest::SequenceHash;
use crate::error::PlhError;

/// The positional lineage hash of `dynamo-tokens` 0.9.0 to 1.2.1.
///
/// From the most significant bit: mode (2 bits), position (8, 16 or 24 bits), then the low bits
/// of the parent's and of the block's own sequence hash, 59, 55 or 51 of each. The mode goes by
/// the position as in [`PositionalLineageHash`](crate::PositionalLineageHash), but the block's
/// own hash is cut to the width that the *next* position has for its parent: at position 255
/// it keeps 55 bits of its 59-bit field, at 65,535 it keeps 51.
///
/// It does not hold a whole sequence hash, so a lineage cannot be continued from it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Zeroable, NoUninit, TransparentWrapper,
)]
#[repr(transparent)]
pub struct LegacyLineageHash(Packed);

/// The bits. Private, so that no value is wrapped unchecked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Zeroable, Pod)]
#[repr(transparent)]
struct Packed(u128);

impl LegacyLineageHash {
    /// Packs a sequence hash, its parent's (`None` for a first block) and its position.
    ///
    /// # Errors
    ///
    /// [`PlhError::PositionLimit`] past [`MAX_POSITION`](crate::MAX_POSITION);
    /// [`PlhError::RootWithParent`] where position 0 would get a parent fragment.
    pub fn new(
        current: SequenceHash,
        parent: Option<SequenceHash>,
        position: u64,
    ) -> Result<Self, PlhError> {
        let mode = Mode::of(position)?;
        let bits = pack(mode, position, current.0, parent.map_or(0, |parent| parent.0));
        Self::try_from(bits)
    }

    /// The block's position in its prompt, in blocks from 0.
    pub fn position(&self) -> u64 {
        position(self.layout(), self.as_u128())
    }

    /// The low bits of the block's sequence hash: as many as its position keeps.
    pub fn current_hash_fragment(&self) -> u64 {
        (self.as_u128() & mask(half_bits(self.layout()))) as u64
    }

    /// The low bits of the parent's sequence hash; 0 at position 0.
    pub fn parent_hash_fragment(&self) -> u64 {
        let bits = half_bits(self.layout());
        ((self.as_u128() >> bits) & mask(bits)) as u64
    }

    /// The mode: 0, 1 or 2.
    pub fn mode(&self) -> u8 {
        self.layout() as u8
    }

    /// How many bits of the parent's sequence hash it holds: 59, 55 or 51.
    pub fn parent_fragment_bits(&self) -> u32 {
        half_bits(self.layout())
    }

    /// All 128 bits, as a number.
    pub fn as_u128(&self) -> u128 {
        self.0.0
    }

    /// All 128 bits, the most significant byte first.
    pub fn to_be_bytes(&self) -> [u8; 16] {
        self.as_u128().to_be_bytes()
    }

    /// The numbers behind a slice of lineage hashes, without a copy.
    pub fn as_u128s(hashes: &[Self]) -> &[u128] {
        bytemuck::cast_slice(hashes)
    }

    /// The rows that a kernel fills, to be [packed again](pack).
    pub(crate) fn words_mut(rows: &mut [Self]) -> &mut [u128] {
        bytemuck::cast_slice_mut(Self::peel_slice_mut(rows))
    }

    fn layout(&self) -> Mode {
        Mode::of_bits(self.as_u128()).expect("every value of this type is canonical")
    }
}

/// Any bits, checked.
///
/// # Errors
///
/// As for [`PositionalLineageHash`](crate::PositionalLineageHash); a hash wider than its
/// position keeps is [`PlhError::WideFragment`].
impl TryFrom<u128> for LegacyLineageHash {
    type Error = PlhError;

    fn try_from(bits: u128) -> Result<Self, PlhError> {
        let mode = Mode::of_bits(bits).ok_or(PlhError::UnknownMode { bits })?;
        let position = position(mode, bits);
        if Mode::of(position) != Ok(mode) {
            return Err(PlhError::WideMode { bits, mode: mode as u8, position });
        }
        let hash = Self(Packed(bits));
        let fragment = hash.parent_hash_fragment();
        if position == 0 && fragment != 0 {
            return Err(PlhError::RootWithParent { bits, fragment });
        }
        if u128::from(hash.current_hash_fragment()) & !mask(kept_bits(position)) != 0 {
            return Err(PlhError::WideFragment { bits, position });
        }
        Ok(hash)
    }
}

impl From<LegacyLineageHash> for u128 {
    fn from(hash: LegacyLineageHash) -> Self {
        hash.as_u128()
    }
}

/// The bits of one row.
pub(crate) fn pack(mode: Mode, position: u64, current: u64, parent: u64) -> u128 {
    let bits = half_bits(mode);
    (mode as u128) << 126
        | u128::from(position) << (2 * bits)
        | (u128::from(parent) & mask(bits)) << bits
        | (u128::from(current) & mask(kept_bits(position)))
}

/// How wide each of the two hash fields is: half of what mode and position leave.
fn half_bits(mode: Mode) -> u32 {
    (128 - 2 - mode.end().ilog2()) / 2
}

/// How many bits of its own sequence hash a block keeps: as many as its child will have room
/// for, and no more than its own field has.
fn kept_bits(position: u64) -> u32 {
    // The last position has no child; its own width stands in.
    half_bits(Mode::of(position + 1).unwrap_or(Mode::Wide))
}

fn position(mode: Mode, bits: u128) -> u64 {
    (bits >> (2 * half_bits(mode))) as u64 & (mode.end() - 1)
}

fn mask(bits: u32) -> u128 {
    (1 << bits) - 1
}

/// Packs rows anew that came out of a kernel in the layout of
/// [`PositionalLineageHash`](crate::PositionalLineageHash), the first of them at `position`
/// and without a parent. Their sequence hashes, which the legacy layout cuts, go to
/// `sequence_hashes` where they are asked for.
pub(crate) fn lay_out(
    words: &mut [u128],
    position: u64,
    mut sequence_hashes: Option<&mut [SequenceHash]>,
) {
    let mut parent = 0;
    for (i, word) in words.iter_mut().enumerate() {
        let position = position + i as u64;
        let mode = Mode::of(position).expect("a row has a position in range");
        let current = (*word >> mode.fragment_bits()) as u64;
        *word = pack(mode, position, current, parent);
        if let Some(hashes) = &mut sequence_hashes {
            hashes[i] = SequenceHash(current);
        }
        parent = current;
    }
}

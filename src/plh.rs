//! The 128-bit lineage hashes and their bit layouts.

mod legacy;
mod text;

use bytemuck::{NoUninit, Pod, TransparentWrapper, Zeroable};

use crate::digest::{BlockHash, SequenceHash};
use crate::error::PlhError;
use crate::scheme::CHAIN_SEED;
use crate::xxh3::keys::ChainKeys;
use crate::xxh3::scalar::chain_step;

pub use legacy::LegacyLineageHash;
pub(crate) use legacy::lay_out as lay_out_legacy;

/// The largest block position that a lineage hash holds.
pub const MAX_POSITION: u64 = (1 << 24) - 1;

/// Identifies a block with everything before it, and says where it stands: the *positional
/// lineage hash* (PLH) of `dynamo-tokens` since 1.3.0.
///
/// From the most significant bit: mode (2 bits), position, sequence hash (64 bits), and the low
/// bits of the parent's sequence hash. The position decides the mode:
///
/// | mode | positions | position bits | fragment bits |
/// |---|---|---|---|
/// | 0 | 0 to 255 | 8 | 54 |
/// | 1 | 256 to 65,535 | 16 | 46 |
/// | 2 | 65,536 to 16,777,215 | 24 | 38 |
///
/// Every value of this type is canonical: the smallest mode that holds the position, and no
/// parent fragment at position 0. Its order as a number, the order of its
/// [big-endian bytes](Self::to_be_bytes) and the peer's order are therefore the same: by
/// position, then by sequence hash, then by fragment.
///
/// ```
/// use kvhash::{BlockHash, PositionalLineageHash};
///
/// let first = PositionalLineageHash::root(BlockHash(0xcb38_e4d7_fb2d_ca5c));
/// let second = first.extend(BlockHash(0xe8d3_ec39_b907_b74c))?;
/// assert_eq!(second.position(), 1);
/// assert_eq!(second.current_sequence_hash().0, 0x44a2_b237_9d6d_3c3d);
/// assert_eq!(
///     second.parent_hash_fragment(),
///     first.parent_fragment_for_child_position(second.position())
/// );
/// # Ok::<(), kvhash::PlhError>(())
/// ```
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Zeroable,
    NoUninit,
    TransparentWrapper,
)]
#[repr(transparent)]
pub struct PositionalLineageHash(Packed);

/// The bits of a lineage hash. Private, so that no value is wrapped unchecked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Zeroable, Pod)]
#[repr(transparent)]
struct Packed(u128);

impl PositionalLineageHash {
    /// Packs a sequence hash, its parent's (`None` for a first block) and its position.
    ///
    /// # Errors
    ///
    /// [`PlhError::PositionLimit`] past [`MAX_POSITION`]; [`PlhError::RootWithParent`] where
    /// position 0 would get a parent fragment.
    pub fn new(
        current: SequenceHash,
        parent: Option<SequenceHash>,
        position: u64,
    ) -> Result<Self, PlhError> {
        let mode = Mode::of(position)?;
        let fragment = parent.map_or(0, |parent| mode.fragment(parent.0));
        let bits = u128::from(mode.prefix(position)) << 64
            | u128::from(current.0) << mode.fragment_bits()
            | u128::from(fragment);
        Self::try_from(bits)
    }

    /// The lineage of a first block: its sequence hash is its block hash.
    pub fn root(block_hash: BlockHash) -> Self {
        let bits = u128::from(block_hash.0) << Mode::Narrow.fragment_bits();
        Self(Packed(bits))
    }

    /// The lineage of the block that follows this one, by the published chain rule.
    ///
    /// # Errors
    ///
    /// [`PlhError::PositionLimit`] at [`MAX_POSITION`]: the next position has no layout.
    pub fn extend(&self, child: BlockHash) -> Result<Self, PlhError> {
        self.extend_with(CHAIN_SEED, child)
    }

    /// As [`extend`](Self::extend), for a scheme whose chain has another seed.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    pub fn extend_with(&self, chain_seed: u64, child: BlockHash) -> Result<Self, PlhError> {
        let parent = self.current_sequence_hash();
        let current = chain_step(parent.0, child.0, ChainKeys::new(chain_seed));
        Self::new(SequenceHash(current), Some(parent), self.position() + 1)
    }

    /// The block's position in its prompt, in blocks from 0.
    pub fn position(&self) -> u64 {
        self.layout().position(self.as_u128())
    }

    /// The block's sequence hash, all 64 bits of it.
    pub fn current_sequence_hash(&self) -> SequenceHash {
        SequenceHash((self.as_u128() >> self.layout().fragment_bits()) as u64)
    }

    /// The low bits of the parent's sequence hash: 54, 46 or 38 of them, by mode; 0 at
    /// position 0. Not unique, not even together with the position: do not use it as a key.
    pub fn parent_hash_fragment(&self) -> u64 {
        self.layout().fragment(self.as_u128() as u64)
    }

    /// How many bits the parent fragment has: 54, 46 or 38.
    pub fn parent_fragment_bits(&self) -> u32 {
        self.layout().fragment_bits()
    }

    /// The fragment that a child of this block holds at `child_position`. Past
    /// [`MAX_POSITION`] there is no layout, and the width is that of the last one, as in the
    /// peer.
    pub fn parent_fragment_for_child_position(&self, child_position: u64) -> u64 {
        Mode::of(child_position).unwrap_or(Mode::Wide).fragment(self.current_sequence_hash().0)
    }

    /// The mode: 0, 1 or 2.
    pub fn mode(&self) -> u8 {
        self.layout() as u8
    }

    /// All 128 bits, as a number.
    pub fn as_u128(&self) -> u128 {
        self.0.0
    }

    /// All 128 bits, the most significant byte first: the peer's serialised form.
    pub fn to_be_bytes(&self) -> [u8; 16] {
        self.as_u128().to_be_bytes()
    }

    /// The reverse of [`to_be_bytes`](Self::to_be_bytes).
    ///
    /// # Errors
    ///
    /// As `TryFrom<u128>`: [`PlhError`] for bits that no block has.
    pub fn from_be_bytes(bytes: [u8; 16]) -> Result<Self, PlhError> {
        Self::try_from(u128::from_be_bytes(bytes))
    }

    /// The numbers behind a slice of lineage hashes, without a copy.
    pub fn as_u128s(hashes: &[Self]) -> &[u128] {
        bytemuck::cast_slice(hashes)
    }

    /// The rows that a kernel fills.
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
/// [`PlhError::UnknownMode`], [`PlhError::WideMode`] or [`PlhError::RootWithParent`] for bits
/// that no block has. The peer accepts such values and sorts them wrongly.
impl TryFrom<u128> for PositionalLineageHash {
    type Error = PlhError;

    fn try_from(bits: u128) -> Result<Self, PlhError> {
        let mode = Mode::of_bits(bits).ok_or(PlhError::UnknownMode { bits })?;
        let position = mode.position(bits);
        if Mode::of(position) != Ok(mode) {
            return Err(PlhError::WideMode { bits, mode: mode as u8, position });
        }
        let fragment = mode.fragment(bits as u64);
        if position == 0 && fragment != 0 {
            return Err(PlhError::RootWithParent { bits, fragment });
        }
        Ok(Self(Packed(bits)))
    }
}

impl From<PositionalLineageHash> for u128 {
    fn from(hash: PositionalLineageHash) -> Self {
        hash.as_u128()
    }
}

/// How wide the fields are. The discriminant is the two bits that say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Narrow = 0,
    Middle = 1,
    Wide = 2,
}

impl Mode {
    /// The smallest mode that holds `position`.
    #[inline]
    pub(crate) fn of(position: u64) -> Result<Self, PlhError> {
        [Self::Narrow, Self::Middle, Self::Wide]
            .into_iter()
            .find(|mode| position < mode.end())
            .ok_or(PlhError::PositionLimit { position })
    }

    fn of_bits(bits: u128) -> Option<Self> {
        match bits >> 126 {
            0 => Some(Self::Narrow),
            1 => Some(Self::Middle),
            2 => Some(Self::Wide),
            _ => None,
        }
    }

    fn position_bits(self) -> u32 {
        match self {
            Self::Narrow => 8,
            Self::Middle => 16,
            Self::Wide => 24,
        }
    }

    /// How many low bits of the parent's sequence hash there is room for.
    pub(crate) fn fragment_bits(self) -> u32 {
        128 - 2 - 64 - self.position_bits()
    }

    /// The first position that this mode does not hold.
    pub(crate) fn end(self) -> u64 {
        1 << self.position_bits()
    }

    /// Mode and position as they stand in the high half.
    pub(crate) fn prefix(self, position: u64) -> u64 {
        (self as u64) << 62 | position << self.fragment_bits()
    }

    fn position(self, bits: u128) -> u64 {
        (bits >> (64 + self.fragment_bits())) as u64 & (self.end() - 1)
    }

    fn fragment(self, parent: u64) -> u64 {
        parent & ((1 << self.fragment_bits()) - 1)
    }
}

/// The bytes of [`to_be_bytes`](PositionalLineageHash::to_be_bytes), as the peer writes them;
/// bits that no block has are refused.
#[cfg(feature = "serde")]
mod serde_impl {
    use super::PositionalLineageHash;
    use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use serde::ser::{Serialize, Serializer};
    use std::fmt;

    impl Serialize for PositionalLineageHash {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.to_be_bytes())
        }
    }

    impl<'de> Deserialize<'de> for PositionalLineageHash {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let bytes = deserializer.deserialize_bytes(SixteenBytes)?;
            Self::from_be_bytes(bytes).map_err(D::Error::custom)
        }
    }

    struct SixteenBytes;

    impl<'de> Visitor<'de> for SixteenBytes {
        type Value = [u8; 16];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("16 bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<[u8; 16], E> {
            bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<[u8; 16], A::Error> {
            let mut array = [0; 16];
            for (i, byte) in array.iter_mut().enumerate() {
                let next = bytes.next_element()?;
                *byte = next.ok_or_else(|| A::Error::invalid_length(i, &self))?;
            }
            match bytes.next_element::<u8>()? {
                None => Ok(array),
                Some(_) => Err(A::Error::invalid_length(17, &self)),
            }
        }
    }
}

#[cfg(feature = "dynamo-tokens")]
mod dynamo_tokens_impl {
    use super::{PlhError, PositionalLineageHash};

    impl From<PositionalLineageHash> for dynamo_tokens::PositionalLineageHash {
        fn from(hash: PositionalLineageHash) -> Self {
            Self::new(
                hash.current_sequence_hash().0,
                Some(hash.parent_hash_fragment()),
                hash.position(),
            )
        }
    }

    impl TryFrom<dynamo_tokens::PositionalLineageHash> for PositionalLineageHash {
        type Error = PlhError;

        fn try_from(hash: dynamo_tokens::PositionalLineageHash) -> Result<Self, PlhError> {
            Self::try_from(hash.as_u128())
        }
    }
}

//! The 64-bit hashes, each a type of its own so that the compiler tells them apart.

use std::fmt;

use bytemuck::{Pod, TransparentWrapper, Zeroable};

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// `Display` and `LowerHex` write 16 hex digits, the most significant first. Slices
        /// convert to and from `&[u64]` without a copy by [`bytemuck::TransparentWrapper`].
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Pod, Zeroable,
            TransparentWrapper,
        )]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl From<u64> for $name {
            fn from(hash: u64) -> Self {
                Self(hash)
            }
        }

        impl From<$name> for u64 {
            fn from(hash: $name) -> Self {
                hash.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:016x})"), self.0)
            }
        }
    };
}

digest! {
    /// What identifies the content of one block: XXH3-64 of its bytes, seeded by the salt hash.
    BlockHash
}

digest! {
    /// What identifies a block together with all the blocks before it: the block hash at
    /// position 0, XXH3-64 of the parent's sequence hash and the block hash after it.
    SequenceHash
}

digest! {
    /// What a request's salt and LoRA name come down to: the seed of its block hashes.
    SaltHash
}

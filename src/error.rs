//! What can go wrong: with an engine's settings, with one request, with one lineage hash.

use thiserror::Error;

use crate::kernel::Backend;
use crate::plh::MAX_POSITION;

/// Why a request has no hashes. The other requests of its batch are not touched by it.
///
/// The errors of multimodal runs and their order are those of `dynamo-kv-hashing`: runs are
/// taken in the order of their offsets, and the first one that fails decides. Offsets are in
/// tokens from the start of the whole prompt, also where a request
/// [resumes](crate::Request::resume) one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A multimodal run covers no token.
    #[error("multimodal run at offset {offset} has length 0; a run covers at least one token")]
    EmptyRun {
        /// Where the run starts.
        offset: usize,
    },
    /// The end of a multimodal run is not a number.
    #[error("multimodal run at offset {offset} with length {length} ends past 2^64 - 1")]
    OffsetOverflow {
        /// Where the run starts.
        offset: usize,
        /// How many tokens it covers.
        length: usize,
    },
    /// A multimodal run ends after the last token, the incomplete last block included.
    #[error(
        "multimodal run at offset {offset} with length {length} ends past the prompt's \
         {tokens_len} tokens"
    )]
    OutOfBounds {
        /// Where the run starts.
        offset: usize,
        /// How many tokens it covers.
        length: usize,
        /// How many tokens the prompt has.
        tokens_len: usize,
    },
    /// A multimodal run starts inside the one before it. Runs may touch.
    #[error("multimodal runs overlap at position {position}")]
    Overlapping {
        /// Where the second of the two runs starts.
        position: usize,
    },
    /// The request's own block size is 0.
    #[error("block size is 0; a block has at least one token")]
    ZeroBlockSize,
    /// The request has more blocks than a lineage hash can number.
    #[error(
        "the last block would have position {position}; the largest is {MAX_POSITION}: hash \
         fewer blocks or larger ones"
    )]
    PositionLimit {
        /// The position of the request's last block.
        position: u64,
    },
    /// There is no request of this index in the batch.
    #[error("request {index} was asked for, but the batch has {requests}")]
    NoSuchRequest {
        /// The index that was asked for.
        index: usize,
        /// How many requests the batch has.
        requests: usize,
    },
}

impl RequestError {
    /// The variant's name, as the command line writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::EmptyRun { .. } => "EmptyRun",
            Self::OffsetOverflow { .. } => "OffsetOverflow",
            Self::OutOfBounds { .. } => "OutOfBounds",
            Self::Overlapping { .. } => "Overlapping",
            Self::ZeroBlockSize => "ZeroBlockSize",
            Self::PositionLimit { .. } => "PositionLimit",
            Self::NoSuchRequest { .. } => "NoSuchRequest",
        }
    }
}

/// Why some bits, numbers or text are no [`PositionalLineageHash`](crate::PositionalLineageHash)
/// or [`LegacyLineageHash`](crate::LegacyLineageHash).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlhError {
    /// The position is past the last one that the layout has room for.
    #[error("position {position} is past {MAX_POSITION}, the largest that a lineage hash holds")]
    PositionLimit {
        /// The position.
        position: u64,
    },
    /// The two mode bits are both set; there are three modes.
    #[error("{bits:032x} is no lineage hash: its mode is 3, and there are 0, 1 and 2")]
    UnknownMode {
        /// The bits, as given.
        bits: u128,
    },
    /// The mode is for larger positions: a smaller mode holds this one.
    #[error("{bits:032x} is no lineage hash: position {position} does not take mode {mode}")]
    WideMode {
        /// The bits, as given.
        bits: u128,
        /// The mode that they have.
        mode: u8,
        /// The position that they have.
        position: u64,
    },
    /// A first block has no parent, yet there is a parent fragment.
    #[error(
        "{bits:032x} is no lineage hash: it has position 0 and the parent fragment {fragment:#x}"
    )]
    RootWithParent {
        /// The bits, as given.
        bits: u128,
        /// The fragment that they have.
        fragment: u64,
    },
    /// A legacy hash holds more bits of its sequence hash than its position keeps.
    #[error("{bits:032x} is no legacy lineage hash: position {position} keeps fewer hash bits")]
    WideFragment {
        /// The bits, as given.
        bits: u128,
        /// The position that they have.
        position: u64,
    },
    /// Text that is not `position:base58(sequence hash):base58(parent fragment)`, two parts at
    /// position 0.
    #[error("{reason}: a lineage hash reads position:sequence hash:parent fragment, in base 58")]
    Malformed {
        /// What was wrong with it.
        reason: &'static str,
    },
}

impl PlhError {
    /// The kind of error, as the command line writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PositionLimit { .. } => "PositionLimit",
            _ => "InvalidPlh",
        }
    }
}

/// Why an engine cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An engine's block size is 0.
    #[error("block size is 0; a block has at least one token")]
    ZeroBlockSize,
    /// No backend of this name, or none that this CPU can run.
    #[error("backend {name:?} is not available here; available: {}", available())]
    UnavailableBackend {
        /// The name that was asked for.
        name: String,
    },
    /// The threads of a pool that was handed in are not the engine's to pin.
    #[error("a pool that was handed in cannot be pinned: pin its threads when it is made")]
    PinnedPool,
}

fn available() -> String {
    Backend::available().iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ")
}

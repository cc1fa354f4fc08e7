//! The names of `dynamo-kv-hashing`, to be tried by changing one line:
//!
//! ```
//! // use dynamo_kv_hashing::Request;
//! use kvhash::dynamo::Request;
//!
//! let request = Request::builder().tokens(vec![1, 2, 3, 4, 5, 6, 7, 8]).build()?;
//! let blocks = request.into_blocks(4)?;
//! assert_eq!(blocks[0].block_hash, 0xcb38_e4d7_fb2d_ca5c);
//! assert_eq!(blocks[1].sequence_hash(), 0x44a2_b237_9d6d_3c3d);
//! # Ok::<(), kvhash::dynamo::KvHashingError>(())
//! ```
//!
//! Names, signatures and results are those of `dynamo-kv-hashing` 1.6.1, with plain `u64`s for
//! hashes; the work is done by the [engine](crate::Engine), which new code should rather use:
//! it takes many requests at once, borrows their tokens, and keeps its memory.
//!
//! One thing differs: where the original panics on a block size of 0 or past 2^24 blocks, the
//! methods of [`Request`] return [`KvHashingError::TokenBlock`].

mod plh;
mod request;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::RequestError;
use crate::plan::check_in_order;
use crate::request::MmRun;
use crate::scheme::encode::{FRAME_BYTES, Stretch, Stretches};
use crate::scheme::frames::encode_frames;
use crate::scheme::{CHAIN_SEED, SaltRule};
use crate::xxh3::keys::ChainKeys;
use crate::xxh3::scalar::chain_step;

pub use plh::PositionalLineageHash;
pub use request::{Request, RequestBuilder, RequestMmObjectInfo, UniversalBlock};

/// A token id.
pub type Token = u32;
/// What salt and LoRA name come down to: the seed of the block hashes.
pub type SaltHash = u64;
/// What identifies the content of one block.
pub type BlockHash = u64;
/// What identifies a block together with all before it.
pub type SequenceHash = u64;

/// The first byte of a token's frame.
pub const MM_SLOT_TAG_TOKEN: u8 = crate::scheme::encode::TOKEN_TAG;
/// The first byte of a placeholder's frame.
pub const MM_SLOT_TAG_PLACEHOLDER: u8 = crate::scheme::encode::PLACEHOLDER_TAG;

/// A run of placeholder tokens. The same as [`RequestMmObjectInfo`], under the name that
/// `dynamo-tokens` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TokenBlockMmInfo {
    /// Identifies the object.
    pub mm_hash: u64,
    /// The position of the run's first token.
    pub offset: usize,
    /// How many tokens the run covers.
    pub length: usize,
}

/// What can be wrong with multimodal runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MmInfoError {
    /// The run ends after the last token.
    #[error("the run at {offset} of length {length} ends past the {tokens_len} tokens")]
    OutOfBounds {
        /// Where the run starts.
        offset: usize,
        /// How many tokens it covers.
        length: usize,
        /// How many tokens there are.
        tokens_len: usize,
    },
    /// The end of the run is not a number.
    #[error("the run at {offset} of length {length} ends past 2^64 - 1")]
    OffsetOverflow {
        /// Where the run starts.
        offset: usize,
        /// How many tokens it covers.
        length: usize,
    },
    /// Two runs overlap.
    #[error("runs overlap at position {position}")]
    Overlapping {
        /// Where the second one starts.
        position: usize,
    },
    /// The run covers no token.
    #[error("a run covers at least one token")]
    EmptyRun,
}

/// What can go wrong when a request is built or hashed.
#[derive(Debug, Error)]
pub enum KvHashingError {
    /// The multimodal runs are not valid.
    #[error(transparent)]
    MmInfo(#[from] MmInfoError),
    /// The tokens cannot be cut into blocks, where the original panics.
    #[error(transparent)]
    TokenBlock(RequestError),
    /// Never returned; here because the original has it.
    #[error("the salt cannot be serialized: {0}")]
    SaltSerialization(#[from] serde_json::Error),
    /// A builder was not given what it needs.
    #[error("the builder was not given {0}")]
    MissingField(&'static str),
}

impl From<RequestError> for KvHashingError {
    fn from(error: RequestError) -> Self {
        Self::MmInfo(match error {
            RequestError::EmptyRun { .. } => MmInfoError::EmptyRun,
            RequestError::OffsetOverflow { offset, length } => {
                MmInfoError::OffsetOverflow { offset, length }
            }
            RequestError::OutOfBounds { offset, length, tokens_len } => {
                MmInfoError::OutOfBounds { offset, length, tokens_len }
            }
            RequestError::Overlapping { position } => MmInfoError::Overlapping { position },
            other => return Self::TokenBlock(other),
        })
    }
}

/// XXH3-64 of `data` under `seed`.
pub fn compute_hash_v2(data: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(data, seed)
}

/// The hash of a block's bytes, seeded by the salt hash.
pub fn compute_block_hash(block_bytes: &[u8], salt: SaltHash) -> BlockHash {
    compute_hash_v2(block_bytes, salt)
}

/// The hash of a salt's bytes.
pub fn compute_salt_hash_from_bytes(payload: &[u8]) -> SaltHash {
    compute_hash_v2(payload, 0)
}

/// The sequence hash of a block, from its parent's and its own block hash.
pub fn compute_next_sequence_hash(
    parent_sequence_hash: SequenceHash,
    child_block_hash: BlockHash,
) -> SequenceHash {
    chain_step(parent_sequence_hash, child_block_hash, ChainKeys::new(CHAIN_SEED))
}

/// The salt hash of a salt and a LoRA name. `Some("")` counts as `None`.
///
/// # Errors
///
/// None; the result has its type from the original.
pub fn compute_salt_hash(
    salt: Option<&str>,
    lora_name: Option<&str>,
) -> Result<SaltHash, KvHashingError> {
    Ok(SaltRule::Sum.salt_hash(salt, lora_name, &mut Vec::new()).0)
}

/// Checks runs against the number of tokens and against each other, and puts them in order.
///
/// # Errors
///
/// The first failing run, in the order of offsets, decides.
pub fn validate_and_sort_mm_info(
    mm_info: &[TokenBlockMmInfo],
    tokens_len: usize,
) -> Result<Vec<TokenBlockMmInfo>, MmInfoError> {
    let mut runs: Vec<MmRun> = mm_info.iter().map(|&info| info.into()).collect();
    runs.sort_by_key(|run| run.offset);
    match check_in_order(&runs, tokens_len).map_err(KvHashingError::from) {
        Ok(()) => Ok(runs.into_iter().map(TokenBlockMmInfo::from).collect()),
        Err(KvHashingError::MmInfo(error)) => Err(error),
        Err(_) => unreachable!("what is wrong with runs is an error of runs"),
    }
}

/// The bytes that a block is hashed from: its token ids, or frames where a run touches it.
/// `block_offset` is the position of its first token; the runs have been
/// [validated](validate_and_sort_mm_info).
pub fn compute_block_bytes_with_mm(
    tokens: &[Token],
    block_offset: usize,
    mm_runs: &[TokenBlockMmInfo],
) -> Vec<u8> {
    let runs: Vec<MmRun> = mm_runs.iter().map(|&info| info.into()).collect();
    let block_size = tokens.len().max(1);
    match Stretches::new(&runs, block_offset, block_size, 1).next() {
        Some(Stretch::Framed(_, mut runs)) if !tokens.is_empty() => {
            let mut frames = vec![[0; FRAME_BYTES]; tokens.len()];
            encode_frames(tokens, tokens.len(), block_offset, &mut runs, &mut frames);
            frames.into_flattened()
        }
        _ => bytemuck::cast_slice(tokens).to_vec(),
    }
}

macro_rules! same_parts {
    ($a:ident, $b:ident) => {
        impl From<$a> for $b {
            fn from($a { mm_hash, offset, length }: $a) -> Self {
                Self { mm_hash, offset, length }
            }
        }

        impl From<$b> for $a {
            fn from($b { mm_hash, offset, length }: $b) -> Self {
                Self { mm_hash, offset, length }
            }
        }
    };
}

same_parts!(TokenBlockMmInfo, MmRun);
same_parts!(RequestMmObjectInfo, MmRun);
same_parts!(RequestMmObjectInfo, TokenBlockMmInfo);

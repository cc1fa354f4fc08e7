//! Batch hashing of KV-cache blocks for LLM serving.
//!
//! Takes many requests at once (token ids and, where present, salt, LoRA name and multimodal
//! runs), cuts them into blocks, hashes the blocks with XXH3-64, chains the hashes of every
//! request, and gives arrays of 128-bit positional lineage hashes, bit for bit those of NVIDIA
//! Dynamo's `dynamo-kv-hashing`.
//!
//! ```
//! use kvhash::{Engine, Lineages, Request};
//!
//! let engine = Engine::builder().build()?;
//! let prompts: [Vec<u32>; 2] = [(0..48).collect(), (0..40).collect()];
//! let requests: Vec<Request<'_>> = prompts.iter().map(|tokens| Request::new(tokens)).collect();
//!
//! let mut lineages = Lineages::new(); // reused from batch to batch
//! engine.hash(&requests, &mut lineages);
//!
//! // The prompts have their first two blocks in common.
//! assert_eq!(lineages.get(0)?.plhs()[..2], *lineages.get(1)?.plhs());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start at [`Engine`]. [`Request`] says what can be hashed, [`Lineages`] holds the results,
//! [`DynamoPlh`] names the rule.
//!
//! # Guarantees
//!
//! - The hashes depend on the requests, the scheme and the block size alone: not on the
//!   backend, the number of threads or what else is in the batch.
//! - No input makes it panic. What is wrong with a request is that request's
//!   [`RequestError`]; the rest of its batch is not touched.
//! - No thread but the calling one unless asked for, no global state, no input or output.
//!
//! XXH3-64 is fast, not collision-resistant: whoever may choose salts can choose one under
//! which different blocks have the same hash. See "Limits" in the README.

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("kvhash hashes tokens where they lie: it is for 64-bit little-endian targets");

pub mod admission;
mod digest;
pub mod dynamo;
mod engine;
mod error;
mod fan_out;
mod fetch;
mod images;
mod kernel;
mod lineages;
mod output;
mod owned_request;
mod plan;
mod plh;
mod pool;
mod request;
mod run;
mod scheme;
mod walk;
mod xxh3;

pub use digest::{BlockHash, SaltHash, SequenceHash};
pub use engine::{BlockSize, Columns, Engine, EngineBuilder};
pub use error::{EngineError, PlhError, RequestError};
pub use kernel::Backend;
pub use lineages::{Lineage, Lineages, OwnedLineage};
pub use owned_request::OwnedRequest;
pub use plh::{LegacyLineageHash, MAX_POSITION, PositionalLineageHash};
pub use request::{LegacyRequest, MmRun, Request};
pub use scheme::{ChainSeed, DynamoPlh, DynamoPlhLegacy, Row, SaltRule, Scheme};

/// The example of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

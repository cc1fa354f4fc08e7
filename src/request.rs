//! What is hashed: one prompt and what sets its blocks apart from those of others.

use crate::plh::PositionalLineageHash;

/// A run of placeholder tokens that stand for one multimodal object (an image, say).
///
/// Runs count positions in tokens from the start of the whole prompt. The ids of the tokens
/// under a run do not enter the hash; the object and the place within the run do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MmRun {
    /// Identifies the object.
    pub mm_hash: u64,
    /// The position of the run's first token.
    pub offset: usize,
    /// How many tokens the run covers, at least 1.
    pub length: usize,
}

/// One request of a batch, borrowed.
///
/// ```
/// use kvhash::{MmRun, Request};
///
/// let tokens = [101, 7592, 2088, 102];
/// let image = [MmRun { mm_hash: 0xa81c_6cb1_5bc5_1918, offset: 1, length: 2 }];
/// let request = Request::new(&tokens).salt("tenant-7").lora_name("adapter").mm_runs(&image);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) lora_name: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
    pub(crate) mm_runs: &'a [MmRun],
    pub(crate) block_size: Option<u32>,
    pub(crate) max_blocks: usize,
    pub(crate) parent: Option<PositionalLineageHash>,
}

impl<'a> Request<'a> {
    /// A request of these tokens and nothing else.
    pub fn new(tokens: &'a [u32]) -> Self {
        Self {
            tokens,
            lora_name: None,
            salt: None,
            mm_runs: &[],
            block_size: None,
            max_blocks: usize::MAX,
            parent: None,
        }
    }

    /// The LoRA adapter that the request runs under. `""` counts as none.
    pub fn lora_name(self, name: &'a str) -> Self {
        Self { lora_name: Some(name), ..self }
    }

    /// Sets the request's blocks apart from those of other salts. `""` counts as none.
    pub fn salt(self, salt: &'a str) -> Self {
        Self { salt: Some(salt), ..self }
    }

    /// The runs of placeholder tokens, in any order. They are checked when the request is
    /// hashed: see [`RequestError`](crate::RequestError).
    pub fn mm_runs(self, runs: &'a [MmRun]) -> Self {
        Self { mm_runs: runs, ..self }
    }

    /// Tokens a block, in place of the engine's. 0 is this request's error.
    pub fn block_size(self, tokens: u32) -> Self {
        Self { block_size: Some(tokens), ..self }
    }

    /// Hashes the first `n` complete blocks of the given tokens at the most.
    pub fn max_blocks(self, n: usize) -> Self {
        Self { max_blocks: n, ..self }
    }

    /// Continues a lineage: the given tokens are the ones that follow the block `parent`.
    ///
    /// Everything else is said of the whole prompt: runs keep their offsets from its start (the
    /// ones that ended before the given tokens are accepted and have no effect), and salt, LoRA
    /// name and block size must be those under which `parent` was hashed.
    pub fn resume(self, parent: PositionalLineageHash) -> Self {
        Self { parent: Some(parent), ..self }
    }
}

/// A request of [`DynamoPlhLegacy`](crate::DynamoPlhLegacy), which knows neither multimodal
/// runs nor continued lineages.
#[derive(Debug, Clone, Copy)]
pub struct LegacyRequest<'a>(pub(crate) Request<'a>);

impl<'a> LegacyRequest<'a> {
    /// See [`Request::new`].
    pub fn new(tokens: &'a [u32]) -> Self {
        Self(Request::new(tokens))
    }

    /// The LoRA adapter that the request runs under. Whether `""` counts as none is up to the
    /// scheme's [salt rule](crate::SaltRule); by default it does not.
    pub fn lora_name(self, name: &'a str) -> Self {
        Self(self.0.lora_name(name))
    }

    /// Sets the request's blocks apart from those of other salts. `""` as for
    /// [`lora_name`](Self::lora_name).
    pub fn salt(self, salt: &'a str) -> Self {
        Self(self.0.salt(salt))
    }

    /// See [`Request::block_size`].
    pub fn block_size(self, tokens: u32) -> Self {
        Self(self.0.block_size(tokens))
    }

    /// See [`Request::max_blocks`].
    pub fn max_blocks(self, n: usize) -> Self {
        Self(self.0.max_blocks(n))
    }
}

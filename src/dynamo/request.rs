//! The peer's request, hashed by an engine.

use super::{
    BlockHash, KvHashingError, PositionalLineageHash, SaltHash, SequenceHash, Token,
    TokenBlockMmInfo, compute_salt_hash, validate_and_sort_mm_info,
};
use crate::engine::{Columns, Engine};
use crate::lineages::Lineages;
use crate::request;

/// A run of placeholder tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestMmObjectInfo {
    /// Identifies the object.
    pub mm_hash: u64,
    /// The position of the run's first token.
    pub offset: usize,
    /// How many tokens the run covers.
    pub length: usize,
}

/// A request, with its runs checked and in order.
#[derive(Debug, Clone)]
pub struct Request {
    tokens: Vec<Token>,
    lora_name: Option<String>,
    salt: Option<String>,
    mm_info: Vec<RequestMmObjectInfo>,
}

/// Makes a [`Request`].
#[derive(Debug, Default)]
pub struct RequestBuilder {
    tokens: Option<Vec<Token>>,
    lora_name: Option<String>,
    salt: Option<String>,
    mm_info: Vec<RequestMmObjectInfo>,
}

impl RequestBuilder {
    /// The token ids.
    pub fn tokens(self, tokens: impl Into<Vec<Token>>) -> Self {
        Self { tokens: Some(tokens.into()), ..self }
    }

    /// The LoRA adapter, if any.
    pub fn lora_name(self, lora_name: impl Into<Option<String>>) -> Self {
        Self { lora_name: lora_name.into(), ..self }
    }

    /// The salt, if any.
    pub fn salt(self, salt: impl Into<Option<String>>) -> Self {
        Self { salt: salt.into(), ..self }
    }

    /// The multimodal runs, in any order.
    pub fn mm_info(self, mm_info: Vec<RequestMmObjectInfo>) -> Self {
        Self { mm_info, ..self }
    }

    /// The request.
    ///
    /// # Errors
    ///
    /// [`KvHashingError::MissingField`] without tokens, [`KvHashingError::MmInfo`] for runs
    /// that are not valid.
    pub fn build(self) -> Result<Request, KvHashingError> {
        let tokens = self.tokens.ok_or(KvHashingError::MissingField("tokens"))?;
        let runs: Vec<TokenBlockMmInfo> = self.mm_info.into_iter().map(Into::into).collect();
        let runs = validate_and_sort_mm_info(&runs, tokens.len())?;
        let mm_info = runs.into_iter().map(Into::into).collect();
        Ok(Request { tokens, lora_name: self.lora_name, salt: self.salt, mm_info })
    }
}

impl Request {
    /// A builder with nothing in it.
    pub fn builder() -> RequestBuilder {
        RequestBuilder::default()
    }

    /// The token ids.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The LoRA adapter, if any.
    pub fn lora_name(&self) -> Option<&str> {
        self.lora_name.as_deref()
    }

    /// The salt, if any.
    pub fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// The multimodal runs, in order.
    pub fn mm_info(&self) -> &[RequestMmObjectInfo] {
        &self.mm_info
    }

    /// The seed of the block hashes.
    ///
    /// # Errors
    ///
    /// None; the result has its type from the original.
    pub fn salt_hash(&self) -> Result<SaltHash, KvHashingError> {
        compute_salt_hash(self.salt(), self.lora_name())
    }

    /// The complete blocks.
    ///
    /// # Errors
    ///
    /// [`KvHashingError::TokenBlock`] for a block size of 0 and for more than 2^24 blocks.
    pub fn into_blocks(&self, block_size: u32) -> Result<Vec<UniversalBlock>, KvHashingError> {
        let lineages = self.hash(block_size, Columns::BLOCK_HASHES);
        let lineage = lineages.get(0)?;
        let hashes = lineage.block_hashes().unwrap_or_default();
        let block = |(&hash, &plh): (&crate::BlockHash, &crate::PositionalLineageHash)| {
            UniversalBlock { block_hash: hash.0, plh: plh.into() }
        };
        Ok(hashes.iter().zip(lineage.plhs()).map(block).collect())
    }

    /// The block hash of each complete block.
    ///
    /// # Errors
    ///
    /// As [`into_blocks`](Self::into_blocks).
    pub fn block_hashes(&self, block_size: u32) -> Result<Vec<BlockHash>, KvHashingError> {
        let lineages = self.hash(block_size, Columns::BLOCK_HASHES);
        let hashes = lineages.get(0)?.block_hashes().unwrap_or_default();
        Ok(hashes.iter().map(|hash| hash.0).collect())
    }

    /// The sequence hash of each complete block.
    ///
    /// # Errors
    ///
    /// As [`into_blocks`](Self::into_blocks).
    pub fn sequence_hashes(&self, block_size: u32) -> Result<Vec<SequenceHash>, KvHashingError> {
        let lineages = self.hash(block_size, Columns::NONE);
        Ok(lineages.get(0)?.sequence_hashes().map(u64::from).collect())
    }

    /// As [`sequence_hashes`](Self::sequence_hashes).
    ///
    /// # Errors
    ///
    /// As [`into_blocks`](Self::into_blocks).
    pub fn into_sequence_hashes(
        self,
        block_size: u32,
    ) -> Result<Vec<SequenceHash>, KvHashingError> {
        self.sequence_hashes(block_size)
    }

    /// The lineage hash of each complete block.
    ///
    /// # Errors
    ///
    /// As [`into_blocks`](Self::into_blocks).
    pub fn positional_lineage_hashes(
        &self,
        block_size: u32,
    ) -> Result<Vec<PositionalLineageHash>, KvHashingError> {
        let lineages = self.hash(block_size, Columns::NONE);
        Ok(lineages.get(0)?.plhs().iter().map(|&plh| plh.into()).collect())
    }

    fn hash(&self, block_size: u32, columns: Columns) -> Lineages {
        let runs: Vec<request::MmRun> = self.mm_info.iter().map(|&info| info.into()).collect();
        let mut request = request::Request::new(&self.tokens).mm_runs(&runs).block_size(block_size);
        if let Some(name) = self.lora_name() {
            request = request.lora_name(name);
        }
        if let Some(salt) = self.salt() {
            request = request.salt(salt);
        }
        let mut lineages = Lineages::new();
        Engine::builder().columns(columns).engine().hash(&[request], &mut lineages);
        lineages
    }
}

/// A block, hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UniversalBlock {
    /// What identifies its content.
    pub block_hash: BlockHash,
    /// What identifies it with all before it.
    pub plh: PositionalLineageHash,
}

impl UniversalBlock {
    /// The block's position.
    pub fn position(&self) -> u64 {
        self.plh.position()
    }

    /// The block's sequence hash.
    pub fn sequence_hash(&self) -> SequenceHash {
        self.plh.current_sequence_hash()
    }

    /// The lineage hash alone.
    pub fn into_plh(self) -> PositionalLineageHash {
        self.plh
    }
}

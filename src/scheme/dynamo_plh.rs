//! NVIDIA Dynamo's positional lineage hashes.

use super::{CHAIN_SEED, SaltRule, Scheme, sealed};
use crate::digest::SaltHash;
use crate::plh::{LegacyLineageHash, PositionalLineageHash};
use crate::request::{LegacyRequest, Request};

/// The lineage hashes of `dynamo-kv-hashing` and `dynamo-tokens`, 1.3.0 and later.
///
/// How the salt enters and what the chain is seeded with are settings of their own, since
/// documents and older callers disagree with the published code. [`PUBLISHED`](Self::PUBLISHED)
/// is the code, and the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DynamoPlh {
    /// How salt and LoRA name become the seed of the block hashes.
    pub salt_rule: SaltRule,
    /// The seed of the chain steps.
    pub chain_seed: ChainSeed,
}

/// The lineage hashes of `dynamo-tokens` 0.9.0 to 1.2.1: another layout, no multimodal runs,
/// and by default the chain seeded by the salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DynamoPlhLegacy {
    /// How salt and LoRA name become the seed of the block hashes.
    pub salt_rule: SaltRule,
    /// The seed of the chain steps.
    pub chain_seed: ChainSeed,
}

/// The seed of the chain steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainSeed {
    /// The same for all requests.
    Fixed(u64),
    /// The request's salt hash.
    SaltHash,
}

impl ChainSeed {
    /// What the published code uses since 1.3.0.
    pub const PUBLISHED: Self = Self::Fixed(CHAIN_SEED);
    /// What the README of `dynamo-kv-hashing` says.
    pub const README: Self = Self::Fixed(0);

    #[inline]
    fn of(self, salt_hash: SaltHash) -> u64 {
        match self {
            Self::Fixed(seed) => seed,
            Self::SaltHash => salt_hash.0,
        }
    }
}

impl DynamoPlh {
    /// The published code of 1.3.0 to 1.6.1.
    pub const PUBLISHED: Self = Self { salt_rule: SaltRule::Sum, chain_seed: ChainSeed::PUBLISHED };
    /// What the README of `dynamo-kv-hashing` describes, published as code by no release.
    pub const README: Self = Self { salt_rule: SaltRule::Json, chain_seed: ChainSeed::README };
}

impl DynamoPlhLegacy {
    /// What `dynamo-tokens` up to 1.2.1 and its callers did.
    pub const PUBLISHED: Self =
        Self { salt_rule: SaltRule::JsonKeepingEmpty, chain_seed: ChainSeed::SaltHash };
}

impl Default for DynamoPlh {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

impl Default for DynamoPlhLegacy {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

impl Scheme for DynamoPlh {
    type Request<'a> = Request<'a>;
    type Row = PositionalLineageHash;
}

impl<'a> sealed::General<'a> for Request<'a> {
    fn general(&self) -> &Request<'a> {
        self
    }
}

impl sealed::Rules for DynamoPlh {
    #[inline]
    fn salt_hash(&self, request: &Request<'_>, buffer: &mut Vec<u8>) -> SaltHash {
        self.salt_rule.salt_hash(request.salt, request.lora_name, buffer)
    }

    #[inline]
    fn chain_seed(&self, salt_hash: SaltHash) -> u64 {
        self.chain_seed.of(salt_hash)
    }
}

impl Scheme for DynamoPlhLegacy {
    type Request<'a> = LegacyRequest<'a>;
    type Row = LegacyLineageHash;
}

impl<'a> sealed::General<'a> for LegacyRequest<'a> {
    fn general(&self) -> &Request<'a> {
        &self.0
    }
}

impl sealed::Rules for DynamoPlhLegacy {
    #[inline]
    fn salt_hash(&self, request: &Request<'_>, buffer: &mut Vec<u8>) -> SaltHash {
        self.salt_rule.salt_hash(request.salt, request.lora_name, buffer)
    }

    #[inline]
    fn chain_seed(&self, salt_hash: SaltHash) -> u64 {
        self.chain_seed.of(salt_hash)
    }
}

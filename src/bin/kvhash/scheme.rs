//! What the command line needs of a scheme beyond the library: a request from a line, and a
//! row as text.

use std::fmt::Display;

use kvhash::{
    DynamoPlh, DynamoPlhLegacy, LegacyLineageHash, LegacyRequest, Lineage, PositionalLineageHash,
    Request, Row, Scheme, SequenceHash,
};

use crate::decode::Decoded;

pub(crate) trait LineScheme: Scheme<Row: LineRow> {
    /// The request of a line. Fields that the scheme does not know were refused before.
    fn request<'a>(decoded: &'a Decoded, tokens: &'a [u32]) -> Self::Request<'a>;
}

pub(crate) trait LineRow: Row + Display + Into<u128> {
    fn sequence_hashes(lineage: Lineage<'_, Self>) -> impl Iterator<Item = SequenceHash>;
}

impl LineScheme for DynamoPlh {
    fn request<'a>(decoded: &'a Decoded, tokens: &'a [u32]) -> Request<'a> {
        let mut request = Request::new(tokens).mm_runs(&decoded.mm_runs);
        if let Some(name) = &decoded.lora_name {
            request = request.lora_name(name);
        }
        if let Some(salt) = &decoded.salt {
            request = request.salt(salt);
        }
        if let Some(tokens) = decoded.block_size {
            request = request.block_size(tokens);
        }
        if let Some(n) = decoded.max_blocks {
            request = request.max_blocks(n);
        }
        if let Some(parent) = decoded.parent {
            request = request.resume(parent);
        }
        request
    }
}

impl LineScheme for DynamoPlhLegacy {
    fn request<'a>(decoded: &'a Decoded, tokens: &'a [u32]) -> LegacyRequest<'a> {
        let mut request = LegacyRequest::new(tokens);
        if let Some(name) = &decoded.lora_name {
            request = request.lora_name(name);
        }
        if let Some(salt) = &decoded.salt {
            request = request.salt(salt);
        }
        if let Some(tokens) = decoded.block_size {
            request = request.block_size(tokens);
        }
        if let Some(n) = decoded.max_blocks {
            request = request.max_blocks(n);
        }
        request
    }
}

impl LineRow for PositionalLineageHash {
    fn sequence_hashes(lineage: Lineage<'_, Self>) -> impl Iterator<Item = SequenceHash> {
        lineage.sequence_hashes()
    }
}

impl LineRow for LegacyLineageHash {
    fn sequence_hashes(lineage: Lineage<'_, Self>) -> impl Iterator<Item = SequenceHash> {
        lineage.sequence_hashes().unwrap_or_default().iter().copied()
    }
}

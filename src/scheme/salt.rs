//! How a salt and a LoRA name become the seed of a request's block hashes.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::CHAIN_SEED;
use crate::digest::SaltHash;

/// How a salt and a LoRA name become the seed of a request's block hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaltRule {
    /// `1337 + XXH3(LoRA name, seed 0) + XXH3(salt, seed 1)`, wrapping, where the absent and
    /// the empty add nothing: `dynamo-kv-hashing` 1.3.0 to 1.6.1 as published.
    Sum,
    /// XXH3, seed 0, of the compact JSON `{"salt":…,"lora_name":…}`, where the absent and the
    /// empty are left out: what the README of `dynamo-kv-hashing` describes.
    Json,
    /// The same JSON with only the absent left out, so that `""` is a salt of its own: what
    /// callers of `dynamo-tokens` up to 1.2.1 did.
    JsonKeepingEmpty,
}

/// The seed of the salt's hash in [`SaltRule::Sum`]; the LoRA name's is 0, so that a name does
/// not stand for an equal salt.
const SUM_SALT_SEED: u64 = 1;

impl SaltRule {
    /// The salt hash of a salt and a LoRA name. `buffer` is for JSON.
    #[inline]
    pub(crate) fn salt_hash(
        self,
        salt: Option<&str>,
        lora_name: Option<&str>,
        buffer: &mut Vec<u8>,
    ) -> SaltHash {
        match (self, salt, lora_name) {
            // Most requests, without a call.
            (Self::Sum, None, None) => SaltHash(CHAIN_SEED),
            _ => SaltHash(self.hash(salt, lora_name, buffer)),
        }
    }

    #[inline(never)]
    fn hash(self, salt: Option<&str>, lora_name: Option<&str>, buffer: &mut Vec<u8>) -> u64 {
        let filled = |text: &&str| !text.is_empty();
        match self {
            Self::Sum => {
                let lora_term = lora_name.filter(filled).map_or(0, |name| xxh3_64(name.as_bytes()));
                let salt_term = salt
                    .filter(filled)
                    .map_or(0, |salt| xxh3_64_with_seed(salt.as_bytes(), SUM_SALT_SEED));
                CHAIN_SEED.wrapping_add(lora_term).wrapping_add(salt_term)
            }
            Self::Json => json_hash(salt.filter(filled), lora_name.filter(filled), buffer),
            Self::JsonKeepingEmpty => json_hash(salt, lora_name, buffer),
        }
    }
}

fn json_hash(salt: Option<&str>, lora_name: Option<&str>, json: &mut Vec<u8>) -> u64 {
    json.clear();
    json.push(b'{');
    for (name, value) in [("salt", salt), ("lora_name", lora_name)] {
        let Some(value) = value else { continue };
        if json.len() > 1 {
            json.push(b',');
        }
        push_string(json, name);
        json.push(b':');
        push_string(json, value);
    }
    json.push(b'}');
    xxh3_64(json)
}

/// The escapes are part of the rule: those of `serde_json`, which is why it writes them here.
fn push_string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("a string is written to memory");
}

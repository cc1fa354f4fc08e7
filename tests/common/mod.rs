//! What several tests need: the golden vectors, and the reference as an oracle.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::Path;

use dynamo_kv_hashing as peer;
use kvhash::{MmRun, PositionalLineageHash, Request};
use serde_json::Value;

/// Block sizes that are neither powers of two nor small: those of hybrid models.
pub const ODD_BLOCK_SIZES: [u32; 7] = [528, 544, 768, 784, 1056, 1536, 2096];

/// The lines of a file in `tests/data`.
pub fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden vectors of one scheme.
pub fn vectors(scheme: &str) -> Vec<Value> {
    let vectors: Vec<Value> = data("dynamo-plh.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|vector: &Value| vector["scheme"] == scheme)
        .collect();
    assert!(!vectors.is_empty(), "no vectors of {scheme}");
    vectors
}

/// The token ids of a vector: a list, or what a generator makes.
pub fn tokens(vector: &Value) -> Vec<u32> {
    match &vector["tokens"] {
        Value::Array(ids) => ids.iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        generator => {
            assert_eq!(generator["gen"], "splitmix64");
            let number = |key: &str| generator[key].as_u64().unwrap();
            splitmix64(number("seed"), number("n") as usize, number("vocab"))
        }
    }
}

pub fn splitmix64(seed: u64, n: usize, vocab: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab) as u32
    };
    std::iter::repeat_with(next).take(n).collect()
}

pub fn hex64(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

pub fn hex128(value: &Value) -> u128 {
    u128::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

pub fn mm_runs(vector: &Value) -> Vec<MmRun> {
    vector["mm_info"].as_array().map_or(Vec::new(), |runs| {
        runs.iter()
            .map(|run| MmRun {
                mm_hash: hex64(&run["mm_hash"]),
                offset: run["offset"].as_u64().unwrap() as usize,
                length: run["length"].as_u64().unwrap() as usize,
            })
            .collect()
    })
}

/// Checks hashes against a vector, which has them all or, where they are many, a digest of
/// them and both ends.
pub fn check_column<T: Copy>(
    vector: &Value,
    name: &str,
    found: &[T],
    bytes: impl Fn(T) -> Vec<u8>,
    hex: impl Fn(T) -> String,
) {
    let id = &vector["id"];
    let expect = &vector["expect"];
    let list = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|hash| hash.as_str().unwrap().into()).collect()
    };
    let all_hex = |found: &[T]| -> Vec<String> { found.iter().map(|&hash| hex(hash)).collect() };
    if expect[name].is_array() {
        assert_eq!(all_hex(found), list(&expect[name]), "{id}: {name}");
        return;
    }
    let digest = &expect[format!("{name}_digest")];
    assert_eq!(all_hex(&found[..3]), list(&digest["first"]), "{id}: {name}");
    assert_eq!(all_hex(&found[found.len() - 3..]), list(&digest["last"]), "{id}: {name}");
    let bytes: Vec<u8> = found.iter().flat_map(|&hash| bytes(hash)).collect();
    assert_eq!(xxhash_rust::xxh3::xxh3_64(&bytes), hex64(&digest["xxh3_64"]), "{id}: {name}");
}

/// A request that owns its parts, to be given to us and to the reference.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub lora_name: Option<String>,
    pub salt: Option<String>,
    pub mm_runs: Vec<MmRun>,
    pub block_size: u32,
}

impl Prompt {
    pub fn request(&self) -> Request<'_> {
        let mut request =
            Request::new(&self.tokens).mm_runs(&self.mm_runs).block_size(self.block_size);
        if let Some(name) = &self.lora_name {
            request = request.lora_name(name);
        }
        if let Some(salt) = &self.salt {
            request = request.salt(salt);
        }
        request
    }

    /// What the reference makes of it: salt hash and blocks, or the name of its error.
    pub fn reference(&self) -> Result<(u64, Vec<peer::UniversalBlock>), &'static str> {
        let runs = self
            .mm_runs
            .iter()
            .map(|run| peer::RequestMmObjectInfo {
                mm_hash: run.mm_hash,
                offset: run.offset,
                length: run.length,
            })
            .collect();
        let request = peer::Request::builder()
            .tokens(self.tokens.clone())
            .lora_name(self.lora_name.clone())
            .salt(self.salt.clone())
            .mm_info(runs)
            .build()
            .map_err(|error| match error {
                peer::KvHashingError::MmInfo(error) => match error {
                    peer::MmInfoError::EmptyRun => "EmptyRun",
                    peer::MmInfoError::OffsetOverflow { .. } => "OffsetOverflow",
                    peer::MmInfoError::OutOfBounds { .. } => "OutOfBounds",
                    peer::MmInfoError::Overlapping { .. } => "Overlapping",
                },
                other => panic!("{other}"),
            })?;
        if self.block_size == 0 {
            // The reference would panic.
            return Err("ZeroBlockSize");
        }
        Ok((request.salt_hash().unwrap(), request.into_blocks(self.block_size).unwrap()))
    }
}

/// Checks one request's results against the reference, field by field.
pub fn check_against_reference(
    prompt: &Prompt,
    found: Result<kvhash::Lineage<'_>, kvhash::RequestError>,
) {
    let (salt_hash, blocks) = match prompt.reference() {
        Ok(expected) => expected,
        Err(kind) => {
            assert_eq!(found.map(|_| ()).map_err(|error| error.kind()), Err(kind), "{prompt:?}");
            return;
        }
    };
    let found = found.unwrap_or_else(|error| panic!("{error}: {prompt:?}"));
    let plhs: Vec<u128> = blocks.iter().map(|block| block.plh.as_u128()).collect();
    assert_eq!(PositionalLineageHash::as_u128s(found.plhs()), plhs, "{prompt:?}");
    let sequence_hashes: Vec<u64> = blocks.iter().map(|block| block.sequence_hash()).collect();
    assert!(found.sequence_hashes().map(u64::from).eq(sequence_hashes), "{prompt:?}");
    if let Some(hashes) = found.block_hashes() {
        let block_hashes = blocks.iter().map(|block| block.block_hash);
        assert!(hashes.iter().map(|hash| hash.0).eq(block_hashes), "{prompt:?}");
    }
    assert_eq!(found.salt_hash().0, salt_hash);
    assert_eq!(found.tail(), prompt.tokens.len() % prompt.block_size as usize);
}

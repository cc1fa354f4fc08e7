//! The golden vectors of the original implementations, through the library.

mod common;

use common::{check_column, hex64, hex128, mm_runs, tokens, vectors};
use kvhash::{
    Columns, DynamoPlh, DynamoPlhLegacy, Engine, LegacyRequest, Lineages, PlhError,
    PositionalLineageHash, Request, RequestError, SequenceHash,
};
use serde_json::Value;

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

fn check_plh(scheme: &str, rules: DynamoPlh) {
    let engine = Engine::builder().scheme(rules).columns(Columns::BLOCK_HASHES).build().unwrap();
    let vectors = vectors(scheme);
    let all_tokens: Vec<Vec<u32>> = vectors.iter().map(tokens).collect();
    let all_runs: Vec<_> = vectors.iter().map(mm_runs).collect();
    let requests: Vec<Request<'_>> = vectors
        .iter()
        .zip(all_tokens.iter().zip(&all_runs))
        .map(|(vector, (tokens, runs))| {
            let mut request = Request::new(tokens)
                .mm_runs(runs)
                .block_size(vector["block_size"].as_u64().unwrap() as u32);
            if let Some(name) = vector["lora_name"].as_str() {
                request = request.lora_name(name);
            }
            if let Some(salt) = vector["salt"].as_str() {
                request = request.salt(salt);
            }
            request
        })
        .collect();

    // All of them in one batch: block sizes, salts and errors side by side.
    let mut lineages = Lineages::new();
    engine.hash(&requests, &mut lineages);
    for (vector, found) in vectors.iter().zip(lineages.iter()) {
        let id = &vector["id"];
        if let Some(kind) = vector["expect_error"].as_str() {
            check_error(vector, kind, found.map(|_| ()).expect_err(kind));
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(found.salt_hash().0, hex64(&vector["expect"]["salt_hash"]), "{id}");
        assert_eq!(found.plhs().len() as u64, vector["expect"]["n_blocks"].as_u64().unwrap());
        let plhs = PositionalLineageHash::as_u128s(found.plhs());
        check_column(vector, "plh", plhs, |h| h.to_le_bytes().into(), |h| format!("{h:032x}"));
        let blocks: Vec<u64> = found.block_hashes().unwrap().iter().map(|h| h.0).collect();
        check_column(vector, "block_hashes", &blocks, |h| h.to_le_bytes().into(), hex);
        let sequences: Vec<u64> = found.sequence_hashes().map(u64::from).collect();
        check_column(vector, "sequence_hashes", &sequences, |h| h.to_le_bytes().into(), hex);
    }
}

fn check_error(vector: &Value, kind: &str, error: RequestError) {
    let id = &vector["id"];
    // The original panics at a block size of 0.
    let kind = if kind == "PanicZeroBlockSize" { "ZeroBlockSize" } else { kind };
    assert_eq!(error.kind(), kind, "{id}");
    let detail = |key: &str| vector["error_detail"][key].as_u64().map(|n| n as usize);
    match error {
        RequestError::OffsetOverflow { offset, length } => {
            assert_eq!((Some(offset), Some(length)), (detail("offset"), detail("length")));
        }
        RequestError::OutOfBounds { offset, length, tokens_len } => {
            assert_eq!((Some(offset), Some(length)), (detail("offset"), detail("length")));
            assert_eq!(Some(tokens_len), detail("tokens_len"), "{id}");
        }
        RequestError::Overlapping { position } => {
            assert_eq!(Some(position), detail("position"), "{id}");
        }
        _ => {}
    }
}

#[test]
fn dynamo_plh() {
    check_plh("dynamo-plh", DynamoPlh::PUBLISHED);
}

#[test]
fn dynamo_plh_readme() {
    check_plh("dynamo-plh-readme", DynamoPlh::README);
}

#[test]
fn dynamo_plh_legacy() {
    let engine = Engine::builder()
        .scheme(DynamoPlhLegacy::PUBLISHED)
        .columns(Columns::BLOCK_HASHES | Columns::SEQUENCE_HASHES)
        .build()
        .unwrap();
    let mut lineages = Lineages::default();
    for vector in vectors("dynamo-plh-legacy") {
        let tokens = tokens(&vector);
        let mut request =
            LegacyRequest::new(&tokens).block_size(vector["block_size"].as_u64().unwrap() as u32);
        if let Some(name) = vector["lora_name"].as_str() {
            request = request.lora_name(name);
        }
        if let Some(salt) = vector["salt"].as_str() {
            request = request.salt(salt);
        }
        engine.hash(&[request], &mut lineages);
        let found = lineages.get(0).unwrap();
        assert_eq!(found.salt_hash().0, hex64(&vector["expect"]["salt_hash"]));
        let plhs: Vec<u128> = found.plhs().iter().map(|plh| plh.as_u128()).collect();
        check_column(&vector, "plh", &plhs, |h| h.to_le_bytes().into(), |h| format!("{h:032x}"));
        let blocks: Vec<u64> = found.block_hashes().unwrap().iter().map(|h| h.0).collect();
        check_column(&vector, "block_hashes", &blocks, |h| h.to_le_bytes().into(), hex);
        let sequences: Vec<u64> = found.sequence_hashes().unwrap().iter().map(|h| h.0).collect();
        check_column(&vector, "sequence_hashes", &sequences, |h| h.to_le_bytes().into(), hex);
    }
}

#[test]
fn dynamo_plh_pack() {
    for vector in vectors("dynamo-plh-pack") {
        let id = &vector["id"];
        let current = SequenceHash(hex64(&vector["current"]));
        let parent = vector["parent"].is_string().then(|| SequenceHash(hex64(&vector["parent"])));
        let position = hex64(&vector["position"]);
        let packed = PositionalLineageHash::new(current, parent, position);
        if vector["expect_error"].is_string() {
            assert_eq!(packed, Err(PlhError::PositionLimit { position }), "{id}");
            continue;
        }
        let packed = packed.unwrap();
        let expect = &vector["expect"];
        assert_eq!(packed.as_u128(), hex128(&expect["plh"]), "{id}");
        assert_eq!(u64::from(packed.mode()), expect["mode"].as_u64().unwrap(), "{id}");
        assert_eq!(packed.parent_hash_fragment(), hex64(&expect["parent_fragment"]), "{id}");
        assert_eq!(packed.position(), position, "{id}");
        assert_eq!(packed.current_sequence_hash(), current, "{id}");
    }
}

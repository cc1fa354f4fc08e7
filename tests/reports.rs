//! Faults that people met elsewhere, each turned into a small input. `README.md` in this
//! folder says which report each test guards against.

mod common;

use common::{Prompt, check_against_reference, data, hex64, splitmix64};
use kvhash::{
    Backend, BlockSize, Columns, Engine, EngineError, Lineages, MmRun, OwnedRequest, Request,
    RequestError,
};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn cases() -> Value {
    serde_json::from_str(&data("cases.json")).unwrap()
}

fn decimal(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn engine() -> Engine {
    Engine::builder().columns(Columns::BLOCK_HASHES).build().unwrap()
}

/// Block hashes and salt hash of one request.
fn hash(request: Request<'_>) -> (Vec<u64>, u64) {
    let mut lineages = Lineages::new();
    engine().hash(&[request], &mut lineages);
    let lineage = lineages.get(0).unwrap();
    let hashes = lineage.block_hashes().unwrap().iter().map(|hash| hash.0).collect();
    (hashes, lineage.salt_hash().0)
}

/// Puts all prompts into one batch and checks each against the reference.
fn check_batch(prompts: &[Prompt]) {
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    let mut lineages = Lineages::new();
    engine().hash(&requests, &mut lineages);
    for (prompt, lineage) in prompts.iter().zip(lineages.iter()) {
        check_against_reference(prompt, lineage);
    }
}

// A. Hash bits

#[test]
fn branch_lengths_are_those_of_libxxhash() {
    let cases = cases();
    for (block_size, expected) in cases["xxh3_branch_lengths"]["hash"].as_object().unwrap() {
        let block_size: u32 = block_size.parse().unwrap();
        let tokens: Vec<u32> =
            (0..block_size).map(|i| (u64::from(i) * 2_654_435_761) as u32).collect();
        let (hashes, _) = hash(Request::new(&tokens).block_size(block_size));
        assert_eq!(hashes, [decimal(expected)], "block size {block_size}");
    }
}

#[test]
fn zero_multipliers_collide_as_they_should() {
    for case in cases()["xxh3_known_collisions"].as_array().unwrap() {
        let block_size = case["block_size"].as_u64().unwrap() as u32;
        let (a, b) = (ids(&case["a"]), ids(&case["b"]));
        assert_ne!(a, b);
        for tokens in [&a, &b] {
            let (hashes, _) = hash(Request::new(tokens).block_size(block_size));
            assert_eq!(hashes, [decimal(&case["hash"])], "block size {block_size}");
        }
        // Above 240 bytes there are no such products.
        let longer = |tokens: &[u32]| {
            let tokens: Vec<u32> = tokens.iter().copied().chain(0..64).take(64).collect();
            hash(Request::new(&tokens).block_size(64)).0
        };
        assert_ne!(longer(&a), longer(&b));
    }
}

#[test]
fn a_weak_salt_makes_ordinary_ids_collide() {
    let cases = cases();
    let weak = &cases["weak_salt_collisions"];
    let block_size = weak["block_size"].as_u64().unwrap() as u32;
    for pair in weak["pairs"].as_array().unwrap() {
        let salt = pair["salt"].as_str().unwrap();
        let salted = |tokens: &[u32]| hash(Request::new(tokens).block_size(block_size).salt(salt));
        let (a, b) = (ids(&pair["a"]), ids(&pair["b"]));
        assert_eq!(salted(&a).0, [hex64(&pair["block_hash"])]);
        assert_eq!(salted(&a), salted(&b));
        let plain = |tokens: &[u32]| hash(Request::new(tokens).block_size(block_size)).0;
        assert_ne!(plain(&a), plain(&b));
    }
}

#[test]
fn seeds_enter_long_blocks_too() {
    // Text on both sides of 240 bytes, frames on both sides (18 x 13 = 234, 19 x 13 = 247), and
    // on both sides of 1,024: all in one batch, so that both paths run side by side.
    let text = [59, 60, 61, 62, 63, 64, 255, 256, 257];
    let framed = [18, 19, 78, 79];
    let prompt = |block_size: u32, mm_runs: Vec<MmRun>| Prompt {
        tokens: splitmix64(u64::from(block_size), 3 * block_size as usize, 1 << 32),
        salt: Some("tenant".into()),
        mm_runs,
        block_size,
        ..Prompt::default()
    };
    let run = |block_size: u32| {
        let length = block_size as usize + 1;
        vec![MmRun { mm_hash: u64::MAX - 1, offset: 1, length }]
    };
    let prompts: Vec<Prompt> = text
        .map(|size| prompt(size, vec![]))
        .into_iter()
        .chain(framed.map(|size| prompt(size, run(size))))
        .collect();
    check_batch(&prompts);
}

#[test]
fn token_slices_may_start_anywhere() {
    let tokens = splitmix64(5, 1100, 1 << 32);
    for block_size in [1, 16, 64, 300] {
        for offset in 0..=16 {
            let slice = &tokens[offset..offset + 900];
            let (hashes, _) = hash(Request::new(slice).block_size(block_size));
            let expected: Vec<u64> = slice
                .chunks_exact(block_size as usize)
                .map(|block| xxh3_64_with_seed(bytemuck::cast_slice(block), 1337))
                .collect();
            assert_eq!(hashes, expected, "block size {block_size}, offset {offset}");
        }
    }
}

#[test]
fn an_unknown_backend_is_an_error_that_lists_the_others() {
    let names: Vec<&str> = Backend::available().iter().map(|backend| backend.name()).collect();
    // No such, none at all, and close ones: names are taken as they are written.
    for name in ["avx9", "", "Scalar", " scalar", "scalar,portable", "neon"] {
        let error = name.parse::<Backend>().unwrap_err();
        assert_eq!(error, EngineError::UnavailableBackend { name: name.into() });
        let expected =
            format!("backend {name:?} is not available here; available: {}", names.join(", "));
        assert_eq!(error.to_string(), expected);
    }
    for name in names {
        assert_eq!(name.parse::<Backend>().unwrap().to_string(), name);
    }
}

#[test]
fn detection_is_the_standard_librarys() {
    // Raw `cpuid` says what the CPU has, not what the operating system lets run.
    fn check(folder: &std::path::Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
            } else {
                let source = std::fs::read_to_string(&path).unwrap();
                assert!(!source.contains("cpuid"), "{}", path.display());
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}

// B. Salt and LoRA name

#[test]
fn seeds_are_those_of_the_published_rule() {
    let cases = cases();
    for (name, expected) in cases["router"].as_object().unwrap() {
        let (salt, lora_name) = name.split_once(',').unwrap();
        let value = |text: &str| text.split_once('=').unwrap().1.to_owned();
        let (salt, lora_name) = (value(salt), value(lora_name));
        let mut request = Request::new(&[1, 2, 3, 4]).block_size(4);
        if salt != "None" {
            request = request.salt(&salt);
        }
        if lora_name != "None" {
            request = request.lora_name(&lora_name);
        }
        let (hashes, salt_hash) = hash(request);
        assert_eq!(salt_hash, decimal(&expected["seed"]), "{name}");
        assert_eq!(hashes, [decimal(&expected["block[1,2,3,4]"])], "{name}");
    }
}

#[test]
fn salts_and_adapters_keep_apart() {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    let request = || Request::new(&tokens).block_size(4);
    // A name that looks like an image's hash is a name.
    let like_a_hash = "a".repeat(64);
    let requests = [
        request(),
        request().lora_name("X"),
        request().salt("X"),
        request().lora_name("Y"),
        request().salt("Y"),
        request().lora_name("X").salt("X"),
        request().lora_name("X").salt("Y"),
        request().lora_name(&like_a_hash),
    ];
    // Side by side in one batch, so that no lane takes another's key.
    let mut lineages = Lineages::new();
    engine().hash(&requests, &mut lineages);
    let all: Vec<_> = lineages.iter().map(|lineage| lineage.unwrap()).collect();
    for (i, a) in all.iter().enumerate() {
        for b in &all[i + 1..] {
            for block in 0..2 {
                assert_ne!(a.plhs()[block], b.plhs()[block]);
                assert_ne!(a.block_hashes().unwrap()[block], b.block_hashes().unwrap()[block]);
            }
        }
    }
    // The empty is absent.
    for empty in [request().salt(""), request().lora_name(""), request().salt("").lora_name("")] {
        assert_eq!(hash(empty), hash(request()));
    }
}

// C. Multimodal

#[test]
fn an_image_that_ends_at_an_edge_leaves_the_next_block_alone() {
    let tokens: Vec<u32> = (1..=12).collect();
    let text = hash(Request::new(&tokens).block_size(4)).0;
    let with = |offset, length| {
        let runs = [MmRun { mm_hash: 9, offset, length }];
        hash(Request::new(&tokens).block_size(4).mm_runs(&runs)).0
    };
    let framed =
        |hashes: &[u64]| -> Vec<bool> { hashes.iter().zip(&text).map(|(a, b)| a != b).collect() };
    assert_eq!(framed(&with(2, 2)), [true, false, false]);
    assert_eq!(framed(&with(4, 1)), [false, true, false]);
    assert_eq!(framed(&with(3, 2)), [true, true, false]);
    // All of them against the reference.
    let mut prompts = Vec::new();
    for offset in 0..12 {
        for length in 1..=12 - offset {
            let mm_runs = vec![MmRun { mm_hash: 9, offset, length }];
            prompts.push(Prompt {
                tokens: tokens.clone(),
                mm_runs,
                block_size: 4,
                ..Prompt::default()
            });
        }
    }
    check_batch(&prompts);
}

#[test]
fn the_place_within_an_image_counts() {
    let tokens = [0; 8];
    let block = |offset, block: usize| {
        let runs = [MmRun { mm_hash: 9, offset, length: 5 }];
        hash(Request::new(&tokens).block_size(4).mm_runs(&runs)).0[block]
    };
    // Block 1 starts at place 1 of the image, or at place 2.
    assert_ne!(block(3, 1), block(2, 1));
    // Ids under a run do not count; those beside it do.
    let runs = [MmRun { mm_hash: 9, offset: 1, length: 2 }];
    let with = |tokens: &[u32]| hash(Request::new(tokens).block_size(4).mm_runs(&runs)).0;
    assert_eq!(with(&[1, 2, 3, 4]), with(&[1, 8, 8, 4]));
    assert_ne!(with(&[1, 2, 3, 4]), with(&[1, 2, 3, 5]));
}

#[test]
fn broken_runs_never_fall_back_to_text() {
    let tokens = splitmix64(1, 40, 100);
    let run = |offset, length| MmRun { mm_hash: 1, offset, length };
    let cases: [(&[MmRun], RequestError); 6] = [
        (&[run(3, 0)], RequestError::EmptyRun { offset: 3 }),
        (&[run(usize::MAX, 2)], RequestError::OffsetOverflow { offset: usize::MAX, length: 2 }),
        (&[run(38, 3)], RequestError::OutOfBounds { offset: 38, length: 3, tokens_len: 40 }),
        (&[run(4, 4), run(7, 1)], RequestError::Overlapping { position: 7 }),
        // The first in the order of offsets decides, wherever it was given.
        (
            &[run(usize::MAX, 2), run(38, 3), run(1, 1)],
            RequestError::OutOfBounds { offset: 38, length: 3, tokens_len: 40 },
        ),
        // A run in the incomplete last block is checked like any other.
        (&[run(39, 2)], RequestError::OutOfBounds { offset: 39, length: 2, tokens_len: 40 }),
    ];
    for (runs, error) in cases {
        let good = Request::new(&tokens);
        let mut lineages = Lineages::new();
        engine().hash(&[good, good.mm_runs(runs), good], &mut lineages);
        assert_eq!(lineages.get(1).map(|_| ()), Err(error));
        // The neighbours are as if it were not there.
        for neighbour in [0, 2] {
            assert_eq!(lineages.get(neighbour).unwrap().plhs().len(), 2);
        }
    }
}

#[test]
fn a_prompt_shorter_than_a_block_has_no_hashes_and_no_error() {
    let tokens = [1; 10];
    let inside = [MmRun { mm_hash: 1, offset: 2, length: 8 }];
    let outside = [MmRun { mm_hash: 1, offset: 2, length: 9 }];
    let mut lineages = Lineages::new();
    let requests =
        [Request::new(&tokens).mm_runs(&inside), Request::new(&tokens).mm_runs(&outside)];
    engine().hash(&requests, &mut lineages);
    let lineage = lineages.get(0).unwrap();
    assert_eq!((lineage.plhs().len(), lineage.tail()), (0, 10));
    assert_eq!(lineages.get(1).map(|_| ()).unwrap_err().kind(), "OutOfBounds");
}

#[test]
fn a_run_longer_than_a_frame_can_count_wraps_as_the_reference_does() {
    // The place within a run is 32 bits wide. No prompt here is that long, but one that is
    // continued may stand past that many tokens of a video.
    let block_size = 1 << 20;
    let tokens = splitmix64(1, block_size, 100);
    let position = (1u64 << 32) / block_size as u64;
    let parent = kvhash::PositionalLineageHash::new(
        kvhash::SequenceHash(7),
        Some(kvhash::SequenceHash(8)),
        position - 1,
    )
    .unwrap();
    let total = (1 << 32) + block_size;
    let run = MmRun { mm_hash: 5, offset: 0, length: total };
    let mut lineages = Lineages::new();
    let request =
        Request::new(&tokens).block_size(block_size as u32).mm_runs(std::slice::from_ref(&run));
    engine().hash(&[request.resume(parent)], &mut lineages);
    let peer_run = dynamo_tokens::TokenBlockMmInfo { mm_hash: 5, offset: 0, length: total };
    let bytes = dynamo_tokens::compute_block_bytes_with_mm(&tokens, 1 << 32, &[peer_run]);
    let lineage = lineages.get(0).unwrap();
    assert_eq!(lineage.block_hashes().unwrap()[0].0, xxh3_64_with_seed(&bytes, 1337));
}

// D. Block size, tail, position, chain

#[test]
fn block_sizes_need_not_be_powers_of_two() {
    let prompts = common::ODD_BLOCK_SIZES.map(|block_size| Prompt {
        tokens: splitmix64(u64::from(block_size), 2 * block_size as usize + 7, 1 << 32),
        block_size,
        ..Prompt::default()
    });
    check_batch(&prompts);
    // A result says which block size it has.
    let mut lineages = Lineages::new();
    engine().hash(&[prompts[0].request()], &mut lineages);
    assert_eq!(lineages.get(0).unwrap().block_size(), common::ODD_BLOCK_SIZES[0] as usize);
}

#[test]
fn a_block_size_of_zero_is_an_error_and_the_largest_is_none() {
    assert_eq!(BlockSize::new(0), Err(EngineError::ZeroBlockSize));
    let tokens = [1; 10];
    let bad_run = [MmRun { mm_hash: 1, offset: 0, length: 0 }];
    let requests = [
        Request::new(&tokens).block_size(0),
        Request::new(&[]).block_size(0),
        // Runs are looked at first.
        Request::new(&tokens).block_size(0).mm_runs(&bad_run),
        Request::new(&tokens).block_size(u32::MAX),
        Request::new(&tokens).block_size(u32::MAX).mm_runs(&[]),
    ];
    let mut lineages = Lineages::new();
    engine().hash(&requests, &mut lineages);
    let found: Vec<_> =
        lineages.iter().map(|result| result.map(|lineage| lineage.plhs().len())).collect();
    assert_eq!(
        found,
        [
            Err(RequestError::ZeroBlockSize),
            Err(RequestError::ZeroBlockSize),
            Err(RequestError::EmptyRun { offset: 0 }),
            Ok(0),
            Ok(0),
        ]
    );
}

#[test]
fn a_block_of_one_token_is_a_block() {
    let (hashes, _) = hash(Request::new(&[7, 7, 7]).block_size(1));
    assert_eq!(hashes[0], hashes[1]);
    let mut lineages = Lineages::new();
    engine().hash(&[Request::new(&[7, 7, 7]).block_size(1)], &mut lineages);
    let sequences: Vec<_> = lineages.get(0).unwrap().sequence_hashes().collect();
    assert!(sequences[0] != sequences[1] && sequences[1] != sequences[2]);
}

#[test]
fn modes_change_where_the_reference_changes_them() {
    let lengths = [255, 256, 257, 65_535, 65_536, 65_537];
    let prompts = lengths.map(|length| Prompt {
        tokens: splitmix64(length, length as usize, 1000),
        block_size: 1,
        ..Prompt::default()
    });
    // Side by side: lanes that change their mode at different steps.
    check_batch(&prompts);
}

#[test]
fn too_many_blocks_are_one_requests_error() {
    let many = vec![3; (1 << 24) + 1];
    let requests = [
        Request::new(&[1, 2]).block_size(1),
        Request::new(&many).block_size(1),
        Request::new(&many).block_size(1).max_blocks(5),
        Request::new(&many[..1 << 20]).block_size(1 << 10),
    ];
    let mut lineages = Lineages::new();
    engine().hash(&requests, &mut lineages);
    let found: Vec<_> =
        lineages.iter().map(|result| result.map(|lineage| lineage.plhs().len())).collect();
    let error = RequestError::PositionLimit { position: 1 << 24 };
    assert_eq!(found, [Ok(2), Err(error), Ok(5), Ok(1024)]);
}

#[test]
fn an_incomplete_last_block_is_not_hashed() {
    for block_size in [1usize, 8, 16] {
        for blocks in 0..=2 {
            for length in (blocks * block_size).saturating_sub(1)..=blocks * block_size + 1 {
                let tokens = splitmix64(1, length, 100);
                let mut lineages = Lineages::new();
                engine()
                    .hash(&[Request::new(&tokens).block_size(block_size as u32)], &mut lineages);
                let lineage = lineages.get(0).unwrap();
                assert_eq!(lineage.plhs().len(), length / block_size);
                assert_eq!(lineage.tail(), length % block_size);
            }
        }
    }
}

// The door

#[test]
fn an_owned_request_is_the_borrowed_one() {
    let tokens = splitmix64(1, 100, 1000);
    let runs = vec![MmRun { mm_hash: 1, offset: 40, length: 30 }];
    let mut lineages = Lineages::new();
    engine().hash(&[Request::new(&tokens).block_size(8)], &mut lineages);
    let parent = lineages.get(0).unwrap().plhs()[1];
    let borrowed = Request::new(&tokens)
        .lora_name("adapter")
        .salt("tenant")
        .mm_runs(&runs)
        .block_size(8)
        .max_blocks(9)
        .resume(parent);
    let owned = OwnedRequest::new(tokens.clone())
        .lora_name("adapter")
        .salt("tenant")
        .mm_runs(runs.clone())
        .block_size(8)
        .max_blocks(9)
        .resume(parent);
    engine().hash(&[borrowed, owned.as_request()], &mut lineages);
    let (a, b) = (lineages.get(0).unwrap(), lineages.get(1).unwrap());
    assert_eq!(a.plhs(), b.plhs());
    assert_eq!(a.plhs().len(), 9);
    assert_eq!(a.tail(), 100 - 9 * 8);
}

#[test]
fn what_was_not_asked_for_is_none_and_what_is_not_there_an_error() {
    let mut lineages = Lineages::new();
    assert!(lineages.is_empty());
    Engine::builder().build().unwrap().hash(&[Request::new(&[1; 16])], &mut lineages);
    assert_eq!(lineages.get(0).unwrap().block_hashes(), None);
    assert_eq!(
        lineages.get(1).map(|_| ()),
        Err(RequestError::NoSuchRequest { index: 1, requests: 1 })
    );
    // An engine that keeps the column, and one that does not, over the same memory.
    engine().hash(&[Request::new(&[1; 16])], &mut lineages);
    assert_eq!(lineages.get(0).unwrap().block_hashes().unwrap().len(), 1);
    Engine::builder().build().unwrap().hash(&[Request::new(&[1; 16])], &mut lineages);
    assert_eq!(lineages.get(0).unwrap().block_hashes(), None);
    // A batch of nothing but errors.
    engine().hash(&[Request::new(&[1; 16]).block_size(0); 3], &mut lineages);
    assert_eq!(lineages.iter().filter(|result| result.is_err()).count(), 3);
}

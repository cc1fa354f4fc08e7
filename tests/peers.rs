//! Batches against the published crates, field by field.

mod common;

use common::{ODD_BLOCK_SIZES, Prompt, check_against_reference, splitmix64};
use kvhash::{
    Backend, ChainSeed, Columns, DynamoPlhLegacy, Engine, LegacyRequest, Lineages, MmRun, Request,
    SaltRule,
};
use proptest::prelude::*;

fn hash_and_check(prompts: &[Prompt], columns: Columns) {
    let requests: Vec<Request<'_>> = prompts.iter().map(Prompt::request).collect();
    for &backend in Backend::available() {
        // New ones, where nothing is left of the backend before.
        let mut lineages = Lineages::new();
        let engine = Engine::builder().backend(backend).columns(columns).build().unwrap();
        engine.hash(&requests, &mut lineages);
        assert_eq!(lineages.len(), prompts.len());
        for (prompt, lineage) in prompts.iter().zip(lineages.iter()) {
            check_against_reference(prompt, lineage);
        }
    }
}

/// Runs laid out by gaps and lengths from the start of a prompt of `tokens` tokens.
fn lay_out(parts: &[(usize, usize, u64)], tokens: usize) -> Vec<MmRun> {
    let mut runs = Vec::new();
    let mut offset = 0;
    for &(gap, length, mm_hash) in parts {
        offset += gap;
        if offset + length > tokens {
            break;
        }
        runs.push(MmRun { mm_hash, offset, length });
        offset += length;
    }
    runs
}

#[test]
fn every_block_size_in_one_batch() {
    let sizes = (1..=300).chain(ODD_BLOCK_SIZES);
    let prompts: Vec<Prompt> = sizes
        .flat_map(|block_size| {
            let seed = u64::from(block_size);
            let tokens = splitmix64(seed, 4 * block_size as usize + 1, 1 << 32);
            let size = block_size as usize;
            // Text; an image across the first edge; one that ends at an edge and one that
            // starts at the next.
            let across = MmRun { mm_hash: seed, offset: size / 2, length: size };
            let ends = MmRun { mm_hash: 7, offset: size, length: size };
            let starts = MmRun { mm_hash: 8, offset: 3 * size, length: size / 2 + 1 };
            [vec![], vec![across], vec![ends, starts]].map(|mm_runs| Prompt {
                tokens: tokens.clone(),
                salt: (block_size % 3 == 0).then(|| format!("tenant-{block_size}")),
                lora_name: (block_size % 5 == 0).then(|| "adapter".into()),
                mm_runs,
                block_size,
            })
        })
        .collect();
    hash_and_check(&prompts, Columns::NONE);
    hash_and_check(&prompts, Columns::BLOCK_HASHES);
}

/// Images that fill many blocks, which some backends hash without writing their frames: from the
/// first token on, one right after another, a short one between long ones, from inside a block, up
/// to the last token; past the change of layout at block 256 with the small block sizes; and with
/// frames of up to 240 bytes (18 slots) and more.
#[test]
fn images_of_many_blocks() {
    const TOKENS: usize = 3000;
    let run = |offset, length| MmRun { mm_hash: !(offset as u64), offset, length };
    let long = vec![run(0, 400), run(400, 333), run(740, 3), run(745, 1200), run(2001, 999)];
    let prompts: Vec<Prompt> = (1..=22)
        .chain([32, 64])
        .flat_map(|block_size| {
            [long.clone(), vec![run(7, 8 * block_size as usize)]].map(|mm_runs| Prompt {
                tokens: splitmix64(block_size.into(), TOKENS, 1 << 32),
                salt: (block_size % 3 == 0).then(|| format!("tenant-{block_size}")),
                lora_name: None,
                mm_runs,
                block_size,
            })
        })
        .collect();
    hash_and_check(&prompts, Columns::NONE);
    hash_and_check(&prompts, Columns::BLOCK_HASHES);
}

#[test]
fn ragged_requests_side_by_side() {
    // Enough of one block size for groups of eight, with what is left over at their ends; some
    // longer than the first layout (256 blocks), some without a block.
    for block_size in [1, 4, 5, 16, 20, 32, 48, 60, 61, 64, 128] {
        let prompts: Vec<Prompt> = (0..45)
            .map(|i| Prompt {
                tokens: splitmix64(i, (i as usize * 61 % 277) * block_size + i as usize, 1 << 32),
                salt: (i % 4 == 0).then(|| format!("tenant-{i}")),
                block_size: block_size as u32,
                ..Prompt::default()
            })
            .collect();
        hash_and_check(&prompts, Columns::NONE);
        hash_and_check(&prompts[..7], Columns::NONE);
    }
}

#[test]
fn every_number_of_requests() {
    // Up to four groups of eight and one more: with every number of requests left over, which
    // run one by one, or side by side with dead lanes among them. The block sizes are those of
    // `kernel::tests::LENGTHS`, in tokens: one on either side of every change of path.
    for block_size in [1, 2, 4, 5, 16, 32, 33, 52, 59, 60, 61, 64, 256, 257, 512, 513] {
        let prompts: Vec<Prompt> = (0..33)
            .map(|i| {
                // 0 to 40 blocks, in no order; the dead lanes begin at 16.
                let blocks = i as usize * 17 % 41;
                Prompt {
                    tokens: splitmix64(i, blocks * block_size + i as usize % block_size, 1 << 32),
                    // Each its own, so that a lane with the seed of another shows.
                    salt: Some(format!("tenant-{i}")),
                    block_size: block_size as u32,
                    ..Prompt::default()
                }
            })
            .collect();
        for count in 0..=prompts.len() {
            hash_and_check(&prompts[..count], Columns::NONE);
        }
    }
}

#[test]
fn every_way_in_which_runs_can_touch_block_edges() {
    // All pairs of runs in three blocks of 4 and an incomplete one; the lengths are such that
    // runs start and end before, at and after every edge.
    let tokens = splitmix64(1, 14, 1000);
    let mut prompts = Vec::new();
    for offset in 0..14 {
        for length in 1..=14 - offset {
            let first = MmRun { mm_hash: 3, offset, length };
            prompts.push(vec![first]);
            for second in offset + length..14 {
                for length in 1..=14 - second {
                    prompts.push(vec![MmRun { mm_hash: 4, offset: second, length }, first]);
                }
            }
        }
    }
    let prompts: Vec<Prompt> = prompts
        .into_iter()
        .map(|mm_runs| Prompt {
            tokens: tokens.clone(),
            mm_runs,
            block_size: 4,
            ..Prompt::default()
        })
        .collect();
    hash_and_check(&prompts, Columns::BLOCK_HASHES);
}

fn name() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(String::new())),
        2 => "[a-z0-9:_-]{1,40}".prop_map(Some),
        1 => "\\PC{1,12}".prop_map(Some),
        1 => any::<String>().prop_map(Some),
    ]
}

/// Any runs, mostly bad ones.
fn any_runs() -> impl Strategy<Value = Vec<MmRun>> {
    let number = || prop_oneof![4 => 0..40usize, 1 => Just(usize::MAX), 1 => any::<usize>()];
    let run = (any::<u64>(), number(), number()).prop_map(|(mm_hash, offset, length)| MmRun {
        mm_hash,
        offset,
        length,
    });
    proptest::collection::vec(run, 0..5)
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let block_size = prop_oneof![
        1 => Just(0u32),
        6 => 1..=300u32,
        6 => proptest::sample::select(vec![1u32, 4, 16, 32, 59, 60, 61, 64, 128, 256]),
        1 => proptest::sample::select(ODD_BLOCK_SIZES.to_vec()),
        1 => Just(u32::MAX),
    ];
    (block_size, 0..6usize, any::<u64>()).prop_flat_map(|(block_size, blocks, seed)| {
        let size = (block_size as usize).min(2100);
        let longest = blocks * size;
        let edge =
            prop_oneof![Just(0), Just(1), Just(size.saturating_sub(1)), Just(size), 0..=size];
        let parts = (edge.clone(), edge.prop_map(|length| length.max(1)), any::<u64>());
        let runs = prop_oneof![
            3 => Just(None),
            3 => proptest::collection::vec(parts, 1..6).prop_map(Some).prop_map(Some),
            1 => Just(Some(None)),
        ];
        (0..=longest, runs, any_runs(), any::<bool>(), name(), name()).prop_map(
            move |(length, runs, bad_runs, reverse, salt, lora_name)| {
                let mut mm_runs = match runs {
                    None => Vec::new(),
                    Some(Some(parts)) => lay_out(&parts, length),
                    Some(None) => bad_runs,
                };
                if reverse {
                    mm_runs.reverse();
                }
                Prompt {
                    tokens: splitmix64(seed, length, 1 << 32),
                    lora_name,
                    salt,
                    mm_runs,
                    block_size,
                }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ragged_batches_are_those_of_dynamo_kv_hashing(
        prompts in proptest::collection::vec(prompt(), 0..12),
        keep in any::<bool>(),
    ) {
        hash_and_check(&prompts, if keep { Columns::BLOCK_HASHES } else { Columns::NONE });
    }

    #[test]
    fn text_is_that_of_kv_index(
        seed in any::<u64>(),
        length in 0..3000usize,
        block_size in 1..300u32,
        salt in name(),
        lora_name in name(),
    ) {
        let prompt = Prompt {
            tokens: splitmix64(seed, length, 1 << 32),
            salt,
            lora_name,
            mm_runs: vec![],
            block_size,
        };
        let engine = Engine::builder().columns(Columns::BLOCK_HASHES).build().unwrap();
        let mut lineages = Lineages::new();
        engine.hash(&[prompt.request()], &mut lineages);
        let lineage = lineages.get(0).unwrap();
        let contents = kv_index::salt::namespaced_request_content_hashes(
            &prompt.tokens,
            block_size as usize,
            prompt.lora_name.as_deref(),
            prompt.salt.as_deref(),
        );
        prop_assert!(
            contents.iter().map(|hash| hash.0).eq(lineage.block_hashes().unwrap().iter().map(|hash| hash.0))
        );
        let mut chain: Option<kv_index::SequenceHash> = None;
        for (content, found) in contents.iter().zip(lineage.sequence_hashes()) {
            let next = match chain {
                None => kv_index::SequenceHash(content.0),
                Some(parent) => kv_index::chain_prefix_hash(parent, *content),
            };
            prop_assert_eq!(found.0, next.0);
            chain = Some(next);
        }
    }

    #[test]
    fn legacy_text_is_that_of_dynamo_tokens_0_9(
        seed in any::<u64>(),
        blocks in 0..400usize,
        block_size in 1..40u32,
        salt in any::<u64>(),
    ) {
        let tokens = splitmix64(seed, blocks * block_size as usize + 1, 1 << 32);
        // The old crate takes a salt hash; ours is made from text, so give it that.
        let text = salt.to_string();
        for (salt_rule, chain_seed) in [
            (SaltRule::JsonKeepingEmpty, ChainSeed::SaltHash),
            (SaltRule::Sum, ChainSeed::SaltHash),
        ] {
            let engine = Engine::builder()
                .scheme(DynamoPlhLegacy { salt_rule, chain_seed })
                .columns(Columns::BLOCK_HASHES | Columns::SEQUENCE_HASHES)
                .build()
                .unwrap();
            let mut lineages = Lineages::default();
            let request = LegacyRequest::new(&tokens).salt(&text).block_size(block_size);
            engine.hash(&[request], &mut lineages);
            let lineage = lineages.get(0).unwrap();
            let reference = dynamo_tokens_legacy::TokenBlockSequence::new(
                tokens.clone().into(),
                block_size,
                Some(lineage.salt_hash().0),
            );
            let blocks = reference.blocks();
            prop_assert_eq!(blocks.len(), lineage.plhs().len());
            for (i, block) in blocks.iter().enumerate() {
                let plh = lineage.plhs()[i];
                let expected = block.positional_lineage_hash();
                prop_assert_eq!(plh.as_u128(), expected.as_u128());
                prop_assert_eq!(plh.to_string(), expected.to_string());
                prop_assert_eq!(plh.position(), expected.position());
                prop_assert_eq!(plh.mode(), expected.mode());
                prop_assert_eq!(plh.current_hash_fragment(), expected.current_hash_fragment());
                prop_assert_eq!(plh.parent_hash_fragment(), expected.parent_hash_fragment());
                prop_assert_eq!(lineage.block_hashes().unwrap()[i].0, block.block_hash());
                prop_assert_eq!(lineage.sequence_hashes().unwrap()[i].0, block.sequence_hash());
                prop_assert_eq!(plh.to_string().parse(), Ok(plh));
                prop_assert_eq!(kvhash::LegacyLineageHash::try_from(plh.as_u128()), Ok(plh));
            }
        }
    }

    #[test]
    fn json_salts_are_those_of_serde_json(salt in name(), lora_name in name()) {
        // An independent writing of the payload: a struct-like map with what is absent left out.
        let payload = |salt: Option<&String>, lora_name: Option<&String>| {
            let part = |name: &str, value: Option<&String>| {
                value.map(|value| format!("\"{name}\":{}", serde_json::Value::from(value.as_str())))
            };
            let parts = [part("salt", salt), part("lora_name", lora_name)];
            format!("{{{}}}", parts.into_iter().flatten().collect::<Vec<_>>().join(","))
        };
        let filled = |text: &&String| !text.is_empty();
        for (salt_rule, json) in [
            (SaltRule::Json, payload(
                salt.as_ref().filter(filled),
                lora_name.as_ref().filter(filled),
            )),
            (SaltRule::JsonKeepingEmpty, payload(salt.as_ref(), lora_name.as_ref())),
        ] {
            let scheme = kvhash::DynamoPlh { salt_rule, chain_seed: ChainSeed::PUBLISHED };
            let engine = Engine::builder().scheme(scheme).build().unwrap();
            let mut lineages = Lineages::new();
            let prompt =
                Prompt { salt: salt.clone(), lora_name: lora_name.clone(), block_size: 1, ..Prompt::default() };
            engine.hash(&[prompt.request()], &mut lineages);
            let expected = xxhash_rust::xxh3::xxh3_64(json.as_bytes());
            prop_assert_eq!(lineages.get(0).unwrap().salt_hash().0, expected);
        }
    }
}

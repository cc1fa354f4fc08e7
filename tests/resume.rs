//! A lineage that is continued is the one that was hashed at once.

mod common;

use common::{Prompt, splitmix64};
use kvhash::{
    BlockHash, BlockSize, ChainSeed, Columns, DynamoPlh, Engine, Lineages, MmRun,
    PositionalLineageHash, Request, RequestError, SaltRule, SequenceHash,
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn engine(scheme: DynamoPlh) -> Engine {
    Engine::builder().scheme(scheme).columns(Columns::BLOCK_HASHES).build().unwrap()
}

/// Splits a prompt at every block edge and checks that its two parts give the whole.
fn check_every_split(engine: &Engine, prompt: &Prompt) {
    let mut whole = Lineages::new();
    engine.hash(&[prompt.request()], &mut whole);
    let whole = whole.get(0).unwrap();
    let mut rest = Lineages::new();
    for split in 1..=whole.plhs().len() {
        let parent = whole.plhs()[split - 1];
        let later = Prompt {
            tokens: prompt.tokens[split * prompt.block_size as usize..].to_vec(),
            ..prompt.clone()
        };
        engine.hash(&[later.request().resume(parent)], &mut rest);
        let rest = rest.get(0).unwrap();
        assert_eq!(rest.plhs(), &whole.plhs()[split..], "split at {split}: {prompt:?}");
        let hashes = &whole.block_hashes().unwrap()[split..];
        assert_eq!(rest.block_hashes().unwrap(), hashes);
        assert_eq!(rest.tail(), whole.tail());
    }
}

#[test]
fn every_split_across_a_change_of_mode() {
    // 260 blocks: the mode changes at position 256.
    let prompt = Prompt {
        tokens: splitmix64(3, 521, 1000),
        salt: Some("tenant".into()),
        block_size: 2,
        ..Prompt::default()
    };
    check_every_split(&engine(DynamoPlh::PUBLISHED), &prompt);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_split_with_runs_across_it(
        seed in any::<u64>(),
        block_size in 1..20u32,
        blocks in 1..12usize,
        extra in 0..20usize,
        parts in proptest::collection::vec((0..20usize, 1..50usize), 0..5),
        scheme in proptest::sample::select(vec![
            DynamoPlh::PUBLISHED,
            DynamoPlh::README,
            DynamoPlh { salt_rule: SaltRule::JsonKeepingEmpty, chain_seed: ChainSeed::SaltHash },
        ]),
    ) {
        let tokens = splitmix64(seed, blocks * block_size as usize + extra, 1 << 32);
        let mut mm_runs = Vec::new();
        let mut offset = 0;
        for (gap, length) in parts {
            offset += gap;
            if offset + length <= tokens.len() {
                mm_runs.push(MmRun { mm_hash: seed ^ offset as u64, offset, length });
            }
            offset += length;
        }
        let prompt = Prompt { tokens, mm_runs, block_size, ..Prompt::default() };
        check_every_split(&engine(scheme), &prompt);
    }

    #[test]
    fn extending_by_block_hashes_is_hashing(seed in any::<u64>(), blocks in 1..300usize) {
        for scheme in [DynamoPlh::PUBLISHED, DynamoPlh::README] {
            let ChainSeed::Fixed(chain_seed) = scheme.chain_seed else { unreachable!() };
            let prompt =
                Prompt { tokens: splitmix64(seed, blocks, 1 << 32), block_size: 1, ..Prompt::default() };
            let mut lineages = Lineages::new();
            engine(scheme).hash(&[prompt.request()], &mut lineages);
            let lineage = lineages.get(0).unwrap();
            let hashes: &[BlockHash] = lineage.block_hashes().unwrap();
            let mut last = PositionalLineageHash::root(hashes[0]);
            for (&hash, &plh) in hashes[1..].iter().zip(&lineage.plhs()[1..]) {
                last = last.extend_with(chain_seed, hash).unwrap();
                prop_assert_eq!(last, plh);
            }
        }
    }
}

#[test]
fn the_last_position_is_reached_and_not_passed() {
    let engine = Engine::builder().block_size(BlockSize::new(1).unwrap()).build().unwrap();
    let at = |position| {
        PositionalLineageHash::new(SequenceHash(1), Some(SequenceHash(2)), position).unwrap()
    };
    let prompt = Prompt { tokens: vec![1, 2, 3], block_size: 1, ..Prompt::default() };
    let cases = [
        // (parent's position, most blocks, blocks or the position that is too far)
        (kvhash::MAX_POSITION - 3, usize::MAX, Ok(3)),
        (kvhash::MAX_POSITION - 2, usize::MAX, Err(kvhash::MAX_POSITION + 1)),
        // The limit counts the blocks that are asked for.
        (kvhash::MAX_POSITION - 2, 2, Ok(2)),
        (kvhash::MAX_POSITION, 0, Ok(0)),
        (kvhash::MAX_POSITION, 1, Err(kvhash::MAX_POSITION + 1)),
    ];
    let mut lineages = Lineages::new();
    for (position, most, expected) in cases {
        let request = prompt.request().resume(at(position)).max_blocks(most);
        engine.hash(&[request], &mut lineages);
        let found = lineages.get(0).map(|lineage| lineage.plhs().len());
        let expected = expected.map_err(|position| RequestError::PositionLimit { position });
        assert_eq!(found, expected, "from {position}");
    }
}

#[test]
fn bounds_of_runs_are_those_of_the_whole_prompt() {
    let prompt = |offset, length| Prompt {
        tokens: splitmix64(1, 8, 100),
        mm_runs: vec![MmRun { mm_hash: 1, offset, length }],
        block_size: 4,
        ..Prompt::default()
    };
    let mut whole = Lineages::new();
    let engine = engine(DynamoPlh::PUBLISHED);
    engine.hash(&[prompt(0, 1).request()], &mut whole);
    let parent = whole.get(0).unwrap().plhs()[0];
    let mut found = Lineages::new();
    // 4 tokens before, 8 given: 12 in all.
    let mut hash = |offset, length| {
        engine.hash(&[prompt(offset, length).request().resume(parent)], &mut found);
        found.get(0).map(|lineage| lineage.plhs().len())
    };
    assert_eq!(hash(0, 4), Ok(2));
    assert_eq!(hash(11, 1), Ok(2));
    assert_eq!(
        hash(11, 2),
        Err(RequestError::OutOfBounds { offset: 11, length: 2, tokens_len: 12 })
    );
}

/// Goes on in the middle of an image that fills many blocks, on every backend.
#[test]
fn an_image_of_many_blocks_goes_on() {
    let tokens = splitmix64(5, 2000, 1 << 32);
    let runs = [MmRun { mm_hash: 9, offset: 70, length: 900 }];
    for &backend in kvhash::Backend::available() {
        let engine = Engine::builder().backend(backend).build().unwrap();
        let mut whole = Lineages::new();
        engine.hash(&[Request::new(&tokens).mm_runs(&runs)], &mut whole);
        let whole = whole.get(0).unwrap().plhs();
        for blocks in [4, 5, 20, 50, 60, 61] {
            let rest = &tokens[16 * blocks..];
            let request = Request::new(rest).mm_runs(&runs).resume(whole[blocks - 1]);
            let mut resumed = Lineages::new();
            engine.hash(&[request], &mut resumed);
            assert_eq!(resumed.get(0).unwrap().plhs(), &whole[blocks..], "{backend}, {blocks}");
        }
    }
}

/// Requests that go on from different places in their lineages, side by side.
#[test]
fn lineages_go_on_side_by_side_from_different_places() {
    // In each layout, at and across its borders (256 and 65,536), in no order.
    let places = [10, 65_527, 20, 300, 1, 254, 70_000, 255];
    let parent = SequenceHash(0x1234_5678_9abc_def0);
    for block_size in [16, 32, 64] {
        let prompts: Vec<Vec<u32>> =
            (0..).zip(places).map(|(i, _)| splitmix64(i, 12 * block_size, 1 << 32)).collect();
        let requests: Vec<Request<'_>> = prompts
            .iter()
            .zip(places)
            .map(|(tokens, place)| {
                let before = SequenceHash(!place);
                let plh = PositionalLineageHash::new(parent, Some(before), place).unwrap();
                Request::new(tokens).resume(plh)
            })
            .collect();
        for &backend in kvhash::Backend::available() {
            let size = BlockSize::new(block_size as u32).unwrap();
            let engine = Engine::builder().backend(backend).block_size(size).build().unwrap();
            let mut lineages = Lineages::new();
            engine.hash(&requests, &mut lineages);
            for ((tokens, place), lineage) in prompts.iter().zip(places).zip(lineages.iter()) {
                let mut before = parent;
                let blocks = tokens.chunks(block_size);
                let expected: Vec<PositionalLineageHash> = blocks
                    .zip(place + 1..)
                    .map(|(block, place)| {
                        let bytes: Vec<u8> = block.iter().flat_map(|id| id.to_le_bytes()).collect();
                        let hash = xxh3_64_with_seed(&bytes, 1337);
                        let pair = [before.0.to_le_bytes(), hash.to_le_bytes()].concat();
                        let current = SequenceHash(xxh3_64_with_seed(&pair, 1337));
                        let plh = PositionalLineageHash::new(current, Some(before), place).unwrap();
                        before = current;
                        plh
                    })
                    .collect();
                assert_eq!(lineage.unwrap().plhs(), expected, "{backend}, from {place}");
            }
        }
    }
}

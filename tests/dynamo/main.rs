//! The drop-in module: one body of code, compiled with each crate's `use`, writes the same.

#[path = "../common/mod.rs"]
mod common;

mod theirs {
    use dynamo_kv_hashing::*;
    include!("body.rs");
}

mod ours {
    use kvhash::dynamo::*;
    include!("body.rs");
}

use common::splitmix64;
use kvhash::dynamo::{KvHashingError, PositionalLineageHash, Request};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), Just(Some(String::new())), "[a-zé]{1,20}".prop_map(Some)]
}

proptest! {
    #[test]
    fn the_same_words_give_the_same_results(
        seed in any::<u64>(),
        length in 0..200usize,
        block_size in prop_oneof![1..20u32, Just(64), Just(u32::MAX)],
        lora in name(),
        namespace in name(),
        parts in proptest::collection::vec((0..40usize, 0..60usize), 0..4),
        reverse in any::<bool>(),
    ) {
        let tokens = splitmix64(seed, length, 1 << 32);
        let mut runs = Vec::new();
        let mut offset = 0;
        for (gap, length) in parts {
            // Now and then empty, overlapping or out of bounds.
            offset += gap;
            runs.push((seed ^ offset as u64, offset, length));
            offset += length.saturating_sub(usize::from(seed.is_multiple_of(5)));
        }
        if reverse {
            runs.reverse();
        }
        prop_assert_eq!(
            ours::transcript(&tokens, lora.clone(), namespace.clone(), &runs, block_size),
            theirs::transcript(&tokens, lora, namespace, &runs, block_size)
        );
    }
}

#[test]
fn every_run_in_a_few_blocks() {
    let tokens: Vec<u32> = (1..=13).collect();
    for offset in 0..14 {
        for length in 0..14 {
            let runs = [(9, offset, length)];
            assert_eq!(
                ours::transcript(&tokens, None, None, &runs, 4),
                theirs::transcript(&tokens, None, None, &runs, 4)
            );
        }
    }
    let overflowing = [(9, usize::MAX, 2)];
    assert_eq!(
        ours::transcript(&tokens, None, None, &overflowing, 4),
        theirs::transcript(&tokens, None, None, &overflowing, 4)
    );
}

#[test]
fn constants_are_the_same() {
    assert_eq!(ours::constants(), theirs::constants());
}

#[test]
fn what_panics_there_is_an_error_here() {
    let request = Request::builder().tokens(vec![1; (1 << 24) + 1]).build().unwrap();
    for (block_size, kind) in [(0, "ZeroBlockSize"), (1, "PositionLimit")] {
        match request.into_blocks(block_size) {
            Err(KvHashingError::TokenBlock(error)) => assert_eq!(error.kind(), kind),
            other => panic!("{other:?}"),
        }
        assert!(request.block_hashes(block_size).is_err());
        assert!(request.sequence_hashes(block_size).is_err());
        assert!(request.positional_lineage_hashes(block_size).is_err());
    }
}

#[test]
fn signatures_that_have_no_error_panic_as_they_do_there() {
    let last = PositionalLineageHash::new(1, Some(2), kvhash::MAX_POSITION);
    assert!(std::panic::catch_unwind(|| last.extend(3)).is_err());
    let past = || PositionalLineageHash::new(1, Some(2), kvhash::MAX_POSITION + 1);
    assert!(std::panic::catch_unwind(past).is_err());
}

#[test]
fn hashes_go_between_the_two_types() {
    let drop_in = PositionalLineageHash::new(1, Some(2), 3);
    let typed = kvhash::PositionalLineageHash::from(drop_in);
    assert_eq!(typed.as_u128(), drop_in.as_u128());
    assert_eq!(PositionalLineageHash::from(typed), drop_in);
}

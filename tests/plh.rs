//! The lineage hash as a value, against `dynamo-tokens`.

use dynamo_tokens::PositionalLineageHash as Peer;
use kvhash::{
    BlockHash, LegacyLineageHash, MAX_POSITION, PlhError, PositionalLineageHash, SequenceHash,
};
use proptest::prelude::*;

/// Both sides of every change of mode, and both ends.
const EDGES: [u64; 10] = [0, 1, 254, 255, 256, 257, 65_535, 65_536, MAX_POSITION - 1, MAX_POSITION];

fn ours(current: u64, parent: Option<u64>, position: u64) -> PositionalLineageHash {
    PositionalLineageHash::new(SequenceHash(current), parent.map(SequenceHash), position).unwrap()
}

fn position() -> impl Strategy<Value = u64> {
    prop_oneof![proptest::sample::select(EDGES.to_vec()), 0..=MAX_POSITION, 0..600u64]
}

/// Any hash that can exist, beside the peer's.
fn both() -> impl Strategy<Value = (PositionalLineageHash, Peer)> {
    let hash = || prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..4u64];
    (hash(), hash(), position()).prop_map(|(current, parent, position)| {
        let parent = (position > 0).then_some(parent);
        (ours(current, parent, position), Peer::new(current, parent, position))
    })
}

proptest! {
    #[test]
    fn fields_are_the_peers((hash, peer) in both(), child_position in 0..=MAX_POSITION + 2) {
        prop_assert_eq!(hash.as_u128(), peer.as_u128());
        prop_assert_eq!(hash.position(), peer.position());
        prop_assert_eq!(hash.mode(), peer.mode());
        prop_assert_eq!(hash.current_sequence_hash().0, peer.current_sequence_hash());
        prop_assert_eq!(hash.parent_hash_fragment(), peer.parent_hash_fragment());
        prop_assert_eq!(
            hash.parent_fragment_for_child_position(child_position),
            peer.parent_fragment_for_child_position(child_position)
        );
        prop_assert_eq!(hash.to_be_bytes(), peer.as_u128().to_be_bytes());
        prop_assert_eq!(PositionalLineageHash::from_be_bytes(hash.to_be_bytes()), Ok(hash));
        prop_assert_eq!(PositionalLineageHash::try_from(peer.as_u128()), Ok(hash));
    }

    #[test]
    fn text_is_the_peers((hash, peer) in both()) {
        prop_assert_eq!(hash.to_string(), peer.to_string());
        prop_assert_eq!(hash.to_string().parse(), Ok(hash));
    }

    #[test]
    fn order_is_the_peers((a, peer_a) in both(), (b, peer_b) in both()) {
        prop_assert_eq!(a.cmp(&b), peer_a.cmp(&peer_b));
        prop_assert_eq!(a.cmp(&b), a.as_u128().cmp(&b.as_u128()));
        prop_assert_eq!(a.cmp(&b), a.to_be_bytes().cmp(&b.to_be_bytes()));
    }

    #[test]
    fn extend_is_the_peers((hash, peer) in both(), child in any::<u64>()) {
        let extended = hash.extend(BlockHash(child));
        if hash.position() == MAX_POSITION {
            // The peer panics here.
            prop_assert_eq!(extended, Err(PlhError::PositionLimit { position: MAX_POSITION + 1 }));
        } else {
            prop_assert_eq!(extended.unwrap().as_u128(), peer.extend(child).as_u128());
        }
    }

    #[test]
    fn bits_are_taken_exactly_where_packing_gives_them(bits in any::<u128>()) {
        match PositionalLineageHash::try_from(bits) {
            Ok(hash) => {
                let parent = (hash.position() > 0).then(|| hash.parent_hash_fragment());
                let packed = ours(hash.current_sequence_hash().0, parent, hash.position());
                prop_assert_eq!(packed.as_u128(), bits);
            }
            Err(PlhError::UnknownMode { .. }) => prop_assert_eq!(bits >> 126, 3),
            Err(PlhError::WideMode { mode, position, .. }) => {
                prop_assert!(position < [0, 256, 65_536][mode as usize]);
            }
            Err(PlhError::RootWithParent { fragment, .. }) => prop_assert_ne!(fragment, 0),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn text_that_is_none_is_refused(text in "\\PC{0,40}") {
        if let Ok(hash) = text.parse::<PositionalLineageHash>() {
            prop_assert_eq!(hash.to_string(), text);
        }
    }
}

#[test]
fn root_is_the_peers() {
    for block in [0, 1, u64::MAX, 0xcb38_e4d7_fb2d_ca5c] {
        let root = PositionalLineageHash::root(BlockHash(block));
        assert_eq!(root.as_u128(), Peer::root(block).as_u128());
        assert_eq!(Some(root), PositionalLineageHash::new(SequenceHash(block), None, 0).ok());
    }
    assert_eq!(PositionalLineageHash::default().as_u128(), Peer::default().as_u128());
}

#[test]
fn values_that_no_block_has_are_refused() {
    let narrow_root = ours(5, None, 0).as_u128();
    let refused = [
        // Mode 3 does not exist.
        (3 << 126, "its mode is 3"),
        (u128::MAX, "its mode is 3"),
        // Mode 1 for a position that mode 0 holds; mode 2 for one that mode 1 holds.
        (1 << 126 | 255 << 110, "position 255 does not take mode 1"),
        (2 << 126 | 65_535 << 102, "position 65535 does not take mode 2"),
        // The zero of a wider mode is position 0, too.
        (2 << 126, "position 0 does not take mode 2"),
        // A first block has no parent.
        (narrow_root | 1, "position 0 and the parent fragment 0x1"),
    ];
    for (bits, reason) in refused {
        let error = PositionalLineageHash::try_from(bits).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.kind(), "InvalidPlh");
    }
    let packed = PositionalLineageHash::new(SequenceHash(5), Some(SequenceHash(1)), 0);
    assert!(matches!(packed, Err(PlhError::RootWithParent { fragment: 1, .. })));
    // The peer's `None == Some(0)`.
    assert!(PositionalLineageHash::new(SequenceHash(5), Some(SequenceHash(0)), 0).is_ok());
}

#[test]
fn malformed_text_says_what_is_wrong() {
    let good = ours(7, Some(9), 300).to_string();
    let wide = format!("300:{}:{}", "11111118", "jpXCZedGfVQ"); // a fragment of 64 ones
    let refused = [
        ("", "position"),
        ("x:y", "position"),
        ("+1:11111118:11111119", "position"),
        ("01:11111118:11111119", "position"),
        ("0", "hash is not 8 bytes"),
        ("0:1", "hash is not 8 bytes"),
        ("0:111111118", "hash is not 8 bytes"),
        ("0:0OIl", "hash is not 8 bytes"),
        ("1:11111118", "parent fragment is not 8 bytes"),
        ("0:11111118:11111119", "too many parts"),
        (&wide, "wider than its position has room for"),
        (&format!("{good}:"), "too many parts"),
    ];
    for (text, reason) in refused {
        let error = text.parse::<PositionalLineageHash>().unwrap_err();
        assert!(error.to_string().contains(reason), "{text:?}: {error}");
    }
    assert_eq!(
        "16777216:11111118:11111119".parse::<PositionalLineageHash>(),
        Err(PlhError::PositionLimit { position: 1 << 24 })
    );
}

#[test]
fn legacy_values_that_no_block_has_are_refused() {
    let at = |position| {
        LegacyLineageHash::new(SequenceHash(u64::MAX), Some(SequenceHash(u64::MAX)), position)
            .unwrap()
    };
    // The widths at both sides of every change of mode: 59, 55 and 51 bits, and at the last
    // position of a mode the hash is cut to the next one's.
    for (position, own, parent) in [
        (1, 59, 59),
        (254, 59, 59),
        (255, 55, 59),
        (256, 55, 55),
        (65_535, 51, 55),
        (65_536, 51, 51),
    ] {
        let hash = at(position);
        assert_eq!(hash.current_hash_fragment(), (1 << own) - 1, "{position}");
        assert_eq!(hash.parent_hash_fragment(), (1 << parent) - 1, "{position}");
        assert_eq!(hash.parent_fragment_bits(), parent);
    }
    let wide = at(255).as_u128() | 1 << 58;
    assert!(matches!(LegacyLineageHash::try_from(wide), Err(PlhError::WideFragment { .. })));
    assert!(matches!(LegacyLineageHash::try_from(3 << 126), Err(PlhError::UnknownMode { .. })));
    assert!(matches!(LegacyLineageHash::try_from(1 << 126), Err(PlhError::WideMode { .. })));
    assert!(matches!(LegacyLineageHash::try_from(1 << 59), Err(PlhError::RootWithParent { .. })));
    assert!(matches!(
        LegacyLineageHash::new(SequenceHash(1), None, MAX_POSITION + 1),
        Err(PlhError::PositionLimit { .. })
    ));
}

#[test]
fn slices_are_viewed_without_a_copy() {
    let hashes = [ours(1, None, 0), ours(2, Some(1), 1)];
    let numbers = PositionalLineageHash::as_u128s(&hashes);
    assert_eq!(numbers.as_ptr().cast(), hashes.as_ptr());
    assert_eq!(numbers, [hashes[0].as_u128(), hashes[1].as_u128()]);
}

#[cfg(feature = "serde")]
#[test]
fn serde_forms_are_the_peers() {
    for position in EDGES {
        let parent = (position > 0).then_some(0x1234_5678_9abc_def0);
        let hash = ours(u64::MAX - position, parent, position);
        let peer = Peer::new(u64::MAX - position, parent, position);
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(json, serde_json::to_string(&peer).unwrap());
        assert_eq!(serde_json::from_str::<PositionalLineageHash>(&json).unwrap(), hash);
        let bytes = rmp_serde::to_vec(&hash).unwrap();
        assert_eq!(bytes, rmp_serde::to_vec(&peer).unwrap());
        assert_eq!(rmp_serde::from_slice::<PositionalLineageHash>(&bytes).unwrap(), hash);
    }
    // The peer takes these.
    let mode_3 = serde_json::to_string(&[255u8; 16]).unwrap();
    assert!(serde_json::from_str::<PositionalLineageHash>(&mode_3).is_err());
    let too_short = serde_json::to_string(&[0u8; 15]).unwrap();
    assert!(serde_json::from_str::<PositionalLineageHash>(&too_short).is_err());
    let too_long = serde_json::to_string(&[0u8; 17]).unwrap();
    assert!(serde_json::from_str::<PositionalLineageHash>(&too_long).is_err());
}

#[cfg(feature = "dynamo-tokens")]
#[test]
fn conversions_to_and_from_the_peer_go_both_ways() {
    for position in EDGES {
        let parent = (position > 0).then_some(u64::MAX);
        let hash = ours(42, parent, position);
        let peer = Peer::from(hash);
        assert_eq!(peer, Peer::new(42, parent, position));
        assert_eq!(PositionalLineageHash::try_from(peer), Ok(hash));
    }
    // A value that the peer makes and no block has.
    let peer = Peer::new(42, Some(1), 0);
    assert!(PositionalLineageHash::try_from(peer).is_err());
}

// Everything that the two crates have in common, used in the same words and written down.

use std::fmt::Write;

/// What a request and its parts come to, by every method and function.
pub(crate) fn transcript(
    token_ids: &[u32],
    lora: Option<String>,
    namespace: Option<String>,
    runs: &[(u64, usize, usize)],
    block_size: u32,
) -> String {
    let mut said = String::new();
    let infos: Vec<RequestMmObjectInfo> = runs
        .iter()
        .map(|&(mm_hash, offset, length)| RequestMmObjectInfo { mm_hash, offset, length })
        .collect();
    let runs: Vec<TokenBlockMmInfo> = infos.iter().copied().map(Into::into).collect();
    let back: Vec<RequestMmObjectInfo> = runs.iter().copied().map(Into::into).collect();
    assert_eq!(infos, back);
    let sorted: Result<Vec<TokenBlockMmInfo>, MmInfoError> =
        validate_and_sort_mm_info(&runs, token_ids.len());
    writeln!(said, "sorted: {sorted:?}").unwrap();
    let salt: Result<SaltHash, KvHashingError> =
        compute_salt_hash(namespace.as_deref(), lora.as_deref());
    let salt = salt.unwrap();
    writeln!(said, "salt: {salt:x}").unwrap();

    let builder: RequestBuilder = Request::builder()
        .tokens(token_ids.to_vec())
        .lora_name(lora.clone())
        .salt(namespace.clone())
        .mm_info(infos);
    let request: Request = match builder.build() {
        Ok(request) => request,
        Err(error) => {
            let kind = match &error {
                KvHashingError::MmInfo(_) => "runs",
                KvHashingError::TokenBlock(_) => "blocks",
                KvHashingError::SaltSerialization(_) => "salt",
                KvHashingError::MissingField(_) => "field",
            };
            writeln!(said, "{kind}: {error:?}").unwrap();
            return said;
        }
    };
    let tokens: &[Token] = request.tokens();
    writeln!(said, "{:?} {:?}", request.lora_name(), request.salt()).unwrap();
    writeln!(said, "{tokens:?} {:?}", request.mm_info()).unwrap();
    assert_eq!(request.salt_hash().unwrap(), salt);

    let blocks: Vec<UniversalBlock> = request.into_blocks(block_size).unwrap();
    let block_hashes: Vec<BlockHash> = request.block_hashes(block_size).unwrap();
    let sequence_hashes: Vec<SequenceHash> = request.sequence_hashes(block_size).unwrap();
    let plhs: Vec<PositionalLineageHash> = request.positional_lineage_hashes(block_size).unwrap();
    writeln!(said, "{blocks:?}\n{block_hashes:x?}\n{sequence_hashes:x?}\n{plhs:?}").unwrap();
    let sorted = sorted.unwrap();
    let mut lineage: Option<PositionalLineageHash> = None;
    for (i, block) in blocks.iter().enumerate() {
        let at = i * block_size as usize;
        let part = &token_ids[at..at + block_size as usize];
        let bytes: Vec<u8> = compute_block_bytes_with_mm(part, at, &sorted);
        assert_eq!(compute_block_hash(&bytes, salt), block.block_hash);
        assert_eq!(compute_hash_v2(&bytes, salt), block.block_hash);
        writeln!(said, "{bytes:x?} {:x}", compute_salt_hash_from_bytes(&bytes)).unwrap();
        let next = match lineage {
            None => PositionalLineageHash::root(block.block_hash),
            Some(parent) => {
                let sequence: SequenceHash = compute_next_sequence_hash(
                    parent.current_sequence_hash(),
                    block.block_hash,
                );
                assert_eq!(sequence, block.sequence_hash());
                let new = PositionalLineageHash::new(
                    sequence,
                    Some(parent.current_sequence_hash()),
                    parent.position() + 1,
                );
                assert_eq!(new, parent.extend(block.block_hash));
                new
            }
        };
        assert_eq!(next, block.plh);
        assert_eq!((next.position(), block.position()), (i as u64, i as u64));
        let fragments =
            [0, 255, 256, 70_000].map(|child| next.parent_fragment_for_child_position(child));
        writeln!(said, "{next} {} {:x}", next.mode(), next.as_u128()).unwrap();
        writeln!(said, "{fragments:x?} {:x}", next.parent_hash_fragment()).unwrap();
        writeln!(said, "{:?}", block.clone().into_plh().cmp(&blocks[0].plh)).unwrap();
        #[cfg(feature = "serde")]
        writeln!(said, "{}", serde_json::to_string(block).unwrap()).unwrap();
        lineage = Some(next);
    }
    writeln!(said, "{:x?}", request.into_sequence_hashes(block_size).unwrap()).unwrap();
    said
}

/// What is the same for all requests.
pub(crate) fn constants() -> String {
    let missing = Request::builder().build().map(|_| ());
    let empty = [compute_hash_v2(&[], 0), compute_hash_v2(&[], 1337), compute_block_hash(b"", 7)];
    let none = compute_block_bytes_with_mm(&[], 5, &[]);
    format!(
        "{MM_SLOT_TAG_TOKEN} {MM_SLOT_TAG_PLACEHOLDER} {missing:?} {empty:x?} {none:?} {:?}",
        PositionalLineageHash::default()
    )
}

//! The fields of a request, by scheme.

use crate::args::SchemeName;
use crate::fault::Fault;

/// A field, whatever it is called in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Tokens,
    RequestId,
    LoraName,
    Salt,
    MmInfo,
    BlockSize,
    ParentPlh,
    MaxBlocks,
}

/// What a name in a line stands for under a scheme.
pub(crate) enum Meaning {
    Known(Field),
    Unknown,
}

/// Fields of schemes that this build does not have, and the schemes they belong to: an input
/// made for one of those must not be hashed as if they were not there.
const FOREIGN: [(&str, &str); 11] = [
    ("cache_namespace", "dynamo-router"),
    ("block_mm_infos", "dynamo-router"),
    ("is_eagle", "dynamo-router"),
    ("parent_sequence_hash", "dynamo-router"),
    ("parent_position", "dynamo-router"),
    ("model_name", "dynamo-router-keyed"),
    ("routing_group", "dynamo-router-keyed"),
    ("lora", "vllm"),
    ("mm_features", "vllm"),
    ("prompt_embeds_rows", "vllm"),
    ("parent_digest", "vllm and sglang"),
];

/// Finds out what `name` stands for.
///
/// # Errors
///
/// `ForeignField` where it belongs to another scheme.
pub(crate) fn meaning(name: &str, scheme: SchemeName) -> Result<Meaning, Fault> {
    let field = match name {
        "tokens" | "token_ids" | "prompt" => Field::Tokens,
        "request_id" => Field::RequestId,
        "lora_name" => Field::LoraName,
        "salt" | "cache_salt" => Field::Salt,
        "block_size" => Field::BlockSize,
        "max_blocks" => Field::MaxBlocks,
        "mm_info" | "parent_plh" if scheme == SchemeName::DynamoPlhLegacy => {
            return Err(foreign(name, "dynamo-plh", scheme));
        }
        "mm_info" => Field::MmInfo,
        "parent_plh" => Field::ParentPlh,
        _ => {
            return match FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
                Some((_, owner)) => Err(foreign(name, owner, scheme)),
                None => Ok(Meaning::Unknown),
            };
        }
    };
    Ok(Meaning::Known(field))
}

fn foreign(name: &str, owner: &str, scheme: SchemeName) -> Fault {
    let message = format!("{name} is a field of {owner}; {} does not know it", scheme.name());
    Fault::new("ForeignField", message).with("field", name).with("scheme", owner)
}

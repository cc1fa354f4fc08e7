//! From a line to a request.

use std::ops::Range;

use kvhash::{MmRun, PositionalLineageHash};
use serde_json::value::RawValue;

use crate::args::SchemeName;
use crate::digits::{after, scan_tokens, skip_space};
use crate::fault::{Fault, quote};
use crate::fields::{Field, Meaning, meaning};
use crate::json::{Name, Object, find_in_array};

/// The byte-order mark that some editors put before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How lines are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) scheme: SchemeName,
    pub(crate) ignore_unknown: bool,
    pub(crate) max_blocks: Option<usize>,
    pub(crate) max_line_bytes: usize,
}

/// A line that is a request. Its tokens are with those of its chunk.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    pub(crate) tokens: Range<usize>,
    pub(crate) lora_name: Option<String>,
    pub(crate) salt: Option<String>,
    pub(crate) mm_runs: Vec<MmRun>,
    pub(crate) block_size: Option<u32>,
    pub(crate) max_blocks: Option<usize>,
    pub(crate) parent: Option<PositionalLineageHash>,
}

impl Decoded {
    /// How many tokens it has.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}

/// A line that is not blank.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    /// The request's own id, as JSON. The line number stands in where it has none.
    pub(crate) request_id: Option<String>,
    pub(crate) decoded: Result<Decoded, Fault>,
}

/// What decoding fills, kept from line to line.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// The tokens of all requests of a chunk.
    pub(crate) tokens: Vec<u32>,
    /// A line without its ids.
    short_line: Vec<u8>,
}

impl Buffers {
    /// The memory they take.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<u32>() * self.tokens.capacity() + self.short_line.capacity()
    }
}

/// Reads line `number`; nothing where it is blank. Appends its tokens to those of the buffers.
pub(crate) fn decode_line(
    line: &[u8],
    number: u64,
    rules: &Rules,
    buffers: &mut Buffers,
) -> Option<Line> {
    let line = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
    if line.trim_ascii().is_empty() {
        return None;
    }
    let start = buffers.tokens.len();
    if let Some((request_id, decoded)) = decode_fast(line, rules, buffers) {
        return Some(Line { number, request_id, decoded: Ok(decoded) });
    }
    // All errors come from here, so that they do not depend on the way that was tried first.
    let tokens = &mut buffers.tokens;
    tokens.truncate(start);
    let mut request_id = None;
    let decoded = decode(line, rules, None, tokens, &mut request_id);
    if decoded.is_err() {
        tokens.truncate(start);
    }
    Some(Line { number, request_id, decoded })
}

/// Reads the ids of a line by themselves, and with the library the line that is left without
/// them. `None` where the line is not as most are, or has an error.
fn decode_fast(
    line: &[u8],
    rules: &Rules,
    buffers: &mut Buffers,
) -> Option<(Option<String>, Decoded)> {
    let Buffers { tokens, short_line } = buffers;
    let array = find_tokens(line)?;
    let start = tokens.len();
    let length = scan_tokens(&line[array..], tokens)?;
    short_line.clear();
    short_line.extend_from_slice(&line[..array]);
    short_line.extend_from_slice(b"[]");
    short_line.extend_from_slice(&line[array + length..]);
    let scanned = Scanned { array, tokens: start..tokens.len() };
    let mut request_id = None;
    let decoded = decode(short_line, rules, Some(scanned), tokens, &mut request_id).ok()?;
    Some((request_id, decoded))
}

/// Ids that were read before the rest of their line.
struct Scanned {
    /// Where in the line an empty array stands in for them.
    array: usize,
    tokens: Range<usize>,
}

/// Where in a line the array of the first field of ids begins. The name's closing quote is what
/// tells it from a piece of a string: in there it would have a backslash before it.
fn find_tokens(line: &[u8]) -> Option<usize> {
    let names: [&[u8]; 3] = [b"\"tokens\"", b"\"token_ids\"", b"\"prompt\""];
    let end = names.into_iter().find_map(|name| {
        let found = memchr::memmem::find(&line[..line.len().min(FIRST_FIELDS)], name)?;
        Some(found + name.len())
    })?;
    let colon = after(line, skip_space(line, end), b':')?;
    let array = skip_space(line, colon);
    (line.get(array) == Some(&b'[')).then_some(array)
}

/// How far into a line its ids are looked for. Where they come later, the line is read the
/// other way.
const FIRST_FIELDS: usize = 4096;

/// A line that was too long to be kept.
pub(crate) fn too_long(number: u64, bytes: u64, limit: usize) -> Line {
    let message = format!("the line has {bytes} bytes; the limit is {limit}");
    let fault = Fault::new("LineTooLong", message).with("bytes", bytes).with("limit", limit);
    Line { number, request_id: None, decoded: Err(fault) }
}

/// Reads a line with the library, field by field.
fn decode(
    line: &[u8],
    rules: &Rules,
    scanned: Option<Scanned>,
    tokens: &mut Vec<u32>,
    request_id: &mut Option<String>,
) -> Result<Decoded, Fault> {
    let line = str::from_utf8(line).map_err(|error| {
        let byte = error.valid_up_to();
        Fault::new("InvalidUtf8", format!("byte {byte} of the line is not UTF-8"))
            .with("byte", byte)
    })?;
    let Object(fields) = serde_json::from_str(line).map_err(bad_json)?;
    // The id first, so that the record of any other fault has it.
    for (_, value) in fields.iter().filter(|(name, _)| name == "request_id").take(1) {
        *request_id = parse_request_id(value.get())?;
    }
    let start = tokens.len();
    let mut decoded = Decoded {
        tokens: start..start,
        lora_name: None,
        salt: None,
        mm_runs: Vec::new(),
        block_size: None,
        max_blocks: rules.max_blocks,
        parent: None,
    };
    let mut seen: Vec<(Field, &str)> = Vec::with_capacity(fields.len());
    for (name, value) in &fields {
        let field = match meaning(name, rules.scheme)? {
            Meaning::Known(field) => field,
            Meaning::Unknown if rules.ignore_unknown => continue,
            Meaning::Unknown => return Err(unknown_field(name, value)),
        };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == field) {
            return Err(duplicate_field(name, first));
        }
        seen.push((field, name));
        let value = value.get();
        match field {
            Field::RequestId => {}
            Field::Tokens => match &scanned {
                // Not another array of the same name, inside of another field.
                Some(Scanned { array, tokens }) if value.as_ptr() == line[*array..].as_ptr() => {
                    decoded.tokens = tokens.clone();
                }
                _ => {
                    let start = tokens.len();
                    parse_tokens(name, value, tokens)?;
                    decoded.tokens = start..tokens.len();
                }
            },
            Field::LoraName => decoded.lora_name = parse_text(name, value)?,
            Field::Salt => decoded.salt = parse_text(name, value)?,
            Field::MmInfo => decoded.mm_runs = parse_runs(name, value, rules)?,
            Field::BlockSize => decoded.block_size = parse_integer(name, value)?,
            Field::MaxBlocks => {
                decoded.max_blocks = parse_integer(name, value)?.or(rules.max_blocks);
            }
            Field::ParentPlh => decoded.parent = parse_parent(name, value)?,
        }
    }
    if !seen.iter().any(|(field, _)| *field == Field::Tokens) {
        return Err(Fault::new(
            "BadField",
            "tokens is missing; a request has an array of token ids",
        )
        .with("field", "tokens"));
    }
    Ok(decoded)
}

fn bad_json(error: serde_json::Error) -> Fault {
    // serde_json counts lines too, and there is but one.
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let column = error.column();
    Fault::new("BadJson", format!("not a JSON object: {text} at column {column}"))
        .with("column", column)
}

fn unknown_field(name: &str, value: &RawValue) -> Fault {
    let (name, value) = (quote(name), quote(value.get()));
    let message =
        format!("{name} (here {value}) is a field of no scheme; --ignore-unknown lets it pass");
    Fault::new("UnknownField", message).with("field", name).with("value", value)
}

fn duplicate_field(name: &str, first: &str) -> Fault {
    let message = match name == first {
        true => format!("{name} is there twice"),
        false => format!("{name} is another name of {first}, which is there too"),
    };
    Fault::new("DuplicateField", message).with("field", name)
}

/// A string or a number, kept as it stands.
fn parse_request_id(json: &str) -> Result<Option<String>, Fault> {
    match json.as_bytes()[0] {
        b'n' => Ok(None),
        b'-' | b'0'..=b'9' => Ok(Some(json.into())),
        // Half of a surrogate pair is no text, and would make the record no JSON.
        b'"' if serde_json::from_str::<Name<'_>>(json).is_ok() => Ok(Some(json.into())),
        _ => Err(Fault::bad_field("request_id", json, "a string or a number")),
    }
}

fn parse_text(field: &str, json: &str) -> Result<Option<String>, Fault> {
    if json == "null" {
        return Ok(None);
    }
    match serde_json::from_str(json) {
        Ok(Name(text)) => Ok(Some(text.into_owned())),
        Err(_) => Err(Fault::bad_field(field, json, "a string")),
    }
}

/// A non-negative integer in plain digits; a fraction or an exponent is none.
fn parse_integer<T: std::str::FromStr>(field: &str, json: &str) -> Result<Option<T>, Fault> {
    if json == "null" {
        return Ok(None);
    }
    let expected = || format!("an integer from 0 to 2^{} - 1", 8 * size_of::<T>());
    parse_digits(json).map(Some).ok_or_else(|| Fault::bad_field(field, json, &expected()))
}

fn parse_digits<T: std::str::FromStr>(json: &str) -> Option<T> {
    // `parse` takes a plus sign, which JSON does not have, and nothing else but digits.
    json.parse().ok()
}

fn parse_tokens(field: &str, json: &str, tokens: &mut Vec<u32>) -> Result<(), Fault> {
    let start = tokens.len();
    if scan_tokens(json.as_bytes(), tokens) == Some(json.len()) {
        return Ok(());
    }
    tokens.truncate(start);
    // Something is wrong. What it is, the library finds out.
    let bad = find_in_array(json, |index, element| {
        parse_digits::<u32>(element.get()).is_none().then(|| (index, element.get()))
    });
    match bad {
        Ok(Some((index, value))) => {
            let value = quote(value);
            let message = format!(
                "{field}[{index}] is {value}; a token id is an integer from 0 to {}",
                u32::MAX
            );
            Err(Fault::new("BadToken", message)
                .with("field", field)
                .with("index", index)
                .with("value", value))
        }
        _ if json.starts_with('"') => Err(Fault::bad_field(
            field,
            json,
            "an array of token ids: this tool hashes token ids, so tokenize the text first",
        )),
        _ => Err(Fault::bad_field(field, json, "an array of token ids")),
    }
}

fn parse_runs(field: &str, json: &str, rules: &Rules) -> Result<Vec<MmRun>, Fault> {
    let mut runs = Vec::new();
    if json == "null" {
        return Ok(runs);
    }
    let fault = find_in_array(json, |index, element| {
        match parse_run(&format!("{field}[{index}]"), element.get(), rules) {
            Ok(run) => {
                runs.push(run);
                None
            }
            Err(fault) => Some(fault),
        }
    });
    match fault {
        Ok(None) => Ok(runs),
        Ok(Some(fault)) => Err(fault),
        Err(_) => Err(Fault::bad_field(field, json, "an array of runs")),
    }
}

fn parse_run(field: &str, json: &str, rules: &Rules) -> Result<MmRun, Fault> {
    let expected = "an object of mm_hash, offset and length";
    let Ok(Object(parts)) = serde_json::from_str(json) else {
        return Err(Fault::bad_field(field, json, expected));
    };
    let (mut mm_hash, mut offset, mut length) = (None, None, None);
    for (name, value) in &parts {
        let path = format!("{field}.{name}");
        let part = match &**name {
            "mm_hash" => &mut mm_hash,
            "offset" => &mut offset,
            "length" => &mut length,
            _ if rules.ignore_unknown => continue,
            _ => return Err(unknown_field(&path, value)),
        };
        if part.is_some() {
            return Err(duplicate_field(&path, &path));
        }
        let value = value.get();
        *part = match &**name {
            "mm_hash" => Some(parse_mm_hash(&path, value)?),
            _ => parse_integer::<u64>(&path, value)?,
        };
    }
    match (mm_hash, offset, length) {
        // A position has as many bits as an address: the library is for 64-bit targets.
        (Some(mm_hash), Some(offset), Some(length)) => {
            Ok(MmRun { mm_hash, offset: offset as usize, length: length as usize })
        }
        _ => Err(Fault::bad_field(field, json, expected)),
    }
}

/// 16 hex digits, or an integer, which is never read through a float.
fn parse_mm_hash(field: &str, json: &str) -> Result<u64, Fault> {
    parse_digits(json).or_else(|| Some(parse_hex(json, 16)? as u64)).ok_or_else(|| {
        Fault::bad_field(field, json, "16 hex digits or an integer from 0 to 2^64 - 1")
    })
}

fn parse_parent(field: &str, json: &str) -> Result<Option<PositionalLineageHash>, Fault> {
    if json == "null" {
        return Ok(None);
    }
    let bits = parse_hex(json, 32)
        .ok_or_else(|| Fault::bad_field(field, json, "a lineage hash of 32 hex digits"))?;
    match PositionalLineageHash::try_from(bits) {
        Ok(parent) => Ok(Some(parent)),
        Err(error) => Err(Fault::new("InvalidParent", format!("{field}: {error}"))
            .with("field", field)
            .with("value", format!("{bits:032x}"))),
    }
}

/// A JSON string of exactly `digits` hex digits, with or without `0x`.
fn parse_hex(json: &str, digits: usize) -> Option<u128> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    from_hex(text, digits)
}

/// Exactly `digits` hex digits, with or without `0x`.
pub(crate) fn from_hex(text: &str, digits: usize) -> Option<u128> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    let all_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.len() != digits || !all_hex {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the library alone makes of a line, and what the fast way does, with the ids in
    /// their place.
    fn both_ways(line: &str, ignore_unknown: bool) -> (String, Option<String>) {
        let rules = Rules {
            scheme: SchemeName::DynamoPlh,
            ignore_unknown,
            max_blocks: None,
            max_line_bytes: usize::MAX,
        };
        let show = |id: Option<String>, decoded: Result<Decoded, Fault>, tokens: &[u32]| {
            let ids = decoded.as_ref().map(|decoded| tokens[decoded.tokens.clone()].to_vec());
            let fields = decoded
                .as_ref()
                .map(|decoded| format!("{:?}", Decoded { tokens: 0..0, ..decoded.clone() }));
            format!("{id:?} {ids:?} {fields:?}")
        };
        let (mut tokens, mut id) = (vec![7], None);
        let decoded = decode(line.as_bytes(), &rules, None, &mut tokens, &mut id);
        let slow = show(id, decoded, &tokens);
        let mut buffers = Buffers { tokens: vec![7], short_line: vec![1, 2, 3] };
        let fast = decode_fast(line.as_bytes(), &rules, &mut buffers)
            .map(|(id, decoded)| show(id, Ok(decoded), &buffers.tokens));
        (slow, fast)
    }

    fn field() -> impl Strategy<Value = String> {
        let name = proptest::sample::select(vec![
            "tokens",
            "token_ids",
            "prompt",
            "salt",
            "request_id",
            "x",
            r"to\u006bens",
            "mm_info",
            "block_size",
            r#"\"tokens\":[1]"#,
            "",
        ]);
        let value = proptest::sample::select(vec![
            "[]",
            "[1,2,3]",
            "[ 1 , 22,333 ]",
            "[1, 2, 3, 4]",
            "[4294967295]",
            "[4294967296]",
            "[-1]",
            "[1.0]",
            "[01]",
            "[1,]",
            "[1 2]",
            "[[1]]",
            r#""a""#,
            r#""tokens""#,
            r#""\"tokens\":[9]""#,
            r#""é""#,
            r#"{"tokens":[5]}"#,
            r#"{"tokens":[5]"#,
            "null",
            "16",
            "0",
            r#"[{"mm_hash":1,"offset":0,"length":1}]"#,
            "1e3",
            "",
        ]);
        let space = proptest::sample::select(vec!["", "", "", " ", "\t", "\u{a0}"]);
        (name, space.clone(), value, space)
            .prop_map(|(name, a, value, b)| format!("\"{name}\"{a}:{b}{value}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_fast_way_gives_what_the_library_gives(
            fields in proptest::collection::vec(field(), 0..4),
            cut in 0..400usize,
            ignore_unknown in any::<bool>(),
        ) {
            let mut line = format!("{{{}}}", fields.join(","));
            // Most lines are whole.
            if cut < line.len() && line.is_char_boundary(cut) && cut % 3 == 0 {
                line.truncate(cut);
            }
            let (slow, fast) = both_ways(&line, ignore_unknown);
            if let Some(fast) = fast {
                prop_assert_eq!(fast, slow, "{}", line);
            }
        }
    }

    #[test]
    fn ordinary_lines_take_the_fast_way() {
        for line in [
            r#"{"tokens":[1,2,3]}"#,
            r#"{"request_id":"r1","tokens":[101, 7592, 2088],"salt":"a"}"#,
            r#" { "salt" : "a" , "token_ids" : [ 1 ] , "block_size" : 4 } "#,
            r#"{"prompt":[1],"mm_info":[{"mm_hash":"a81c6cb15bc51918","offset":0,"length":1}]}"#,
        ] {
            let (slow, fast) = both_ways(line, false);
            assert_eq!(fast, Some(slow), "{line}");
        }
    }

    #[test]
    fn an_array_of_the_same_name_elsewhere_is_not_taken_for_it() {
        let line = r#"{"x":{"tokens":[1,2]},"tokens":[3]}"#;
        let (slow, fast) = both_ways(line, true);
        assert_eq!(fast, Some(slow.clone()));
        assert!(slow.contains("[3]"), "{slow}");
    }
}

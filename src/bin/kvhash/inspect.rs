//! `kvhash inspect`: what a lineage hash says.

use std::io::{self, BufRead, Write};

use anyhow::{Context, Result};
use kvhash::{LegacyLineageHash, PlhError, PositionalLineageHash};
use serde_json::{Value, json};

use crate::Outcome;
use crate::args::{Encoding, InspectArgs, SchemeName};
use crate::decode::from_hex;

pub(crate) fn run(args: &InspectArgs) -> Result<Outcome> {
    let mut outcome = Outcome::Good;
    let mut output = io::stdout().lock();
    let mut inspect = |text: &str| -> Result<()> {
        let found = match args.scheme {
            SchemeName::DynamoPlhLegacy => describe_legacy(text, args.encoding),
            SchemeName::DynamoPlh | SchemeName::DynamoPlhReadme => describe(text, args.encoding),
        };
        let record = found.unwrap_or_else(|problem| {
            outcome = Outcome::SomeFailed;
            json!({ "input": text, "error": { "kind": "InvalidPlh", "message": problem } })
        });
        writeln!(output, "{record}").context("cannot write standard output")
    };
    for text in &args.hashes {
        if text != "-" {
            inspect(text)?;
            continue;
        }
        for line in io::stdin().lock().split(b'\n') {
            let line = line.context("cannot read standard input")?;
            // What is not UTF-8 is no lineage hash, and is told so.
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_start_matches('\u{feff}').trim();
            if !line.is_empty() {
                inspect(line)?;
            }
        }
    }
    Ok(outcome)
}

fn describe(text: &str, encoding: Option<Encoding>) -> Result<Value, String> {
    let hash: PositionalLineageHash = parse(text, encoding)?;
    Ok(json!({
        "plh": format!("{:032x}", hash.as_u128()),
        "display": hash.to_string(),
        "dec": hash.as_u128().to_string(),
        "position": hash.position(),
        "mode": hash.mode(),
        "sequence_hash": hash.current_sequence_hash().to_string(),
        "parent_fragment": format!("{:016x}", hash.parent_hash_fragment()),
        "parent_fragment_bits": hash.parent_fragment_bits(),
    }))
}

fn describe_legacy(text: &str, encoding: Option<Encoding>) -> Result<Value, String> {
    let hash: LegacyLineageHash = parse(text, encoding)?;
    Ok(json!({
        "plh": format!("{:032x}", hash.as_u128()),
        "display": hash.to_string(),
        "dec": hash.as_u128().to_string(),
        "position": hash.position(),
        "mode": hash.mode(),
        "sequence_hash_fragment": format!("{:016x}", hash.current_hash_fragment()),
        "parent_fragment": format!("{:016x}", hash.parent_hash_fragment()),
        "parent_fragment_bits": hash.parent_fragment_bits(),
    }))
}

/// Reads a hash in the given encoding, or in the one that it looks like.
fn parse<H>(text: &str, encoding: Option<Encoding>) -> Result<H, String>
where
    H: std::str::FromStr<Err = PlhError> + TryFrom<u128, Error = PlhError>,
{
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let encoding = encoding.unwrap_or(match () {
        () if text.contains(':') => Encoding::Display,
        () if text != digits || digits.len() == 32 => Encoding::Hex,
        () if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Encoding::Dec
        }
        () => Encoding::Hex,
    });
    let bits = match encoding {
        Encoding::Display => return text.parse().map_err(|error: PlhError| error.to_string()),
        Encoding::Hex => from_hex(text, 32).ok_or("it is not 32 hex digits")?,
        Encoding::Dec if !text.starts_with('+') => {
            text.parse().map_err(|_| "it is no decimal number below 2^128")?
        }
        Encoding::Dec => return Err("it is no decimal number below 2^128".into()),
    };
    H::try_from(bits).map_err(|error| error.to_string())
}

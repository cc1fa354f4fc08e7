//! Lineage hashes as text: `position:base58(hash):base58(parent fragment)`, each hash as 8
//! big-endian bytes, the fragment left out at position 0. The form is that of `dynamo-tokens`,
//! in the old layout as in the new.

use std::fmt;
use std::str::FromStr;

use super::{LegacyLineageHash, PositionalLineageHash};
use crate::digest::SequenceHash;
use crate::error::PlhError;

impl fmt::Display for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current_sequence_hash().0;
        write_parts(f, self.position(), current, self.parent_hash_fragment())
    }
}

impl fmt::Debug for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PositionalLineageHash({self})")
    }
}

impl fmt::Display for LegacyLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current_hash_fragment();
        write_parts(f, self.position(), current, self.parent_hash_fragment())
    }
}

impl fmt::Debug for LegacyLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LegacyLineageHash({self})")
    }
}

/// The reverse of `Display`, and of nothing else: every lineage hash has one text.
///
/// # Errors
///
/// [`PlhError::Malformed`] for other text, [`PlhError::PositionLimit`] for a position past the
/// last.
impl FromStr for PositionalLineageHash {
    type Err = PlhError;

    fn from_str(text: &str) -> Result<Self, PlhError> {
        let parts = Parts::read(text)?;
        let hash = Self::new(SequenceHash(parts.current), parts.parent(), parts.position)?;
        parts.check(hash.current_sequence_hash().0, hash.parent_hash_fragment())?;
        Ok(hash)
    }
}

/// The reverse of `Display`, and of nothing else: every lineage hash has one text.
///
/// # Errors
///
/// [`PlhError::Malformed`] for other text, [`PlhError::PositionLimit`] for a position past the
/// last.
impl FromStr for LegacyLineageHash {
    type Err = PlhError;

    fn from_str(text: &str) -> Result<Self, PlhError> {
        let parts = Parts::read(text)?;
        let hash = Self::new(SequenceHash(parts.current), parts.parent(), parts.position)?;
        parts.check(hash.current_hash_fragment(), hash.parent_hash_fragment())?;
        Ok(hash)
    }
}

/// The numbers in the text of a lineage hash.
struct Parts {
    position: u64,
    current: u64,
    fragment: Option<u64>,
}

impl Parts {
    fn read(text: &str) -> Result<Self, PlhError> {
        let malformed = |reason| PlhError::Malformed { reason };
        let mut parts = text.split(':');
        let position = parts.next().unwrap_or_default();
        let position = match position.parse::<u64>() {
            Ok(number) if number.to_string() == position => number,
            _ => return Err(malformed("the position is no decimal number")),
        };
        let current = parts.next().and_then(from_base58);
        let current = current.ok_or(malformed("the hash is not 8 bytes in base 58"))?;
        let fragment = match position {
            0 => None,
            _ => {
                let fragment = parts.next().and_then(from_base58);
                Some(fragment.ok_or(malformed("the parent fragment is not 8 bytes in base 58"))?)
            }
        };
        match parts.next() {
            None => Ok(Self { position, current, fragment }),
            Some(_) => Err(malformed("there are too many parts")),
        }
    }

    fn parent(&self) -> Option<SequenceHash> {
        self.fragment.map(SequenceHash)
    }

    /// Packing cuts what there is no room for; text that has more is no lineage hash.
    fn check(&self, current: u64, fragment: u64) -> Result<(), PlhError> {
        if (current, fragment) == (self.current, self.fragment.unwrap_or(0)) {
            return Ok(());
        }
        Err(PlhError::Malformed { reason: "a hash is wider than its position has room for" })
    }
}

/// How many digits 8 bytes take at the most: 2^64 is less than 58^11.
const LONGEST_BASE58: usize = 11;

fn write_parts(
    f: &mut fmt::Formatter<'_>,
    position: u64,
    current: u64,
    fragment: u64,
) -> fmt::Result {
    let mut text = [0; LONGEST_BASE58];
    write!(f, "{position}:{}", base58(current, &mut text))?;
    match position {
        0 => Ok(()),
        _ => write!(f, ":{}", base58(fragment, &mut text)),
    }
}

fn base58(hash: u64, text: &mut [u8; LONGEST_BASE58]) -> &str {
    let length = bs58::encode(hash.to_be_bytes())
        .onto(text.as_mut_slice())
        .expect("8 bytes take at most 11 digits");
    str::from_utf8(&text[..length]).expect("base 58 is ASCII")
}

fn from_base58(text: &str) -> Option<u64> {
    let mut bytes = [0; 8];
    // A leading 1 stands for a zero byte, so a hash has one text only, of exactly 8 bytes.
    match bs58::decode(text).onto(&mut bytes) {
        Ok(8) => Some(u64::from_be_bytes(bytes)),
        _ => None,
    }
}

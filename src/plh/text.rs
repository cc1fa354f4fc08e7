//! Lineage hashes as text: `position:base58(sequence hash):base58(parent fragment)`, each hash
//! as 8 big-endian bytes, the fragment left out at position 0.

use std::fmt;
use std::str::FromStr;

use super::{Mode, PositionalLineageHash};
use crate::digest::SequenceHash;
use crate::error::PlhError;

impl fmt::Display for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; LONGEST_BASE58];
        write!(f, "{}:{}", self.position(), base58(self.current_sequence_hash().0, &mut text))?;
        match self.position() {
            0 => Ok(()),
            _ => write!(f, ":{}", base58(self.parent_hash_fragment(), &mut text)),
        }
    }
}

impl fmt::Debug for PositionalLineageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PositionalLineageHash({self})")
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
        let malformed = |reason| PlhError::Malformed { reason };
        let mut parts = text.split(':');
        let position = parts.next().unwrap_or_default();
        let position = match position.parse::<u64>() {
            Ok(number) if number.to_string() == position => number,
            _ => return Err(malformed("the position is no decimal number")),
        };
        let mode = Mode::of(position)?;
        let hash = |part: Option<&str>| part.and_then(from_base58);
        let current =
            hash(parts.next()).ok_or(malformed("the sequence hash is not 8 bytes in base 58"))?;
        let parent = match position {
            0 => None,
            _ => {
                Some(hash(parts.next()).filter(|&parent| mode.fragment(parent) == parent).ok_or(
                    malformed("the parent fragment is not what its position has room for"),
                )?)
            }
        };
        match parts.next() {
            None => Self::new(SequenceHash(current), parent.map(SequenceHash), position),
            Some(_) => Err(malformed("there are too many parts")),
        }
    }
}

/// How many digits 8 bytes take at the most: 2^64 is less than 58^11.
const LONGEST_BASE58: usize = 11;

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

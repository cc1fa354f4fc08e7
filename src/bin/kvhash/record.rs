//! From results to lines.

use std::io::Write;

use kvhash::Lineage;
use serde_json::{Map, Value};

use crate::args::{Column, Encoding, SchemeName};
use crate::decode::Line;
use crate::fault::Fault;
use crate::scheme::LineRow;

/// What goes into the records.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) scheme: SchemeName,
    pub(crate) columns: Vec<Column>,
    pub(crate) encoding: Encoding,
}

impl Layout {
    /// Appends the record of a request that has its hashes. `input` names the file where there
    /// are several.
    pub(crate) fn write_lineage<R: LineRow>(
        &self,
        out: &mut Vec<u8>,
        line: &Line,
        input: Option<&str>,
        lineage: Lineage<'_, R>,
    ) {
        write_head(out, line, input);
        let (scheme, block_size) = (self.scheme.name(), lineage.block_size());
        let (blocks, tail) = (lineage.plhs().len(), lineage.tail());
        put(
            out,
            format_args!(
                r#","scheme":"{scheme}","block_size":{block_size},"n_blocks":{blocks},"tail_tokens":{tail},"salt_hash":"#
            ),
        );
        self.write_u64(out, lineage.salt_hash().0);
        if self.columns.contains(&Column::Plh) {
            write_array(out, "plh", lineage.plhs(), |out, &row| self.write_row(out, row));
        }
        if self.columns.contains(&Column::BlockHashes) {
            let hashes = lineage.block_hashes().unwrap_or_default();
            write_array(out, "block_hashes", hashes, |out, hash| self.write_u64(out, hash.0));
        }
        if self.columns.contains(&Column::SequenceHashes) {
            let hashes = R::sequence_hashes(lineage);
            write_array(out, "sequence_hashes", hashes, |out, hash| self.write_u64(out, hash.0));
        }
        out.extend_from_slice(b"}\n");
    }

    fn write_row<R: LineRow>(&self, out: &mut Vec<u8>, row: R) {
        out.push(b'"');
        match self.encoding {
            Encoding::Hex => {
                let bits: u128 = row.into();
                write_hex(out, (bits >> 64) as u64);
                write_hex(out, bits as u64);
            }
            Encoding::Display => put(out, format_args!("{row}")),
            Encoding::Dec => put(out, format_args!("{}", row.into())),
        }
        out.push(b'"');
    }

    fn write_u64(&self, out: &mut Vec<u8>, hash: u64) {
        out.push(b'"');
        match self.encoding {
            Encoding::Hex | Encoding::Display => write_hex(out, hash),
            Encoding::Dec => put(out, format_args!("{hash}")),
        }
        out.push(b'"');
    }
}

/// Appends the record of a request that has none.
pub(crate) fn write_fault(out: &mut Vec<u8>, line: &Line, input: Option<&str>, fault: &Fault) {
    write_head(out, line, input);
    let mut rest = Map::new();
    rest.insert("line".into(), line.number.into());
    rest.insert("error".into(), fault.to_json());
    let rest = Value::from(rest).to_string();
    put(out, format_args!(",{}\n", &rest[1..]));
}

/// The start of every record: whose it is.
fn write_head(out: &mut Vec<u8>, line: &Line, input: Option<&str>) {
    match &line.request_id {
        Some(id) => put(out, format_args!(r#"{{"request_id":{id}"#)),
        None => put(out, format_args!(r#"{{"request_id":{}"#, line.number)),
    }
    if let Some(input) = input {
        put(out, format_args!(r#","input":{}"#, Value::from(input)));
    }
}

fn write_array<T>(
    out: &mut Vec<u8>,
    name: &str,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    put(out, format_args!(r#","{name}":["#));
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// 16 digits at once: the formatting machinery takes longer than the hash.
fn write_hex(out: &mut Vec<u8>, hash: u64) {
    out.extend_from_slice(&hex_of_32_bits((hash >> 32) as u32));
    out.extend_from_slice(&hex_of_32_bits(hash as u32));
}

/// Spreads the eight nibbles over eight bytes, the lowest into the highest byte, and turns each
/// into its digit: '0' and the nibble, and from 10 on the distance from there to 'a' too.
fn hex_of_32_bits(value: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let value = u64::from(value.swap_bytes());
    let halves = (value | value << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (halves | halves << 8) & 0x00ff_00ff_00ff_00ff;
    let nibbles = (bytes >> 4 | bytes << 8) & (0x0f * EACH);
    let from_ten = ((nibbles + 6 * EACH) >> 4) & EACH;
    let digits = nibbles + 0x30 * EACH + from_ten * u64::from(b'a' - b'0' - 10);
    digits.to_le_bytes()
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_are_those_of_the_formatting_machinery() {
        let mut value = 1u64;
        for _ in 0..10_000 {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for value in [value, value >> 33, 0, u64::MAX, 0x0123_4567_89ab_cdef] {
                let mut out = Vec::new();
                write_hex(&mut out, value);
                assert_eq!(str::from_utf8(&out).unwrap(), format!("{value:016x}"));
            }
        }
    }
}

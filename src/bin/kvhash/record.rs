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
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits: [u8; 16] = std::array::from_fn(|i| DIGITS[(hash >> (60 - 4 * i)) as usize & 0xf]);
    out.extend_from_slice(&digits);
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes what is written to it");
}

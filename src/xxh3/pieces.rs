//! The folds of one input length, arranged for vectors.
//!
//! A fold reads a piece of 16 bytes. Four pieces back to back are a row: one vector load. What
//! is left over are single pieces. Sums do not care for the order, so any arrangement will do.

use super::keys::length_term;
use super::{
    FIRST_PASS_FOLDS, LONGEST_FOLDED, LONGEST_ONE_PASS, STRIPE_BYTES, fold_count, fold_input,
    fold_secret, secret,
};

pub(crate) const PIECE_BYTES: usize = 16;
const ROW_PIECES: usize = STRIPE_BYTES / PIECE_BYTES;

/// The most rows and single pieces of a pass: two rows are what 128 bytes take, six single
/// pieces what 68 take.
pub(crate) const MAX_ROWS: usize = 2;
const MAX_SINGLES: usize = 6;

/// Four pieces back to back. The secret is without seed: each pair of words gets it added to
/// the first and taken from the second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Row {
    pub(crate) offset: usize,
    pub(crate) secret: [u64; 2 * ROW_PIECES],
}

/// A piece by itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Single {
    pub(crate) offset: usize,
    pub(crate) secret: [u64; 2],
}

/// The folds between two avalanches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pass {
    rows: [Row; MAX_ROWS],
    row_count: usize,
    singles: [Single; MAX_SINGLES],
    single_count: usize,
}

/// The folds of an input of 17 to 240 bytes. No row and no piece reaches past its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pieces {
    len: usize,
    length_term: u64,
    first: Pass,
    second: Pass,
}

impl Pieces {
    /// The pieces of inputs of `len` bytes; none where inputs of that length are not folded.
    fn new(len: usize) -> Self {
        if !(PIECE_BYTES + 1..=LONGEST_FOLDED).contains(&len) {
            return Self { len, ..Self::default() };
        }
        let count = fold_count(len);
        let first_pass = if len <= LONGEST_ONE_PASS { count } else { FIRST_PASS_FOLDS };
        Self {
            len,
            length_term: length_term(len),
            first: Pass::new(len, 0..first_pass),
            second: Pass::new(len, first_pass..count),
        }
    }

    /// Makes these the pieces of another length; free of work where they already are.
    pub(crate) fn set(&mut self, len: usize) {
        if self.len != len {
            *self = Self::new(len);
        }
    }

    /// The length of the inputs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What the sum of the folds starts from.
    pub(crate) fn length_term(&self) -> u64 {
        self.length_term
    }

    pub(crate) fn first(&self) -> &Pass {
        &self.first
    }

    /// The pass after the avalanche in the middle; nothing up to 128 bytes.
    pub(crate) fn second(&self) -> &Pass {
        &self.second
    }
}

impl Pass {
    fn new(len: usize, folds: std::ops::Range<usize>) -> Self {
        let piece =
            |i| Single { offset: fold_input(len, i), secret: secret::fold(fold_secret(len, i)) };
        let mut left = [Single::default(); FIRST_PASS_FOLDS];
        let mut pieces = folds.len();
        for (slot, i) in left.iter_mut().zip(folds) {
            *slot = piece(i);
        }
        left[..pieces].sort_by_key(|piece| piece.offset);
        let mut pass = Self::default();
        let mut start = 0;
        while start < pieces {
            let row = find_row(&left[start..pieces]);
            let Some(row) = row else {
                start += 1;
                continue;
            };
            let into = &mut pass.rows[pass.row_count];
            into.offset = left[start].offset;
            for (words, i) in into.secret.chunks_exact_mut(2).zip(row) {
                words.copy_from_slice(&left[start + i].secret);
            }
            pass.row_count += 1;
            // From the back, so that the places in front stay what they are.
            for i in row.into_iter().rev() {
                left.copy_within(start + i + 1..pieces, start + i);
                pieces -= 1;
            }
        }
        pass.singles[..pieces].copy_from_slice(&left[..pieces]);
        pass.single_count = pieces;
        pass
    }

    /// How many rows and how many single pieces there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.row_count, self.single_count)
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows[..self.row_count]
    }

    pub(crate) fn singles(&self) -> &[Single] {
        &self.singles[..self.single_count]
    }
}

/// The places of four pieces back to back, the first of them the first.
fn find_row(pieces: &[Single]) -> Option<[usize; ROW_PIECES]> {
    let mut row = [0; ROW_PIECES];
    for (i, place) in row.iter_mut().enumerate() {
        let offset = pieces[0].offset + i * PIECE_BYTES;
        *place = pieces.iter().position(|piece| piece.offset == offset)?;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fold_is_one_piece_inside_the_input() {
        for len in PIECE_BYTES + 1..=LONGEST_FOLDED {
            let pieces = Pieces::new(len);
            let mut found = Vec::new();
            for pass in [pieces.first(), pieces.second()] {
                for row in pass.rows() {
                    let secrets = row.secret.chunks_exact(2);
                    for (i, secret) in secrets.enumerate() {
                        found.push((row.offset + PIECE_BYTES * i, [secret[0], secret[1]]));
                    }
                }
                found.extend(pass.singles().iter().map(|piece| (piece.offset, piece.secret)));
            }
            let mut folds: Vec<_> = (0..fold_count(len))
                .map(|i| (fold_input(len, i), secret::fold(fold_secret(len, i))))
                .collect();
            assert!(found.iter().all(|(offset, _)| offset + PIECE_BYTES <= len), "{len}");
            found.sort_unstable();
            folds.sort_unstable();
            assert_eq!(found, folds, "{len}");
        }
    }
}

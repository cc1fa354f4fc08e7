//! Where results go.

use std::cell::Cell;

use bytemuck::TransparentWrapper;

use crate::digest::{BlockHash, SequenceHash};
use crate::plan::{Plan, Planned};

/// Where the results of some requests go: a plan a request, and a row and a hash for each column
/// a block.
pub(crate) struct Output<'a, R> {
    pub(crate) plans: &'a mut [Planned],
    /// Where its rows start among those of the batch.
    pub(crate) first_row: usize,
    pub(crate) rows: Column<'a, R>,
    pub(crate) block_hashes: Option<Column<'a, BlockHash>>,
    pub(crate) sequence_hashes: Option<&'a mut [SequenceHash]>,
}

/// The rows of some requests, their block hashes, and the sequence hashes that rows lose.
pub(crate) type OutputColumns<'a, R> =
    (Column<'a, R>, Option<Column<'a, BlockHash>>, Option<&'a mut [SequenceHash]>);

/// An element for each block of some requests.
pub(crate) enum Column<'a, T> {
    /// Those of one request after those of the other.
    Together(&'a mut [T]),
    /// Those of each request by themselves.
    Apart(Vec<&'a mut [T]>),
}

impl<'a, R> Output<'a, R> {
    /// Splits off what belongs to the next so many requests and blocks.
    pub(crate) fn take(&mut self, requests: usize, count: usize) -> Output<'a, R> {
        let first_row = self.first_row;
        self.first_row += count;
        Output {
            plans: take(&mut self.plans, requests),
            first_row,
            rows: self.rows.take(requests, count),
            block_hashes: self.block_hashes.as_mut().map(|hashes| hashes.take(requests, count)),
            sequence_hashes: self.sequence_hashes.as_mut().map(|hashes| take(hashes, count)),
        }
    }
}

impl<R> Output<'_, R> {
    /// The plans, and where the rows and block hashes of each request go. Rows are written as `words`.
    #[inline(always)]
    pub(crate) fn places(
        &mut self,
        words: fn(&mut [R]) -> &mut [u128],
    ) -> (&[Planned], Places<'_>) {
        let rows = self.rows.cells(self.first_row, words);
        let hashes = self.block_hashes.as_mut();
        let hashes = hashes.map(|hashes| hashes.cells(self.first_row, BlockHash::peel_slice_mut));
        (self.plans, Places { rows, hashes })
    }
}

impl<'a, T> Column<'a, T> {
    fn take(&mut self, requests: usize, count: usize) -> Self {
        match self {
            Self::Together(all) => Self::Together(take(all, count)),
            Self::Apart(each) => Self::Apart(each.drain(..requests).collect()),
        }
    }

    /// The elements, of which there are those of one request.
    pub(crate) fn of_one(&mut self) -> &mut [T] {
        match self {
            Self::Together(all) => all,
            Self::Apart(each) => each.first_mut().expect(ONE),
        }
    }

    /// [`of_one`](Self::of_one), for as long as they are there.
    pub(crate) fn into_one(self) -> &'a mut [T] {
        match self {
            Self::Together(all) => all,
            Self::Apart(each) => each.into_iter().next().expect(ONE),
        }
    }

    /// The elements as what they are made of. The first of them is at `first_row` among those of the
    /// batch.
    #[inline(always)]
    fn cells<W>(&mut self, first_row: usize, words: fn(&mut [T]) -> &mut [W]) -> Cells<'_, W> {
        match self {
            Self::Together(all) => Cells::Together { cells: cells(words(all)), first_row },
            Self::Apart(each) => {
                Cells::Apart(each.iter_mut().map(|one| cells(words(one))).collect())
            }
        }
    }
}

const ONE: &str = "a column of one request";

/// Where the rows and block hashes of each request go, to be written in any order on one thread.
pub(crate) struct Places<'a> {
    rows: Cells<'a, u128>,
    hashes: Option<Cells<'a, u64>>,
}

/// Where the rows of one request go, and its block hashes, if they are an output.
pub(crate) type Place<'a> = (&'a [Cell<u128>], Option<&'a [Cell<u64>]>);

impl<'a> Places<'a> {
    /// Whether block hashes are an output.
    pub(crate) fn keep_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// That of the request at `index`.
    #[inline(always)]
    pub(crate) fn of(&self, index: usize, plan: &Plan) -> Place<'a> {
        let hashes = self.hashes.as_ref().map(|hashes| hashes.of(index, plan));
        (self.rows.of(index, plan), hashes)
    }
}

/// The elements of a [`Column`].
enum Cells<'a, W> {
    Together { cells: &'a [Cell<W>], first_row: usize },
    Apart(Vec<&'a [Cell<W>]>),
}

impl<'a, W> Cells<'a, W> {
    #[inline(always)]
    fn of(&self, index: usize, plan: &Plan) -> &'a [Cell<W>] {
        match self {
            Self::Together { cells, first_row } => {
                &cells[plan.first_row - first_row..][..plan.shape.blocks()]
            }
            Self::Apart(each) => each[index],
        }
    }
}

/// A slice as cells.
pub(crate) fn cells<T>(slice: &mut [T]) -> &[Cell<T>] {
    Cell::from_mut(slice).as_slice_of_cells()
}

fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    slice.split_off_mut(..count).expect("an output has room for all")
}

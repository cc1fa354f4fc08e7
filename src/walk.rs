//! Requests to their ends: whose blocks are hashed side by side, and whose one after the other.

use std::slice;

use crate::kernel::{Backend, Lane, MAX_LANES, Workspace};
use crate::plan::{Order, Waiting};
use crate::plh::Mode;

/// How many blocks make it worth while to go on side by side with dead lanes among them.
const SHORTEST_WALK: usize = 16;

/// How many requests at most are taken together where they go one after the other: the more, the fewer
/// pauses.
const MAX_IN_TURN: usize = 32;

/// Planned requests, each of which becomes a lane when its turn has come.
pub(crate) trait Lanes<'a> {
    /// That of the request at an index, before its first block.
    fn lane(&self, index: usize) -> Lane<'a>;

    /// The blocks of the request at an index, and maybe more.
    fn blocks(&self, index: usize) -> &'a [u8];
}

/// Walks over requests on one thread.
pub(crate) struct Walker<'w> {
    pub(crate) backend: Backend,
    /// Whether block hashes are an output.
    pub(crate) keeps_hashes: bool,
    pub(crate) workspace: &'w mut Workspace,
}

impl Walker<'_> {
    /// Takes requests to their ends.
    #[inline(always)]
    pub(crate) fn walk_all<'a>(&mut self, order: &mut Order, requests: &impl Lanes<'a>) {
        if !order.is_by_shape && !order.waiting.iter().all(|waiting| self.goes_in_turn(waiting)) {
            // Side by side, neighbours of about the same number of blocks end at about the same time.
            order.waiting.sort_unstable();
        }
        match &order.waiting[..] {
            // Spared the room for others.
            [only] => {
                let (len, mut lane) = (only.shape.block_bytes(), requests.lane(only.index));
                match self.goes_in_turn(only) {
                    true => self.walk_group(len, slice::from_mut(&mut lane)),
                    false => self.walk_to_end(len, &mut lane),
                }
            }
            waiting @ [first, ..] if waiting.len() > MAX_LANES && self.goes_in_turn(first) => {
                self.walk_groups::<MAX_IN_TURN>(waiting, requests);
            }
            waiting => self.walk_groups::<MAX_LANES>(waiting, requests),
        }
    }

    /// Takes requests to their ends, up to `N` at a time.
    #[inline(always)]
    fn walk_groups<'a, const N: usize>(
        &mut self,
        mut order: &[Waiting],
        requests: &impl Lanes<'a>,
    ) {
        let mut lanes = [Lane::default(); N];
        while let Some(first) = order.first() {
            let block_size = first.shape.block_size();
            let len = first.shape.block_bytes();
            let in_turn = self.goes_in_turn(first);
            let width = if in_turn { N } else { (*self.backend.lanes(len).end()).min(N) };
            let same = order.iter().take(width);
            let count = same.take_while(|other| other.shape.block_size() == block_size).count();
            let (group, rest) = order.split_at(count);
            for (lane, waiting) in lanes.iter_mut().zip(group) {
                *lane = requests.lane(waiting.index);
            }
            if self.workspace.hints.help() {
                // In turn, each goes over to its neighbour, and the last one to the next group.
                let first = if in_turn { count - 1 } else { 0 };
                for (lane, next) in lanes[first..count].iter_mut().zip(rest) {
                    lane.next = requests.blocks(next.index);
                }
            }
            self.walk_group(len, &mut lanes[..count]);
            order = rest;
        }
    }

    /// Whether a request goes after others, not beside them.
    fn goes_in_turn(&self, waiting: &Waiting) -> bool {
        self.backend.goes_in_turn(waiting.shape.block_bytes(), self.keeps_hashes)
    }

    /// Takes lanes to their ends: in turn, where the backend goes so, and otherwise the shortest first, side
    /// by side as long as there are enough of them, then two by two, the longest first, and what is left of
    /// them one by one.
    fn walk_group(&mut self, len: usize, mut lanes: &mut [Lane<'_>]) {
        if self.backend.goes_in_turn(len, self.keeps_hashes) {
            return self.walk_in_turn(len, lanes);
        }
        let fewest = *self.backend.lanes(len).start();
        while lanes.len() > 1 && lanes.len() >= fewest {
            let count = lanes[0].left;
            if count < SHORTEST_WALK && lanes.len() < MAX_LANES {
                break;
            }
            self.advance(count, len, lanes);
            let done = lanes.iter().take_while(|lane| lane.left == 0).count();
            lanes = &mut lanes[done..];
        }
        while let [.., a, b] = lanes
            && let count = a.left.min(b.left)
            && self.backend.goes_by_two(count, len, self.keeps_hashes)
        {
            let both = lanes.len() - 2;
            self.advance(count, len, &mut lanes[both..]);
            // What is left of one goes on beside the next.
            if lanes[both].left == 0 {
                lanes.swap(both, both + 1);
            }
            let done = lanes[both..].iter().filter(|lane| lane.left == 0).count();
            lanes = &mut lanes[..both + 2 - done];
        }
        for lane in lanes {
            self.walk_to_end(len, lane);
        }
    }

    /// Takes lanes to their ends in turn; by itself one that comes to another layout before.
    fn walk_in_turn(&mut self, len: usize, mut lanes: &mut [Lane<'_>]) {
        while !lanes.is_empty() {
            let other = lanes.iter_mut().position(|lane| !packs_to_its_end(lane));
            let (alike, rest) = lanes.split_at_mut(other.unwrap_or(lanes.len()));
            if !alike.is_empty() {
                self.backend.walk_in_turn(len, alike, self.workspace);
            }
            let Some((other, rest)) = rest.split_first_mut() else { return };
            self.walk_to_end(len, other);
            lanes = rest;
        }
    }

    /// Takes one lane to its end.
    #[inline(always)]
    fn walk_to_end(&mut self, len: usize, lane: &mut Lane<'_>) {
        while lane.left > 0 {
            let left = lane.left;
            let together = lay_out(slice::from_mut(lane), left);
            self.backend.walk_one(together, len, lane, self.workspace);
        }
    }

    /// Takes every lane `count` blocks on, in as many calls as layouts ask for.
    fn advance(&mut self, mut count: usize, len: usize, lanes: &mut [Lane<'_>]) {
        while count > 0 {
            let together = lay_out(lanes, count);
            self.backend.walk(together, len, lanes, self.workspace);
            count -= together;
        }
    }
}

/// Sets how lanes pack their next rows; gives how many of the next `count` blocks it holds for.
#[inline]
pub(crate) fn lay_out(lanes: &mut [Lane<'_>], count: usize) -> usize {
    let mut together = count;
    let Some(first) = lanes.first() else { return together };
    let mut position = first.position;
    let mut mode = mode_of(position);
    for lane in lanes {
        if lane.position != position {
            position = lane.position;
            mode = mode_of(position);
        }
        lane.fragment_bits = mode.fragment_bits();
        lane.prefix = mode.prefix(position);
        together = together.min((mode.end() - position) as usize);
    }
    together
}

/// Sets how a lane packs its rows; whether that holds to its end.
fn packs_to_its_end(lane: &mut Lane<'_>) -> bool {
    let left = lane.left;
    lay_out(slice::from_mut(lane), left) == left
}

#[inline]
fn mode_of(position: u64) -> Mode {
    Mode::of(position).expect("positions are checked when a request is planned")
}

//! The kernels: blocks of bytes to hashes, hashes to chained and packed rows.
//!
//! A kernel knows bytes, seeds, 64-bit states and shifts. It does not know tokens, requests,
//! schemes or modes: what differs between those comes in as seeds and as the two numbers of a
//! row's packing. [`Backend`] is the one place that knows the files.
//!
//! | entry | lane | does |
//! |---|---|---|
//! | `hash` | a block | many blocks of one seed → 64-bit block hashes |
//! | `chain` | – | block hashes of one request → sequence hashes → packed rows |
//! | `walk` | a request | both, for the next blocks of several requests |
//! | `walk_over` | – | both, for one request, whose blocks may lie anywhere |
//! | `walk_counting` | a block | both, for blocks that are alike but for numbers that count up |
//! | `walk_in_turn` | – | both, for several requests, one after the other without a pause |
//!
//! Of these, a file holds what its instruction set does better than the ones before it; `merge` is what
//! those share that absorb long blocks by vectors and merge them in general registers.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512ifma;
mod merge;
mod portable;
mod scalar;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::slice;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::error::EngineError;
use crate::fetch::{FETCH_AHEAD, Hints, fetch_distance, fetch_start};
use crate::xxh3::LONGEST_FOLDED;
use crate::xxh3::keys::{BlockKeys, ChainKeys};
#[cfg(target_arch = "x86_64")]
use crate::xxh3::pieces::Pieces;

/// An implementation of the hash kernels. All give the same bits; they differ in speed and in
/// what they need of the CPU.
///
/// A backend is a value, so any of the [available](Self::available) ones can be chosen in one
/// process.
///
/// ```
/// use kvhash::Backend;
///
/// let backend: Backend = "scalar".parse()?;
/// assert!(Backend::available().contains(&backend));
/// # Ok::<(), kvhash::EngineError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Plain Rust: what the others are compared with.
    Scalar,
    /// Vectors of 128 bits, which every CPU of the target has: SSE2 on x86-64, NEON on 64-bit
    /// Arm.
    Portable,
    /// AVX2: Intel since 2013, AMD since 2015.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 (F, DQ, BW, VL): Intel servers since 2017, AMD since 2022.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with its 52-bit multiplications: Intel servers since 2021, AMD since
    /// 2022.
    #[cfg(target_arch = "x86_64")]
    Avx512Ifma,
}

impl Backend {
    /// The backends that this build has and this CPU can run, the fastest last.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: LazyLock<Vec<Backend>> = LazyLock::new(|| {
            Backend::ALL.iter().copied().filter(|backend| backend.is_available()).collect()
        });
        &AVAILABLE
    }

    /// The fastest available backend: what an engine takes unless told otherwise.
    pub fn detect() -> Self {
        *Self::available().last().expect("the scalar backend is always there")
    }

    /// All that this build has, the fastest last.
    const ALL: &[Self] = &[
        Self::Scalar,
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Ifma,
    ];

    /// Whether the CPU can run it and the operating system keeps its registers.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma => avx512ifma::is_available(),
        }
    }

    /// The name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma => "avx512ifma",
        }
    }

    /// How many requests go side by side, at the least and at the most, with blocks of so many
    /// bytes. Fewer than the least are faster one by one.
    pub(crate) fn lanes(self, len: usize) -> RangeInclusive<usize> {
        match self.has_vector_lanes(len) {
            #[cfg(target_arch = "x86_64")]
            true => avx512::SIDE_BY_SIDE,
            _ => scalar::lanes(len),
        }
    }

    /// Whether two requests go side by side for `count` blocks of `len` bytes, where more are
    /// [needed](Self::lanes) otherwise. They never do where block hashes are an output.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn goes_by_two(self, count: usize, len: usize, keeps_hashes: bool) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Ifma => {
                !keeps_hashes && avx512::goes_by_two(count * len, len)
            }
            _ => false,
        }
    }

    /// Whether lanes of blocks of `len` bytes go one after the other, however many they are: see
    /// [`walk_in_turn`](Self::walk_in_turn). They never do where block hashes are an output.
    pub(crate) fn goes_in_turn(self, len: usize, keeps_hashes: bool) -> bool {
        self != Self::Scalar && len > LONGEST_FOLDED && !keeps_hashes
    }

    /// Whether the lanes of a walk are those of vectors. Otherwise they are chains in general
    /// registers.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    fn has_vector_lanes(self, len: usize) -> bool {
        match self {
            Self::Scalar | Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Ifma => avx512::folds(len),
        }
    }

    /// Hashes the next `count` blocks of every lane, `len` bytes each, and chains and packs
    /// them. Advances the lanes past those blocks. More than one lane only as many as
    /// [`lanes`](Self::lanes) says, or [two](Self::goes_by_two).
    pub(crate) fn walk(
        self,
        count: usize,
        len: usize,
        lanes: &mut [Lane<'_>],
        workspace: &mut Workspace,
    ) {
        if count == 0 {
            return;
        }
        // Side by side, lanes go straight from blocks to rows; and one packing to a loop keeps
        // scalar shifts in registers.
        let alone = lanes.len() == 1 || lanes[0].hashes.is_some();
        debug_assert!(lanes.iter().all(|lane| lane.unchained.is_none()));
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if !alone && self.has_vector_lanes(len) => {
                avx512::walk::<false>(count, len, lanes, workspace);
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma if !alone && self.has_vector_lanes(len) => {
                avx512::walk::<true>(count, len, lanes, workspace);
            }
            _ if !alone && pack_alike(lanes) => scalar::walk(count, len, lanes, workspace),
            _ => {
                for lane in lanes {
                    self.walk_one(count, len, lane, workspace);
                }
            }
        }
    }

    /// Takes lanes to their ends, one after the other, without a pause between them. Only where the backend
    /// [goes so](Self::goes_in_turn); the lanes have a block or more each, and pack all their rows alike.
    pub(crate) fn walk_in_turn(
        self,
        len: usize,
        lanes: &mut [Lane<'_>],
        workspace: &mut Workspace,
    ) {
        debug_assert!(lanes.iter().all(|lane| lane.left > 0 && lane.unchained.is_none()));
        match self {
            Self::Portable => portable::walk_in_turn(len, lanes, workspace),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::walk_in_turn(len, lanes, workspace),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Ifma => avx512::walk_in_turn(len, lanes, workspace),
            Self::Scalar => unreachable!("{self} has no vectors"),
        }
    }

    /// [`walk`](Self::walk) of one lane, of at least one block.
    pub(crate) fn walk_one(
        self,
        count: usize,
        len: usize,
        lane: &mut Lane<'_>,
        workspace: &mut Workspace,
    ) {
        let blocks = lane.take(count * len);
        self.walk_over(count, len, blocks, lane, workspace);
        self.settle(lane);
    }

    /// Takes one lane `count` blocks on, as [`walk`](Self::walk) does, over blocks that need not be
    /// those of the lane. The last one may be left unchained: see [`settle`](Self::settle).
    #[inline(always)]
    pub(crate) fn walk_over(
        self,
        count: usize,
        len: usize,
        blocks: &[u8],
        lane: &mut Lane<'_>,
        workspace: &mut Workspace,
    ) {
        if self.goes_in_turn(len, lane.hashes.is_some()) {
            return self.walk_stretch(count, len, blocks, lane, workspace);
        }
        let places = lane.take_places(count);
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if avx512::walks_over(blocks, len) => {
                return avx512::walk_over::<false>(blocks, places, lane, workspace, len);
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma if avx512::walks_over(blocks, len) => {
                return avx512::walk_over::<true>(blocks, places, lane, workspace, len);
            }
            _ => {}
        }
        if let Some(hashes) = lane.hashes {
            let hashes = &hashes[places.clone()];
            self.hash(blocks, len, lane.seed, hashes, workspace);
            return scalar::chain_kept(hashes, lane, &lane.rows[places]);
        }
        let hints = workspace.hints;
        let keys = workspace.schedules.alone(lane.seed, len);
        let rows = &lane.rows[..places.end];
        // The scalar stripes fetch by themselves.
        let by_place = fetch_distance(blocks, lane.next);
        let by_place = by_place.filter(|_| self != Self::Scalar || len <= LONGEST_FOLDED);
        let ahead = by_place.unwrap_or_else(|| {
            fetch_start(lane.next, hints);
            FETCH_AHEAD
        });
        // What is short in bytes, and all that AVX2 has no multiplication for: there is time enough for
        // scalar folds while the chain waits.
        scalar::walk_over(ahead, blocks, lane, rows, keys);
    }

    /// [`walk_over`](Self::walk_over) where the backend [goes in turn](Self::goes_in_turn).
    fn walk_stretch(
        self,
        count: usize,
        len: usize,
        blocks: &[u8],
        lane: &mut Lane<'_>,
        workspace: &mut Workspace,
    ) {
        self.settle(lane);
        let mut stretch = Lane { blocks, left: count, ..*lane };
        self.walk_in_turn(len, slice::from_mut(&mut stretch), workspace);
        lane.take_places(count);
        (lane.state, lane.prefix) = (stretch.state, stretch.prefix);
    }

    /// Chains the block that [`walk_over`](Self::walk_over) has left unchained: before anything else
    /// is done with a lane than walking over further blocks, and before its rows are packed
    /// otherwise.
    pub(crate) fn settle(self, lane: &mut Lane<'_>) {
        // A chain by itself has no lanes: all backends chain alike.
        scalar::settle(lane, &lane.rows[..lane.row]);
    }
}

/// Whether the next rows of all lanes are packed alike.
fn pack_alike(lanes: &[Lane<'_>]) -> bool {
    lanes.iter().all(|lane| lane.fragment_bits == lanes[0].fragment_bits)
}

impl Backend {
    /// The hashes of blocks of `len` bytes, back to back.
    pub(crate) fn hash(
        self,
        blocks: &[u8],
        len: usize,
        seed: u64,
        hashes: &[Cell<u64>],
        workspace: &mut Workspace,
    ) {
        #[cfg(target_arch = "x86_64")]
        let hints = workspace.hints;
        let Workspace { schedules, waiting, .. } = workspace;
        let keys = schedules.alone(seed, len);
        if len <= LONGEST_FOLDED || self == Self::Scalar {
            return scalar::hash(blocks, keys, hashes);
        }
        let keys = keys.stripes();
        match self {
            Self::Portable => portable::hash(blocks, keys, hashes, len, waiting),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::hash(blocks, keys, hashes, len, waiting, hints),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Ifma => {
                avx512::hash(blocks, keys, hashes, len, waiting, hints);
            }
            Self::Scalar => unreachable!("{self} has no vectors"),
        }
    }

    /// Whether blocks of `len` bytes that only count up are hashed without being written.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn counts(self, len: usize) -> bool {
        match self {
            Self::Scalar | Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Ifma => avx512::folds(len),
        }
    }

    /// [`walk`](Self::walk) over the next `count` blocks of one lane, which are not in its bytes
    /// and need not be written anywhere. Only where the backend [`counts`](Self::counts).
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn walk_counting(
        self,
        count: usize,
        counting: &Counting<'_>,
        lane: &mut Lane<'_>,
        workspace: &mut Workspace,
    ) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::walk_counting::<false>(count, counting, lane, workspace),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma => {
                avx512::walk_counting::<true>(count, counting, lane, workspace);
            }
            _ => unreachable!("{self} does not count"),
        }
    }

    /// Chains the hashes of a lane's next blocks, which are not in its bytes, and packs their rows.
    pub(crate) fn chain(self, hashes: &[u64], lane: &mut Lane<'_>) {
        let places = lane.take_places(hashes.len());
        scalar::chain_alone(hashes, lane, &lane.rows[places]);
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Self, EngineError> {
        Self::available()
            .iter()
            .copied()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| EngineError::UnavailableBackend { name: name.into() })
    }
}

/// How many bytes of a request by itself make it worth while to hash eight of its blocks, of those that
/// are folded, to a vector: the chain begins only with the first eight.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
const SHORTEST_BY_EIGHTS: usize = 3 << 10;

/// The most lanes that any backend takes.
pub(crate) const MAX_LANES: usize = 8;

/// What the kernels keep from call to call, so that it is not worked out again.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    schedules: Schedules,
    pub(crate) hints: Hints,
    waiting: merge::Waiting,
    #[cfg(target_arch = "x86_64")]
    pieces: Pieces,
    #[cfg(target_arch = "x86_64")]
    places: avx512::counting::Places,
}

/// The schedules of the seeds that were used last.
#[derive(Debug, Default)]
struct Schedules {
    keys: [BlockKeys; MAX_LANES],
    /// Which of the first two a request by itself used last.
    last: usize,
}

impl Schedules {
    /// That of a lane. Lanes keep theirs apart.
    fn of_lane(&mut self, lane: usize, seed: u64, len: usize) -> &BlockKeys {
        self.keys[lane].set(seed, len);
        &self.keys[lane]
    }

    /// That of a request by itself. Two are kept, since text and frames take turns.
    #[inline]
    fn alone(&mut self, seed: u64, len: usize) -> &BlockKeys {
        if !self.keys[self.last].is(seed, len) {
            self.last ^= 1;
        }
        self.of_lane(self.last, seed, len)
    }
}

/// Consecutive blocks that are alike but for a number in each slot: it grows by one from slot to
/// slot and from block to block.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Counting<'a> {
    /// One block, with zeros for the numbers.
    pub(crate) block: &'a [u8],
    pub(crate) slot_bytes: usize,
    /// Where in a slot the four bytes of its number are.
    pub(crate) offset: usize,
    /// The first number of all. None is past 32 bits.
    pub(crate) first: u64,
}

/// One request under way: what is left of its blocks, what it goes on from, and where its results go.
///
/// Those are cells, since lanes that go side by side are copied and written in turn; each lane's are
/// its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lane<'a> {
    /// The blocks still to hash, back to back, and maybe more.
    pub(crate) blocks: &'a [u8],
    /// How many they are.
    pub(crate) left: usize,
    /// The rows of all its blocks, those before the next one among them.
    pub(crate) rows: &'a [Cell<u128>],
    /// Their block hashes, if those are an output.
    pub(crate) hashes: Option<&'a [Cell<u64>]>,
    /// The place of the next one in both.
    pub(crate) row: usize,
    /// The place of the next one in its lineage.
    pub(crate) position: u64,
    /// The seed of its block hashes.
    pub(crate) seed: u64,
    /// The keys of its chain steps.
    pub(crate) chain: ChainKeys,
    /// The sequence hash of the block before; `None` where there is none. The first block's
    /// sequence hash is its block hash, and its row has no parent.
    pub(crate) state: Option<u64>,
    /// The hash of the block before, where it has not been chained yet. Its row is then the one
    /// before the next, and `state` and `prefix` are as before that block.
    pub(crate) unchained: Option<u64>,
    /// How many low bits of the parent's sequence hash a row holds.
    pub(crate) fragment_bits: u32,
    /// The bits of the next row's high half that come from its position alone. From row to
    /// row it grows by one, shifted left by the fragment bits.
    pub(crate) prefix: u64,
    /// What will be read after the blocks, as far as that is known: worth fetching early.
    pub(crate) next: &'a [u8],
}

impl<'a> Lane<'a> {
    /// Takes the next so many bytes of its blocks.
    #[inline(always)]
    fn take(&mut self, len: usize) -> &'a [u8] {
        self.blocks.split_off(..len).expect("a lane has the blocks that it was asked for")
    }

    /// Takes the places of the next `count` blocks.
    #[inline(always)]
    pub(crate) fn take_places(&mut self, count: usize) -> Range<usize> {
        let places = self.row..self.row + count;
        self.left -= count;
        self.row += count;
        self.position += count as u64;
        places
    }
}

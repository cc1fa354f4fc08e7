//! What is measured: batches of several shapes.

use std::fmt;

use kvhash::{BlockSize, MmRun, Request};

use crate::synth::{Lengths, Random};

/// The tokens of a prompt of the even batch.
const EVEN_TOKENS: usize = 1024;
/// The largest block that such a prompt fills.
pub(crate) const LARGEST_BLOCK: u32 = EVEN_TOKENS as u32;

/// The tokens of a prompt with images.
const IMAGES_TOKENS: usize = 4096;

/// Token ids are below this: the vocabulary of Llama 3.
const VOCABULARY: u32 = 128_256;

/// The images of a prompt that has some, and the placeholders of each: those of LLaVA 1.5, a picture
/// of 336 by 336 in patches of 14.
const IMAGES: usize = 4;
const IMAGE_TOKENS: usize = 576;

/// How many prompts there are of what length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Equal prompts, many enough to go side by side.
    Even,
    /// One long request, as a router gets them: nothing goes beside it.
    Single,
    /// Thousands of short prompts, where what is done once a request weighs most.
    Short,
    /// Lengths as they come in service: lognormal, so that lanes run empty at different times.
    Ragged,
    /// Prompts with images, more than half of whose blocks are hashed from frames.
    Images,
}

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Single => "single",
            Self::Short => "short",
            Self::Ragged => "ragged",
            Self::Images => "images",
        }
    }

    fn lengths(self, random: &mut Random) -> Vec<usize> {
        let (prompts, mut lengths) = match self {
            Self::Even => (1000, Lengths::Constant(EVEN_TOKENS)),
            Self::Single => (1, Lengths::Constant(8192)),
            Self::Short => (8000, Lengths::Constant(128)),
            Self::Ragged => (1000, Lengths::LogNormal { median: 700.0, deviation: 0.8 }),
            Self::Images => (250, Lengths::Constant(IMAGES_TOKENS)),
        };
        (0..prompts).map(|_| lengths.next(random)).collect()
    }

    /// The runs of every prompt, spread over it and off the edges of its blocks.
    fn runs(self) -> Vec<MmRun> {
        let Self::Images = self else { return Vec::new() };
        let apart = IMAGES_TOKENS / IMAGES;
        let offset = |image| image * apart + apart / 7;
        let run =
            |image| MmRun { mm_hash: !(image as u64), offset: offset(image), length: IMAGE_TOKENS };
        (0..IMAGES).map(run).collect()
    }
}

/// A shape at a block size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) block_size: BlockSize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shape {}, {} tokens a block", self.shape.name(), self.block_size.tokens())
    }
}

/// The even batch at every block size, from small to large, and the other shapes at the usual
/// one.
pub(crate) fn cases(block_sizes: &[BlockSize]) -> Vec<Case> {
    let mut sizes = block_sizes.to_vec();
    sizes.sort();
    sizes.dedup();
    let even = sizes.into_iter().map(|block_size| Case { shape: Shape::Even, block_size });
    let others = [Shape::Single, Shape::Short, Shape::Ragged, Shape::Images]
        .map(|shape| Case { shape, block_size: BlockSize::DEFAULT });
    even.chain(others).collect()
}

/// The prompts of a case, the same in every run.
pub(crate) struct Batch {
    pub(crate) prompts: Vec<Vec<u32>>,
    /// The same in every prompt.
    pub(crate) runs: Vec<MmRun>,
    block_size: BlockSize,
}

impl Batch {
    pub(crate) fn new(case: &Case) -> Self {
        let mut random = Random::new(1);
        let lengths = case.shape.lengths(&mut random);
        let prompts = lengths.into_iter().map(|length| random.tokens(length, VOCABULARY)).collect();
        Self { prompts, runs: case.shape.runs(), block_size: case.block_size }
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size.tokens() as usize
    }

    /// How many blocks the prompts fill.
    pub(crate) fn blocks(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.len() / self.block_size()).sum()
    }

    pub(crate) fn requests(&self) -> Vec<Request<'_>> {
        self.prompts.iter().map(|prompt| Request::new(prompt).mm_runs(&self.runs)).collect()
    }
}

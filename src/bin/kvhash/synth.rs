//! `kvhash synth`: request files to measure with, the same from the same seed.

mod lengths;
mod random;

use std::io::Write;

use anyhow::{Result, bail};
use kvhash::{BlockSize, Engine, Lineages, MmRun, PositionalLineageHash, Request};

use crate::Outcome;
use crate::args::SynthArgs;
use crate::output::Output;
use lengths::LONGEST;
pub(crate) use lengths::{Lengths, LengthsFlag};
pub(crate) use random::Random;

/// The id that stands in for an image, as in Qwen2-VL; the last id of a smaller vocabulary.
const PLACEHOLDER: u32 = 151_655;
/// How many placeholders an image takes.
const IMAGE_TOKENS: std::ops::RangeInclusive<u64> = 256..=1026;
/// How many bytes are written at once.
const WRITE_BYTES: usize = 1 << 20;

pub(crate) fn run(args: &SynthArgs) -> Result<Outcome> {
    let mut writer = Writer::new(args)?;
    let mut random = Random::new(args.seed);
    let prefixes: Vec<Vec<u32>> =
        (0..args.prefixes).map(|_| random.tokens(args.shared_prefix, args.vocabulary)).collect();
    let mut session = Session::default();
    for number in 0..args.requests {
        let turn = number % args.turns;
        if turn == 0 {
            session = Session::start(args, &mut random, &prefixes);
        }
        let length = writer.lengths.next(&mut random);
        session.say(args, &mut random, length);
        let request_id = match args.turns {
            1 => format!("r{number}"),
            turns => format!("s{}-t{turn}", number / turns),
        };
        session.write(&mut writer, &request_id)?;
        if turn + 1 < args.turns {
            session.continue_from(&mut writer)?;
        }
    }
    writer.finish()?;
    Ok(Outcome::Good)
}

/// One conversation: every turn says something more, and asks for what has been said so far.
#[derive(Default)]
struct Session<'a> {
    prefix: &'a [u32],
    salt: Option<String>,
    lora_name: Option<String>,
    runs: Vec<MmRun>,
    /// The tokens after the last complete block, and those of this turn.
    tokens: Vec<u32>,
    /// The lineage of the last complete block.
    parent: Option<PositionalLineageHash>,
    /// How many tokens come before `tokens`.
    before: usize,
}

impl<'a> Session<'a> {
    fn start(args: &SynthArgs, random: &mut Random, prefixes: &'a [Vec<u32>]) -> Self {
        let shares = random.chance(args.shared_share);
        let prefix = &prefixes[random.below(prefixes.len() as u64) as usize];
        let mut named = |share, kind: &str, names| {
            random.chance(share).then(|| format!("{kind}-{}", random.below(names)))
        };
        Self {
            prefix: if shares { prefix } else { &[] },
            salt: named(args.salt_share, "tenant", 100),
            lora_name: named(args.lora_share, "adapter", 10),
            runs: Vec::new(),
            tokens: Vec::new(),
            parent: None,
            before: 0,
        }
    }

    /// Adds a turn of `length` tokens.
    fn say(&mut self, args: &SynthArgs, random: &mut Random, length: usize) {
        let start = self.tokens.len();
        if self.before == 0 && start == 0 {
            let shared = &self.prefix[..self.prefix.len().min(length)];
            self.tokens.extend_from_slice(shared);
        }
        let own = length - (self.tokens.len() - start);
        self.tokens.extend(random.tokens(own, args.vocabulary));
        let image = random.between(IMAGE_TOKENS) as usize;
        if random.chance(args.image_share) && own > image {
            let place = self.tokens.len() - own + random.below((own - image) as u64) as usize;
            self.tokens[place..place + image].fill(PLACEHOLDER.min(args.vocabulary - 1));
            let (mm_hash, offset) = (random.next(), self.before + place);
            self.runs.push(MmRun { mm_hash, offset, length: image });
        }
    }

    fn write(&mut self, writer: &mut Writer, request_id: &str) -> Result<()> {
        let line = &mut writer.buffer;
        write!(line, r#"{{"request_id":"{request_id}""#)?;
        for (name, value) in [("salt", &self.salt), ("lora_name", &self.lora_name)] {
            if let Some(value) = value {
                write!(line, r#","{name}":"{value}""#)?;
            }
        }
        if let Some(parent) = self.parent {
            write!(line, r#","parent_plh":"{:032x}""#, parent.as_u128())?;
        }
        if !self.runs.is_empty() {
            line.extend_from_slice(br#","mm_info":["#);
            for (i, run) in self.runs.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                let MmRun { mm_hash, offset, length } = run;
                write!(
                    line,
                    r#"{comma}{{"mm_hash":"{mm_hash:016x}","offset":{offset},"length":{length}}}"#
                )?;
            }
            line.push(b']');
        }
        line.extend_from_slice(br#","tokens":["#);
        for (i, token) in self.tokens.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(line, "{comma}{token}")?;
        }
        line.extend_from_slice(b"]}\n");
        writer.flush_when_full()
    }

    /// Hashes what has been said, so that the next turn need not say it again.
    fn continue_from(&mut self, writer: &mut Writer) -> Result<()> {
        let mut request = Request::new(&self.tokens).mm_runs(&self.runs);
        if let Some(salt) = &self.salt {
            request = request.salt(salt);
        }
        if let Some(name) = &self.lora_name {
            request = request.lora_name(name);
        }
        if let Some(parent) = self.parent {
            request = request.resume(parent);
        }
        writer.engine.hash(&[request], &mut writer.lineages);
        let lineage = writer.lineages.get(0)?;
        if let Some(&last) = lineage.plhs().last() {
            let hashed = self.tokens.len() - lineage.tail();
            self.tokens.drain(..hashed);
            self.before += hashed;
            self.parent = Some(last);
        }
        Ok(())
    }
}

/// What all sessions write with.
struct Writer {
    output: Output,
    buffer: Vec<u8>,
    lengths: Lengths,
    engine: Engine,
    lineages: Lineages,
}

impl Writer {
    fn new(args: &SynthArgs) -> Result<Self> {
        for (name, share) in [
            ("shared-share", args.shared_share),
            ("salt-share", args.salt_share),
            ("lora-share", args.lora_share),
            ("image-share", args.image_share),
        ] {
            if !(0.0..=1.0).contains(&share) {
                bail!("--{name} is {share}; a share is from 0 to 1");
            }
        }
        if args.vocabulary == 0 || args.turns == 0 || args.prefixes == 0 {
            bail!("--vocabulary, --turns and --prefixes are at least 1");
        }
        if args.shared_prefix.saturating_mul(args.prefixes) > LONGEST {
            bail!("the shared prefixes have more than {LONGEST} tokens together");
        }
        let lengths = Lengths::open(&args.lengths)?;
        let block_size: BlockSize = args.block_size;
        Ok(Self {
            output: Output::create(args.output.as_deref())?,
            buffer: Vec::new(),
            lengths,
            engine: Engine::builder().block_size(block_size).build()?,
            lineages: Lineages::new(),
        })
    }

    fn flush_when_full(&mut self) -> Result<()> {
        if self.buffer.len() >= WRITE_BYTES {
            self.output.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.output.write(&self.buffer)?;
        self.output.finish()
    }
}

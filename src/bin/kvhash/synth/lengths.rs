//! How long prompts are.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::random::Random;

/// The longest prompt there is, and the longest shared prefix.
pub(crate) const LONGEST: usize = 1 << 24;

/// The column of prompt lengths in the Azure traces of LLM inference.
const AZURE_COLUMN: &str = "ContextTokens";

/// Where lengths come from, as a flag says it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LengthsFlag {
    Constant(usize),
    LogNormal { median: f64, deviation: f64 },
    Azure(PathBuf),
}

impl FromStr for LengthsFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is no source of lengths: give const:TOKENS, lognormal:MEDIAN,DEVIATION \
                 (of the logarithm) or azure:FILE.csv"
            )
        };
        let (kind, value) = text.split_once(':').ok_or_else(bad)?;
        match kind {
            "const" => value.parse().map(Self::Constant).map_err(|_| bad()),
            "lognormal" => {
                let (median, deviation) = value.split_once(',').ok_or_else(bad)?;
                let number = |text: &str| {
                    text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)
                };
                match (number(median), number(deviation)) {
                    (Some(median), Some(deviation)) => Ok(Self::LogNormal { median, deviation }),
                    _ => Err(bad()),
                }
            }
            "azure" => Ok(Self::Azure(value.into())),
            _ => Err(bad()),
        }
    }
}

/// A source of lengths.
pub(crate) enum Lengths {
    Constant(usize),
    LogNormal {
        median: f64,
        deviation: f64,
    },
    /// The lengths of a trace, in its order and from the start again.
    Trace {
        lengths: Vec<usize>,
        next: usize,
    },
}

impl Lengths {
    pub(crate) fn open(flag: &LengthsFlag) -> Result<Self> {
        Ok(match flag {
            LengthsFlag::Constant(tokens) if *tokens > LONGEST => {
                bail!("a prompt of {tokens} tokens is too long; {LONGEST} is the most")
            }
            LengthsFlag::Constant(tokens) => Self::Constant(*tokens),
            &LengthsFlag::LogNormal { median, deviation } => Self::LogNormal { median, deviation },
            LengthsFlag::Azure(path) => {
                let name = path.display();
                let text =
                    fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
                let lengths = read_column(&text).with_context(|| format!("cannot read {name}"))?;
                Self::Trace { lengths, next: 0 }
            }
        })
    }

    pub(crate) fn next(&mut self, random: &mut Random) -> usize {
        match self {
            Self::Constant(tokens) => *tokens,
            Self::LogNormal { median, deviation } => {
                let length = *median * (*deviation * random.normal()).exp();
                length.round().clamp(1.0, LONGEST as f64) as usize
            }
            Self::Trace { lengths, next } => {
                let length = lengths[*next];
                *next = (*next + 1) % lengths.len();
                length
            }
        }
    }
}

fn read_column(text: &str) -> Result<Vec<usize>> {
    let mut lines = text.lines();
    let columns = lines.next().unwrap_or_default().split(',').map(str::trim);
    let Some(column) = columns.into_iter().position(|name| name == AZURE_COLUMN) else {
        bail!("there is no column {AZURE_COLUMN}");
    };
    let mut lengths = Vec::new();
    for (number, line) in (2..).zip(lines).filter(|(_, line)| !line.trim().is_empty()) {
        let value = line.split(',').nth(column).unwrap_or_default().trim();
        let length = value
            .parse()
            .with_context(|| format!("line {number}: {AZURE_COLUMN} is {value:?}, no number"))?;
        if length > LONGEST {
            bail!("line {number}: {AZURE_COLUMN} is {length}; {LONGEST} is the most");
        }
        lengths.push(length);
    }
    if lengths.is_empty() {
        bail!("there are no rows");
    }
    Ok(lengths)
}

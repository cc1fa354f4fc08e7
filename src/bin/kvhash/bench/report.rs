//! The figures, as a table and as JSON.

use std::fmt::Write;
use std::fs;

use kvhash::Backend;
use serde_json::{Value, json};

use super::shapes::Case;

/// What was found of one case. Times are of the whole batch, in nanoseconds.
pub(crate) struct Measurement {
    pub(crate) case: Case,
    pub(crate) prompts: usize,
    pub(crate) blocks: usize,
    pub(crate) read_limit: f64,
    pub(crate) backends: Vec<(Backend, f64)>,
}

impl Measurement {
    /// Those in complete blocks: the others are not read.
    fn tokens(&self) -> usize {
        self.blocks * self.case.block_size.tokens() as usize
    }

    fn ns_per_block(&self, time: f64) -> f64 {
        time / self.blocks as f64
    }

    /// Of token ids, 4 bytes each.
    fn gb_per_s(&self, time: f64) -> f64 {
        4.0 * self.tokens() as f64 / time
    }

    fn m_tokens_per_s(&self, time: f64) -> f64 {
        1e3 * self.tokens() as f64 / time
    }
}

pub(crate) struct Report<'a> {
    pub(crate) cpu: String,
    pub(crate) threads: usize,
    pub(crate) backends: &'a [Backend],
    pub(crate) measurements: Vec<Measurement>,
}

/// The columns of the table, and whether they hold numbers.
const COLUMNS: [(&str, bool); 9] = [
    ("shape", false),
    ("prompts", true),
    ("tokens", true),
    ("block size", true),
    ("backend", false),
    ("ns a block", true),
    ("GB/s", true),
    ("M tokens/s", true),
    ("× read limit", true),
];

type Cells = [String; COLUMNS.len()];

impl Report<'_> {
    pub(crate) fn to_json(&self) -> Value {
        let rows = self.measurements.iter().flat_map(|case| {
            case.backends.iter().map(|&(backend, time)| {
                json!({
                    "backend": backend.name(),
                    "shape": case.case.shape.name(),
                    "prompts": case.prompts,
                    "tokens": case.tokens(),
                    "block_size": case.case.block_size.tokens(),
                    "blocks": case.blocks,
                    "ns_per_block": case.ns_per_block(time),
                    "gb_per_s": case.gb_per_s(time),
                    "m_tokens_per_s": case.m_tokens_per_s(time),
                    "read_limit_ns_per_block": case.ns_per_block(case.read_limit),
                    "times_read_limit": time / case.read_limit,
                })
            })
        });
        json!({ "cpu": self.cpu, "threads": self.threads, "rows": rows.collect::<Vec<_>>() })
    }

    /// A heading, then a group of lines a case: the read limit and the backends.
    pub(crate) fn to_table(&self) -> String {
        let names: Vec<_> = self.backends.iter().map(|backend| backend.name()).collect();
        let plural = if self.threads == 1 { "" } else { "s" };
        let heading =
            format!("{}; {} thread{plural}; {}\n", self.cpu, self.threads, names.join(", "));
        let groups: Vec<Vec<Cells>> = self.measurements.iter().map(lines).collect();
        let titles = COLUMNS.map(|(title, _)| title.to_string());
        let widths = std::array::from_fn(|column| {
            let cells = groups.iter().flatten().chain([&titles]).map(|cells| &cells[column]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        });
        let mut table = heading;
        for group in [vec![titles]].iter().chain(&groups) {
            table.push('\n');
            group.iter().for_each(|cells| push_line(&mut table, cells, &widths));
        }
        table
    }
}

fn lines(case: &Measurement) -> Vec<Cells> {
    let line = |name: &str, time: f64| {
        [
            case.case.shape.name().into(),
            case.prompts.to_string(),
            case.tokens().to_string(),
            case.case.block_size.tokens().to_string(),
            name.into(),
            format!("{:.2}", case.ns_per_block(time)),
            format!("{:.1}", case.gb_per_s(time)),
            format!("{:.0}", case.m_tokens_per_s(time)),
            format!("{:.2}", time / case.read_limit),
        ]
    };
    let backends = case.backends.iter().map(|(backend, time)| line(backend.name(), *time));
    [line("read limit", case.read_limit)].into_iter().chain(backends).collect()
}

/// Numbers stand right, names left.
fn push_line(table: &mut String, cells: &Cells, widths: &[usize; COLUMNS.len()]) {
    let mut line = String::new();
    for ((cell, &width), (_, number)) in cells.iter().zip(widths).zip(COLUMNS) {
        let written = match number {
            true => write!(line, "{cell:>width$}  "),
            false => write!(line, "{cell:<width$}  "),
        };
        written.expect("a string takes all that is written");
    }
    table.push_str(line.trim_end());
    table.push('\n');
}

/// What the operating system calls the CPU; the architecture where it does not say.
pub(crate) fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpu_of(&info).unwrap_or_else(|| std::env::consts::ARCH.into())
}

/// From the text of `/proc/cpuinfo`. Virtual machines tend to hide the name; family and model
/// still tell the generation.
fn cpu_of(info: &str) -> Option<String> {
    let field = |name: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let name = field("model name").filter(|name| !name.is_empty())?;
    Some(match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::cpu_of;

    #[test]
    fn the_cpu_has_its_name_and_where_there_is_one_its_model() {
        let info = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Xeon\n";
        assert_eq!(cpu_of(info).as_deref(), Some("Xeon (family 6, model 207)"));
        assert_eq!(cpu_of("model name\t: Cortex\n").as_deref(), Some("Cortex"));
        assert_eq!(cpu_of("processor\t: 0\n"), None);
    }
}

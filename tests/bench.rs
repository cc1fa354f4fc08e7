//! `kvhash bench`, run as a user runs it. What it measures is for the user to judge; how it says
//! so is tested here.
#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::process::{Command, Output};

use kvhash::Backend;
use serde_json::Value;

/// As short as it can be.
const QUICK: [&str; 2] = ["--seconds", "0"];

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvhash"));
    command.env_remove("KVHASH_BACKEND").arg("bench").args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(document: &Value) -> &[Value] {
    document["rows"].as_array().expect("there are rows")
}

#[test]
fn the_table_has_every_backend_in_every_group() {
    let table = stdout(&QUICK);
    let mut groups = table.split("\n\n");
    let (heading, titles) = (groups.next().unwrap(), groups.next().unwrap());
    assert!(heading.contains("; 1 thread; scalar, portable"), "{heading}");
    assert!(titles.starts_with("shape ") && titles.ends_with("× read limit"), "{titles}");
    let columns_end = titles.chars().count();

    let expected: Vec<&str> =
        ["read limit"].into_iter().chain(Backend::available().iter().map(|b| b.name())).collect();
    let groups: Vec<&str> = groups.collect();
    // The even batch by five block sizes, and four other shapes.
    assert_eq!(groups.len(), 9);
    for group in groups {
        let lines: Vec<&str> = group.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{group}");
        for (line, name) in lines.iter().zip(&expected) {
            assert!(line.contains(&format!(" {name} ")), "{line}");
            assert_eq!(line.chars().count(), columns_end, "{line}");
        }
    }
}

#[test]
fn the_json_is_one_document_whose_figures_agree() {
    let document: Value = serde_json::from_str(&stdout(&[&QUICK[..], &["--json"]].concat()))
        .expect("standard output is JSON and nothing else");
    assert!(!document["cpu"].as_str().unwrap().is_empty());
    assert_eq!(document["threads"], 1);

    let rows = rows(&document);
    let names = |key: &str| -> BTreeSet<&str> {
        rows.iter().map(|row| row[key].as_str().unwrap()).collect()
    };
    assert_eq!(names("backend"), Backend::available().iter().map(|b| b.name()).collect());
    assert_eq!(names("shape"), BTreeSet::from(["even", "images", "ragged", "short", "single"]));
    assert_eq!(rows.len(), 9 * Backend::available().len());
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}: {row}");
        assert!(number("prompts") >= 1.0 && number("ns_per_block") > 0.0, "{row}");
        close(number("tokens"), number("blocks") * number("block_size"));
        close(number("gb_per_s"), 4.0 * number("block_size") / number("ns_per_block"));
        close(number("m_tokens_per_s"), 250.0 * number("gb_per_s"));
        let limit = number("times_read_limit") * number("read_limit_ns_per_block");
        close(limit, number("ns_per_block"));
    }
}

#[test]
fn backends_block_sizes_and_threads_are_those_asked_for() {
    let args = "--json --threads 2 --backend portable,scalar --backend scalar \
                --block-size 48,1 --block-size 1024 --progress always";
    let args: Vec<&str> = QUICK.into_iter().chain(args.split_whitespace()).collect();
    let document: Value = serde_json::from_str(&stdout(&args)).unwrap();
    assert_eq!(document["threads"], 2);
    let found: Vec<_> = rows(&document)
        .iter()
        .filter(|row| row["shape"] == "even")
        .map(|row| (row["block_size"].as_u64().unwrap(), row["backend"].as_str().unwrap()))
        .collect();
    let each = |size| [(size, "scalar"), (size, "portable")];
    assert_eq!(found, [1, 48, 1024].map(each).concat());
}

#[test]
fn wrong_usage_says_what_would_be_right() {
    let cases: [(&[&str], &str); 9] = [
        (&["--backend", "avx9"], "available: scalar"),
        (&["--backend", "scalar,avx9"], "available: scalar"),
        (&["--block-size", "0"], "at least one token"),
        (&["--block-size", "16,-1"], "number of tokens"),
        (&["--block-size", "1025"], "1024 tokens"),
        (&["--seconds", "-1"], "from 0 to 3600"),
        (&["--seconds", "soon"], "from 0 to 3600"),
        (&["--threads", "-1"], "--threads"),
        (&["requests.jsonl"], "Usage"),
    ];
    for (args, hint) in cases {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(hint), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_environment_names_backends_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvhash"));
    command.args(["bench", "-q", "--json"]).args(QUICK).env("KVHASH_BACKEND", "scalar");
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows(&document).iter().all(|row| row["backend"] == "scalar"));
    command.env("KVHASH_BACKEND", "avx9");
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

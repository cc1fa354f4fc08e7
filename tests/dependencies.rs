//! What the library brings along without the command line.

use std::process::Command;

/// Every crate that may be there. Those that are only compiled for other targets, or run at
/// build time, count too.
const ALLOWED: [&str; 30] = [
    "bs58",
    "bytemuck",
    "bytemuck_derive",
    "core_affinity",
    "crossbeam",
    "crossbeam-channel",
    "crossbeam-deque",
    "crossbeam-epoch",
    "crossbeam-queue",
    "crossbeam-utils",
    "either",
    "itoa",
    "kvhash",
    "libc",
    "memchr",
    "num_cpus",
    "proc-macro2",
    "quote",
    "rayon",
    "rayon-core",
    "safe_arch",
    "serde_core",
    "serde_json",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
    "wide",
    "xxhash-rust",
    "zmij",
];

#[test]
fn the_library_depends_on_a_short_list() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--no-default-features", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"kvhash") && crates.contains(&"rayon"), "{tree}");
    for name in crates {
        assert!(name.is_empty() || ALLOWED.contains(&name), "{name} is not on the list");
    }
}

//! What the README shows is what comes out.
#![cfg(feature = "cli")]

use std::process::Command;

#[test]
fn the_example_gives_what_the_readme_shows() {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(env!("CARGO_BIN_EXE_kvhash"))
        .args(["hash", "examples/requests.jsonl"])
        .current_dir(root)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    let shown = readme.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(str::from_utf8(&output.stdout).unwrap(), shown);
}

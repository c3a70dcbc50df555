//! What the tests of several benchmarks need.

use std::path::PathBuf;

/// The program beside this test's folder. Cargo builds it with the workspace's tests, and not with
/// `cargo test -p zerowire-bench`.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("zerowire");
    assert!(
        program.is_file(),
        "{} is missing: 'cargo build -p zerowire-cli' first, with the same profile",
        program.display()
    );
    program
}

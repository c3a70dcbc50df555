//! Tests that can say nothing on this machine.

use std::io::Write as _;

/// Says which check was not run, why, and what it needs. The test program keeps to itself what
/// `println!` says in a test that passes. This goes past that, and `make test` counts the lines
/// that begin with `not run: ` as skipped.
pub fn not_run(text: &str) {
    // One call, so that lines of other tests don't come between.
    let line = format!("not run: {text}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
}

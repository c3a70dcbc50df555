//! Programs that were built with another header than the library's, and the names that a library of this soname has.

mod build;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use build::{compile, compile_with, here, libraries};

fn succeeds(program: &Path) {
    let out = Command::new(program).output().expect("started");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_program_of_an_older_header_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    succeeds(&compile_with("tests/c/old", "tests/c/old_program.c", folder.path(), true));
}

#[test]
fn structs_of_other_lengths() {
    let folder = tempfile::tempdir().expect("a folder");
    succeeds(&compile("tests/c/sizes.c", folder.path(), true));
}

/// A name that is missing breaks programs: it needs a new soname. A new one is added to the list.
#[test]
fn the_exported_names_are_those_of_the_list() {
    let library = libraries().join("libzerowire_c.so");
    let nm =
        Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(&library).output();
    let nm = nm.expect("nm: install binutils");
    assert!(nm.status.success(), "{}", String::from_utf8_lossy(&nm.stderr));
    let listed = String::from_utf8(nm.stdout).expect("UTF-8");
    let exported: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let wanted = std::fs::read_to_string(here().join("tests/symbols.txt")).expect("the list");
    let wanted: BTreeSet<&str> = wanted.lines().collect();
    let missing: Vec<_> = wanted.difference(&exported).collect();
    assert!(
        missing.is_empty(),
        "removed: {missing:?}: keep them, or change the soname in build.rs and Makefile"
    );
    let new: Vec<_> = exported.difference(&wanted).collect();
    assert!(new.is_empty(), "new: {new:?}: add them to tests/symbols.txt, or don't export them");
}

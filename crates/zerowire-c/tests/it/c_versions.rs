//! Programs that were built with another header than the library's, and the names that a library of
//! this soname has.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support::{compile, compile_with, here, shared_library};

fn succeeds(program: &Path) {
    let out = Command::new(program).output().expect("started");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_program_of_an_older_header_runs() {
    succeeds(&compile_with("tests/c/old", "tests/c/old_program.c", true));
}

#[test]
fn structs_of_other_lengths() {
    succeeds(&compile("tests/c/sizes.c", true));
}

/// The symbols of zerowire.map, as nm writes them.
fn listed(map: &str) -> BTreeSet<String> {
    let (mut node, mut symbols) = ("", BTreeSet::new());
    for line in map.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        } else if let Some(symbol) = line.strip_suffix(';').filter(|symbol| symbol.starts_with("zw_")) {
            symbols.insert(format!("{symbol}@@{node}"));
        }
    }
    symbols
}

/// What the header declares is there, and nothing else; a symbol that is missing breaks programs.
#[test]
fn the_symbols_and_their_versions_are_those_of_the_map() {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--with-symbol-versions", "--format=posix"]);
    let out = nm.arg(shared_library()).output().expect("nm: install binutils");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    // A node is a symbol itself, an absolute one.
    let functions = text.lines().filter(|line| line.contains(" T "));
    let exported: BTreeSet<_> =
        functions.filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    let wanted = listed(&std::fs::read_to_string(here().join("zerowire.map")).expect("zerowire.map"));
    let missing: Vec<_> = wanted.difference(&exported).collect();
    assert!(
        missing.is_empty(),
        "removed: {missing:?}: keep them, or change the soname in scripts/shared.sh and Makefile"
    );
    assert_eq!(exported, wanted);

    let header = std::fs::read_to_string(here().join("include/zerowire.h")).expect("the header");
    let named =
        |symbol: &String| header.contains(&format!("{}(", symbol.split('@').next().unwrap_or_default()));
    assert!(exported.iter().all(named), "not in the header");
    let declared = header.split("zw_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        (rest[end..].starts_with('(')).then(|| format!("zw_{}@@", &rest[..end]))
    });
    for function in declared {
        let is_there = exported.iter().any(|symbol| symbol.starts_with(&function));
        assert!(
            is_there,
            "{function} is not exported: add it to zerowire.map, in the node of the next release"
        );
    }
}

//! What all programs of the project have in common: 2 for wrong arguments, output that fits a
//! terminal, and an end without a panic where nobody reads.

use std::process::{Command, Stdio};

/// Checks that the program ends with 2 and says `words`. Returns all that it says.
pub fn refuses(program: &mut Command, words: &str) -> String {
    let output = program.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{program:?}: {text}");
    assert!(text.contains(words), "{program:?}: no '{words}' in {text}");
    text
}

/// As [`refuses`], with a tip for what is not known. The tip has the word `meant`; with None no
/// tip is given.
pub fn refuses_with_tip(program: &mut Command, meant: Option<&str>) {
    let text = refuses(program, "");
    let tip = text.lines().find(|line| line.contains("tip:"));
    match meant {
        Some(word) => assert!(tip.is_some_and(|t| t.contains(word)), "{program:?}: {text}"),
        None => assert_eq!(tip, None, "{program:?}: {text}"),
    }
}

/// Runs the program with a standard output whose reader has gone before the first line, as
/// `program | head -1` may. It may fail, but not panic.
pub fn survives_closed_output(program: &mut Command) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = program.stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
    let output = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{program:?}: {}: {text}", output.status);
    assert!(!text.contains("panicked"), "{program:?}: {text}");
}

/// Runs the program with 80 columns as COLUMNS, which its output must fit. Returns that.
pub fn fits_80_columns(program: &mut Command) -> String {
    let output = program.env("COLUMNS", "80").output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().count() > 5, "{program:?}: {output:?}");
    for line in text.lines() {
        let width = line.chars().count();
        assert!(width <= 80, "{program:?}: {width} columns: {line}");
    }
    text
}

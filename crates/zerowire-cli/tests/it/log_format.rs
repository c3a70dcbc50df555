//! The log as JSON and for journald, as programs read it.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use serde_json::Value;

use crate::support::refused::{repeat_an_error, send_what_is_lost};
use crate::support::{Program, connect, in_netns};

/// Requests that are refused, a line each.
const REFUSED: usize = 500;

/// A VM on a tap of its name, with further arguments.
fn start(dir: &tempfile::TempDir, name: &str, more: &[&str]) -> Program {
    let vm = format!("name={name},socket={},port=tap:{name}", dir.path().join(name).display());
    Program::net(&[&["--json", "--vm", &vm], more].concat())
}

/// Each line is an object with a level and a message.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let level = value["level"].as_str().expect("a level");
        assert!(["error", "warn", "info"].contains(&level), "{line}");
        assert!(value["message"].as_str().is_some_and(|text| !text.is_empty()), "{line}");
        value
    };
    log.lines().map(object).collect()
}

/// A time of RFC 3339 in UTC.
fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000000Z"
}

#[test]
fn lines_of_json_say_which_vm_and_how_many_are_left_out() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        // All lines of a confined VM are bounded together, also those of its signal handler.
        let program = start(&dir, "zwlogj", &["--sandbox", "off", "--log-format", "json"]);
        let mut front = connect(&dir.path().join("zwlogj"));
        repeat_an_error(&mut front, REFUSED);
        send_what_is_lost(&mut front);
        drop(front);
        let (_, log) = program.stop();
        let lines = objects(&log);
        let of = |words: &str| {
            let found =
                lines.iter().filter(|line| line["message"].as_str().is_some_and(|t| t.starts_with(words)));
            found.collect::<Vec<_>>()
        };
        let listening = of("listening on ");
        assert_eq!(listening.len(), 1, "{log}");
        assert_eq!((&listening[0]["vm"], &listening[0]["level"]), (&"zwlogj".into(), &"info".into()));
        assert!(lines.iter().any(|line| is_time(&line["time"])), "{log}");
        // Only what a signal handler writes has no time.
        for line in lines.iter().filter(|line| !is_time(&line["time"])) {
            let text = line["message"].as_str().unwrap_or_default();
            assert!(text.starts_with("a front end truncated the file"), "{line}");
        }
        assert_eq!(of("a front end truncated the file").len(), 1, "{log}");
        let written = of("NET_SET_MTU refused: MTU 67");
        assert!(written.iter().all(|line| line["vm"] == "zwlogj" && line["level"] == "error"), "{log}");
        let left_out = lines.iter().filter(|line| line["key"] == "zwlogj");
        let left_out: u64 = left_out.map(|line| line["suppressed"].as_u64().expect("a number")).sum();
        let missing = (REFUSED - written.len()) as u64;
        // Those of the connection's end and the like may be among them.
        assert!(missing > 0 && (missing..=missing + 5).contains(&left_out), "{left_out} of {missing}\n{log}");
    });
}

#[test]
fn lines_for_journald_have_a_priority() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(&dir, "zwlogp", &["--log-format", "journal", "--log", "debug"]);
        let mut front = connect(&dir.path().join("zwlogp"));
        repeat_an_error(&mut front, REFUSED);
        drop(front);
        let (_, log) = program.stop();
        let has_priority = |line: &str| matches!(line.as_bytes(), [b'<', b'3'..=b'7', b'>', _, ..]);
        assert!(log.lines().count() > 3 && log.lines().all(has_priority), "{log}");
        for start in ["<6>zwlogp: listening on ", "<3>zwlogp: NET_SET_MTU refused", "<4>zwlogp: "] {
            assert!(log.lines().any(|line| line.starts_with(start)), "{start}: {log}");
        }
    });
}

#[test]
fn a_level_leaves_out_what_is_below_it() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(&dir, "zwloge", &["--log-format", "json", "--log", "error"]);
        let mut front = connect(&dir.path().join("zwloge"));
        repeat_an_error(&mut front, 1);
        drop(front);
        let (_, log) = program.stop();
        let lines = objects(&log);
        assert!(!lines.is_empty() && lines.iter().all(|line| line["level"] == "error"), "{log}");
    });
}

/// What a command that fails writes to a file as its standard error, with further arguments.
/// `journal` says whether systemd names that file as the journal's stream.
fn failure(more: &[&str], journal: bool) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let stream = file.as_file().metadata().expect("its metadata");
    let inode = if journal { stream.ino() } else { stream.ino() + 1 };
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(["ctl", "--control", "/no/such/socket", "list"]).args(more);
    command.env_remove("ZEROWIRE_LOG").env("JOURNAL_STREAM", format!("{}:{inode}", stream.dev()));
    let stderr = File::options().append(true).open(file.path()).expect("the file");
    let status = command.stderr(stderr).status().expect("the program starts");
    assert_eq!(status.code(), Some(1));
    std::fs::read_to_string(file.path()).expect("text")
}

#[test]
fn standard_error_decides_where_the_user_does_not() {
    const WORDS: &str = "no server can be reached at /no/such/socket";
    for (arguments, journal, start) in [
        (&[][..], true, "<3>zerowire: "),
        (&[], false, "zerowire: "),
        (&["--log-format", "text"], true, "zerowire: "),
        (&["--log-format", "journal"], false, "<3>zerowire: "),
    ] {
        let log = failure(arguments, journal);
        assert!(log.starts_with(&format!("{start}{WORDS}")), "{arguments:?}, {journal}: {log}");
    }
    for journal in [true, false] {
        let log = failure(&["--log-format", "json"], journal);
        let lines = objects(&log);
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0]["message"].as_str().is_some_and(|text| text.starts_with(WORDS)), "{log}");
        assert!(is_time(&lines[0]["time"]) && lines[0]["level"] == "error", "{log}");
    }
}

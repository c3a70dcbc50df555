//! What every command has in common: 2 for wrong arguments, and an end without a panic where nobody
//! reads.

use std::process::{Command, Output, Stdio};

fn zerowire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zerowire")).args(arguments).output().expect("the program starts")
}

#[test]
fn wrong_arguments_end_with_2_and_name_the_remedy() {
    for (arguments, words) in [
        (&["nonsense"][..], "unrecognized subcommand"),
        (&["send", "--to", "10.0.0.2"], "HOST:PORT"),
        (&["send", "--to", "vsock:2"], "vsock:CID:PORT"),
        (&["send", "--to", "localhost:99999"], "\"99999\" is no number from 1 to 65535"),
        (&["send", "--to", "localhost:1", "--chunk", "0"], "--chunk 0"),
        (&["send", "--to", "localhost:1", "--timeout", "0"], "--timeout 0"),
        (&["send", "--to", "localhost:1", "--udp", "--datagram", "70000"], "65507"),
        (&["send", "--to", "vsock:2:1", "--udp"], "leave --udp out"),
        (&["recv", "-p", "0", "--buffer-bytes", "1"], ""),
        (&["net"], "--socket PATH"),
        (&["net", "--socket", "/tmp/x", "--port", "eth0"], "tap:eth0, packet:eth0 or xdp:eth0"),
        (&["net", "--vm", "name=a,port=tap:t"], "socket=PATH is missing"),
        (&["net", "--socket", "/tmp/x", "--gather-max", "99999999"], "--gather-max 99999999"),
        (&["vsock"], "--cid N"),
        (&["vsock", "--socket", "/tmp/x"], "--uds PATH"),
        (&["vsock", "--vm", "name=a"], "socket=PATH is missing"),
        (&["bench", "net", "--sizes", "1"], "frame length 1"),
        (&["bench", "net", "--rounds", "0"], "0 rounds"),
        (&["bench", "net", "--direction", "up"], "up"),
        (&["bench", "net", "--port", "xdp", "--threshold"], "--threshold is for taps"),
        (&["bench", "vsock", "--writes", "0"], "choose 1 to"),
        (&["bench", "tcp-rx", "--rounds", "0"], "0 rounds"),
        (&["bench", "packet-tx", "--sizes", "0"], "choose 1 to"),
    ] {
        let output = zerowire(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: no '{words}' in {text}");
    }
}

/// As `zerowire demo | head -1`: the reader has gone before the first line.
#[test]
fn a_closed_standard_output_ends_no_program_with_a_panic() {
    for arguments in [
        &["demo", "--mib", "1"][..],
        &["demo", "--mib", "1", "--json"],
        &["doctor"],
        &["net", "--print-capabilities"],
        &["bench", "net", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        let output = command
            .args(arguments)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .spawn()
            .and_then(|child| child.wait_with_output())
            .expect("the program starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {}: {text}", output.status);
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

/// What is printed for people fits a terminal of 80 columns, `--help` and the tables of a
/// demonstration.
#[test]
fn what_is_printed_fits_80_columns() {
    for arguments in [
        &["--help"][..],
        &["net", "--help"],
        &["vsock", "--help"],
        &["send", "--help"],
        &["recv", "--help"],
        &["replay", "--help"],
        &["doctor", "--help"],
        &["bench", "net", "--help"],
        &["doctor"],
        &["demo", "--mib", "1"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        let output = command.args(arguments).env("COLUMNS", "80").output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().count() > 5, "{arguments:?}: {output:?}");
        for line in text.lines() {
            let width = line.chars().count();
            assert!(width <= 80, "{arguments:?}: {width} columns: {line}");
        }
    }
}

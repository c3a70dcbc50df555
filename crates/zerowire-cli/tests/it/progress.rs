//! On a terminal `zerowire send` and `zerowire replay` show how far they are. Needs root, for a
//! network of its own.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use crate::support::replay::{HERE, capture, frames, in_lab, write};
use zerowire_testkit::own_process;
use zerowire_testkit::terminal::terminal;

/// Runs it with standard error on a terminal; returns what it shows there.
fn shows(args: &[&str], columns: u16) -> String {
    let (mut here, there) = terminal(columns);
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(args).env("TERM", "xterm").env_remove("ZEROWIRE_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(there);
    let mut child = command.spawn().expect("the program starts");
    // Its end of the terminal is the only one that is left.
    drop(command);
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    // At the end of the last writer a terminal says EIO.
    while let Ok(n @ 1..) = here.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..n]);
    }
    let status = child.wait().expect("its status");
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(status.success(), "{args:?}: {status}: {shown}");
    shown
}

fn received(listener: TcpListener) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the end of the stream")
    })
}

#[test]
fn a_bar_shows_how_far_it_is_unless_it_is_to_be_quiet() {
    own_process!();
    in_lab(|lab| {
        lab.veth();
        let file = write(&capture(&frames(40), 0));
        let path = file.path().to_str().expect("a path");
        // Two seconds: long enough for a bar to be drawn.
        let replay = ["replay", "-i", HERE, "--pps", "20", path];
        let content = write(&vec![7; 3_000_001]);
        let content = content.path().to_str().expect("a path");
        for quiet in [&[][..], &["--quiet"]] {
            let shown = shows(&[&replay, quiet].concat(), 120);
            assert_eq!(shown.contains(" of 40 frames, "), quiet.is_empty(), "{shown}");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let to = listener.local_addr().expect("an address").to_string();
            let receiver = received(listener);
            let shown = shows(&[&["send", "--to", &to, content], quiet].concat(), 120);
            assert_eq!(shown.contains(" of 3.00 MB, "), quiet.is_empty(), "{shown}");
            assert_eq!(receiver.join().expect("received"), 3_000_001);
        }
    });
}

/// The lines on the terminal, without what moves its cursor, and without the bar, which begins
/// where the terminal wraps.
fn lines(shown: &str) -> Vec<String> {
    let mut parts = shown.split("\x1b[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    text.extend(
        parts.map(|part| part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("")),
    );
    let is_end = |c: char| matches!(c, '\r' | '\n' | '\u{2580}'..='\u{259f}');
    text.split(is_end).map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn what_is_said_above_the_bar_fits_the_terminal() {
    own_process!();
    let content = write(&vec![7; 300_000]);
    let content = content.path().to_str().expect("a path");
    for columns in [80, 50] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address").to_string();
        let receiver = received(listener);
        let lines = lines(&shows(&["send", "--to", &to, content], columns));
        assert_eq!(receiver.join().expect("received"), 300_000);
        assert!(lines.iter().any(|line| line.contains(&format!("to {to}: "))), "{lines:#?}");
        let wide: Vec<_> = lines.iter().filter(|l| l.chars().count() > columns.into()).collect();
        assert!(wide.is_empty(), "wider than {columns}: {wide:#?}");
    }
}

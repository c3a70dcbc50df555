//! Statistics on a standard output that is slow, or that nobody reads any more.

use std::io::{PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::pipe::{PIPE_BYTES, fill, small_pipe};
use crate::support::vsock::Guest;
use crate::support::{Program, Restrict, wait_until};

/// VMs of the program: their statistics are longer than what a pipe takes at once.
const VMS: u64 = 8;

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

/// A program with several VMs whose standard output is `out`.
fn start(dir: &Path, out: &PipeWriter) -> Program {
    let mut args = vec!["--json".to_owned()];
    for vm in 0..VMS {
        let (socket, uds) = (path(dir, &format!("s{vm}")), path(dir, &format!("u{vm}")));
        let cid = 3 + vm;
        args.push("--vm".to_owned());
        args.push(format!("name=vm{vm},cid={cid},socket={},uds={}", socket.display(), uds.display()));
    }
    let program = Program::vsock(&args, Restrict { stdout: Some(out.as_raw_fd()), ..Restrict::default() });
    program.wait_log(&format!("vm{}: listening", VMS - 1));
    program
}

/// A guest and a program of the host exchange bytes over a new connection.
fn exchange(dir: &Path, port: u32) {
    let mut guest = Guest::start(&path(dir, "s0"));
    let (conn, mut stream) = guest.open(&path(dir, "u0"), port);
    guest.ping(conn, &mut stream);
}

#[test]
fn a_full_pipe_holds_up_neither_serving_nor_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    // Kept to the end: a pipe without a reader is an error, and not full.
    let (_reader, mut writer) = small_pipe();
    assert!(fill(&mut writer) >= PIPE_BYTES, "the pipe was empty");
    let mut program = start(dir.path(), &writer);
    program.signal(libc::SIGUSR1);
    exchange(dir.path(), 5000);
    // Those that wait are bounded: further ones are lost, and the log says so.
    wait_until("statistics are lost", || {
        program.signal(libc::SIGUSR1);
        program.log().contains("these statistics are lost: standard output takes nothing")
    });
    exchange(dir.path(), 5001);
    program.signal(libc::SIGTERM);
    // The wait has an end; a program that waits for the pipe has none.
    assert_eq!(program.wait().code(), Some(1), "the last statistics are lost, too\n{}", program.log());
    assert!(program.log().contains("the last statistics are lost"), "{}", program.log());
    assert!(!path(dir.path(), "s0").exists(), "all the same it is a clean end");
}

#[test]
fn a_slow_reader_gets_whole_lines() {
    const LINES: usize = 4;
    let dir = tempfile::tempdir().expect("a directory");
    let (mut reader, mut writer) = small_pipe();
    let filling = fill(&mut writer);
    let program = start(dir.path(), &writer);
    drop(writer);
    let lines = AtomicUsize::new(0);
    let text = std::thread::scope(|scope| {
        let lines = &lines;
        let slow = scope.spawn(move || {
            let (mut text, mut part) = (Vec::new(), [0; 2000]);
            loop {
                match reader.read(&mut part).expect("a pipe") {
                    0 => return text,
                    count => text.extend_from_slice(&part[..count]),
                }
                lines.store(text.iter().filter(|byte| **byte == b'\n').count(), Ordering::Release);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for line in 1..=LINES {
            program.signal(libc::SIGUSR1);
            wait_until("a line", || lines.load(Ordering::Acquire) >= line);
        }
        // The end prints one more; `stop` finds a clean end only where that is taken, too.
        program.stop();
        slow.join().expect("the reader")
    });
    let text = String::from_utf8(text[filling..].to_vec()).expect("text");
    assert!(text.ends_with('\n'), "the last line is whole");
    assert_eq!(text.lines().count(), LINES + 1);
    for line in text.lines() {
        assert!(line.len() > PIPE_BYTES, "no line fits the pipe: {} bytes", line.len());
        let stats: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(stats["vms"].as_array().map(Vec::len), Some(VMS as usize));
    }
}

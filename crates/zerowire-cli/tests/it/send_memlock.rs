//! `zerowire send` as an ordinary user with the locked memory that most users have: the buffers of
//! standard input are registered with io_uring. Needs root, to become one.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::send::{json, pattern};
use zerowire_testkit::process::limit;

/// Nobody else is this user, or one of the next, whose locked memory is counted. Each run has one
/// of its own: the kernel takes what a program had locked off the count some time after its end.
static UID: AtomicU32 = AtomicU32::new(54_341);
/// Number of the program's file in the child, which may not see the folder it lies in.
const PROGRAM_FD: i32 = 77;

/// What `zerowire send` with `args` says of its path, and what it writes to standard error.
fn run(args: &[&str], memlock: u64) -> (String, String) {
    let uid = UID.fetch_add(1, Ordering::Relaxed);
    let program = File::open(env!("CARGO_BIN_EXE_zerowire")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{PROGRAM_FD}"));
    command.args(["send", "--json", "-", "--to", &listener.local_addr().unwrap().to_string()]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir("/").env_remove("ZEROWIRE_LOG").uid(uid).gid(uid);
    let fd = program.as_raw_fd();
    let restrict = move || {
        limit(libc::RLIMIT_MEMLOCK, memlock, memlock)?;
        // SAFETY: takes numbers only; the copy of the descriptor has no close-on-exec flag.
        if unsafe { libc::dup2(fd, PROGRAM_FD) } < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: it makes system calls only.
    unsafe { command.pre_exec(restrict) };
    let mut child = command.spawn().expect("the program starts");
    let content = pattern(3_000_000);
    let mut input = child.stdin.take().unwrap();
    let expected = content.clone();
    let receiver = std::thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert!(got == expected, "other bytes arrived");
    });
    input.write_all(&content).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    receiver.join().unwrap();
    let result = json(&output);
    assert!(output.status.success(), "{result}");
    (result["path"].as_str().unwrap().to_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_buffers_of_standard_input_are_registered_with_the_usual_limit() {
    // SAFETY: getuid takes nothing and changes nothing.
    assert_eq!(unsafe { libc::getuid() }, 0, "this test becomes an ordinary user: run it as root");
    for mode in ["auto", "zerocopy"] {
        let (path, log) = run(&["--mode", mode], 8 << 20);
        assert!(path.contains(&format!("{} bytes registered", 7 << 20)), "{path}");
        assert!(path.contains("(areas are registered)"), "{path}");
        assert!(!log.contains("RLIMIT_MEMLOCK"), "no warning: {log}");
    }
    // Longer buffers are not, and it is said.
    let (path, log) = run(&["--chunk", "1048576"], 8 << 20);
    assert!(path.contains("an area is not registered") && !path.contains("are registered)"), "{path}");
    assert!(log.contains("RLIMIT_MEMLOCK, which is 8388608 bytes"), "{log}");
}

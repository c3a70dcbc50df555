//! Tests as an ordinary user with a limit of locked memory.
//!
//! The limit and the user are those of a whole process, so each case runs in a process of its own: the test program, started
//! again for one test that is ignored otherwise.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::process::Command;

const CHILD: &str = "ZEROWIRE_TEST_ORDINARY_CHILD";

/// Runs the ignored test `case` of this program in a process of its own.
pub fn in_a_child(case: &str) {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", case, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

/// Lowers RLIMIT_MEMLOCK to `locked_bytes`, and gives root up for a user that nobody else is.
pub fn become_ordinary(uid: u32, locked_bytes: u64) {
    assert!(std::env::var_os(CHILD).is_some(), "started by `in_a_child` only");
    // SAFETY: getuid takes nothing and changes nothing.
    assert_eq!(unsafe { libc::getuid() }, 0, "this test becomes an ordinary user: run it as root");
    let limit = libc::rlimit { rlim_cur: locked_bytes, rlim_max: locked_bytes };
    // SAFETY: the limit is valid for reads; the other calls take numbers. glibc changes all threads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::setresgid(uid, uid, uid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
    }
}

//! Where io_uring is refused: plain receiving, with the reason told; never a hang and never a silent change.

mod confine;
mod streams;

use std::process::Command;
use streams::{Reader, receiver, tcp_pair, write_stream};
use zerowire::recv::{Backend, Options, Receiver, RecvError};

const CHILD: &str = "ZEROWIRE_TEST_RECV_CHILD";

fn receive_something(mut r: Receiver) {
    let (mut a, b) = tcp_pair();
    let mut reader = Reader::default();
    reader.expect(r.add(b.into()).unwrap(), 1);
    let writer = std::thread::spawn(move || write_stream(&mut a, 1, 1 << 20, 50_000));
    reader.until(&mut r, Reader::all_ended);
    writer.join().unwrap();
    assert_eq!(reader.bytes(), 1 << 20);
}

#[test]
fn a_filter_that_refuses_io_uring() {
    for (errno, word) in [(libc::EPERM, "EPERM"), (libc::ENOSYS, "ENOSYS")] {
        std::thread::spawn(move || {
            confine::refuse(libc::SYS_io_uring_setup, errno);
            let r = Receiver::new(Options::default()).unwrap();
            let path = r.path();
            assert!(path.starts_with("plain") && path.contains(word), "{path}");
            receive_something(r);
            let e = Receiver::new(Options { backend: Backend::Multishot, ..Options::default() }).unwrap_err();
            assert!(matches!(e, RecvError::Uring(_)) && e.to_string().contains(word), "{e}");
        })
        .join()
        .unwrap();
    }
    // Other threads are as before.
    receive_something(receiver(Backend::Multishot, |_| {}));
}

#[test]
fn what_is_not_there_says_so() {
    let half = Options { backend: Backend::TcpMapped, buffer_bytes: 2048, ..Options::default() };
    let e = Receiver::new(half).unwrap_err();
    assert!(matches!(e, RecvError::NotPages { bytes: 2048, .. }) && e.errno() == Some(libc::EINVAL), "{e}");
    let r = Receiver::new(Options::default()).unwrap();
    assert!(!r.path().contains('\n') && !r.path().is_empty());
}

fn in_a_child(case: &str) {
    // SAFETY: getuid takes nothing and changes nothing.
    assert_eq!(unsafe { libc::getuid() }, 0, "this test becomes an ordinary user: run it as root");
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", case, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

/// Lowers the limit, and gives root up for a user that nobody else is.
fn become_ordinary(uid: u32, locked_bytes: u64) {
    assert!(std::env::var_os(CHILD).is_some(), "started by the tests of this file only");
    let limit = libc::rlimit { rlim_cur: locked_bytes, rlim_max: locked_bytes };
    // SAFETY: the limit is valid for reads; the other calls take numbers. glibc changes all threads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::setresgid(uid, uid, uid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
    }
}

#[test]
fn an_ordinary_user_with_the_usual_limit() {
    in_a_child("child_usual");
}

/// The area is not locked, so that the usual 8 MiB are enough for any area.
#[test]
#[ignore = "run by an_ordinary_user_with_the_usual_limit"]
fn child_usual() {
    become_ordinary(54_331, 8 << 20);
    receive_something(receiver(Backend::Multishot, |o| o.buffers = 4096));
}

#[test]
fn an_ordinary_user_with_little() {
    in_a_child("child_little");
}

/// A ring of the usual length is more than the limit: a shorter one is made.
#[test]
#[ignore = "run by an_ordinary_user_with_little"]
fn child_little() {
    become_ordinary(54_332, 40 << 10);
    receive_something(receiver(Backend::Multishot, |_| {}));
}

#[test]
fn an_ordinary_user_with_nothing() {
    in_a_child("child_nothing");
}

#[test]
#[ignore = "run by an_ordinary_user_with_nothing"]
fn child_nothing() {
    become_ordinary(54_333, 0);
    let r = Receiver::new(Options::default()).unwrap();
    let path = r.path();
    assert!(path.starts_with("plain") && path.contains("RLIMIT_MEMLOCK, which is 0 bytes"), "{path}");
    receive_something(r);
    let e = Receiver::new(Options { backend: Backend::Multishot, ..Options::default() }).unwrap_err();
    assert!(matches!(e, RecvError::Memlock { .. }), "{e}");
}

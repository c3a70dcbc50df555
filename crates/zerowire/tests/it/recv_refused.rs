//! Where io_uring is refused: plain receiving, with the reason told; never a hang and never a
//! silent change.

use crate::support::streams::{Reader, receiver, tcp_pair, write_stream};
use zerowire::recv::{Receiver, RecvBackend, RecvError, RecvOptions};
use zerowire_testkit::own_process;
use zerowire_testkit::process::become_ordinary;
use zerowire_testkit::refuse::refuse;

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
    for (errno, word, told) in
        [(libc::EPERM, "EPERM", libc::EPERM), (libc::ENOSYS, "ENOSYS", libc::EOPNOTSUPP)]
    {
        std::thread::spawn(move || {
            refuse(libc::SYS_io_uring_setup, errno);
            let r = Receiver::new(RecvOptions::default()).unwrap();
            let path = r.path();
            assert!(path.starts_with("plain") && path.contains(word), "{path}");
            receive_something(r);
            let e = Receiver::new(RecvOptions::default().backend(RecvBackend::Multishot)).unwrap_err();
            assert!(matches!(e, RecvError::Uring(_)) && e.to_string().contains(word), "{e}");
            assert_eq!(e.errno(), Some(told));
        })
        .join()
        .unwrap();
    }
    // Other threads are as before.
    receive_something(receiver(RecvBackend::Multishot, |_| {}));
}

#[test]
fn a_path_is_one_line() {
    let r = Receiver::new(RecvOptions::default()).unwrap();
    assert!(!r.path().contains('\n') && !r.path().is_empty());
}

/// The area is not locked, so that the usual 8 MiB are enough for any area.
#[test]
fn an_ordinary_user_with_the_usual_limit() {
    own_process!();
    become_ordinary(54_331, 8 << 20);
    receive_something(receiver(RecvBackend::Multishot, |o| o.buffers = 4096));
}

/// A ring of the usual length is more than the limit: a shorter one is made.
#[test]
fn an_ordinary_user_with_little() {
    own_process!();
    become_ordinary(54_332, 40 << 10);
    receive_something(receiver(RecvBackend::Multishot, |_| {}));
}

#[test]
fn an_ordinary_user_with_nothing() {
    own_process!();
    become_ordinary(54_333, 0);
    let r = Receiver::new(RecvOptions::default()).unwrap();
    let path = r.path();
    assert!(path.starts_with("plain") && path.contains("RLIMIT_MEMLOCK, which is 0 bytes"), "{path}");
    receive_something(r);
    let e = Receiver::new(RecvOptions::default().backend(RecvBackend::Multishot)).unwrap_err();
    assert!(matches!(e, RecvError::Memlock { .. }), "{e}");
}

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

fn inlet() -> Inlet {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    Inlet::new(pair.expect("a pair").0)
}

#[test]
fn what_a_program_has_ended_only_grows() {
    let mut inlet = inlet();
    inlet.heard(F::IN);
    assert!(inlet.readable && !inlet.has_closed());
    inlet.is_read();
    assert!(!inlet.readable);
    inlet.heard(F::RDHUP);
    inlet.is_read();
    assert!(inlet.readable && !inlet.has_closed(), "the end is read, too");
    inlet.heard(F::HUP);
    assert!(inlet.has_closed());
    inlet.heard(F::RDHUP);
    assert!(inlet.has_closed());
}

#[test]
fn unread_bytes_are_told_of_once() {
    let mut inlet = inlet();
    let (reset, other) = (io::ErrorKind::ConnectionReset.into(), io::ErrorKind::BrokenPipe.into());
    assert!(!inlet.closes_unread(&other));
    inlet.heard(F::HUP);
    assert!(inlet.closes_unread(&reset) && inlet.has_closed());
    inlet.heard(F::HUP);
    assert!(!inlet.closes_unread(&reset), "another one is a failure");
}

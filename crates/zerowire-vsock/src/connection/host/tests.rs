use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

fn end() -> (Box<HostEnd>, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("a pair");
    (HostEnd::new(ours, SocketCredit::new(1 << 20, 1)), theirs)
}

#[test]
fn nothing_goes_ahead_of_what_waits() {
    let (mut end, _theirs) = end();
    assert!(end.out.surely_takes(1) && end.out.is_free() && !end.out.may_go_on());
    end.out.held = Some(Box::default());
    assert!(!end.out.surely_takes(1), "not ahead of what waits");
    assert!(!end.out.is_free() && end.out.may_go_on());
    end.out.wrote(false);
    assert!(!end.out.may_go_on());
    end.out.heard(F::OUT);
    assert!(end.out.may_go_on());
}

#[test]
fn news_of_room_are_asked_for_while_something_waits_for_it() {
    let (mut end, _theirs) = end();
    assert_eq!(end.out.new_interest(), None);
    end.out.held = Some(Box::default());
    assert_eq!(end.out.new_interest(), None, "it goes on by itself");
    end.out.wrote(false);
    assert_eq!(end.out.new_interest(), Some(Interest::InOut));
    assert_eq!(end.out.new_interest(), None);
    end.out.heard(F::OUT);
    assert_eq!(end.out.new_interest(), Some(Interest::In));
}

#[test]
fn a_program_hears_the_end_once_and_nothing_is_written_behind_it() {
    let (mut end, theirs) = end();
    end.end_writing();
    end.end_writing();
    end.out.heard(F::OUT);
    assert_eq!(end.out.writing, Writing::Shut);
    assert_eq!(rustix::io::read(&theirs, &mut [0; 4][..]), Ok(0));
}

//! What system calls cost is measured when a sender or receiver is made, and not in its first call.
//! It is measured once in a process, so each case has one of its own.

mod confine;
mod ordinary;
mod sockets;
mod streams;

use ordinary::in_a_child;
use zerowire::recv::Backend;
use zerowire::send::Options;
use zerowire::syscall::measured;

/// Without a pair of unix sockets nothing can be measured any more.
fn is_measured() -> bool {
    confine::refuse(libc::SYS_socketpair, libc::EPERM);
    measured().plain_ns > 0
}

#[test]
fn a_sender_is_made_with_it() {
    in_a_child("child_sender");
}

#[test]
#[ignore = "run by a_sender_is_made_with_it"]
fn child_sender() {
    let (a, _b) = sockets::tcp_pair();
    let _sender = sockets::sender(a, Options::default());
    assert!(is_measured());
}

#[test]
fn a_receiver_is_made_with_it() {
    in_a_child("child_plain");
    in_a_child("child_multishot");
}

#[test]
#[ignore = "run by a_receiver_is_made_with_it"]
fn child_plain() {
    let _receiver = streams::receiver(Backend::Plain, |_| {});
    assert!(is_measured());
}

#[test]
#[ignore = "run by a_receiver_is_made_with_it"]
fn child_multishot() {
    let _receiver = streams::receiver(Backend::Multishot, |_| {});
    assert!(is_measured());
}

#[test]
#[ignore = "run by the_filter_keeps_it_from_being_measured"]
fn child_nothing() {
    assert!(!is_measured(), "the filter lets it be measured");
}

#[test]
fn the_filter_keeps_it_from_being_measured() {
    in_a_child("child_nothing");
}

//! A connection's end at a host program: a unix socket both ways.

use std::os::fd::OwnedFd;

use rustix::net::Shutdown;

use super::Inlet;
use crate::vsock::credit::{CreditReview, FromGuest, SocketCredit, Why};
use crate::vsock::held::Held;
use crate::vsock::socket;

/// A unix socket.
#[derive(Debug)]
pub struct HostEnd {
    /// From the program.
    pub inlet: Inlet,
    /// To the program.
    pub out: SocketOut,
}

/// How far writing to a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// There may be room.
    Ready,
    /// There is none.
    Full,
    /// No more is written.
    Shut,
}

/// What epoll is asked for. Asked for all the time, news of room would wake the thread with each
/// read of the host program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// News of what is to be read.
    In,
    /// News of room, too.
    InOut,
}

/// The writing side of a host program's socket, which its inlet owns.
#[derive(Debug)]
pub struct SocketOut {
    /// How far it has come.
    pub writing: Writing,
    interest: Interest,
    /// The socket's room, as credit for the guest.
    pub credit: SocketCredit,
    /// What the socket had no room for.
    pub held: Option<Box<Held>>,
}

impl SocketOut {
    /// Whether the socket takes bytes, and nothing waits that goes before them.
    pub fn is_free(&self) -> bool {
        self.held.is_none() && self.writing == Writing::Ready
    }

    /// Whether what waits can go on.
    pub fn may_go_on(&self) -> bool {
        self.held.is_some() && self.writing == Writing::Ready
    }

    /// Whether the socket takes `n` bytes by one call for sure, and the guest has credit for them as soon as it has.
    pub fn surely_takes(&self, n: u32) -> bool {
        self.is_free() && self.credit.surely_takes(n)
    }

    /// epoll tells of room, or that the socket has failed, which the next write finds out.
    pub fn has_room(&mut self) {
        if self.writing == Writing::Full {
            self.writing = Writing::Ready;
        }
    }

    /// A write took all that it was offered, or not.
    pub fn wrote(&mut self, all: bool) {
        self.writing = if all { Writing::Ready } else { Writing::Full };
    }

    /// What waits is lost. Returns for how many bytes the guest has yet to get credit.
    pub fn drop_held(&mut self) -> u32 {
        self.held.take().map_or(0, |held| self.credit.lost(held.len() as u32))
    }

    /// What epoll is to be asked for now, if that is something else than before.
    pub fn new_interest(&mut self) -> Option<Interest> {
        let waits = (self.held.is_some() && self.writing != Writing::Ready) || self.credit.waits();
        let wanted = if waits { Interest::InOut } else { Interest::In };
        (std::mem::replace(&mut self.interest, wanted) != wanted).then_some(wanted)
    }
}

impl HostEnd {
    /// A new socket's end.
    pub fn new(socket: OwnedFd, credit: SocketCredit) -> Box<Self> {
        let out = SocketOut { writing: Writing::Ready, interest: Interest::In, credit, held: None };
        Box::new(Self { inlet: Inlet::new(socket), out })
    }

    /// Gives the guest credit for what the program has read.
    pub(super) fn review(&mut self, from: &mut FromGuest, why: Why) -> CreditReview {
        self.out.credit.review(from, why, || socket::unread(&self.inlet.socket))
    }

    /// The program hears, once, that no more comes.
    pub(super) fn end_writing(&mut self) {
        if std::mem::replace(&mut self.out.writing, Writing::Shut) != Writing::Shut {
            let _ = rustix::net::shutdown(&self.inlet.socket, Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests {
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
        end.out.has_room();
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
        end.out.has_room();
        assert_eq!(end.out.new_interest(), Some(Interest::In));
    }

    #[test]
    fn a_program_hears_the_end_once_and_nothing_is_written_behind_it() {
        let (mut end, theirs) = end();
        end.end_writing();
        end.end_writing();
        end.out.has_room();
        assert_eq!(end.out.writing, Writing::Shut);
        assert_eq!(rustix::io::read(&theirs, &mut [0; 4][..]), Ok(0));
    }
}

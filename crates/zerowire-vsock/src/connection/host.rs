//! A connection's end at a host program: a unix socket both ways.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags as F;
use rustix::net::Shutdown;
use zerowire::ledger::{CopyReason, Counters};
use zerowire_vhost::memory::{GuestMemory, IoList, Segment};

use super::Inlet;
use crate::credit::{CreditReview, FromGuest, SocketCredit, Why};
use crate::held::{self, Held};
use crate::packet::Kind;
use crate::socket::{self, MAX_IOV};

/// Bytes of those that wait which a system call takes: as many pieces as its list may name, the
/// first of which may be cut.
const MOST_AT_ONCE: usize = (MAX_IOV - 1) * held::PIECE;

/// A part of a stream, or of a message, that leaves by one call.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Where it lies.
    pub parts: &'a [Segment],
    /// Its length.
    pub bytes: usize,
    /// The packets that it came in.
    pub packets: u64,
    /// The flags of the last packet of a message, if it ends here.
    pub end: Option<u32>,
}

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
enum Writing {
    /// There may be room.
    Ready,
    /// There is none.
    Full,
    /// No more is written.
    Shut,
}

/// What epoll reports. If it reported room all the time, each read of the host program would wake
/// the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// That there is something to read.
    In,
    /// Room, too.
    InOut,
}

/// The writing side of a host program's socket, which its inlet owns.
#[derive(Debug)]
pub struct SocketOut {
    /// How far it has come.
    writing: Writing,
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
    fn may_go_on(&self) -> bool {
        self.held.is_some() && self.writing == Writing::Ready
    }

    /// Whether the socket takes `n` bytes by one call for sure, and the guest has credit for them
    /// as soon as it has.
    pub fn surely_takes(&self, n: u32) -> bool {
        self.is_free() && self.credit.surely_takes(n)
    }

    /// epoll tells of room, or that the socket has failed, which the next write finds out. Returns
    /// whether what waits can go on, and whether the guest has waited for credit that it gets now.
    pub(super) fn heard(&mut self, flags: F) -> (bool, bool) {
        if self.writing == Writing::Full && flags.intersects(F::OUT | F::HUP | F::ERR) {
            self.writing = Writing::Ready;
        }
        (self.may_go_on(), flags.contains(F::OUT) && self.credit.waits)
    }

    /// A write took all that it was offered, or not.
    fn wrote(&mut self, all: bool) {
        self.writing = if all { Writing::Ready } else { Writing::Full };
    }

    /// What waits is lost. Returns for how many bytes the guest has yet to get credit.
    pub fn drop_held(&mut self) -> u32 {
        self.held.take().map_or(0, |held| self.credit.lost(held.len() as u32))
    }

    /// What epoll should report now, if that differs from before.
    pub fn new_interest(&mut self) -> Option<Interest> {
        let waits = (self.held.is_some() && self.writing != Writing::Ready) || self.credit.waits;
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

    /// Sends a part of a stream, or of a message, which lies in `memory`. Returns whether something
    /// waits then, which the socket may take by another call. `list` is for the call alone.
    pub fn send(
        &mut self,
        kind: Kind,
        piece: &Piece<'_>,
        memory: &GuestMemory,
        list: &mut Vec<libc::iovec>,
        counters: &Counters,
    ) -> io::Result<bool> {
        counters.frames.add(piece.packets);
        // A message goes whole or not at all.
        let direct = self.out.is_free() && piece.parts.len() <= MAX_IOV;
        let whole = kind == Kind::Stream || piece.end.is_some();
        let (mut sent, mut taken) = (0, false);
        if direct && whole {
            let mut list = IoList::new(list);
            piece.parts.iter().for_each(|part| list.add(memory, part));
            counters.system_calls.add(1);
            match socket::send(&self.inlet.socket, &list) {
                Ok(n) => (sent, taken) = (n, n == piece.bytes),
                Err(e) if socket::would_block(&e) => {}
                Err(e) => return Err(e),
            }
            self.out.wrote(taken);
        }
        counters.zero_copied_bytes.add(sent as u64);
        self.out.credit.took(sent);
        if taken {
            counters.zero_copied_frames.add(piece.packets);
            return Ok(false);
        }
        let rest = piece.bytes - sent;
        let held = Held::at(&mut self.out.held);
        // The last part of a message waited for nobody but itself.
        let whole = whole && !held.has_partial();
        held.push(piece.parts, sent, rest);
        if kind == Kind::SeqPacket {
            held.mark(rest as u32, piece.end);
        }
        let reason = if whole { CopyReason::Held } else { CopyReason::Message };
        counters.copied(reason, rest as u64);
        Ok(true)
    }

    /// Sends what waits for the program, as far as its socket takes it. `list` is for the calls
    /// alone.
    pub fn flush(&mut self, kind: Kind, list: &mut Vec<libc::iovec>, counters: &Counters) -> io::Result<()> {
        let (socket, out) = (&self.inlet.socket, &mut self.out);
        let Some(held) = &mut out.held else { return Ok(()) };
        let (mut took, mut failed) = (0, None);
        while out.writing == Writing::Ready && !held.is_empty() {
            let n = match kind {
                Kind::Stream => held.len(),
                Kind::SeqPacket => match held.message() {
                    Some((n, _)) => n as usize,
                    None => break,
                },
            };
            counters.system_calls.add(1);
            let offered = n.min(MOST_AT_ONCE);
            let outcome = match kind {
                // One call takes a message, however long, or it is none.
                Kind::SeqPacket if offered < n => {
                    let whole = held.runs(0, n).collect::<Vec<_>>().concat();
                    socket::send_bytes(socket, &whole)
                }
                _ => socket::send_runs(socket, held.runs(0, offered), list),
            };
            match outcome {
                Ok(sent) => {
                    held.consume(sent);
                    took += sent;
                    out.writing = if sent >= offered { Writing::Ready } else { Writing::Full };
                }
                Err(e) if socket::would_block(&e) => out.writing = Writing::Full,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        Held::settle(&mut out.held);
        out.credit.took(took);
        failed.map_or(Ok(()), Err)
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
mod tests;

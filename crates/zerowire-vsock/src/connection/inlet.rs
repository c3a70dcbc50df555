//! From a host program to the guest: a unix socket, and how far it has come.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags as F;

use crate::forecast::MessageForecast;

/// What the host program has ended. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    /// Nothing.
    Open,
    /// Its sending, or more.
    SendsNoMore,
    /// It has closed.
    Closed,
    /// It has closed while something that was sent to it was unread.
    ClosedUnread,
}

/// The reading side of a host program's socket.
#[derive(Debug)]
pub struct Inlet {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// True: there may be something to read.
    pub readable: bool,
    peer: Peer,
    /// How long its next message will be.
    pub forecast: MessageForecast,
}

impl Inlet {
    /// Of a new socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, readable: false, peer: Peer::Open, forecast: MessageForecast::default() }
    }

    /// epoll tells of the socket.
    pub fn heard(&mut self, flags: F) {
        self.readable |= flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR);
        if flags.contains(F::HUP) {
            self.peer = self.peer.max(Peer::Closed);
        } else if flags.contains(F::RDHUP) {
            self.peer = self.peer.max(Peer::SendsNoMore);
        }
    }

    /// Nothing is left to read, but for the news of its end.
    pub fn is_read(&mut self) {
        self.readable = self.peer != Peer::Open;
    }

    /// Whether the program has closed.
    pub fn has_closed(&self) -> bool {
        self.peer >= Peer::Closed
    }

    /// Whether `e` is the news that the program closed with something unread. It comes once, before
    /// messages that still wait (net/core/datagram.c, `__skb_try_recv_datagram`), at whichever call
    /// is next: they are read on.
    pub fn closes_unread(&mut self, e: &io::Error) -> bool {
        let is_news = e.kind() == io::ErrorKind::ConnectionReset && self.peer != Peer::ClosedUnread;
        if is_news {
            self.peer = Peer::ClosedUnread;
        }
        is_news
    }
}

#[cfg(test)]
mod tests;

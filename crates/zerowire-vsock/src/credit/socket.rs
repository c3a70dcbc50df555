//! The room of a host program's socket, as credit for the guest that sends to it.
//!
//! A guest gets credit for bytes that the program has read. It gets credit for as many more as the
//! socket keeps beside a buffer full of them. So the socket always has room for what comes. Nothing
//! is copied to wait for a program that is merely slower than the guest. The kernel tells how much
//! is unread when asked, and of its own accord when most of it was read.
//!
//! Plain counts: no descriptor in here, and no system call.

use super::{CreditReview, FromGuest, Why};
use crate::socket;

/// Bytes that a connection's socket keeps unread at least, as far as the system lets it: about what
/// unix sockets keep unasked. With less, guest and program would wait for each other with each
/// bufferful.
pub const SOCKET_BYTES: usize = 192 * 1024;

/// What one socket took of a guest's bytes, and for which of them the guest has credit again.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketCredit {
    /// Bytes that the socket keeps unread at most, the kernel's own needs included.
    room: usize,
    /// Bytes of the socket for which the guest has credit again, read or not.
    ahead: u32,
    /// Bytes that the socket took and that the program may not have read.
    in_socket: u32,
    /// What the kernel has of the socket's room for them at most.
    kernel_needs: u32,
    /// Those of them for which the guest has no credit again.
    pub uncredited: u32,
    /// Bytes for which the guest has credit again, and that the socket has yet to take.
    promised: u32,
    /// True: the guest waits for credit, or may. The kernel reports room.
    pub waits: bool,
}

impl SocketCredit {
    /// Of a socket that keeps `room` bytes, for a guest that was given a buffer of `buffer` bytes.
    pub fn new(room: usize, buffer: usize) -> Self {
        // Half of the room is the kernel's own need.
        let ahead = (room / 2).min(SOCKET_BYTES).saturating_sub(buffer) as u32;
        Self { room, ahead, ..Self::default() }
    }

    /// The socket took `n` bytes.
    pub fn took(&mut self, n: usize) {
        self.in_socket = self.in_socket.saturating_add(n as u32);
        self.kernel_needs = self.kernel_needs.saturating_add(kernel_needs(n as u32));
        self.uncredited += self.lost(n as u32);
    }

    /// Whether the socket, if nothing waits for it, surely takes `n` bytes by one call. The guest
    /// then has credit for them as soon as the socket has them.
    pub fn surely_takes(&self, n: u32) -> bool {
        let room = self.kernel_needs.saturating_add(kernel_needs(n)) as usize <= self.room;
        room && self.in_socket.saturating_add(n) <= self.ahead
    }

    /// The guest gets credit for `n` bytes before the socket has them.
    pub fn promise(&mut self, n: u32) {
        self.promised += n;
    }

    /// `n` bytes of the guest leave for the socket, or nowhere. Returns for how many of them it has
    /// yet to get credit.
    pub fn lost(&mut self, n: u32) -> u32 {
        let promised = self.promised.min(n);
        self.promised -= promised;
        n - promised
    }

    /// The kernel says that the socket is writable. Returns for how many bytes the guest has credit
    /// again with that.
    pub fn writable(&mut self) -> u32 {
        self.waits = false;
        self.drained(self.room / 4)
    }

    /// Gives the guest credit for what the program has read. `unread` asks the kernel for the bytes
    /// that it keeps, its own needs included; this is called only where that makes a difference.
    pub fn review(
        &mut self,
        incoming: &mut FromGuest,
        why: Why,
        unread: impl FnOnce() -> usize,
    ) -> CreditReview {
        incoming.forward(self.leaves(self.in_socket));
        if self.uncredited > 0 && (why != Why::Routine || incoming.lacks(self.uncredited)) {
            let more = if why == Why::PartWaits { self.leaves_all() } else { self.measured(unread()) };
            incoming.forward(more);
            let wanted = incoming.lacks(self.uncredited) || (why != Why::Routine && self.uncredited > 0);
            self.waits = !incoming.is_news() && wanted;
        }
        incoming.reviewed(why, incoming.is_news(), self.uncredited > 0 && !self.waits)
    }

    /// At most `unread` bytes are left of those that were taken. Returns for how many bytes the
    /// guest has credit again with that.
    fn leaves(&mut self, unread: u32) -> u32 {
        self.in_socket = unread;
        let left = self.uncredited.min(unread.saturating_sub(self.ahead));
        std::mem::replace(&mut self.uncredited, left) - left
    }

    /// As [`Self::leaves`], where the kernel keeps `unread` bytes.
    fn measured(&mut self, unread: usize) -> u32 {
        self.kernel_needs = unread as u32;
        if socket::is_writable(unread, self.room) {
            return self.drained(unread);
        }
        self.leaves(self.in_socket.min(unread as u32))
    }

    /// The kernel calls the socket writable, with at most `unread` bytes unread, and reports no
    /// later reads: the guest has credit again for all.
    fn drained(&mut self, unread: usize) -> u32 {
        self.in_socket = self.in_socket.min(unread as u32);
        self.kernel_needs = self.kernel_needs.min(unread as u32);
        self.leaves_all()
    }

    /// The guest has credit again for all that was taken, read or not.
    fn leaves_all(&mut self) -> u32 {
        std::mem::take(&mut self.uncredited)
    }
}

/// What the kernel takes of a socket's room for `n` bytes of one call at most. A piece is up to 48
/// KiB long. It is kept in blocks whose length is a power of 2, with some hundred bytes of its own
/// (net/unix/af_unix.c, `unix_stream_sendmsg`; `truesize` of a sk_buff).
fn kernel_needs(n: u32) -> u32 {
    n.saturating_mul(2).saturating_add((1 + n / (32 << 10)) << 11)
}

#[cfg(test)]
mod tests;

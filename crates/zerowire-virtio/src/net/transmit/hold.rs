//! A port that can be full: its frames stay in the guest's ring, and nothing is lost or overtaken.
//!
//! A packet socket takes frames until what it has in the kernel exceeds a bound, and says EAGAIN
//! then. In a batch of many a frame could be refused and the next one taken, when the interface
//! finishes with one in between. So room is known before a batch begins, from a question that is
//! asked again only when the room it told of has been used up; and where there is little left,
//! frames go one by one, up to the first that is refused.

use zerowire::ledger::{Counters, DropReason};

use super::Transmit;
use crate::io::PortIo;
use crate::net::MAX_FRAME_BYTES;

/// With less room than this frames go one by one; more than the longest frame costs.
const PRESSED_BYTES: usize = 256 << 10;

/// What a frame of `len` bytes costs at most of the room in a socket: its buffer is rounded up to a
/// power of two, and has structures of the kernel beside it.
pub(super) const fn cost(len: usize) -> usize {
    2 * len + 2048
}

impl Transmit {
    /// From now on a frame that the port has no room for (EAGAIN) is not dropped: it stays in the
    /// ring, with all behind it, for another turn.
    pub fn hold_when_full(&mut self) {
        self.holds = true;
    }

    /// Asks how much room there is, where too little is known to be there.
    #[inline]
    pub(super) fn look_for_room(&mut self, io: &PortIo) {
        if self.holds && self.room < PRESSED_BYTES {
            self.room = io.send_room().unwrap_or(usize::MAX);
            self.pressed = self.room < PRESSED_BYTES;
        }
    }

    /// Whether the batch ends here: the frame before was refused, or the next one may be.
    #[inline]
    pub(super) fn may_be_full(&self, io: &PortIo) -> bool {
        match self.pressed {
            true => io.last_result() == Some(-libc::EAGAIN),
            // It may be as long as any.
            false => self.room < cost(self.header_len + MAX_FRAME_BYTES),
        }
    }

    /// Chains at the end of the batch that the port had no room for go back to the ring. One before
    /// a frame that was sent can't, and is dropped; that does not happen as long as frames cost no
    /// more than [`cost`].
    #[cold]
    pub(super) fn put_back(&mut self, again: bool, counters: &Counters) {
        self.room = 0;
        let kept = match again {
            true => self.slots.iter().rev().take_while(|s| s.full).count(),
            // A broken chain was taken after them.
            false => 0,
        };
        let (gone, kept) = self.slots.split_at(self.slots.len() - kept);
        self.host.ring.untake(kept.iter().map(|s| s.head));
        counters.dropped_many(DropReason::PortRefused, gone.iter().filter(|s| s.full).count() as u64);
        self.slots.truncate(gone.len());
    }
}

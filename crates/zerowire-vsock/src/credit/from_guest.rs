//! What a guest may send.

use super::{CreditReview, ToGuest, Why};

/// What a guest may send to this side: to a host program, or to a sibling, whose own credit is
/// followed then.
#[derive(Clone, Copy, Debug)]
pub struct FromGuest {
    /// Bytes of the buffer: what may wait at most.
    pub buffer: u32,
    /// What the guest knows of the buffer, bytes.
    offered: u32,
    /// The guest's own buffer, bytes, as it says with each header: Linux lets no more than that be
    /// under way, however much it is offered.
    pub own: u32,
    received: u32,
    forwarded: u32,
    told: u32,
}

impl FromGuest {
    /// A buffer of this many bytes, empty.
    pub fn new(buffer: u32) -> Self {
        Self { buffer, offered: buffer, own: u32::MAX, received: 0, forwarded: 0, told: 0 }
    }

    /// Half of what the guest lets be under way.
    fn half(&self) -> u32 {
        self.buffer.min(self.own) / 2
    }

    /// The guest has sent `len` bytes. False, and nothing counted, where it was not allowed to.
    #[must_use]
    pub fn receive(&mut self, len: u32) -> bool {
        let fits = len <= self.buffer - self.received.wrapping_sub(self.forwarded);
        if fits {
            self.received = self.received.wrapping_add(len);
        }
        fits
    }

    /// `len` of the bytes received have left the buffer.
    pub fn forward(&mut self, len: u32) {
        debug_assert!(len <= self.received.wrapping_sub(self.forwarded));
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// The fields for a header to the guest, which knows them then.
    pub fn tell(&mut self) -> (u32, u32) {
        self.told = self.forwarded;
        (self.offered, self.forwarded)
    }

    /// The bytes go to a sibling that says this of its buffer. The sender may send as much as the
    /// sibling takes, or as may wait here, whichever is less. A larger buffer than this one counts
    /// as bytes that have left early, yet no byte leaves before it is with the sibling.
    pub fn follow(&mut self, sibling: &ToGuest) {
        self.offered = sibling.alloc.min(self.buffer);
        let beyond = sibling.alloc - self.offered;
        let waiting = self.received.wrapping_sub(sibling.sent);
        let not_forwarded = self.received.wrapping_sub(sibling.forwarded);
        let in_flight = not_forwarded.saturating_sub(beyond).max(waiting);
        let known = self.received.wrapping_sub(self.forwarded);
        // A sibling whose buffer shrinks takes nothing back.
        self.forward(known.saturating_sub(in_flight));
    }

    /// Follows a sibling that has taken some bytes, and has no reason to tell. The sender hears of
    /// it as in [`Self::is_news`], or if it knows of no room at all and has some.
    #[inline]
    pub fn sibling_took(&mut self, sibling: &ToGuest) -> CreditReview {
        self.follow(sibling);
        let due = self.is_news() || (self.is_used_up() && self.untold() > 0);
        self.reviewed(Why::Routine, due, false)
    }

    /// Whether to tell the guest: it knows of less than half of what it may use.
    pub fn is_news(&self) -> bool {
        self.untold() > self.half()
    }

    /// Whether the guest, if `more` bytes left the buffer now, would know of less than half of what
    /// it may use.
    pub fn lacks(&self, more: u32) -> bool {
        self.untold().saturating_add(more) > self.half()
    }

    /// Bytes that have to leave the buffer before the guest hears of them.
    pub fn short_of_news(&self) -> u32 {
        (self.half() + 1).saturating_sub(self.untold())
    }

    /// The outcome of a review: credit is news, and there is some that is `kept` from the guest.
    #[inline]
    pub fn reviewed(&self, why: Why, news: bool, kept: bool) -> CreditReview {
        let due = news || (matches!(why, Why::PartWaits | Why::Idle) && self.untold() > 0);
        // What is due goes once the guest has a buffer for it, and what it leaves is reviewed then.
        CreditReview { due, quiet: !due && (kept || self.untold() > 0) }
    }

    /// Whether the guest may send nothing, as far as it was told.
    pub fn is_used_up(&self) -> bool {
        self.received.wrapping_sub(self.told) >= self.offered.min(self.own)
    }

    /// Bytes that have left the buffer since the guest was told last.
    pub fn untold(&self) -> u32 {
        self.forwarded.wrapping_sub(self.told)
    }
}

#[cfg(test)]
mod tests;

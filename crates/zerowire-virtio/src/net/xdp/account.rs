//! What became of frames to send: each is counted when the kernel has taken it, and as what it then was.
//!
//! Plain code. A frame that lies in the TX ring may yet be refused, or be lost with its socket. The kernel takes frames in
//! order, and a call that has the interface refuse one ends with it (net/xdp/xsk.c, `__xsk_generic_xmit`).

use std::collections::VecDeque;

use zerowire::ledger::{Counters, DropReason};

use super::RING_ENTRIES;

/// A frame in the TX ring.
#[derive(Clone, Copy, Debug)]
struct Frame {
    pieces: u16,
    /// Nothing but what was inspected of it was copied.
    whole: bool,
    lent_bytes: u32,
}

/// Frames in the TX ring, and sums of those that have left it since they were counted last.
#[derive(Debug)]
pub struct Account {
    queued: VecDeque<Frame>,
    /// Pieces of the queued frames.
    pieces: u32,
    frames: u64,
    whole: u64,
    lent_bytes: u64,
    refused: u64,
    calls: u64,
}

impl Account {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            queued: VecDeque::with_capacity(RING_ENTRIES as usize),
            pieces: 0,
            frames: 0,
            whole: 0,
            lent_bytes: 0,
            refused: 0,
            calls: 0,
        }
    }

    /// A frame of so many pieces was put into the ring. `lent_bytes` of it lie in the guest's memory.
    #[inline]
    pub fn queue(&mut self, pieces: u16, whole: bool, lent_bytes: u32) {
        self.queued.push_back(Frame { pieces, whole, lent_bytes });
        self.pieces += u32::from(pieces);
    }

    /// A system call was made that moves frames.
    #[inline]
    pub fn call(&mut self) {
        self.calls += 1;
    }

    /// All but the last `waiting` pieces were taken from the ring; `refused`: of what was taken since the last time, the last
    /// frame was dropped.
    #[inline]
    pub fn taken(&mut self, waiting: u32, refused: bool) {
        let mut last = None;
        while let Some(frame) = self.queued.front().copied()
            && self.pieces - u32::from(frame.pieces) >= waiting
        {
            self.queued.pop_front();
            self.pieces -= u32::from(frame.pieces);
            if let Some(before) = last.replace(frame) {
                self.sent(before);
            }
        }
        match last {
            Some(_) if refused => self.refused += 1,
            Some(frame) => self.sent(frame),
            None => {}
        }
    }

    fn sent(&mut self, frame: Frame) {
        self.frames += 1;
        self.whole += u64::from(frame.whole);
        self.lent_bytes += u64::from(frame.lent_bytes);
    }

    /// The ring is gone with what was left in it.
    pub fn lost(&mut self) {
        self.refused += self.queued.len() as u64;
        self.queued.clear();
        self.pieces = 0;
    }

    /// Counts what has left the ring.
    #[inline]
    pub fn settle(&mut self, counters: &Counters) {
        counters.frames.add(std::mem::take(&mut self.frames));
        counters.zero_copied_frames.add(std::mem::take(&mut self.whole));
        counters.zero_copied_bytes.add(std::mem::take(&mut self.lent_bytes));
        counters.system_calls.add(std::mem::take(&mut self.calls));
        for _ in 0..std::mem::take(&mut self.refused) {
            counters.dropped(DropReason::PortRefused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(a: &mut Account) -> (u64, u64, u64, u64) {
        let c = Counters::default();
        a.settle(&c);
        let t = c.snapshot();
        (t.frames, t.zero_copied_frames, t.zero_copied_bytes, t.dropped_total())
    }

    #[test]
    fn a_frame_is_counted_once_and_when_its_last_piece_was_taken() {
        let mut a = Account::new();
        a.queue(1, true, 100);
        a.queue(3, true, 1000);
        a.queue(1, false, 0);
        a.taken(5, false);
        assert_eq!(totals(&mut a), (0, 0, 0, 0));
        a.taken(3, false);
        assert_eq!(totals(&mut a), (1, 1, 100, 0), "a frame of which a piece was taken is still there");
        a.taken(0, false);
        assert_eq!(totals(&mut a), (2, 1, 1000, 0));
        a.taken(0, true);
        assert_eq!(totals(&mut a), (0, 0, 0, 0), "nothing was taken that could have been refused");
    }

    #[test]
    fn a_refused_frame_is_the_last_one_and_not_sent() {
        let mut a = Account::new();
        for _ in 0..4 {
            a.queue(2, true, 50);
        }
        a.taken(4, true);
        assert_eq!(totals(&mut a), (1, 1, 50, 1));
        a.lost();
        assert_eq!(totals(&mut a), (0, 0, 0, 2), "what is left when the socket closes was not sent");
        a.queue(1, true, 7);
        a.taken(0, false);
        assert_eq!(totals(&mut a), (1, 1, 7, 0));
    }
}

//! What became of frames to send: each is counted when the kernel has taken it, and as what it then
//! was.
//!
//! Plain code. A frame that lies in the TX ring may yet be refused, or be lost with its socket. The
//! kernel takes frames in order, and a call that has the interface refuse one ends with it
//! (net/xdp/xsk.c, `__xsk_generic_xmit`).

use std::collections::VecDeque;

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::RING_ENTRIES;

/// A frame in the TX ring, and what it is counted as.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Number of its loan.
    number: u16,
    pieces: u16,
    /// What was inspected, virtio-net header included, but for frames that were copied as a whole.
    header_bytes: u16,
    lent_bytes: u32,
    /// What was copied, and why; None where nothing was but headers.
    copied: Option<(CopyReason, u32)>,
}

impl Frame {
    /// Of `pieces` pieces, `lent_bytes` of it in the guest's memory.
    #[inline]
    pub fn lent(pieces: usize, header_bytes: usize, lent_bytes: usize) -> Self {
        let (header_bytes, lent_bytes) = (header_bytes as u16, lent_bytes as u32);
        Self { number: 0, pieces: pieces as u16, header_bytes, lent_bytes, copied: None }
    }

    /// In one piece of private memory.
    #[inline]
    pub fn copied(reason: CopyReason, bytes: usize, header_bytes: usize) -> Self {
        let copied = Some((reason, bytes as u32));
        Self { number: 0, pieces: 1, header_bytes: header_bytes as u16, lent_bytes: 0, copied }
    }
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
    header_bytes: u64,
    /// By reason, and whether there are any.
    copied: [u64; CopyReason::ALL.len()],
    any_copied: bool,
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
            header_bytes: 0,
            copied: [0; CopyReason::ALL.len()],
            any_copied: false,
            refused: 0,
            calls: 0,
        }
    }

    /// A frame was put into the ring, with the number of its loan.
    #[inline]
    pub fn queue(&mut self, number: u16, frame: Frame) {
        self.queued.push_back(Frame { number, ..frame });
        self.pieces += u32::from(frame.pieces);
    }

    /// A system call was made that moves frames.
    #[inline]
    pub fn call(&mut self) {
        self.calls += 1;
    }

    /// All but the last `waiting` pieces were taken from the ring; `refused`: of what was taken
    /// since the last time, the last frame was dropped. `each` gets the numbers of the frames that
    /// were taken.
    #[inline]
    pub fn taken(&mut self, waiting: u32, refused: bool, mut each: impl FnMut(u16)) {
        let mut last = None;
        while let Some(frame) = self.queued.front().copied()
            && self.pieces - u32::from(frame.pieces) >= waiting
        {
            self.queued.pop_front();
            self.pieces -= u32::from(frame.pieces);
            each(frame.number);
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
        self.lent_bytes += u64::from(frame.lent_bytes);
        self.header_bytes += u64::from(frame.header_bytes);
        match frame.copied {
            None => self.whole += 1,
            Some((reason, bytes)) => {
                self.copied[reason as usize] += u64::from(bytes);
                self.any_copied = true;
            }
        }
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
        counters.copied(CopyReason::Header, std::mem::take(&mut self.header_bytes));
        if std::mem::take(&mut self.any_copied) {
            for reason in CopyReason::ALL {
                counters.copied(reason, std::mem::take(&mut self.copied[reason as usize]));
            }
        }
        counters.system_calls.add(std::mem::take(&mut self.calls));
        for _ in 0..std::mem::take(&mut self.refused) {
            counters.dropped(DropReason::PortRefused);
        }
    }
}

#[cfg(test)]
mod tests {
    use zerowire::ledger::Totals;

    use super::*;

    fn totals(a: &mut Account) -> (u64, u64, u64, u64) {
        let t = all(a);
        (t.frames, t.zero_copied_frames, t.zero_copied_bytes, t.dropped_total())
    }

    fn all(a: &mut Account) -> Totals {
        let c = Counters::default();
        a.settle(&c);
        c.snapshot()
    }

    #[test]
    fn a_frame_is_counted_once_and_when_its_last_piece_was_taken() {
        let mut a = Account::new();
        a.queue(0, Frame::lent(1, 12, 100));
        a.queue(0, Frame::lent(3, 12, 1000));
        a.queue(0, Frame::copied(CopyReason::Held, 70, 0));
        a.taken(5, false, |_| {});
        assert_eq!(totals(&mut a), (0, 0, 0, 0));
        a.taken(3, false, |_| {});
        assert_eq!(totals(&mut a), (1, 1, 100, 0), "a frame of which a piece was taken is still there");
        a.taken(0, false, |_| {});
        assert_eq!(totals(&mut a), (2, 1, 1000, 0));
        a.taken(0, true, |_| {});
        assert_eq!(totals(&mut a), (0, 0, 0, 0), "nothing was taken that could have been refused");
    }

    #[test]
    fn a_refused_frame_is_the_last_one_and_not_sent() {
        let mut a = Account::new();
        for _ in 0..4 {
            a.queue(0, Frame::lent(2, 12, 50));
        }
        a.taken(4, true, |_| {});
        assert_eq!(totals(&mut a), (1, 1, 50, 1));
        a.lost();
        assert_eq!(totals(&mut a), (0, 0, 0, 2), "what is left when the socket closes was not sent");
        a.queue(0, Frame::lent(1, 12, 7));
        a.taken(0, false, |_| {});
        assert_eq!(totals(&mut a), (1, 1, 7, 0));
    }

    #[test]
    fn what_was_copied_is_counted_with_its_frame() {
        let mut a = Account::new();
        a.queue(0, Frame::copied(CopyReason::Cheaper, 100, 12));
        a.queue(0, Frame::lent(2, 154, 500));
        a.queue(0, Frame::copied(CopyReason::Small, 60, 0));
        a.queue(0, Frame::copied(CopyReason::Cheaper, 1000, 0));
        assert_eq!(all(&mut a).bytes, 0, "nothing was taken yet");
        a.taken(1, false, |_| {});
        let copied: Vec<_> = all(&mut a).copied_bytes.into_iter().collect();
        assert_eq!(copied, [("cheaper", 100), ("header", 166), ("small", 60)]);
        a.taken(0, true, |_| {});
        a.queue(0, Frame::copied(CopyReason::Small, 60, 0));
        a.lost();
        let totals = all(&mut a);
        assert_eq!((totals.bytes, totals.dropped_total()), (0, 2), "refused or lost");
    }
}

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
#[derive(Debug, Default)]
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
        Self { queued: VecDeque::with_capacity(RING_ENTRIES as usize), ..Self::default() }
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
mod tests;

//! From a finished batch of reads to used buffers.

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::{Receive, ReceiveContext, SCRATCH_BYTES};
use crate::memory::{GuestMemory, access};
use crate::net::transmit::TurnError;
use crate::ring::RingError;

/// Where `num_buffers` is in the virtio-net header (virtio 1.3 §5.1.6).
const NUM_BUFFERS_AT: usize = 10;

impl Receive {
    /// Gives the first `frames` reads back as they are. Stops before a frame that does not lie wholly in its own
    /// chains, and returns how many were given.
    #[inline]
    pub(super) fn deliver_in_place(
        &mut self,
        frames: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<usize, RingError> {
        let mut bytes = 0u64;
        let mut delivered = 0;
        for i in 0..frames {
            let read = self.reads[i];
            let len = read.result as usize;
            if len > read.room || len < self.setup.header_len {
                break;
            }
            self.give_front(len, read.chains);
            bytes += len as u64;
            delivered += 1;
        }
        cx.counters.frames.add(delivered as u64);
        cx.counters.zero_copied_frames.add(delivered as u64);
        cx.counters.zero_copied_bytes.add(bytes);
        Ok(delivered)
    }

    /// Gives the guest the first chains, of which at most `chains` hold a frame of `len` bytes, header included.
    #[inline]
    fn give_front(&mut self, len: usize, chains: usize) {
        let mut used = 0;
        let mut left = len;
        while used < chains && (left > 0 || used == 0) {
            left -= left.min(self.chains.room(used));
            used += 1;
        }
        self.write_num_buffers(used as u16);
        let mut left = len;
        for _ in 0..used {
            let n = left.min(self.chains.room(0));
            left -= n;
            if let Some(head) = self.chains.pop() {
                self.ring.push_used(head, n as u32);
            }
        }
        self.note(len, used);
    }

    /// The device sets num_buffers to the number of chains, and to 1 without MRG_RXBUF (virtio 1.3 §5.1.6.4.1).
    #[inline]
    fn write_num_buffers(&mut self, n: u16) {
        if self.setup.header_len == 12 {
            access::write(self.chains.segments(0), NUM_BUFFERS_AT, &n.to_le_bytes());
        }
    }

    /// The slow way, for reads from `from` on in the order in which frames arrived: copy them out, then into chains in
    /// order. It serves frames longer than their offer, frames that arrived behind a read that found none, and the
    /// copying path.
    #[cold]
    pub(super) fn deliver_staged(
        &mut self,
        order: &[u16],
        from: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), TurnError> {
        // Chains of the reads before `from` are gone already.
        let gone: usize = self.reads[..from].iter().map(|r| r.chains).sum();
        let mut staged: Vec<Vec<u8>> = Vec::new();
        let copies = self.setup.mode == crate::net::PathMode::Copy;
        if copies {
            // Frames lie in scratch memory alone, which nothing overwrites before the next turn.
            return self.deliver_scratch(order, cx);
        }
        for &i in &order[from..] {
            let i = usize::from(i);
            let read = self.reads[i];
            if read.result < self.setup.header_len as i32 {
                continue;
            }
            let before: usize = self.reads[..i].iter().map(|r| r.chains).sum();
            staged.push(self.stage(i, before - gone, read.result as usize));
        }
        for frame in staged {
            self.copy_out(&frame, CopyReason::Overflow, cx.memory, cx.counters)?;
        }
        self.scratch_dirty = true;
        Ok(())
    }

    /// Copies the frame of read `i` out of its chains, which start at `chain`, and its scratch memory.
    fn stage(&self, i: usize, chain: usize, len: usize) -> Vec<u8> {
        let read = self.reads[i];
        let mut frame = vec![0u8; len];
        let mut at = 0;
        for c in chain..chain + read.chains {
            let n = self.chains.room(c).min(len - at);
            at += access::read(self.chains.segments(c), 0, &mut frame[at..at + n]);
        }
        if at < len {
            frame[at..].copy_from_slice(&self.scratch_bytes(i, len - at));
        }
        frame
    }

    fn scratch_bytes(&self, read: usize, len: usize) -> Vec<u8> {
        let len = len.min(SCRATCH_BYTES);
        // SAFETY: scratch memory is this side's own, `read` is one of the batch, and no operation is under way.
        unsafe { std::slice::from_raw_parts(self.scratch(read), len) }.to_vec()
    }

    fn deliver_scratch(&mut self, order: &[u16], cx: &mut ReceiveContext<'_>) -> Result<(), TurnError> {
        for &i in order {
            let len = self.reads[usize::from(i)].result;
            if len < self.setup.header_len as i32 {
                continue;
            }
            let ptr = self.scratch(usize::from(i));
            // SAFETY: as in `scratch_bytes`; nothing writes scratch memory before the next turn, and `copy_out` does
            // not touch it.
            let frame = unsafe { std::slice::from_raw_parts(ptr, (len as usize).min(SCRATCH_BYTES)) };
            self.copy_out(frame, CopyReason::Asked, cx.memory, cx.counters)?;
        }
        Ok(())
    }

    /// Copies a frame, header included, into the first chains. Returns whether there was room; a frame without room
    /// is counted as dropped, and its chains stay.
    pub(super) fn copy_out(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<bool, RingError> {
        let mut room = 0;
        let mut n = 0;
        let most = if self.setup.mergeable { usize::from(u16::MAX) } else { 1 };
        while room < frame.len() && n < most {
            if !self.chains.ensure(n, frame.len() - room, &mut self.ring, memory, self.setup.header_len)? {
                break;
            }
            room += self.chains.room(n);
            n += 1;
        }
        if room < frame.len() {
            counters.dropped(DropReason::NoRoom);
            return Ok(false);
        }
        let mut at = 0;
        for c in 0..n {
            let part = self.chains.room(c).min(frame.len() - at);
            at += access::write(self.chains.segments(c), 0, &frame[at..at + part]);
        }
        self.give_front(frame.len(), n);
        counters.frames.add(1);
        counters.copied(reason, frame.len() as u64);
        Ok(true)
    }
}

//! From a finished batch of reads to used buffers.

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::{Receive, ReceiveContext, Room, SCRATCH_BYTES, fit, scratch_range};
use crate::memory::{GuestMemory, PrivateMap, access};
use crate::ring::RingError;

/// Where `flags` is in the virtio-net header (virtio 1.3 §5.1.6).
const FLAGS_AT: usize = 0;

/// Where `num_buffers` is in the virtio-net header (virtio 1.3 §5.1.6).
const NUM_BUFFERS_AT: usize = 10;

/// Slots of scratch memory that took no longer frames have a page or two each, and keep them while
/// the guest rests.
const KEPT_BYTES: usize = 1024;

impl Receive {
    /// Gives the first `frames` reads back as they are. Stops before a frame that does not lie
    /// wholly in its own chains. Stops behind one that left some of its chains unused, since the
    /// next frame's chains would come out of order then. Returns how many frames were given, in how
    /// many chains.
    #[inline]
    pub(super) fn deliver_in_place(
        &mut self,
        frames: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(usize, usize), RingError> {
        let mut bytes = 0u64;
        let (mut delivered, mut chains) = (0, 0);
        for i in 0..frames {
            let read = self.reads[i];
            let len = read.result as usize;
            if len > read.room || len < self.setup.header_len {
                break;
            }
            let used = self.give_front(len, read.chains, cx.memory);
            bytes += len as u64;
            delivered += 1;
            chains += used;
            if used < read.chains {
                break;
            }
        }
        cx.counters.frames.add(delivered as u64);
        cx.counters.zero_copied_frames.add(delivered as u64);
        cx.counters.zero_copied_bytes.add(bytes);
        Ok((delivered, chains))
    }

    /// Gives the guest the first chains, of which at most `chains` hold a frame of `len` bytes,
    /// header included. Returns how many they are.
    #[inline(always)]
    fn give_front(&mut self, len: usize, chains: usize, memory: &GuestMemory) -> usize {
        // Used elements are seen when they are published, so that the header may be written after
        // them.
        let first = self.chains.segments(0).first().copied();
        let whole_header = first.filter(|s| s.len as usize >= NUM_BUFFERS_AT + 2);
        if self.clears_flags {
            access::write(self.chains.segments(0), FLAGS_AT, &[0]);
            memory.wrote(self.chains.segments(0), FLAGS_AT, 1);
        }
        if whole_header.is_none() {
            self.write_num_buffers(len, chains, memory);
        }
        let mut used = 0;
        let mut left = len;
        while used < chains && (left > 0 || used == 0) {
            let Some((head, room)) = self.chains.pop() else { break };
            let n = left.min(room);
            self.host.ring.push_used(head, n as u32);
            left -= n;
            used += 1;
        }
        if let Some(first) = whole_header
            && self.setup.header_len == 12
        {
            let at = first.ptr.wrapping_add(NUM_BUFFERS_AT).cast::<[u8; 2]>();
            // SAFETY: the segment was found long enough; it lies in guest memory, which the context
            // of this turn holds. An array of bytes may lie at any address.
            unsafe { at.write_volatile((used as u16).to_le_bytes()) };
            memory.wrote(std::slice::from_ref(&first), NUM_BUFFERS_AT, 2);
        }
        self.forecast.note(len, used);
        used
    }

    /// Writes num_buffers into a header that lies in several segments. It is the number of chains,
    /// and 1 without MRG_RXBUF (virtio 1.3 §5.1.6.4.1).
    #[cold]
    fn write_num_buffers(&mut self, len: usize, chains: usize, memory: &GuestMemory) {
        if self.setup.header_len != 12 {
            return;
        }
        let (mut used, mut left) = (0, len);
        while used < chains && (left > 0 || used == 0) {
            left -= left.min(self.chains.room(used));
            used += 1;
        }
        access::write(self.chains.segments(0), NUM_BUFFERS_AT, &(used as u16).to_le_bytes());
        memory.wrote(self.chains.segments(0), NUM_BUFFERS_AT, 2);
    }

    /// The slow way, for reads from `from` on in the order in which frames arrived: copies them
    /// out, then into chains in order. `gone` of their chains have been given back already. It
    /// serves the copying path, frames longer than their offer, and frames that arrived behind a
    /// read that found none. With `unsound` the first of them is not what the guest takes; those
    /// behind it may have fitted where they were.
    #[cold]
    pub(super) fn deliver_staged(
        &mut self,
        order: &[u16],
        from: usize,
        gone: usize,
        unsound: bool,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let mut staged = Vec::new();
        for &i in &order[from..] {
            let i = usize::from(i);
            let read = self.reads[i];
            if read.result < self.setup.header_len as i32 {
                continue;
            }
            let before: usize = self.reads[..i].iter().map(|r| r.chains).sum();
            let len = read.result as usize;
            let reason = match unsound && len <= read.room {
                true => CopyReason::Behind,
                false => CopyReason::Overflow,
            };
            staged.push((self.stage(i, before - gone, len), reason));
        }
        for (mut frame, reason) in staged {
            self.fit_or_hold(&mut frame, reason, cx)?;
        }
        self.scratch_dirty = true;
        Ok(())
    }

    /// Gives the guest frames that waited, as far as there is room now. Returns whether none waits
    /// any more.
    #[inline]
    pub(super) fn deliver_pending(&mut self, cx: &mut ReceiveContext<'_>) -> Result<bool, RingError> {
        if !self.pending.is_empty() {
            self.deliver_some_pending(cx)?;
        }
        Ok(self.pending.is_empty())
    }

    #[cold]
    fn deliver_some_pending(&mut self, cx: &mut ReceiveContext<'_>) -> Result<(), RingError> {
        while let Some(frame) = self.pending.pop() {
            match self.copy_out(&frame.bytes, frame.reason, cx.memory, cx.counters)? {
                Room::Taken => self.waiting_since = None,
                Room::Never => cx.counters.dropped(DropReason::NoRoom),
                Room::Short => {
                    self.pending.put_back(frame);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives the guest a frame, if nothing waits that came before it.
    #[inline]
    fn copy_in_turn(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match self.pending.is_empty() {
            true => self.copy_out(frame, reason, cx.memory, cx.counters),
            false => Ok(Room::Short),
        }
    }

    /// Keeps a frame for which there was no `room` until there are buffers; where too many are kept
    /// already it is dropped. Returns whether there may be room for a further one.
    #[inline]
    pub(super) fn hold(&mut self, room: Room, frame: &[u8], reason: CopyReason, counters: &Counters) -> bool {
        match room {
            Room::Taken => true,
            Room::Short => {
                let kept = self.pending.push(frame, reason);
                if !kept {
                    counters.dropped(DropReason::NoRoom);
                }
                kept
            }
            Room::Never => {
                counters.dropped(DropReason::NoRoom);
                true
            }
        }
    }

    /// Copies the frame of read `i` out of its chains, which start at `chain`, and its scratch
    /// memory.
    fn stage(&self, i: usize, chain: usize, len: usize) -> Vec<u8> {
        let read = self.reads[i];
        let mut frame = vec![0u8; len];
        let mut at = 0;
        for c in chain..chain + read.chains {
            let n = self.chains.room(c).min(len - at);
            at += access::read(self.chains.segments(c), 0, &mut frame[at..at + n]);
        }
        let rest = (len - at).min(SCRATCH_BYTES);
        frame[at..at + rest].copy_from_slice(&self.scratch[scratch_range(i, rest)]);
        frame
    }

    /// Copies frames from scratch memory to the guest.
    #[inline]
    pub(super) fn deliver_scratch(
        &mut self,
        order: &[u16],
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let delivered = self.deliver_from(&mut scratch, order, cx);
        self.scratch = scratch;
        delivered
    }

    #[inline]
    fn deliver_from(
        &mut self,
        scratch: &mut PrivateMap,
        order: &[u16],
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let asked = self.setup.mode == crate::net::PathMode::Copy;
        for &i in order {
            let len = self.reads[usize::from(i)].result;
            if len < self.setup.header_len as i32 {
                continue;
            }
            let len = (len as usize).min(SCRATCH_BYTES);
            let frame = &mut scratch[scratch_range(usize::from(i), len)];
            let reason = match (asked, self.forecast.is_small(len)) {
                (true, _) => CopyReason::Asked,
                (false, true) => CopyReason::Small,
                (false, false) if self.rebuilds_most() => CopyReason::NoChecksums,
                (false, false) => CopyReason::Overflow,
            };
            self.scratch_dirty |= len > KEPT_BYTES;
            self.fit_or_hold(frame, reason, cx)?;
        }
        Ok(())
    }

    /// Gives the guest a frame of the port's, or keeps it until there are buffers.
    #[inline]
    pub(super) fn fit_or_hold(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let room = self.fit(frame, reason, cx)?;
        self.hold(room, frame, reason, cx.counters);
        Ok(())
    }

    /// Gives the guest a frame of the port's, which may have to be changed to be what it takes. The
    /// frames that come of a change are kept if they find no room. Otherwise the frame is as it was
    /// unless it was taken.
    #[inline]
    pub(super) fn fit(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match (self.accepts, frame.first_chunk()) {
            (Some(accepts), Some(header)) if !fit::passes(header, accepts) => {
                self.rebuild(frame, cx).map(|()| Room::Taken)
            }
            _ if frame.len() > self.longest() => {
                cx.counters.dropped(DropReason::TooLong);
                Ok(Room::Taken)
            }
            _ => Ok(self.copy_in_turn(frame, reason, cx)?),
        }
    }

    /// Does what the frame asks for, and gives the guest the frames that result.
    #[cold]
    fn rebuild(&mut self, frame: &mut [u8], cx: &mut ReceiveContext<'_>) -> Result<(), RingError> {
        let mut piece = std::mem::take(&mut self.piece);
        let mut given = Ok(());
        let reason = CopyReason::Rebuilt;
        let done = fit::rebuild(frame, self.setup.header_len, &mut piece, |frame| {
            match self.copy_in_turn(frame, reason, cx) {
                Ok(room) => self.hold(room, frame, reason, cx.counters),
                Err(e) => {
                    given = Err(e);
                    false
                }
            }
        });
        self.piece = piece;
        match done {
            Ok(left) => cx.counters.dropped_many(DropReason::NoRoom, left as u64),
            Err(_) => cx.counters.dropped(DropReason::BadOffload),
        }
        given
    }

    /// Copies a frame, header included, into the first chains, if there is room.
    #[inline]
    pub(super) fn copy_out(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<Room, RingError> {
        let mut room = 0;
        let mut n = 0;
        let most = if self.setup.mergeable { usize::from(u16::MAX) } else { 1 };
        while room < frame.len() && n < most {
            if !self.chains.ensure(
                n,
                frame.len() - room,
                &mut self.host.ring,
                memory,
                self.setup.header_len,
            )? {
                let all_here = self.chains.are_all(&self.host.ring);
                return Ok(if all_here { Room::Never } else { Room::Short });
            }
            room += self.chains.room(n);
            n += 1;
        }
        if room < frame.len() {
            return Ok(Room::Never);
        }
        let mut at = 0;
        for c in 0..n {
            let part = self.chains.room(c).min(frame.len() - at);
            at += access::write(self.chains.segments(c), 0, &frame[at..at + part]);
            memory.wrote(self.chains.segments(c), 0, part);
        }
        self.give_front(frame.len(), n, memory);
        counters.frames.add(1);
        counters.copied(reason, frame.len() as u64);
        Ok(Room::Taken)
    }
}

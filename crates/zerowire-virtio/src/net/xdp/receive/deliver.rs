//! Frames that come to the guest by a copy: over the slab, or from this process itself.

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::{HEADER, Pending, XdpReceive};
use crate::memory::{GuestMemory, Segment, access};
use crate::net::xdp::link::Link;
use crate::ring::RingError;

/// Where `num_buffers` is in the virtio-net header (virtio 1.3 §5.1.6).
const NUM_BUFFERS_AT: usize = 10;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// It was given to the guest.
    Taken,
    /// The guest has posted too few buffers so far.
    Short,
    /// No number of buffers that this guest can post takes it.
    Never,
}

impl XdpReceive {
    /// Gives the guest frames from the slab, as far as there is room now. Returns how many.
    pub(super) fn deliver_pending(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> usize {
        let Some(geometry) = link.geometry() else { return 0 };
        let mut delivered = 0;
        while let Some(waits @ Pending { place, offset, len }) = self.pending.pop_front() {
            let pinned = self.chains.segments(0).iter().all(|s| link.address(s).is_some());
            let Some((slab, _)) = link.memory() else { return delivered };
            let room = {
                let frame = slab.received(place, offset, len);
                let reason = self.reason(geometry.frame_bytes() as usize, geometry.zero_copy(), pinned);
                self.copy_out(frame, reason, memory, counters)
            };
            match room {
                Room::Taken => delivered += 1,
                Room::Never => counters.dropped(DropReason::NoRoom),
                Room::Short => {
                    self.pending.push_front(waits);
                    return delivered;
                }
            }
            self.places.push(place);
        }
        delivered
    }

    /// Gives the guest a frame that the driver put `shift` bytes behind its place in the buffer.
    /// Some drivers have a header of their own there.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "what a posted buffer is, and what came in it")]
    pub(super) fn give_shifted(
        &mut self,
        head: u16,
        taken: u16,
        at: [Option<Segment>; 2],
        len: usize,
        shift: i64,
        memory: &GuestMemory,
        counters: &Counters,
    ) {
        let header_len = self.setup.header_len;
        let list: Vec<Segment> = at.into_iter().flatten().collect();
        let room = list.iter().map(|s| s.len as usize).sum();
        if let Some(from) = shifted(header_len, shift, len, room) {
            let mut whole = HEADER[..header_len].to_vec();
            whole.resize(header_len + len, 0);
            access::read(&list, from, &mut whole[header_len..]);
            access::write(&list, 0, &whole);
            memory.wrote(&list, 0, whole.len().max(from + len));
            self.host.ring.push_used(head, whole.len() as u32);
            counters.frames.add(1);
            counters.copied(CopyReason::Shifted, whole.len() as u64);
        } else {
            tracing::error!(
                "a driver put a frame of {len} bytes {shift} bytes from its place; it is dropped"
            );
            memory.wrote(&list, 0, room);
            self.host.ring.push_used(head, 0);
            counters.dropped(DropReason::TooLong);
        }
        self.order.used(taken);
    }

    /// Why frames for the next chain come over the slab.
    fn reason(&self, longest: usize, zero_copy: bool, pinned: bool) -> CopyReason {
        if self.setup.copy {
            CopyReason::Asked
        } else if !pinned {
            CopyReason::NotPinned
        } else if self.chains.room(0) < self.setup.header_len + longest {
            CopyReason::SmallBuffer
        } else if zero_copy {
            CopyReason::UnsafeBuffer
        } else {
            CopyReason::ScatteredBuffer
        }
    }

    /// Gives the guest a frame from private memory (without a virtio-net header). Returns whether
    /// there was room.
    pub fn inject(
        &mut self,
        frame: &[u8],
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<bool, RingError> {
        let need = self.setup.header_len + frame.len();
        // Chains that are kept are there for this; else what the driver has posted since.
        if self.chains.len() == 0
            && self.order.has_room()
            && self.chains.ensure(0, need, &mut self.host.ring, memory, self.setup.header_len)?
        {
            let head = self.chains.heads().next().unwrap_or(0);
            self.kept.push_back(self.order.take(head));
        }
        // Frames that wait come first; this one is lost then, as on a wire.
        let room = self.pending.is_empty();
        Ok(room && self.copy_out(frame, CopyReason::Metadata, memory, counters) == Room::Taken)
    }

    /// Copies a frame into the first chains that are kept, behind a header, if there is room.
    fn copy_out(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Room {
        let header_len = self.setup.header_len;
        let whole = header_len + frame.len();
        let most = if self.setup.mergeable { usize::from(u16::MAX) } else { 1 };
        let (mut n, mut room) = (0, 0);
        while room < whole && n < most && n < self.chains.len() {
            room += self.chains.room(n);
            n += 1;
        }
        if room < whole {
            let all_here = n == most || self.kept.len() >= usize::from(self.host.ring.size());
            return if n > 0 && all_here { Room::Never } else { Room::Short };
        }
        let mut header = HEADER;
        header[NUM_BUFFERS_AT..].copy_from_slice(&(n as u16).to_le_bytes());
        let mut at = 0;
        for i in 0..n {
            let segments = self.chains.segments(0);
            let part = self.chains.room(0).min(whole - at);
            let mut written = 0;
            if i == 0 {
                // A chain that is shorter than the header has broken the ring before.
                written = access::write(segments, 0, &header[..header_len]);
                at += written;
            }
            let from = at - header_len;
            let more = part - written;
            at += access::write(segments, written, &frame[from..from + more]);
            memory.wrote(segments, 0, part);
            let Some((head, _)) = self.chains.pop() else { break };
            self.host.ring.push_used(head, part as u32);
            if let Some(number) = self.kept.pop_front() {
                self.order.used(number);
            }
        }
        counters.frames.add(1);
        counters.copied(reason, whole as u64);
        Room::Taken
    }
}

/// Where a frame of `len` bytes begins in a buffer of `room` bytes, if it lies `shift` bytes behind
/// its due place. That place is behind the header. None where the frame is not all within the
/// buffer.
fn shifted(header_len: usize, shift: i64, len: usize, room: usize) -> Option<usize> {
    let from = usize::try_from(header_len as i64 + shift).ok()?;
    from.checked_add(len).filter(|end| *end <= room).map(|_| from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_elsewhere_is_found_within_its_buffer_only() {
        assert_eq!(shifted(12, 16, 1502, 1530), Some(28));
        assert_eq!(shifted(12, 16, 1503, 1530), None, "beyond the end");
        assert_eq!(shifted(12, -12, 60, 1530), Some(0));
        assert_eq!(shifted(12, -13, 60, 1530), None, "before the buffer");
        assert_eq!(shifted(12, i64::MAX - 12, usize::MAX / 2, 1530), None);
    }
}

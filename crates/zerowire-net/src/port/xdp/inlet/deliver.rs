//! From where the kernel has put a frame to the guest.

use zerowire::ledger::{CopyReason, DropReason};
use zerowire_vhost::memory::{GuestMemory, Segment, access};

use super::{PostedChain, SlabSide, Sums, XdpInlet};
use crate::port::xdp::geometry::Geometry;
use crate::port::xdp::link::Link;
use crate::port::xdp::posted::Buffer;
use crate::receive::{PLAIN_HEADER, ReceiveContext};

impl XdpInlet {
    /// Gives the guest frames from the slab, as far as there is room now. Returns how many.
    pub(super) fn give_from_slab(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        cx: &ReceiveContext<'_>,
    ) -> usize {
        // No chain is taken for them, in which a mistake could be.
        side.give_waiting(self, link, cx).unwrap_or(0)
    }

    /// Gives the guest a frame of `len` bytes that lies where it shall.
    #[inline]
    pub(super) fn give_posted(
        &mut self,
        side: &mut SlabSide,
        (head, taken, at): PostedChain,
        len: usize,
        memory: &GuestMemory,
        sums: &mut Sums,
    ) {
        let header_len = side.setup.header_len;
        let whole = header_len + len;
        let segments = [at[0], at[1]];
        let list: &[Segment] = match &segments {
            [Some(a), Some(b)] => &[*a, *b],
            [Some(a), None] => &[*a],
            _ => &[],
        };
        match header_len == PLAIN_HEADER.len() {
            true => access::write_header(list, &PLAIN_HEADER),
            false => _ = access::write(list, 0, &PLAIN_HEADER[..header_len]),
        }
        // A device may have written more, which means nothing to the guest (virtio 1.3 §2.7.8).
        memory.wrote(list, 0, whole);
        if let Some(capture) = &mut side.capture {
            capture.lying((header_len, len), std::iter::once(list));
        }
        side.host.ring.push_used(head, whole as u32);
        self.kept.order.used(taken);
        sums.frames += 1;
        sums.bytes += whole as u64;
    }

    /// Gives the guest a frame that the driver put `shift` bytes behind its place in the buffer.
    /// Some drivers have a header of their own there.
    #[cold]
    pub(super) fn give_shifted(
        &mut self,
        side: &mut SlabSide,
        (head, taken, at): PostedChain,
        len: usize,
        shift: i64,
        cx: &ReceiveContext<'_>,
    ) {
        let header_len = side.setup.header_len;
        let list: Vec<Segment> = at.into_iter().flatten().collect();
        let room = list.iter().map(|s| s.len as usize).sum();
        if let Some(from) = shifted(header_len, shift, len, room) {
            let mut whole = PLAIN_HEADER[..header_len].to_vec();
            whole.resize(header_len + len, 0);
            access::read(&list, from, &mut whole[header_len..]);
            access::write(&list, 0, &whole);
            cx.memory.wrote(&list, 0, whole.len().max(from + len));
            if let Some(capture) = &mut side.capture {
                capture.given(&whole[header_len..]);
            }
            side.host.ring.push_used(head, whole.len() as u32);
            cx.counters.frames.add(1);
            cx.counters.copied(CopyReason::Shifted, whole.len() as u64);
        } else {
            tracing::error!(
                "a driver put a frame of {len} bytes {shift} bytes from its place; it is dropped"
            );
            cx.memory.wrote(&list, 0, room);
            side.host.ring.push_used(head, 0);
            cx.counters.dropped(DropReason::TooLong);
        }
        self.kept.order.used(taken);
    }

    /// Why frames for the next chain come over the slab.
    pub(super) fn reason(&self, side: &SlabSide, link: &Link, geometry: Geometry) -> CopyReason {
        if self.copy {
            CopyReason::Asked
        } else if !side.chains.segments(0).iter().all(|s| link.registered.address(s).is_some()) {
            CopyReason::NotPinned
        } else if side.chains.room(0) < side.setup.header_len + geometry.frame_bytes as usize {
            CopyReason::SmallBuffer
        } else if geometry.zero_copy {
            CopyReason::UnsafeBuffer
        } else {
            CopyReason::ScatteredBuffer
        }
    }
}

/// Whether a frame that lies `offset` bytes behind the begin of its chunk goes beyond what the
/// guest takes of frames to groups.
#[inline]
pub(super) fn is_storm(side: &mut SlabSide, link: &mut Link, buffer: &Buffer, offset: u64) -> bool {
    side.bounds_groups() && first_byte(side, link, buffer, offset).is_some_and(|b| side.is_beyond_bound(b))
}

/// The first byte of a frame. The guest may change its own, and harms nobody but itself.
fn first_byte(side: &SlabSide, link: &mut Link, buffer: &Buffer, offset: u64) -> Option<u8> {
    let due = link.registered.geometry()?.frame_offset();
    match *buffer {
        Buffer::Guest { at, .. } => {
            let from = usize::try_from(side.setup.header_len as i64 + offset as i64 - due as i64).ok()?;
            let mut first = [0];
            let [Some(header), second] = at else { return None };
            let list = [header, second.unwrap_or(Segment { len: 0, ..header })];
            (access::read(&list, from, &mut first) == 1).then_some(first[0])
        }
        Buffer::Place(place) => link.memory()?.0.received(place, offset as usize, 1).first().copied(),
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

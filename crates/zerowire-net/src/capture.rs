//! The frames of one ring on their way into a capture: as the guest sends and gets them, without
//! the virtio-net header.
//!
//! Directions are those of the guest's interface: what the guest sends is outbound.

use zerowire_capture::{CaptureInterface, CaptureQueue, PacketDirection};
use zerowire_vhost::memory::{Segment, access};

use crate::transmit::TxFrame;

/// Records the frames of one ring.
#[derive(Debug)]
pub struct FrameCapture {
    pub(crate) queue: CaptureQueue,
}

impl FrameCapture {
    /// For the frames of one ring of the VM that has this interface.
    pub fn new(interface: &CaptureInterface) -> Self {
        Self { queue: interface.queue() }
    }

    /// A frame of the guest's. `start` was read of it, and checked; the rest is read once more.
    /// With `holds` it may go back to the ring until the batch is over, and until the next one
    /// else.
    pub fn sent(&mut self, frame: &TxFrame<'_>, start: &[u8], holds: bool) {
        self.queue.mark(frame.index, holds);
        let len = frame.len - frame.header_len;
        self.queue.record(PacketDirection::Outbound, len, |at, to| {
            let at = frame.header_len + at;
            let have = start.get(at..).unwrap_or_default();
            let (known, rest) = to.split_at_mut(have.len().min(to.len()));
            known.copy_from_slice(&have[..known.len()]);
            access::read(frame.segments, at + known.len(), rest);
        });
    }

    /// The frame that came last goes back to the ring, and comes once more.
    #[cold]
    pub fn put_back_last(&mut self) {
        self.queue.rewind_last();
    }

    /// A frame for the guest, in private memory.
    pub fn given(&mut self, frame: &[u8]) {
        self.queue.record(PacketDirection::Inbound, frame.len(), |at, to| {
            to.copy_from_slice(&frame[at..at + to.len()]);
        });
    }

    /// A frame of `len` bytes for the guest, which lies `skip` bytes in where these segments of the
    /// guest's memory are, one list behind the other.
    pub fn lying<'a>(
        &mut self,
        (skip, len): (usize, usize),
        lists: impl Iterator<Item = &'a [Segment]> + Clone,
    ) {
        self.queue.record(PacketDirection::Inbound, len, |at, mut to| {
            let mut skip = skip + at;
            for list in lists.clone() {
                let done = access::read(list, skip, to);
                to = &mut to[done..];
                if to.is_empty() {
                    break;
                }
                let room: usize = list.iter().map(|s| s.len as usize).sum();
                skip = skip.saturating_sub(room);
            }
        });
    }
}

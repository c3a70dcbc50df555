//! The packets of one VM on their way into a capture: as the guest sends and gets them, with what
//! linux/vsockmon.h puts in front.
//!
//! Directions are those of the guest's device: what the guest sends is outbound.

use zerowire_capture::{CaptureInterface, CaptureQueue, PacketDirection};
use zerowire_vhost::memory::{Segment, access};
use zerowire_wire::vsockmon::{PREFIX_BYTES, prefix};

use crate::packet::{HEADER_LEN, Header};

/// Records the packets of one VM.
#[derive(Debug)]
pub(super) struct PacketCapture {
    queue: CaptureQueue,
}

impl PacketCapture {
    /// For the VM that has this interface. It fills its ring, so no thread that moves packets makes
    /// one.
    pub fn new(interface: &CaptureInterface) -> Box<Self> {
        Box::new(Self { queue: interface.queue() })
    }

    /// A packet of the guest's, with room for this many bytes of payload. Its header was read.
    pub fn sent(&mut self, header: &Header, room: usize, segments: &[Segment]) {
        self.record(PacketDirection::Outbound, header, room, segments);
    }

    /// A packet for the guest, whose payload is in place.
    pub fn given(&mut self, header: &Header, segments: &[Segment]) {
        self.record(PacketDirection::Inbound, header, header.len as usize, segments);
    }

    fn record(&mut self, way: PacketDirection, header: &Header, room: usize, segments: &[Segment]) {
        let prefix = prefix(header);
        let len = PREFIX_BYTES + room.min(header.len as usize);
        self.queue.record(way, len, |at, to| {
            let front = prefix.get(at..).unwrap_or_default();
            let (front_to, payload_to) = to.split_at_mut(front.len().min(to.len()));
            front_to.copy_from_slice(&front[..front_to.len()]);
            let payload_at = (at + front_to.len()).saturating_sub(PREFIX_BYTES);
            access::read(segments, HEADER_LEN + payload_at, payload_to);
        });
    }

    /// The turn is over.
    #[inline]
    pub fn publish(&mut self) {
        self.queue.publish();
    }
}

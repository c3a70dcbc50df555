//! What a packet sender is opened with.

use super::error::OpenError;
use zerowire_sys::packet::{Geometry, MAX_FRAME_BYTES, Version};
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;
use zerowire_wire::setters;
use zerowire_wire::vnet::VNET_HEADER_BYTES;

use crate::send::frame::ETHERNET_HEADER_BYTES;

/// Options of a [`PacketRing`](super::PacketRing) and a [`PacketSocket`](super::PacketSocket).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PacketOptions {
    /// Places for frames, 1 to [`MAX_SLOTS`](super::MAX_SLOTS), made exactly as given. 256 by
    /// default.
    pub slots: usize,
    /// Bytes of the longest frame, Ethernet header included, virtio-net header not; 14 to
    /// [`MAX_FRAME_BYTES`]. None: what the interface's MTU needs, with a VLAN tag; with `offload`
    /// [`MAX_FRAME_BYTES`].
    pub frame_bytes: Option<usize>,
    /// Each frame has a virtio-net header ([`VnetHeader`](super::VnetHeader)) that leaves checksum
    /// and segmentation to the kernel or the interface (PACKET_VNET_HDR).
    pub offload: bool,
    /// Ring only: the kernel copies frames without offload of up to this many bytes whole when it
    /// takes them (ledger: `cheaper`), in place of lending their pages. 0 by default, 65 535 at
    /// most. For interfaces that copy lent frames anyway ([`PacketOptions::lending_is_lost`]). A
    /// lent frame gets pages of its own there, which costs more than the copy. The kernel then
    /// leaves the MTU to this process, which looks at it every 50 ms.
    pub copy_up_to: usize,
    /// Frames go straight to the driver, past the interface's queue (PACKET_QDISC_BYPASS): less
    /// CPU, no traffic control.
    pub bypass_queue: bool,
    /// Ring only: the kernel skips frames that it refuses, without an error (PACKET_LOSS).
    /// Otherwise the sender takes such a frame out, names it, and goes on. See
    /// [`PacketRing::lost_bytes`](super::PacketRing::lost_bytes).
    pub skip_refused: bool,
    /// Ring only: the version to use; None: TPACKET_V3, and where that is refused TPACKET_V2.
    pub version: Option<Version>,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self {
            slots: 256,
            frame_bytes: None,
            offload: false,
            copy_up_to: 0,
            bypass_queue: false,
            skip_refused: false,
            version: None,
        }
    }
}

impl PacketOptions {
    setters! {
        slots: usize,
        frame_bytes: Option<usize>,
        offload: bool,
        copy_up_to: usize,
        bypass_queue: bool,
        skip_refused: bool,
        version: Option<Version>,
    }

    /// Bytes of a place: virtio-net header and frame.
    pub(super) fn data_bytes(&self, mtu: usize) -> Result<usize, OpenError> {
        let by_mtu = (mtu + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES).min(MAX_FRAME_BYTES);
        let frame_bytes = self.frame_bytes.unwrap_or(if self.offload { MAX_FRAME_BYTES } else { by_mtu });
        if !(ETHERNET_HEADER_BYTES..=MAX_FRAME_BYTES).contains(&frame_bytes) {
            return Err(OpenError::FrameBytes { frame_bytes });
        }
        Ok(self.header_bytes() + frame_bytes)
    }

    /// Bytes that a ring opened with these options takes, which are unswappable memory of the
    /// kernel. `frame_bytes` must be given, or `offload`: an MTU is not looked at.
    ///
    /// # Errors
    /// [`OpenError::Slots`], [`OpenError::FrameBytes`], [`OpenError::RingBytes`].
    pub fn ring_bytes(&self) -> Result<usize, OpenError> {
        Ok(self.geometry()?.total_bytes())
    }

    /// The ring of these options, which give the length of frames. It ignores the MTU.
    pub(super) fn geometry(&self) -> Result<Geometry, OpenError> {
        let version = self.version.unwrap_or(Version::V3);
        Ok(Geometry::new(self.slots, self.data_bytes(0)?, version)?)
    }

    /// Whether frames have a virtio-net header: with offload, and to tell the kernel how much of a
    /// frame to copy.
    pub(super) fn has_headers(&self) -> bool {
        self.offload || self.copy_up_to > 0
    }

    /// Whether an interface of this kind (`veth`, `tun`, `lo`: what `ip -d link` shows) copies
    /// every frame that reaches a receiver on this machine. If so, lending gains nothing
    /// (`skb_orphan_frags_rx`, net/core/dev.c).
    #[must_use]
    pub fn lending_is_lost(kind: &str) -> bool {
        matches!(kind, "veth" | "tun" | "tap" | "lo")
    }

    /// Bytes of the virtio-net header before each frame.
    pub(super) fn header_bytes(&self) -> usize {
        if self.has_headers() { VNET_HEADER_BYTES } else { 0 }
    }
}

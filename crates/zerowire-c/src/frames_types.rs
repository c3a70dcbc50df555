//! The types of the interface of whole frames.

use std::time::Duration;

use zerowire::packet::{self, Gso, VnetHeader};
use zerowire::xdp::{Mode, SenderOptions};

use crate::failure::{Failure, wrong};
use crate::send_types::ZW_CHECKED;

/// A way: a transmit ring of a packet socket (PACKET_TX_RING). On any interface, with checksum and
/// segmentation offload.
pub const ZW_FRAMES_RING: u32 = 0u32;
/// A way: an AF_XDP socket on one queue of an interface.
pub const ZW_FRAMES_XDP: u32 = 1u32;

/// A mode of AF_XDP: zero copy where the driver can, else one copy by the kernel; zw_frames_path
/// says which.
pub const ZW_XDP_AUTO: u32 = 0u32;
/// A mode of AF_XDP: one copy, by the kernel. On any interface.
pub const ZW_XDP_COPY: u32 = 1u32;
/// A mode of AF_XDP: the interface reads frames in place; -EOPNOTSUPP where its driver can't.
pub const ZW_XDP_ZEROCOPY: u32 = 2u32;

/// A flag of zw_frames_options, ring only: frames may have a zw_vnet_header.
pub const ZW_FRAMES_OFFLOAD: u32 = 2u32;
/// A flag of zw_frames_options, ring only: past the interface's queue, without traffic control
/// (PACKET_QDISC_BYPASS).
pub const ZW_FRAMES_BYPASS_QUEUE: u32 = 4u32;
/// A flag of zw_frames_options, ring only: the kernel skips frames that it refuses, without an
/// error (PACKET_LOSS).
pub const ZW_FRAMES_SKIP_REFUSED: u32 = 8u32;
/// A flag of zw_frames_options, AF_XDP only: memory in pages of 2 MiB.
pub const ZW_FRAMES_HUGE_PAGES: u32 = 16u32;

/// A flag of zw_vnet_header: sum from csum_start on, and put the checksum at csum_start +
/// csum_offset, where the frame has the sum of the pseudo header (VIRTIO_NET_HDR_F_NEEDS_CSUM).
pub const ZW_VNET_NEEDS_CSUM: u32 = 1u32;
/// A gso_type of zw_vnet_header: the frame is not cut.
pub const ZW_VNET_GSO_NONE: u32 = 0u32;
/// A gso_type of zw_vnet_header: TCP segments over IPv4.
pub const ZW_VNET_GSO_TCPV4: u32 = 1u32;
/// A gso_type of zw_vnet_header: TCP segments over IPv6.
pub const ZW_VNET_GSO_TCPV6: u32 = 4u32;
/// A gso_type of zw_vnet_header: UDP datagrams (Linux 6.2).
pub const ZW_VNET_GSO_UDP_L4: u32 = 5u32;

/// How frames are sent. Set size, and leave at 0 what you don't want to choose: 0 is the default of
/// each field. A field or flag of the other way than the one that is chosen has to be 0 (-EINVAL).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FramesOptions {
    /// sizeof(struct zw_frames_options). Later versions append fields.
    pub size: libc::size_t,
    /// ZW_FRAMES_RING or ZW_FRAMES_XDP.
    pub way: u32,
    /// ZW_XDP_...; AF_XDP only.
    pub mode: u32,
    /// Queue of the interface, from 0; AF_XDP only.
    pub queue: u32,
    /// Places for frames: those that can be built or on their way at once. 0: 256 (ring), 2048
    /// (AF_XDP).
    pub places: u32,
    /// Entries of AF_XDP's rings, a power of two. 0: 2048.
    pub entries: u32,
    /// Ring only: the kernel copies frames of at most this many bytes (65535 or less) and borrows
    /// longer ones: for interfaces that copy lent frames anyway (veth, tap, lo). 0: all are lent.
    pub copy_up_to: u32,
    /// Bytes of the longest frame, Ethernet header included. 0: what the MTU allows; with
    /// ZW_FRAMES_OFFLOAD the longest there is.
    pub frame_bytes: libc::size_t,
    /// AF_XDP only: milliseconds to wait for a queue whose last socket was closed. 0: 500.
    pub busy_ms: u32,
    /// ZW_CHECKED, ZW_FRAMES_...
    pub flags: u32,
}

/// A virtio-net header in the machine's byte order (virtio 1.3 §5.1.6.2): what the kernel or the
/// interface is to do to a frame. Offsets count from the start of the Ethernet header. All 0:
/// nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// ZW_VNET_NEEDS_CSUM.
    pub flags: u8,
    /// ZW_VNET_GSO_...
    pub gso_type: u8,
    /// Bytes of all headers, which each segment gets; 0 where nothing is cut.
    pub hdr_len: u16,
    /// Bytes of payload of a segment; 0 where nothing is cut.
    pub gso_size: u16,
    /// Where the TCP or UDP header begins.
    pub csum_start: u16,
    /// Where its checksum is in it: 16 (TCP), 6 (UDP).
    pub csum_offset: u16,
}

impl FrameHeader {
    /// The header, checked as far as it can be without its frame.
    pub(crate) fn check(&self) -> Result<VnetHeader, Failure> {
        let gso = match u32::from(self.gso_type) {
            ZW_VNET_GSO_NONE => None,
            ZW_VNET_GSO_TCPV4 => Some(Gso::TcpV4),
            ZW_VNET_GSO_TCPV6 => Some(Gso::TcpV6),
            ZW_VNET_GSO_UDP_L4 => Some(Gso::UdpL4),
            n => return wrong(format!("gso_type {n}: use ZW_VNET_GSO_NONE, _TCPV4, _TCPV6 or _UDP_L4")),
        };
        let Self { flags, hdr_len, gso_size, csum_start, csum_offset, .. } = *self;
        match (u32::from(flags), gso) {
            (0, None) if *self == Self::default() => Ok(VnetHeader::NONE),
            (ZW_VNET_NEEDS_CSUM, None) if (hdr_len, gso_size) == (0, 0) => {
                Ok(VnetHeader::checksum(csum_start, csum_offset))
            }
            (ZW_VNET_NEEDS_CSUM, Some(gso)) => {
                let made = VnetHeader::segments(gso, hdr_len, gso_size, csum_start, csum_offset);
                made.map_err(|e| Failure::new(libc::EINVAL, e.to_string()))
            }
            (0, _) => {
                wrong("flags 0: all of the header must be 0, or flags ZW_VNET_NEEDS_CSUM, 1".to_owned())
            }
            (ZW_VNET_NEEDS_CSUM, None) => {
                wrong(format!("hdr_len {hdr_len} and gso_size {gso_size}: both are 0 with ZW_VNET_GSO_NONE"))
            }
            (n, _) => wrong(format!("flags {n:#x}: the only one is ZW_VNET_NEEDS_CSUM, 1")),
        }
    }
}

impl From<VnetHeader> for FrameHeader {
    fn from(header: VnetHeader) -> Self {
        let [flags, gso_type, words @ ..] = header.to_bytes();
        let word = |i: usize| u16::from_ne_bytes([words[i], words[i + 1]]);
        let [hdr_len, gso_size, csum_start, csum_offset] = [word(0), word(2), word(4), word(6)];
        Self { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset }
    }
}

/// A way, with its own options.
pub(crate) enum FrameWay {
    Ring(packet::PacketOptions),
    Xdp(SenderOptions),
}

/// What the options mean: the way, and whether memory is checked.
pub(crate) fn way(interface: &str, given: Option<&FramesOptions>) -> Result<(FrameWay, bool), Failure> {
    let mut checked = cfg!(debug_assertions);
    let Some(o) = given else {
        return Ok((FrameWay::Ring(packet::PacketOptions::default()), checked));
    };
    checked |= o.flags & ZW_CHECKED != 0;
    let (way, flags) = match o.way {
        ZW_FRAMES_RING => {
            let others =
                [("mode", o.mode), ("queue", o.queue), ("entries", o.entries), ("busy_ms", o.busy_ms)];
            foreign("ZW_FRAMES_RING", others)?;
            (FrameWay::Ring(ring(o)), ZW_FRAMES_OFFLOAD | ZW_FRAMES_BYPASS_QUEUE | ZW_FRAMES_SKIP_REFUSED)
        }
        ZW_FRAMES_XDP => {
            foreign("ZW_FRAMES_XDP", [("copy_up_to", o.copy_up_to)])?;
            (FrameWay::Xdp(xdp(interface, o)?), ZW_FRAMES_HUGE_PAGES)
        }
        n => return wrong(format!("way {n}: use ZW_FRAMES_RING or ZW_FRAMES_XDP")),
    };
    let unknown = o.flags & !(flags | ZW_CHECKED);
    if unknown != 0 {
        return wrong(format!("flags {unknown:#x}: not known, or of the other way than way {}", o.way));
    }
    Ok((way, checked))
}

fn foreign<const N: usize>(way: &str, fields: [(&str, u32); N]) -> Result<(), Failure> {
    match fields.into_iter().find(|(_, value)| *value != 0) {
        Some((name, value)) => wrong(format!("{name} {value}: {way} has no such option, leave it at 0")),
        None => Ok(()),
    }
}

fn ring(o: &FramesOptions) -> packet::PacketOptions {
    let options = packet::PacketOptions::default();
    let slots = if o.places == 0 { options.slots } else { o.places as usize };
    options
        .slots(slots)
        .frame_bytes((o.frame_bytes != 0).then_some(o.frame_bytes))
        .offload(o.flags & ZW_FRAMES_OFFLOAD != 0)
        .copy_up_to(o.copy_up_to as usize)
        .bypass_queue(o.flags & ZW_FRAMES_BYPASS_QUEUE != 0)
        .skip_refused(o.flags & ZW_FRAMES_SKIP_REFUSED != 0)
}

fn xdp(interface: &str, o: &FramesOptions) -> Result<SenderOptions, Failure> {
    let mut options = SenderOptions::new(interface);
    options.queue = o.queue;
    options.mode = match o.mode {
        ZW_XDP_AUTO => Mode::Auto,
        ZW_XDP_COPY => Mode::Copy,
        ZW_XDP_ZEROCOPY => Mode::ZeroCopy,
        n => return wrong(format!("mode {n}: use ZW_XDP_AUTO, ZW_XDP_COPY or ZW_XDP_ZEROCOPY")),
    };
    if o.places != 0 {
        options.frames = o.places;
    }
    if o.entries != 0 {
        options.ring = o.entries;
    }
    if o.busy_ms != 0 {
        options.busy_timeout = Duration::from_millis(o.busy_ms.into());
    }
    options.max_frame_bytes = o.frame_bytes;
    options.huge_pages = o.flags & ZW_FRAMES_HUGE_PAGES != 0;
    Ok(options)
}

//! The virtio-net header before a frame (virtio 1.3 §5.1.6; include/uapi/linux/virtio_net.h): it
//! leaves the frame's checksum, and its segmentation, to whoever gets it.
//!
//! ```text
//! 0 flags | 1 gso_type | 2 hdr_len | 4 gso_size | 6 csum_start | 8 csum_offset | 10 num_buffers
//! ```
//!
//! Between a guest and a device it is little endian, and has `num_buffers` (12 bytes). Packet
//! sockets (PACKET_VNET_HDR) take 10 bytes in the machine's byte order (net/packet/af_packet.c,
//! `vio_le`): [`VnetHeader`].

mod transport;

use std::fmt;
use std::ops::Range;

use crate::{tcp, udp};

/// Bytes of the header without `num_buffers`.
pub const VNET_HEADER_BYTES: usize = 10;
/// Where `flags` stands.
pub const FLAGS_AT: usize = 0;
/// What counts with an offload only: `hdr_len` to `csum_offset`.
pub const OFFLOAD: Range<usize> = 2..10;
/// What counts with segmentation only: `hdr_len` and `gso_size`.
pub const LENGTHS: Range<usize> = 2..6;
/// Where `num_buffers` stands, if the header has it.
pub const NUM_BUFFERS_AT: usize = VNET_HEADER_BYTES;

/// Flag `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the receiver of the header completes the checksum.
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`: the frame is not to be cut.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP`: UDP fragmentation.
pub const GSO_UDP: u8 = 3;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: UDP segmentation.
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag beside the type.
pub const GSO_ECN: u8 = 0x80;

/// The fields of a header as it lies in a guest's memory. They may say anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// [`NEEDS_CSUM`], and others.
    pub flags: u8,
    /// One of the `GSO_…`, and [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers of the frame, a hint.
    pub hdr_len: u16,
    /// Bytes of payload of each segment.
    pub gso_size: u16,
    /// Where the checksum begins, bytes from the frame's start.
    pub csum_start: u16,
    /// Where it is stored, bytes from `csum_start`.
    pub csum_offset: u16,
}

impl Fields {
    /// Reads a header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; VNET_HEADER_BYTES]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Reads the header that `bytes` begin with; where they end before, it asks for nothing.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        bytes.first_chunk().map(Self::from_bytes).unwrap_or_default()
    }

    /// Whether the header asks for nothing; its other fields mean nothing then.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.flags & NEEDS_CSUM == 0 && self.gso_type == GSO_NONE
    }

    /// The kind of segments, without [`GSO_ECN`].
    #[inline]
    pub fn gso_kind(&self) -> u8 {
        self.gso_type & !GSO_ECN
    }
}

/// What a long frame is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Gso {
    /// TCP segments over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    TcpV4 = GSO_TCPV4,
    /// TCP segments over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    TcpV6 = GSO_TCPV6,
    /// UDP datagrams (`VIRTIO_NET_HDR_GSO_UDP_L4`, since Linux 6.2).
    UdpL4 = GSO_UDP_L4,
}

impl Gso {
    /// What this `gso_type`, without [`GSO_ECN`], says. None where it says another thing.
    #[inline]
    pub const fn of(gso_type: u8) -> Option<Self> {
        match gso_type {
            GSO_TCPV4 => Some(Self::TcpV4),
            GSO_TCPV6 => Some(Self::TcpV6),
            GSO_UDP_L4 => Some(Self::UdpL4),
            _ => None,
        }
    }

    /// Place of the checksum in the transport header, bytes, which include/linux/virtio_net.h
    /// demands.
    #[inline]
    pub const fn checksum_at(self) -> u16 {
        match self {
            Self::TcpV4 | Self::TcpV6 => tcp::CHECKSUM_AT as u16,
            Self::UdpL4 => udp::CHECKSUM_AT as u16,
        }
    }

    /// Bytes of the shortest transport header.
    const fn transport_bytes(self) -> u16 {
        match self {
            Self::TcpV4 | Self::TcpV6 => tcp::MIN_HEADER_BYTES as u16,
            Self::UdpL4 => udp::HEADER_BYTES as u16,
        }
    }
}

/// A checked virtio-net header for a packet socket. Offsets count from the start of the Ethernet
/// header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// A rule that an offload header breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VnetError {
    /// Segments of no bytes.
    NoSegment,
    /// The checksum isn't where this kind of frame has it.
    ChecksumOffset {
        /// What is given.
        got: u16,
        /// What must be given.
        want: u16,
        /// The kind.
        gso: Gso,
    },
    /// The headers end before the transport header does.
    HeaderLength {
        /// Bytes of all headers.
        hdr_len: u16,
        /// Start of the transport header.
        csum_start: u16,
        /// Least bytes of it.
        transport: u16,
    },
    /// The checksum, or the headers, are not in the frame.
    Outside {
        /// End of the headers.
        end: usize,
        /// Bytes of the frame.
        frame_bytes: usize,
    },
    /// The frame's headers are not those of TCP or UDP over IPv4 or IPv6.
    NotTransport,
}

impl fmt::Display for VnetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSegment => f.write_str(
                "gso_size is 0: give the bytes of payload of each segment, such as the MTU less the IP and TCP headers",
            ),
            Self::ChecksumOffset { got, want, gso } => write!(
                f,
                "csum_offset is {got}, and a frame cut by {gso:?} has its checksum at {want} of the transport header"
            ),
            Self::HeaderLength { hdr_len, csum_start, transport } => write!(
                f,
                "hdr_len {hdr_len} ends before the transport header at {csum_start}, of at least {transport} bytes, does"
            ),
            Self::Outside { end, frame_bytes } => {
                write!(f, "the headers go to byte {end}, and the frame has {frame_bytes} bytes")
            }
            Self::NotTransport => f.write_str(
                "the frame isn't TCP or UDP over IPv4 or IPv6 right behind Ethernet and VLAN tags, or it is a fragment",
            ),
        }
    }
}

impl std::error::Error for VnetError {}

impl VnetHeader {
    /// No offload: the frame goes out as it is.
    pub const NONE: Self =
        Self { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };

    /// No offload; the kernel copies all `len` bytes of the frame, in place of its Ethernet header
    /// only (`copylen` in `tpacket_snd`, net/packet/af_packet.c).
    #[must_use]
    pub const fn copied(len: usize) -> Self {
        Self { hdr_len: if len > u16::MAX as usize { 0 } else { len as u16 }, ..Self::NONE }
    }

    /// Requests the checksum of everything from `csum_start` on. It goes to `csum_start +
    /// csum_offset`, where the frame holds the sum of the pseudo header.
    #[must_use]
    #[inline]
    pub const fn checksum(csum_start: u16, csum_offset: u16) -> Self {
        Self { flags: NEEDS_CSUM, csum_start, csum_offset, ..Self::NONE }
    }

    /// Requests that the frame be cut. Each segment gets the first `hdr_len` bytes and `gso_size`
    /// bytes of payload. Checksums are as in [`VnetHeader::checksum`]; `csum_start` is the start of
    /// the TCP or UDP header.
    ///
    /// # Errors
    /// [`VnetError`] for the first rule that is broken.
    pub const fn segments(
        gso: Gso,
        hdr_len: u16,
        gso_size: u16,
        csum_start: u16,
        csum_offset: u16,
    ) -> Result<Self, VnetError> {
        if gso_size == 0 {
            return Err(VnetError::NoSegment);
        }
        if csum_offset != gso.checksum_at() {
            return Err(VnetError::ChecksumOffset { got: csum_offset, want: gso.checksum_at(), gso });
        }
        let transport = gso.transport_bytes();
        if (hdr_len as u32) < csum_start as u32 + transport as u32 {
            return Err(VnetError::HeaderLength { hdr_len, csum_start, transport });
        }
        Ok(Self { flags: NEEDS_CSUM, gso_type: gso as u8, hdr_len, gso_size, csum_start, csum_offset })
    }

    /// Reads the headers of a whole TCP or UDP frame, and makes it ready: the checksum field gets
    /// the sum of the pseudo header. With `gso_size`, segments of the frame get that many bytes of
    /// payload; None: only its checksum is left to do.
    ///
    /// # Errors
    /// [`VnetError::NotTransport`], or a rule of [`VnetHeader::segments`].
    pub fn prepare(frame: &mut [u8], gso_size: Option<u16>) -> Result<Self, VnetError> {
        let found = transport::find(frame).ok_or(VnetError::NotTransport)?;
        let start = found.transport_at as u16;
        let header = match gso_size {
            Some(size) => {
                Self::segments(found.gso, found.payload_at as u16, size, start, found.gso.checksum_at())?
            }
            None => Self::checksum(start, found.gso.checksum_at()),
        };
        header.check(frame.len())?;
        let at = found.transport_at + usize::from(found.gso.checksum_at());
        frame[at..at + 2].copy_from_slice(&found.pseudo_sum.to_be_bytes());
        Ok(header)
    }

    /// Whether the header requests that the frame be cut.
    #[must_use]
    #[inline]
    pub const fn is_segmented(&self) -> bool {
        self.gso_type != 0
    }

    /// Checks that the headers lie in a frame of `frame_bytes` bytes.
    ///
    /// # Errors
    /// [`VnetError::Outside`].
    #[inline]
    pub fn check(&self, frame_bytes: usize) -> Result<(), VnetError> {
        let checksum_end = match self.flags & NEEDS_CSUM {
            0 => 0,
            _ => usize::from(self.csum_start) + usize::from(self.csum_offset) + 2,
        };
        let end = checksum_end.max(usize::from(self.hdr_len));
        if end > frame_bytes { Err(VnetError::Outside { end, frame_bytes }) } else { Ok(()) }
    }

    /// Bytes of the longest frame on the wire that a frame of `frame_bytes` makes.
    #[inline]
    pub fn longest_segment(&self, frame_bytes: usize) -> usize {
        if self.is_segmented() {
            frame_bytes.min(usize::from(self.hdr_len) + usize::from(self.gso_size))
        } else {
            frame_bytes
        }
    }

    /// The header as the kernel reads it.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; VNET_HEADER_BYTES] {
        let mut bytes = [0; VNET_HEADER_BYTES];
        (bytes[0], bytes[1]) = (self.flags, self.gso_type);
        let words = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests;

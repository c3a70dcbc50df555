//! The virtio-net header (virtio 1.3 §5.1.6).

pub use zerowire_wire::vnet::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM as FLAG_NEEDS_CSUM,
};

/// Bytes of the header with VERSION_1 and without hash reports.
pub const HEADER_LEN: usize = 12;

/// The header in front of each frame. Plain values; nothing is checked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VirtioNetHdr {
    /// `FLAG_…`.
    pub flags: u8,
    /// `GSO_…`.
    pub gso_type: u8,
    /// Bytes of all headers of the frame, a hint with GSO.
    pub hdr_len: u16,
    /// Payload bytes a segment with GSO.
    pub gso_size: u16,
    /// Where the checksum begins, in bytes from the frame's start.
    pub csum_start: u16,
    /// Where the checksum is stored, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Receive buffers that the frame takes (device to driver).
    pub num_buffers: u16,
}

impl VirtioNetHdr {
    /// The bytes in memory, little-endian.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes in memory.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> VirtioNetHdr {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        VirtioNetHdr {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        }
    }
}

#[cfg(test)]
mod tests;

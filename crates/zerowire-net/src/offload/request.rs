//! What the virtio-net header of a frame asks for.

use zerowire_wire::vnet::{Fields, GSO_NONE, Gso};

/// What a frame needs before it can go on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing.
    Plain,
    /// The checksum from `start` on needs to be completed and stored `offset` bytes behind it; both
    /// in bytes, `start` from the frame's begin.
    Checksum {
        /// `csum_start`
        start: u16,
        /// `csum_offset`
        offset: u16,
    },
    /// Segments of `size` bytes of payload, each with its own checksum.
    Segments {
        /// Of what.
        kind: Gso,
        /// `gso_size`, bytes.
        size: u16,
        /// `csum_start`
        start: u16,
        /// `csum_offset`
        offset: u16,
    },
}

impl Request {
    /// Reads a header that [`crate::header::check`] accepted. None where it asks for segments
    /// that this code does not make; those are not offered.
    #[inline]
    pub fn read(vnet: &[u8; 10]) -> Option<Self> {
        let vnet = Fields::from_bytes(vnet);
        let (size, start, offset) = (vnet.gso_size, vnet.csum_start, vnet.csum_offset);
        let kind = match vnet.gso_kind() {
            GSO_NONE if vnet.is_plain() => return Some(Self::Plain),
            GSO_NONE => return Some(Self::Checksum { start, offset }),
            kind => Gso::of(kind)?,
        };
        Some(Self::Segments { kind, size, start, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_read() {
        let header = |flags, gso| [flags, gso, 54, 0, 0xa8, 5, 34, 0, 16, 0];
        assert_eq!(Request::read(&header(0, 0)), Some(Request::Plain));
        assert_eq!(Request::read(&header(1, 0)), Some(Request::Checksum { start: 34, offset: 16 }));
        for (gso, kind) in [(1, Gso::TcpV4), (0x81, Gso::TcpV4), (4, Gso::TcpV6), (5, Gso::UdpL4)] {
            let segments = Request::Segments { kind, size: 1448, start: 34, offset: 16 };
            assert_eq!(Request::read(&header(1, gso)), Some(segments));
        }
        assert_eq!(Request::read(&header(1, 3)), None, "UDP fragments");
    }
}

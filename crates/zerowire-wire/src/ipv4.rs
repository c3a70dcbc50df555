//! IPv4 headers (RFC 791 §3.1).
//!
//! ```text
//! 0 version, length | 1 class | 2 total length | 4 identification | 6 flags, fragment offset |
//! 8 time to live | 9 protocol | 10 checksum | 12 addresses | 20 options
//! ```

use std::ops::Range;

use crate::checksum::Checksum;
use crate::ip::IpError;

/// Bytes of a header without options.
pub const MIN_HEADER_BYTES: usize = 20;

/// Bytes of the packet, header included.
pub const TOTAL_LEN: Range<usize> = 2..4;
/// A number that fragments of one packet share.
const IDENTIFICATION: Range<usize> = 4..6;
/// The header's checksum.
const CHECKSUM: Range<usize> = 10..12;
/// Source and destination.
pub const ADDRESSES: Range<usize> = 12..20;
/// Source.
pub const SOURCE: Range<usize> = 12..16;
/// Destination.
pub const DESTINATION: Range<usize> = 16..20;

const FRAGMENT_AT: usize = 6;
const PROTOCOL_AT: usize = 9;
/// The bit "more fragments", and the offset of a fragment.
const FRAGMENT: u16 = 0x3fff;
/// The offset alone.
const OFFSET: u16 = 0x1fff;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the header, options included: 20 to 60.
    pub header_bytes: usize,
    /// Bytes of the packet; 0 in captures of packets that are longer than 16 bits can say.
    pub total_bytes: u16,
    /// The protocol of the payload.
    pub protocol: u8,
    /// It is a fragment of a packet: no transport header of its own follows but in the first one.
    pub is_fragment: bool,
}

impl Header {
    /// Reads the header at the start of `packet`. Ignores options and addresses, which may be
    /// missing.
    ///
    /// # Errors
    /// [`IpError`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, IpError> {
        let first = *packet.first().ok_or(IpError::Short)?;
        let header_bytes = header_bytes(first);
        if first >> 4 != 4 || header_bytes < MIN_HEADER_BYTES {
            return Err(IpError::Version(first));
        }
        let fields = packet.first_chunk::<10>().ok_or(IpError::Short)?;
        let word = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
        Ok(Self {
            header_bytes,
            total_bytes: word(TOTAL_LEN.start),
            protocol: fields[PROTOCOL_AT],
            is_fragment: word(FRAGMENT_AT) & FRAGMENT != 0,
        })
    }
}

/// Whether `packet` is a fragment that begins within the payload: no transport header follows.
#[inline]
pub fn is_later_fragment(packet: &[u8]) -> bool {
    crate::word(packet, FRAGMENT_AT).is_some_and(|word| word & OFFSET != 0)
}

/// The address of the receiver of `packet`; None where the packet ends before.
#[inline]
pub fn destination(packet: &[u8]) -> Option<[u8; 4]> {
    packet.get(DESTINATION)?.try_into().ok()
}

/// The address of the sender of `packet`; None where the packet ends before.
#[inline]
pub fn source(packet: &[u8]) -> Option<[u8; 4]> {
    packet.get(SOURCE)?.try_into().ok()
}

/// Adds to the identification of `packet`, which has it.
#[inline]
pub fn add_to_identification(packet: &mut [u8], n: u16) {
    let id = crate::word(packet, IDENTIFICATION.start).map_or(0, |id| id.wrapping_add(n));
    packet[IDENTIFICATION].copy_from_slice(&id.to_be_bytes());
}

/// Writes the checksum of a header, which `header` is to its last option.
#[inline]
pub fn complete_checksum(header: &mut [u8]) {
    header[CHECKSUM].fill(0);
    let mut sum = Checksum::new();
    sum.add(header);
    header[CHECKSUM].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Bytes of a header that begins with this byte.
#[inline]
pub const fn header_bytes(first: u8) -> usize {
    (first & 15) as usize * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_odd_headers_refused() {
        let mut packet = [0x46, 0, 1, 2, 0, 0, 0x40, 0, 64, 17, 0, 0];
        let good = Header { header_bytes: 24, total_bytes: 0x102, protocol: 17, is_fragment: false };
        assert_eq!(Header::parse(&packet), Ok(good));
        for (byte, value) in [(6, 0x20), (7, 1)] {
            let mut fragment = packet;
            fragment[byte] = value;
            assert_eq!(Header::parse(&fragment), Ok(Header { is_fragment: true, ..good }));
            assert_eq!(is_later_fragment(&fragment), byte == 7);
        }
        for len in 0..10 {
            assert_eq!(Header::parse(&packet[..len]), Err(IpError::Short), "{len}");
        }
        for first in [0x44, 0x65, 0x05] {
            packet[0] = first;
            assert_eq!(Header::parse(&packet), Err(IpError::Version(first)));
        }
    }

    #[test]
    fn the_identification_wraps() {
        let mut packet = [0x45, 0, 1, 2, 0xff, 0xfe, 3, 4];
        add_to_identification(&mut packet, 0x103);
        assert_eq!(packet, [0x45, 0, 1, 2, 1, 1, 3, 4]);
    }
}

//! TCP headers (RFC 9293 §3.1).
//!
//! ```text
//! 0 ports | 4 sequence number | 8 acknowledgement | 12 length of the header | 13 flags |
//! 14 window | 16 checksum | 18 urgent pointer | 20 options
//! ```

use std::ops::Range;

/// Bytes of a header without options.
pub const MIN_HEADER_BYTES: usize = 20;
/// Where in the stream the payload begins, bytes modulo 2^32.
const SEQUENCE: Range<usize> = 4..8;
/// Where the flags stand.
pub const FLAGS_AT: usize = 13;
/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 16;

/// Flag: the sender has finished.
pub const FIN: u8 = 0x01;
/// Flag: the sender opens a connection.
pub const SYN: u8 = 0x02;
/// Flag: the connection is gone.
pub const RST: u8 = 0x04;
/// Flag: to be handed on at once.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgement counts.
pub const ACK: u8 = 0x10;
/// Flag: the sender's window was reduced.
pub const CWR: u8 = 0x80;

/// The ports of sender and receiver; None where the segment ends before.
#[inline]
pub fn ports(segment: &[u8]) -> Option<(u16, u16)> {
    Some((crate::word(segment, 0)?, crate::word(segment, 2)?))
}

/// The flags; None where the segment ends before.
#[inline]
pub fn flags(segment: &[u8]) -> Option<u8> {
    segment.get(FLAGS_AT).copied()
}

/// Adds to the sequence number of `segment`, which has it.
#[inline]
pub fn add_to_sequence(segment: &mut [u8], bytes: u32) {
    let mut number = [0; 4];
    number.copy_from_slice(&segment[SEQUENCE]);
    let number = u32::from_be_bytes(number).wrapping_add(bytes);
    segment[SEQUENCE].copy_from_slice(&number.to_be_bytes());
}

/// Bytes of the header that `segment` begins with, as it says: less than 20 can't be. None where
/// the segment ends before.
#[inline]
pub fn header_bytes(segment: &[u8]) -> Option<usize> {
    segment.get(12).map(|b| usize::from(b >> 4) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_flags_are_read_and_the_sequence_number_wraps() {
        let mut segment = [0, 80, 1, 2, 0xff, 0xff, 0xff, 0xfe, 9, 9, 9, 9, 0x50, SYN];
        assert_eq!((ports(&segment), ports(&segment[..3])), (Some((80, 0x102)), None));
        assert_eq!((flags(&segment), flags(&segment[..13])), (Some(SYN), None));
        add_to_sequence(&mut segment, 0x1_0003);
        assert_eq!(segment[2..10], [1, 2, 0, 1, 0, 1, 9, 9]);
    }
}

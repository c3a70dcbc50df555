//! TCP headers (RFC 9293 §3.1).
//!
//! ```text
//! 0 ports | 4 sequence number | 8 acknowledgement | 12 length of the header | 13 flags |
//! 14 window | 16 checksum | 18 urgent pointer | 20 options
//! ```

/// Bytes of a header without options.
pub const MIN_HEADER_BYTES: usize = 20;
/// Where the flags stand.
pub const FLAGS_AT: usize = 13;
/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 16;

/// Flag: the sender has finished.
pub const FIN: u8 = 0x01;
/// Flag: to be handed on at once.
pub const PSH: u8 = 0x08;
/// Flag: the sender's window was reduced.
pub const CWR: u8 = 0x80;

/// Bytes of the header that `segment` begins with, as it says: less than 20 can't be. None where
/// the segment ends before.
#[inline]
pub fn header_bytes(segment: &[u8]) -> Option<usize> {
    segment.get(12).map(|b| usize::from(b >> 4) * 4)
}

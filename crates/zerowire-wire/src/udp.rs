//! UDP headers (RFC 768).
//!
//! ```text
//! 0 ports | 4 length | 6 checksum | 8
//! ```

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Where the ports of sender and receiver end.
pub const PORTS_BYTES: usize = 4;
/// Where the length of header and payload stands.
pub const LEN_AT: usize = 4;
/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 6;

/// The ports of sender and receiver; None where the datagram ends before.
#[inline]
pub fn ports(datagram: &[u8]) -> Option<(u16, u16)> {
    Some((crate::word(datagram, 0)?, crate::word(datagram, 2)?))
}

//! UDP headers (RFC 768).
//!
//! ```text
//! 0 ports | 4 length | 6 checksum | 8
//! ```

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// Where the length of header and payload stands.
pub const LEN_AT: usize = 4;
/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 6;

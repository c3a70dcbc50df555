//! ICMPv6 messages (RFC 4443 §2.1), and those by which a host joins groups (RFC 2710, RFC 3810).
//! [`ndp`](crate::ndp) has those of neighbour discovery.
//!
//! ```text
//! 0 type | 1 code | 2 checksum | 4 body
//! ```

/// Where the checksum stands.
pub const CHECKSUM_AT: usize = 2;

/// Type: a report of groups, version 1.
pub const GROUP_REPORT: u8 = 131;
/// Type: a host leaves a group, version 1.
pub const GROUP_DONE: u8 = 132;
/// Type: a report of groups, version 2.
pub const GROUP_REPORT_2: u8 = 143;

/// The type of a message; None where there is none.
#[inline]
pub fn kind(message: &[u8]) -> Option<u8> {
    message.first().copied()
}

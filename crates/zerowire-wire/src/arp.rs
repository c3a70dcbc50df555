//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//! 0 hardware, protocol, lengths | 6 operation | 8 sender: MAC, IP | 18 target: MAC | 24 IP | 28
//! ```

use std::ops::Range;

/// Request or reply.
pub const OPERATION: Range<usize> = 6..8;
/// The operation "request", as it stands in a packet.
pub const REQUEST: [u8; 2] = [0, 1];
/// The IPv4 address that the sender asks for.
pub const TARGET_ADDRESS: Range<usize> = 24..28;

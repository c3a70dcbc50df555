//! What both versions of IP have in common: numbers of protocols, and the pseudo header of their
//! checksums.

use crate::checksum::Checksum;

/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;

/// Why an IP header can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpError {
    /// The bytes end before it does.
    Short,
    /// It begins with this byte: another version, or a length that can't be.
    Version(u8),
}

/// The version that `packet` says it has: 4, 6, or another one. None where there is nothing.
#[inline]
pub fn version(packet: &[u8]) -> Option<u8> {
    packet.first().map(|first| first >> 4)
}

/// The sum of the pseudo header (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1). It covers both addresses
/// as they stand in the IP header, the protocol, and the length of the transport's part in bytes.
#[inline]
pub fn pseudo_header(addresses: &[u8], protocol: u8, len: u32) -> Checksum {
    let mut sum = Checksum::new();
    sum.add(addresses);
    sum.add_word(protocol.into());
    sum.add_word((len >> 16) as u16);
    sum.add_word(len as u16);
    sum
}

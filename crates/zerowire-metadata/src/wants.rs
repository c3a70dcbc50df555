//! The classifier of the detour: is this frame for the metadata service?
//!
//! It runs on every frame that the guest sends, so it reads one half-word for
//! most frames, and the destination address of IPv4 and IPv6.

use std::net::Ipv6Addr;
use std::ops::Range;

use zerowire_wire::ip::ICMPV6;
use zerowire_wire::{arp, ethernet, icmpv6, ipv4, ipv6, ndp};

/// The IPv4 address of the service: the link-local address that cloud images
/// ask for metadata (link-local range: RFC 3927).
pub const SERVICE_ADDRESS: [u8; 4] = [169, 254, 169, 254];

/// The IPv6 address of the service: the one that EC2's images ask, a unique
/// local address (RFC 4193).
pub const SERVICE_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// The TCP port of the service (HTTP).
pub const SERVICE_PORT: u16 = 80;

pub(crate) use zerowire_wire::ethernet::HEADER_BYTES as ETHERNET_HEADER_LEN;

/// A field of what the Ethernet header carries.
#[inline]
fn field(headers: &[u8], place: Range<usize>) -> Option<&[u8]> {
    headers.get(ETHERNET_HEADER_LEN + place.start..ETHERNET_HEADER_LEN + place.end)
}

/// Whether the frame that begins with `headers` belongs to the metadata
/// service.
///
/// `headers` are the first bytes of an Ethernet frame, without a virtio-net header. 78 bytes are
/// enough to decide; fewer give `false` where the deciding field is missing. The caller keeps the
/// bytes. If the guest can change the original, pass a private copy, and hand the same copy to
/// [`crate::MetadataService::ingest`].
///
/// True for:
///
/// - an ARP request whose target protocol address is [`SERVICE_ADDRESS`],
/// - a neighbour solicitation for [`SERVICE_ADDRESS_V6`],
/// - every IP packet (any protocol) sent to one of them, whatever the destination MAC.
///
/// Frames with an 802.1Q tag are not taken.
#[inline]
#[must_use]
pub fn wants(headers: &[u8]) -> bool {
    match ethernet::first_type(headers) {
        Some(ethernet::IPV4) => {
            matches!(field(headers, ipv4::DESTINATION), Some(dst) if dst == SERVICE_ADDRESS)
        }
        Some(ethernet::IPV6) => wants_ipv6(headers),
        Some(ethernet::ARP) => wants_arp(headers),
        _ => false,
    }
}

/// A neighbour solicitation goes to a group, and names its target.
#[inline]
fn wants_ipv6(headers: &[u8]) -> bool {
    const MESSAGE_AT: usize = ETHERNET_HEADER_LEN + ipv6::HEADER_BYTES;
    let service = SERVICE_ADDRESS_V6.octets();
    match field(headers, ipv6::DESTINATION) {
        Some(destination) if destination == service => true,
        Some([0xff, 2, ..]) => {
            headers[ETHERNET_HEADER_LEN + ipv6::NEXT_AT] == ICMPV6
                && headers.get(MESSAGE_AT..).is_some_and(|message| {
                    icmpv6::kind(message) == Some(ndp::NEIGHBOUR_SOLICITATION)
                        && ndp::target(message) == Some(service)
                })
        }
        _ => false,
    }
}

#[inline]
fn wants_arp(headers: &[u8]) -> bool {
    matches!(field(headers, arp::OPERATION), Some(operation) if operation == arp::REQUEST)
        && matches!(field(headers, arp::TARGET_ADDRESS), Some(target) if target == SERVICE_ADDRESS)
}

#[cfg(test)]
mod tests;

//! Finds the transport header of a frame: as much of Ethernet, VLAN, IPv4, IPv6, TCP and UDP as
//! offload needs.

use super::Gso;
use crate::ip::{self, TCP, UDP};
use crate::{ethernet, ipv4, ipv6, tcp, udp};

/// What offload needs to know.
pub(super) struct Found {
    pub(super) gso: Gso,
    pub(super) transport_at: usize,
    pub(super) payload_at: usize,
    /// Sum of the pseudo header (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1), not inverted.
    pub(super) pseudo_sum: u16,
}

/// None where the frame is not whole, not TCP or UDP, or a fragment.
pub(super) fn find(frame: &[u8]) -> Option<Found> {
    let (ether_type, network_at) = ethernet::payload(frame, usize::MAX)?;
    let network = frame.get(network_at..)?;
    let (protocol, header_bytes, said, addresses) = match ether_type {
        ethernet::IPV4 => {
            let header = ipv4::Header::parse(network).ok().filter(|header| !header.is_fragment)?;
            let said = usize::from(header.total_bytes).saturating_sub(header.header_bytes);
            (header.protocol, header.header_bytes, said, network.get(ipv4::ADDRESSES)?)
        }
        // Extension headers are not followed.
        ethernet::IPV6 => {
            let header = ipv6::Header::parse(network).ok()?;
            let addresses = network.get(ipv6::ADDRESSES)?;
            (header.next, ipv6::HEADER_BYTES, usize::from(header.payload_bytes), addresses)
        }
        _ => return None,
    };
    let transport = network.get(header_bytes..)?;
    let (gso, least, transport_bytes) = match (protocol, ether_type) {
        (TCP, ethernet::IPV4) => (Gso::TcpV4, tcp::MIN_HEADER_BYTES, tcp::header_bytes(transport)?),
        (TCP, _) => (Gso::TcpV6, tcp::MIN_HEADER_BYTES, tcp::header_bytes(transport)?),
        (UDP, _) => (Gso::UdpL4, udp::HEADER_BYTES, udp::HEADER_BYTES),
        _ => return None,
    };
    if transport_bytes < least || transport.len() < transport_bytes {
        return None;
    }
    // A short frame is padded behind its packet; a captured one of 64 K and more says no length.
    let len = if (transport_bytes..transport.len()).contains(&said) { said } else { transport.len() };
    let sum = ip::pseudo_header(addresses, protocol, len as u32);
    let transport_at = network_at + header_bytes;
    // Offsets travel as 16 bits.
    u16::try_from(transport_at + transport_bytes).ok()?;
    Some(Found { gso, transport_at, payload_at: transport_at + transport_bytes, pseudo_sum: sum.folded() })
}

#[cfg(test)]
mod tests;

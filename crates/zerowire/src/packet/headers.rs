//! Finds the transport header of a frame: as much of Ethernet, VLAN, IPv4, IPv6, TCP and UDP as offload needs.

use super::vnet::Gso;

const VLAN: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;

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
    let mut at = 12;
    let mut ethertype: [u8; 2] = frame.get(at..at + 2)?.try_into().ok()?;
    while VLAN.contains(&ethertype) {
        at += 4;
        ethertype = frame.get(at..at + 2)?.try_into().ok()?;
    }
    let network_at = at + 2;
    let network = frame.get(network_at..)?;
    let (protocol, header_bytes, said, addresses) = match ethertype {
        IPV4 => {
            let header_bytes = usize::from(network.first()? & 15) * 4;
            // Bits MF and offset: a fragment has no transport header of its own.
            let fragment = u16::from_be_bytes(network.get(6..8)?.try_into().ok()?) & 0x3fff;
            if network[0] >> 4 != 4 || header_bytes < 20 || fragment != 0 {
                return None;
            }
            let total = usize::from(u16::from_be_bytes(network.get(2..4)?.try_into().ok()?));
            (*network.get(9)?, header_bytes, total.saturating_sub(header_bytes), network.get(12..20)?)
        }
        // Extension headers are not followed.
        IPV6 if network.first()? >> 4 == 6 => {
            let said = usize::from(u16::from_be_bytes(network.get(4..6)?.try_into().ok()?));
            (*network.get(6)?, 40, said, network.get(8..40)?)
        }
        _ => return None,
    };
    let transport = network.get(header_bytes..)?;
    let (gso, transport_bytes) = match (protocol, ethertype) {
        (TCP, IPV4) => (Gso::TcpV4, usize::from(transport.get(12)? >> 4) * 4),
        (TCP, _) => (Gso::TcpV6, usize::from(transport.get(12)? >> 4) * 4),
        (UDP, _) => (Gso::UdpL4, 8),
        _ => return None,
    };
    let least = if protocol == TCP { 20 } else { 8 };
    if transport_bytes < least || transport.len() < transport_bytes {
        return None;
    }
    // A short frame is padded behind its packet; a captured one of 64 K and more says no length.
    let len = if (transport_bytes..transport.len()).contains(&said) { said } else { transport.len() };
    let mut sum = u64::from(protocol) + len as u64;
    sum += addresses.chunks_exact(2).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u64>();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let transport_at = network_at + header_bytes;
    // Offsets travel as 16 bits.
    u16::try_from(transport_at + transport_bytes).ok()?;
    Some(Found { gso, transport_at, payload_at: transport_at + transport_bytes, pseudo_sum: sum as u16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut f = vec![0; 12];
        f.extend_from_slice(&IPV4);
        f.extend_from_slice(&[0x45, 0, 0, 0, 0, 0]);
        f.extend_from_slice(&fragment.to_be_bytes());
        f.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend_from_slice(rest);
        f
    }

    #[test]
    fn headers_are_found() {
        let found = find(&ipv4(UDP, 0, &[0; 20])).unwrap();
        assert_eq!((found.gso, found.transport_at, found.payload_at), (Gso::UdpL4, 34, 42));
        assert_eq!(found.pseudo_sum, 0x0a00 + 1 + 0x0a00 + 2 + 17 + 20);
        let mut tcp = [0u8; 40];
        tcp[12] = 8 << 4;
        let found = find(&ipv4(TCP, 0x4000, &tcp)).unwrap();
        assert_eq!((found.gso, found.payload_at), (Gso::TcpV4, 66));
        // A tag moves everything by four bytes.
        let mut tagged = ipv4(TCP, 0, &tcp);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(find(&tagged).unwrap().payload_at, 70);
    }

    #[test]
    fn what_is_cut_short_or_odd_is_not_found() {
        let mut tcp = [0u8; 40];
        tcp[12] = 8 << 4;
        let whole = ipv4(TCP, 0, &tcp);
        for len in 0..66 {
            assert!(find(&whole[..len]).is_none(), "{len}");
        }
        assert!(find(&ipv4(TCP, 0x2000, &tcp)).is_none(), "a first fragment");
        assert!(find(&ipv4(UDP, 5, &tcp)).is_none(), "a later fragment");
        assert!(find(&ipv4(1, 0, &tcp)).is_none(), "ICMP");
        tcp[12] = 4 << 4;
        assert!(find(&ipv4(TCP, 0, &tcp)).is_none(), "a TCP header of 16 bytes");
    }
}

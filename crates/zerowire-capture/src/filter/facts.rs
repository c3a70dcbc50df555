//! What a filter asks of a packet.

use std::net::IpAddr;

use zerowire_wire::arp::ArpPacket;
use zerowire_wire::ipv6::Ipv6Part;
use zerowire_wire::{ethernet, ip, ipv4, ipv6, udp, vsockmon};

/// VLAN tags that are passed.
const MOST_TAGS: usize = 2;

/// What the bytes of a packet say; None where they don't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketFacts {
    /// Source and destination, here and below.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// Behind VLAN tags.
    pub ether_type: Option<u16>,
    /// Of the first tag.
    pub vlan: Option<u16>,
    /// Of IP or ARP.
    pub addresses: Option<(IpAddr, IpAddr)>,
    pub protocol: Option<u8>,
    pub ports: Option<(u32, u32)>,
    pub cids: Option<(u64, u64)>,
}

impl PacketFacts {
    /// Of an Ethernet frame.
    pub fn of_frame(frame: &[u8]) -> Self {
        let mut facts =
            Self { macs: ethernet::source(frame).zip(ethernet::destination(frame)), ..Self::default() };
        if ethernet::first_type(frame).is_some_and(ethernet::is_tag) {
            facts.vlan = ethernet::first_vlan(frame);
        }
        if let Some((ether_type, at)) = ethernet::payload(frame, MOST_TAGS) {
            facts.ether_type = Some(ether_type);
            facts.see_payload(ether_type, &frame[at..]);
        }
        facts
    }

    /// Of a packet as vsockmon has it.
    pub fn of_vsock(packet: &[u8]) -> Self {
        let Some((source, destination)) = vsockmon::ends(packet) else { return Self::default() };
        Self {
            cids: Some((source.0, destination.0)),
            ports: Some((source.1, destination.1)),
            ..Self::default()
        }
    }

    fn see_payload(&mut self, ether_type: u16, packet: &[u8]) {
        match ether_type {
            ethernet::ARP => {
                self.addresses = ArpPacket::parse(packet).ok().map(|arp| pair((arp.sender, arp.target)));
            }
            ethernet::IPV4 => {
                let Ok(header) = ipv4::Header::parse(packet) else { return };
                self.addresses = ipv4::source(packet).zip(ipv4::destination(packet)).map(pair);
                let at = (!ipv4::is_later_fragment(packet)).then_some(header.header_bytes);
                self.see_protocol(header.protocol, at.and_then(|at| packet.get(at..)));
            }
            ethernet::IPV6 => {
                let Ok(header) = ipv6::Header::parse(packet) else { return };
                self.addresses = ipv6::source(packet).zip(ipv6::destination(packet)).map(pair);
                if let Some(payload) = header.payload(packet) {
                    let at = (payload.part != Ipv6Part::Later).then_some(payload.at);
                    self.see_protocol(payload.protocol, at.and_then(|at| packet.get(at..)));
                }
            }
            _ => {}
        }
    }

    fn see_protocol(&mut self, protocol: u8, transport: Option<&[u8]>) {
        self.protocol = Some(protocol);
        if matches!(protocol, ip::TCP | ip::UDP) {
            // Those of TCP stand at the same place.
            self.ports = transport.and_then(udp::ports).map(|(a, b)| (a.into(), b.into()));
        }
    }
}

/// Two addresses of the same kind.
fn pair<T>((source, destination): (T, T)) -> (IpAddr, IpAddr)
where
    IpAddr: From<T>,
{
    (source.into(), destination.into())
}

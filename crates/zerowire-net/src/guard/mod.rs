//! What a guest may send: frames that name this guest as their sender, and no other machine. And
//! how many frames to groups it receives ([`StormBound`]).
//!
//! Plain code over the first bytes of a frame. Each check is off unless the user asks for it:
//!
//! ```text
//!  source MAC ─▶ VLAN tag ─▶ ARP: who sends
//!                       └──▶ IPv4, IPv6: source ─▶ neighbour discovery: what is announced
//! ```
//!
//! A frame that shows too little to decide is refused ([`DropReason::GuardUnseen`]): headers beyond
//! the bytes that are read, more tags than two, IP behind a header of IEEE 802.2. So is one that
//! has a checksum stored where the guard has looked, since that would change what it saw.
//!
//! **Ownership.** The guard reads the private copy of a frame's headers, from which they go out. It
//! has no memory of the guest's, and none of frames before.

mod addresses;
mod spec;
mod storm;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use zerowire::ledger::DropReason;
use zerowire_wire::vnet::{Fields, NEEDS_CSUM};
use zerowire_wire::{arp, ethernet, icmpv6, ip, ipv4, ipv6, ndp, udp};

use crate::config::MacAddress;
use crate::header::MAX_TAGS;
use crate::transmit::INSPECT_BYTES;
use addresses::GuestAddresses;
pub use spec::BadGuard;
pub use storm::StormBound;

/// Ports of a DHCP client and its server (RFC 2131 §4.1).
const DHCP_PORTS: (u16, u16) = (68, 67);
/// The IPv4 address of nobody, and that of everybody.
const NOBODY_V4: [u8; 4] = [0; 4];
const EVERYBODY_V4: [u8; 4] = [255; 4];
/// The IPv6 address of nobody.
const NOBODY_V6: [u8; 16] = [0; 16];

/// The checks of one VM's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameGuard {
    /// The source of each frame.
    mac: Option<MacAddress>,
    /// The tags that a frame has.
    vlan: Option<VlanRule>,
    /// The sources of IP packets.
    addresses: Option<GuestAddresses>,
    /// True: an ARP packet names this guest as its sender.
    arp: bool,
    /// True: a message of neighbour discovery announces this guest, and no router.
    nd: bool,
    /// Frames to groups that the guest receives in a second, a queue pair.
    storm: Option<u32>,
}

/// The tags that a frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VlanRule {
    /// None.
    Off,
    /// One of IEEE 802.1Q with this number.
    Only(u16),
}

/// What of a frame was looked at.
#[derive(Clone, Copy, Debug)]
struct Examined {
    /// Where that ends, bytes from the frame's begin.
    end: usize,
    /// Where a checksum stands that does not matter.
    checksum_at: Option<usize>,
}

impl Examined {
    fn up_to(end: usize) -> Self {
        Self { end, checksum_at: None }
    }

    /// The same of a packet that begins `at` bytes behind the frame's begin.
    fn behind(self, at: usize) -> Self {
        Self { end: at + self.end, checksum_at: self.checksum_at.map(|field| at + field) }
    }
}

impl FrameGuard {
    /// Checks the start of a frame, behind its virtio-net header `vnet`. Both are private copies
    /// that go out as they are, and `vnet` was [checked](crate::header::check).
    ///
    /// # Errors
    /// Why the frame is dropped.
    pub fn check(&self, vnet: &[u8], start: &[u8]) -> Result<(), DropReason> {
        let examined = self.examine(&start[..start.len().min(INSPECT_BYTES)])?;
        match checksum_place(vnet) {
            Some(at) if at < examined.end && Some(at) != examined.checksum_at => Err(DropReason::GuardUnseen),
            _ => Ok(()),
        }
    }

    /// The bound of frames to groups that a queue pair gives the guest; None for all.
    pub fn storm_bound(&self) -> Option<StormBound> {
        self.storm.map(StormBound::new)
    }

    /// The number of the VLAN tag that each frame has; None for frames without one, or with any.
    pub fn vlan(&self) -> Option<u16> {
        match self.vlan {
            Some(VlanRule::Only(number)) => Some(number),
            Some(VlanRule::Off) | None => None,
        }
    }

    /// Whether any check is of frames from the guest.
    #[inline]
    pub fn checks_transmit(&self) -> bool {
        self.mac.is_some() || self.vlan.is_some() || self.addresses.is_some() || self.arp || self.nd
    }

    fn examine(&self, frame: &[u8]) -> Result<Examined, DropReason> {
        if self.mac.is_some_and(|mac| ethernet::source(frame) != Some(mac.bytes())) {
            return Err(DropReason::GuardMac);
        }
        let end = match self.vlan {
            Some(rule) => rule.check(frame)?,
            None => ethernet::ADDRESSES_BYTES,
        };
        if self.addresses.is_none() && !self.arp && !self.nd {
            return Ok(Examined::up_to(end));
        }
        let (ether_type, at) = ethernet::payload(frame, MAX_TAGS).ok_or(DropReason::GuardUnseen)?;
        let packet = &frame[at..];
        let examined = match ether_type {
            ethernet::ARP if self.arp => self.examine_arp(packet)?,
            ethernet::IPV4 => self.examine_ipv4(packet)?,
            ethernet::IPV6 => self.examine_ipv6(packet)?,
            hidden if ethernet::is_tag(hidden) || ethernet::is_length(hidden) => {
                return Err(DropReason::GuardUnseen);
            }
            _ => Examined::up_to(0),
        };
        Ok(examined.behind(at))
    }

    fn examine_arp(&self, packet: &[u8]) -> Result<Examined, DropReason> {
        let arp = arp::ArpPacket::parse(packet).map_err(|e| match e {
            arp::ArpError::Short => DropReason::GuardUnseen,
            arp::ArpError::Kind => DropReason::GuardArp,
        })?;
        let is_request = arp.operation == arp::REQUEST;
        let is_known = is_request || arp.operation == arp::REPLY;
        // A request from nobody asks whether somebody has an address (RFC 5227).
        let is_own = (is_request && arp.sender == NOBODY_V4)
            || self.addresses.as_ref().is_none_or(|own| own.has_v4(arp.sender));
        match is_known && is_own && self.is_mac(&arp.sender_mac) {
            true => Ok(Examined::up_to(arp::PACKET_BYTES)),
            false => Err(DropReason::GuardArp),
        }
    }

    fn examine_ipv4(&self, packet: &[u8]) -> Result<Examined, DropReason> {
        let Some(own) = &self.addresses else { return Ok(Examined::up_to(0)) };
        let header = ipv4::Header::parse(packet).map_err(|_| DropReason::GuardUnseen)?;
        let source = ipv4::source(packet).ok_or(DropReason::GuardUnseen)?;
        let destination = packet.get(ipv4::DESTINATION).ok_or(DropReason::GuardUnseen)?;
        if own.has_v4(source) {
            return Ok(Examined::up_to(ipv4::MIN_HEADER_BYTES));
        }
        // A guest without an address asks a DHCP server for one.
        if source != NOBODY_V4
            || destination != EVERYBODY_V4
            || header.protocol != ip::UDP
            || header.is_fragment
        {
            return Err(DropReason::GuardIp);
        }
        let datagram = packet.get(header.header_bytes..).ok_or(DropReason::GuardUnseen)?;
        match udp::ports(datagram).ok_or(DropReason::GuardUnseen)? {
            DHCP_PORTS => Ok(Examined::up_to(header.header_bytes + udp::PORTS_BYTES)),
            _ => Err(DropReason::GuardIp),
        }
    }

    fn examine_ipv6(&self, packet: &[u8]) -> Result<Examined, DropReason> {
        let header = ipv6::Header::parse(packet).map_err(|_| DropReason::GuardUnseen)?;
        let source = ipv6::source(packet).ok_or(DropReason::GuardUnseen)?;
        if packet.len() < ipv6::HEADER_BYTES {
            return Err(DropReason::GuardUnseen);
        }
        let is_own = self.addresses.as_ref().is_none_or(|own| own.has_v6(source));
        if is_own && !self.nd {
            return Ok(Examined::up_to(ipv6::HEADER_BYTES));
        }
        if !is_own && source != NOBODY_V6 {
            return Err(DropReason::GuardIp);
        }
        let carried = header.payload(packet).ok_or(DropReason::GuardUnseen)?;
        let is_icmp = carried.protocol == ip::ICMPV6 && carried.part != ipv6::Ipv6Part::Later;
        let kind = match is_icmp {
            true => Some(packet.get(carried.at..).and_then(icmpv6::kind).ok_or(DropReason::GuardUnseen)?),
            false => None,
        };
        if !is_own && (carried.part != ipv6::Ipv6Part::Whole || !kind.is_some_and(comes_from_nobody)) {
            return Err(DropReason::GuardIp);
        }
        match kind {
            None => Ok(Examined::up_to(carried.at)),
            Some(kind) if !self.nd || !ndp::is_of(kind) => Ok(Examined::up_to(carried.at + 1)),
            // Receivers drop fragments of these (RFC 6980), or should.
            Some(_) if carried.part != ipv6::Ipv6Part::Whole => Err(DropReason::GuardNd),
            Some(kind) => {
                let end = ipv6::HEADER_BYTES + usize::from(header.payload_bytes);
                let message = packet.get(carried.at..end).ok_or(DropReason::GuardUnseen)?;
                self.check_discovery(kind, source == NOBODY_V6, message)?;
                Ok(Examined { end, checksum_at: Some(carried.at + icmpv6::CHECKSUM_AT) })
            }
        }
    }

    /// Checks a whole message of neighbour discovery. `from_nobody`: its sender has no address yet.
    fn check_discovery(&self, kind: u8, from_nobody: bool, message: &[u8]) -> Result<(), DropReason> {
        if matches!(kind, ndp::ROUTER_ADVERTISEMENT | ndp::REDIRECT) {
            return Err(DropReason::GuardNd);
        }
        for option in ndp::options(message).ok_or(DropReason::GuardNd)? {
            let option = option.map_err(|_| DropReason::GuardNd)?;
            if option.link_layer().is_some_and(|address| !self.is_mac(address)) {
                return Err(DropReason::GuardNd);
            }
        }
        // Who asks without an address of its own wants the one that it asks for.
        let is_claim = match kind {
            ndp::NEIGHBOUR_ADVERTISEMENT => true,
            ndp::NEIGHBOUR_SOLICITATION => from_nobody,
            _ => false,
        };
        if !is_claim {
            return Ok(());
        }
        let target = ndp::target(message).ok_or(DropReason::GuardNd)?;
        match self.addresses.as_ref().is_none_or(|own| own.has_v6(target)) {
            true => Ok(()),
            false => Err(DropReason::GuardNd),
        }
    }

    fn is_mac(&self, address: &[u8]) -> bool {
        self.mac.is_some_and(|mac| mac.bytes() == address)
    }
}

impl VlanRule {
    /// Returns where the tags end, with the type behind them.
    fn check(self, frame: &[u8]) -> Result<usize, DropReason> {
        let first = ethernet::first_type(frame).ok_or(DropReason::GuardUnseen)?;
        match self {
            Self::Off if ethernet::is_tag(first) => Err(DropReason::GuardVlan),
            Self::Off => Ok(ethernet::HEADER_BYTES),
            Self::Only(_) if first != ethernet::TAG => Err(DropReason::GuardVlan),
            Self::Only(number) => {
                let vlan = ethernet::first_vlan(frame).ok_or(DropReason::GuardUnseen)?;
                let (inner, end) = ethernet::payload(frame, 1).ok_or(DropReason::GuardUnseen)?;
                match vlan == number && !ethernet::is_tag(inner) {
                    true => Ok(end),
                    false => Err(DropReason::GuardVlan),
                }
            }
        }
    }
}

/// Whether a host that has no address yet sends ICMPv6 messages of this type (RFC 4861 §4.1, §4.3,
/// RFC 3590).
fn comes_from_nobody(kind: u8) -> bool {
    matches!(
        kind,
        ndp::ROUTER_SOLICITATION
            | ndp::NEIGHBOUR_SOLICITATION
            | icmpv6::GROUP_REPORT
            | icmpv6::GROUP_DONE
            | icmpv6::GROUP_REPORT_2
    )
}

/// Where the checksum is stored that a virtio-net header asks for, bytes from the frame's begin.
fn checksum_place(vnet: &[u8]) -> Option<usize> {
    let fields = Fields::from_bytes(vnet.first_chunk()?);
    let place = usize::from(fields.csum_start) + usize::from(fields.csum_offset);
    (fields.flags & NEEDS_CSUM != 0).then_some(place)
}

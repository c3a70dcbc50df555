//! Ethernet frames to and from the TCP stack: bounded queues, ARP, neighbour
//! solicitations, and the Ethernet header, which the stack never sees.
//!
//! smoltcp runs on bare IP here. Its own neighbour cache would want a subnet and a
//! gateway; a guest may have any address and send through any gateway's MAC.
//! So each IP packet is taken whatever its destination MAC, and each answer
//! goes to the MAC that its IP address last sent from.
//!
//! Checksums: the TCP checksum of a guest's frame isn't verified, since a
//! driver may leave it partial (`VIRTIO_NET_HDR_F_NEEDS_CSUM`, virtio 1.3
//! section 5.1.6.2). The IPv4 header's is, which drivers always complete.
//! Frames for the guest have all checksums.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr,
};

use zerowire_wire::arp::{self, ArpPacket};
use zerowire_wire::{ethernet, ip, ipv4, ipv6, tcp};

use crate::neighbours::Neighbours;
use crate::stats::Traffic;
use crate::wants::{ETHERNET_HEADER_LEN, SERVICE_ADDRESS, SERVICE_ADDRESS_V6, SERVICE_PORT};

/// The longest frame taken from the guest, in bytes. Segments that the guest
/// leaves to offloads fit, since a receive window is smaller.
pub const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The most frames waiting in each direction.
pub const MAX_QUEUED_FRAMES: usize = 64;

/// The most bytes of frames waiting from the guest.
pub const MAX_QUEUED_BYTES: usize = 128 * 1024;

/// Where a neighbour advertisement goes that no unicast address can take, and
/// its MAC address (RFC 4861 section 7.2.4, RFC 2464 section 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// The queues between frames and the TCP stack.
#[derive(Debug)]
pub(crate) struct Queues {
    /// IP packets from the guest, without Ethernet header and padding.
    received: VecDeque<Box<[u8]>>,
    received_bytes: usize,
    outgoing: ReplyPath,
}

/// What sending needs; apart, so that a packet can be received meanwhile.
#[derive(Debug)]
struct ReplyPath {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    neighbours: Neighbours,
    mac: [u8; 6],
    mtu: usize,
    /// Whether something was held back because `frames` was full.
    stalled: bool,
    /// Of both directions.
    traffic: Traffic,
}

impl Queues {
    pub(crate) fn new(mac: [u8; 6], mtu: u16) -> Self {
        Self {
            received: VecDeque::new(),
            received_bytes: 0,
            outgoing: ReplyPath {
                frames: VecDeque::new(),
                bytes: 0,
                neighbours: Neighbours::default(),
                mac,
                mtu: usize::from(mtu),
                stalled: false,
                traffic: Traffic::default(),
            },
        }
    }

    /// Takes a frame from the guest: answers ARP and neighbour
    /// solicitations, queues IP, counts drops.
    pub(crate) fn ingest(&mut self, frame: &[u8]) {
        self.outgoing.traffic.frames_in += 1;
        self.outgoing.traffic.bytes_in += frame.len() as u64;
        let taken = match ethernet::first_type(frame) {
            _ if frame.len() > MAX_FRAME_BYTES => None,
            Some(ethernet::ARP) => self.answer_arp(frame),
            Some(ethernet::IPV4) => self.queue_ipv4(frame),
            Some(ethernet::IPV6) => self.answer_solicitation(frame).or_else(|| self.queue_ipv6(frame)),
            _ => None,
        };
        if taken.is_none() {
            self.outgoing.traffic.dropped_malformed += 1;
        }
    }

    /// Answers an ARP request for the service (RFC 826); `None` if it's none.
    fn answer_arp(&mut self, frame: &[u8]) -> Option<()> {
        let request = ArpPacket::parse(frame.get(ETHERNET_HEADER_LEN..)?).ok()?;
        if request.operation != arp::REQUEST || request.target != SERVICE_ADDRESS {
            return None;
        }
        let sender = sender(frame)?;
        let reply = ArpPacket {
            operation: arp::REPLY,
            sender_mac: self.outgoing.mac,
            sender: SERVICE_ADDRESS,
            // The asker's own hardware and protocol address, as it wrote them.
            target_mac: request.sender_mac,
            target: request.sender,
        };
        let header = ethernet::header(sender, self.outgoing.mac, ethernet::ARP);
        self.outgoing.push([&header[..], &reply.to_bytes()].concat());
        Some(())
    }

    /// Checks an IPv4 packet as far as the queues rely on it and queues it.
    fn queue_ipv4(&mut self, frame: &[u8]) -> Option<()> {
        let sender = sender(frame)?;
        let packet = frame.get(ETHERNET_HEADER_LEN..)?;
        let header = ipv4::Header::parse(packet).ok()?;
        let packet = packet.get(..usize::from(header.total_bytes))?;
        if packet.len() < header.header_bytes
            || header.is_fragment
            || ipv4::destination(packet)? != SERVICE_ADDRESS
        {
            return None;
        }
        self.queue(ipv4::source(packet)?.into(), sender, packet)
    }

    /// Answers a neighbour solicitation for the service (RFC 4861 section 7.2.4);
    /// `None` if it's none.
    fn answer_solicitation(&mut self, frame: &[u8]) -> Option<()> {
        let sender = sender(frame)?;
        let packet = Ipv6Packet::new_checked(frame.get(ETHERNET_HEADER_LEN..)?).ok()?;
        // A smaller hop limit has come through a router (section 7.1.1).
        if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != 255 {
            return None;
        }
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        let checked = ChecksumCapabilities::default();
        let solicitation = Icmpv6Repr::parse(&source, &destination, &message, &checked).ok()?;
        let Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: SERVICE_ADDRESS_V6, .. }) =
            solicitation
        else {
            return None;
        };
        // From no address the guest asks whether it can have this one.
        let (receiver, to, flags) = match source.is_unspecified() {
            true => (ALL_NODES_MAC, ALL_NODES, NdiscNeighborFlags::OVERRIDE),
            false => (sender, source, NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED),
        };
        let advertisement = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags,
            target_addr: SERVICE_ADDRESS_V6,
            lladdr: Some(EthernetAddress(self.outgoing.mac).into()),
        });
        let header = Ipv6Repr {
            src_addr: SERVICE_ADDRESS_V6,
            dst_addr: to,
            next_header: IpProtocol::Icmpv6,
            payload_len: advertisement.buffer_len(),
            hop_limit: 255,
        };
        let mut reply = vec![0; ETHERNET_HEADER_LEN + ipv6::HEADER_BYTES + header.payload_len];
        self.outgoing.write_ethernet(&mut reply, receiver, ethernet::IPV6);
        let mut packet = Ipv6Packet::new_unchecked(&mut reply[ETHERNET_HEADER_LEN..]);
        header.emit(&mut packet);
        let mut message = Icmpv6Packet::new_unchecked(packet.payload_mut());
        advertisement.emit(&SERVICE_ADDRESS_V6, &to, &mut message, &checked);
        self.outgoing.push(reply);
        Some(())
    }

    /// Checks an IPv6 packet as far as the queues rely on it and queues it.
    fn queue_ipv6(&mut self, frame: &[u8]) -> Option<()> {
        let sender = sender(frame)?;
        let packet = frame.get(ETHERNET_HEADER_LEN..)?;
        let header = ipv6::Header::parse(packet).ok()?;
        let packet = packet.get(..ipv6::HEADER_BYTES + usize::from(header.payload_bytes))?;
        if ipv6::destination(packet)? != SERVICE_ADDRESS_V6.octets() {
            return None;
        }
        self.queue(ipv6::source(packet)?.into(), sender, packet)
    }

    fn queue(&mut self, source: IpAddr, sender: [u8; 6], packet: &[u8]) -> Option<()> {
        if !can_be_guest(source) {
            return None;
        }
        if self.received.len() >= MAX_QUEUED_FRAMES || self.received_bytes + packet.len() > MAX_QUEUED_BYTES {
            self.outgoing.traffic.dropped_queue_full += 1;
            return Some(());
        }
        self.outgoing.neighbours.learn(source, sender);
        self.received_bytes += packet.len();
        self.received.push_back(packet.into());
        Some(())
    }

    /// The next frame for the guest.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.outgoing.frames.pop_front()?;
        self.outgoing.bytes -= frame.len();
        Some(frame)
    }

    /// The packet that the stack would take next.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.received.front().map(AsRef::as_ref)
    }

    /// Drops the packet that the stack would take next.
    pub(crate) fn drop_front(&mut self) {
        if let Some(packet) = self.received.pop_front() {
            self.received_bytes -= packet.len();
        }
    }

    /// Whether no frame waits in either direction.
    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty() && self.outgoing.frames.is_empty()
    }

    /// Whether a packet could be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.outgoing.frames.len() < MAX_QUEUED_FRAMES
    }

    /// Whether something was held back for want of room since the last call.
    pub(crate) fn take_stalled(&mut self) -> bool {
        std::mem::take(&mut self.outgoing.stalled)
    }

    /// The frames of both directions.
    pub(crate) fn traffic(&self) -> Traffic {
        self.outgoing.traffic
    }

    /// Bytes of memory held.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.received_bytes
            + self.outgoing.bytes
            + self.received.capacity() * size_of::<Box<[u8]>>()
            + self.outgoing.frames.capacity() * size_of::<Vec<u8>>()
            + self.outgoing.neighbours.buffered_bytes()
    }
}

impl ReplyPath {
    fn push(&mut self, frame: Vec<u8>) {
        if self.frames.len() >= MAX_QUEUED_FRAMES {
            self.traffic.dropped_out += 1;
            return;
        }
        self.traffic.frames_out += 1;
        self.traffic.bytes_out += frame.len() as u64;
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn write_ethernet(&self, frame: &mut [u8], receiver: [u8; 6], ether_type: u16) {
        let header = ethernet::header(receiver, self.mac, ether_type);
        frame[..ETHERNET_HEADER_LEN].copy_from_slice(&header);
    }

    /// Lets `write` fill an IP packet of `len` bytes, then frames it.
    fn send<R>(&mut self, len: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; ETHERNET_HEADER_LEN + len];
        let packet = &mut frame[ETHERNET_HEADER_LEN..];
        let result = write(packet);
        let to = address(packet, ipv4::destination, ipv6::destination);
        match to.and_then(|to| Some((to, self.neighbours.lookup(to)?))) {
            Some((to, receiver)) => {
                let ether_type = if to.is_ipv6() { ethernet::IPV6 } else { ethernet::IPV4 };
                self.write_ethernet(&mut frame, receiver, ether_type);
                self.push(frame);
            }
            None => self.traffic.dropped_out += 1,
        }
        result
    }
}

/// The source address and port of a TCP segment that asks for a connection to
/// the service; `None` for other packets. `packet` is a queued IP packet; one
/// over IPv6 with extension headers asks for nothing.
pub(crate) fn connection_request(packet: &[u8]) -> Option<(IpAddr, u16)> {
    let (protocol, segment_at) = match ip::version(packet)? {
        6 => (ipv6::Header::parse(packet).ok()?.next, ipv6::HEADER_BYTES),
        _ => {
            let header = ipv4::Header::parse(packet).ok()?;
            (header.protocol, header.header_bytes)
        }
    };
    if protocol != ip::TCP {
        return None;
    }
    let segment = packet.get(segment_at..)?;
    let is_request = tcp::flags(segment)? & (tcp::SYN | tcp::RST | tcp::ACK) == tcp::SYN;
    let (from, to) = tcp::ports(segment)?;
    let source = address(packet, ipv4::source, ipv6::source)?;
    (is_request && to == SERVICE_PORT).then_some((source, from))
}

/// An address of an IP packet, read by `v4` or, over IPv6, by `v6`.
fn address(
    packet: &[u8],
    v4: impl Fn(&[u8]) -> Option<[u8; 4]>,
    v6: impl Fn(&[u8]) -> Option<[u8; 16]>,
) -> Option<IpAddr> {
    match ip::version(packet)? {
        6 => v6(packet).map(IpAddr::from),
        _ => v4(packet).map(IpAddr::from),
    }
}

/// Whether a host can have this address; the service's own would make it talk
/// to itself.
fn can_be_guest(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            (1..224).contains(&v4.octets()[0]) && !v4.is_loopback() && v4 != Ipv4Addr::from(SERVICE_ADDRESS)
        }
        IpAddr::V6(v6) => {
            !v6.is_unspecified() && !v6.is_multicast() && !v6.is_loopback() && v6 != SERVICE_ADDRESS_V6
        }
    }
}

/// The MAC address that an answer to `frame` goes to.
fn sender(frame: &[u8]) -> Option<[u8; 6]> {
    ethernet::source(frame).filter(is_unicast)
}

/// Whether a MAC address names one station.
pub(crate) fn is_unicast(mac: &[u8; 6]) -> bool {
    !ethernet::is_group(mac) && mac != &[0; 6]
}

/// A packet on its way into the stack.
pub(crate) struct RxToken(Box<[u8]>);

/// Room for one packet from the stack.
pub(crate) struct TxToken<'a>(&'a mut ReplyPath);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.send(len, f)
    }
}

impl phy::Device for Queues {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken, TxToken<'_>)> {
        if !self.has_room() {
            self.outgoing.stalled = true;
            return None;
        }
        let packet = self.received.pop_front()?;
        self.received_bytes -= packet.len();
        Some((RxToken(packet), TxToken(&mut self.outgoing)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        if !self.has_room() {
            self.outgoing.stalled = true;
            return None;
        }
        Some(TxToken(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        checksum.tcp = Checksum::Tx;
        checksum.icmpv4 = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.outgoing.mtu;
        capabilities.checksum = checksum;
        capabilities
    }
}

//! Ethernet frames to and from the TCP stack: bounded queues, ARP, and the
//! Ethernet header, which the stack never sees.
//!
//! smoltcp runs on bare IP here. Its own ARP would want a subnet and a
//! gateway; a guest may have any address and send through any gateway's MAC.
//! So each IP packet is taken whatever its destination MAC, and each answer
//! goes to the MAC that its IP address last sent from.
//!
//! Checksums: the TCP checksum of a guest's frame isn't verified, since a
//! driver may leave it partial (`VIRTIO_NET_HDR_F_NEEDS_CSUM`, virtio 1.3
//! section 5.1.6.2). The IPv4 header's is, which drivers always complete.
//! Frames for the guest have all checksums.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::neighbours::Neighbours;
use crate::stats::Stats;
use crate::wants::{ETHERNET_HEADER_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, SERVICE_ADDRESS, SERVICE_PORT};

/// The longest frame taken from the guest, in bytes. Segments that the guest
/// leaves to offloads fit, since a receive window is smaller.
pub const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The most frames waiting in each direction.
pub const MAX_QUEUED_FRAMES: usize = 64;

/// The most bytes of frames waiting from the guest.
pub const MAX_QUEUED_BYTES: usize = 128 * 1024;

/// Length of an IPv4 header without options (RFC 791).
const IPV4_HEADER_LEN: usize = 20;
/// IP protocol number of TCP.
const PROTOCOL_TCP: u8 = 6;

/// The queues between frames and the TCP stack.
#[derive(Debug)]
pub(crate) struct Queues {
    /// IPv4 packets from the guest, without Ethernet header and padding.
    received: VecDeque<Box<[u8]>>,
    received_bytes: usize,
    outgoing: Outgoing,
}

/// What sending needs; apart, so that a packet can be received meanwhile.
#[derive(Debug)]
struct Outgoing {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    neighbours: Neighbours,
    mac: [u8; 6],
    mtu: usize,
    /// Whether something was held back because `frames` was full.
    stalled: bool,
    stats: OutStats,
}

#[derive(Debug, Default)]
struct OutStats {
    frames: u64,
    bytes: u64,
    dropped: u64,
}

impl Queues {
    pub(crate) fn new(mac: [u8; 6], mtu: u16) -> Self {
        Self {
            received: VecDeque::new(),
            received_bytes: 0,
            outgoing: Outgoing {
                frames: VecDeque::new(),
                bytes: 0,
                neighbours: Neighbours::default(),
                mac,
                mtu: usize::from(mtu),
                stalled: false,
                stats: OutStats::default(),
            },
        }
    }

    /// Takes a frame from the guest: answers ARP, queues IPv4, counts drops.
    pub(crate) fn ingest(&mut self, frame: &[u8], stats: &mut Stats) {
        stats.frames_in += 1;
        stats.bytes_in += frame.len() as u64;
        let taken = match frame.get(12..14) {
            _ if frame.len() > MAX_FRAME_BYTES => None,
            Some(ethertype) if ethertype == ETHERTYPE_ARP => self.answer_arp(frame),
            Some(ethertype) if ethertype == ETHERTYPE_IPV4 => self.queue_ipv4(frame, stats),
            _ => None,
        };
        if taken.is_none() {
            stats.dropped_malformed += 1;
        }
    }

    /// Answers an ARP request for the service (RFC 826); `None` if it's none.
    fn answer_arp(&mut self, frame: &[u8]) -> Option<()> {
        let request = frame.get(ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 28)?;
        // Ethernet, IPv4, their address lengths, request.
        if request[..8] != [0, 1, 8, 0, 6, 4, 0, 1] || request[24..28] != SERVICE_ADDRESS {
            return None;
        }
        let sender = unicast_mac(frame.get(6..12)?)?;
        let mut reply = Vec::with_capacity(ETHERNET_HEADER_LEN + 28);
        reply.extend_from_slice(&sender);
        reply.extend_from_slice(&self.outgoing.mac);
        reply.extend_from_slice(&ETHERTYPE_ARP);
        reply.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
        reply.extend_from_slice(&self.outgoing.mac);
        reply.extend_from_slice(&SERVICE_ADDRESS);
        // The asker's own hardware and protocol address, as it wrote them.
        reply.extend_from_slice(&request[8..18]);
        self.outgoing.push(reply);
        Some(())
    }

    /// Checks an IPv4 packet as far as the queues rely on it and queues it.
    fn queue_ipv4(&mut self, frame: &[u8], stats: &mut Stats) -> Option<()> {
        let sender = unicast_mac(frame.get(6..12)?)?;
        let packet = frame.get(ETHERNET_HEADER_LEN..)?;
        let header = packet.get(..IPV4_HEADER_LEN)?;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
        if header[0] >> 4 != 4
            || total_len < IPV4_HEADER_LEN
            || fragment != 0
            || header[16..20] != SERVICE_ADDRESS
        {
            return None;
        }
        let packet = packet.get(..total_len)?;
        let source = source_address(header);
        if !can_be_guest(source) {
            return None;
        }
        if self.received.len() >= MAX_QUEUED_FRAMES || self.received_bytes + packet.len() > MAX_QUEUED_BYTES {
            stats.dropped_queue_full += 1;
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

    /// Writes the counters of the sending side into `stats`.
    pub(crate) fn fill_stats(&self, stats: &mut Stats) {
        stats.frames_out = self.outgoing.stats.frames;
        stats.bytes_out = self.outgoing.stats.bytes;
        stats.dropped_out = self.outgoing.stats.dropped;
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

impl Outgoing {
    fn push(&mut self, frame: Vec<u8>) {
        if self.frames.len() >= MAX_QUEUED_FRAMES {
            self.stats.dropped += 1;
            return;
        }
        self.stats.frames += 1;
        self.stats.bytes += frame.len() as u64;
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Lets `write` fill an IPv4 packet of `len` bytes, then frames it.
    fn send<R>(&mut self, len: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; ETHERNET_HEADER_LEN + len];
        let (ethernet, packet) = frame.split_at_mut(ETHERNET_HEADER_LEN);
        let result = write(packet);
        let receiver = packet
            .get(16..20)
            .and_then(|octets| <[u8; 4]>::try_from(octets).ok())
            .and_then(|octets| self.neighbours.lookup(Ipv4Addr::from(octets)));
        match receiver {
            Some(receiver) => {
                ethernet[0..6].copy_from_slice(&receiver);
                ethernet[6..12].copy_from_slice(&self.mac);
                ethernet[12..14].copy_from_slice(&ETHERTYPE_IPV4);
                self.push(frame);
            }
            None => self.stats.dropped += 1,
        }
        result
    }
}

/// The source address and port of a TCP segment that asks for a connection to
/// the service; `None` for other packets. `packet` is a queued IPv4 packet.
pub(crate) fn connection_request(packet: &[u8]) -> Option<(Ipv4Addr, u16)> {
    /// Bits of the TCP header's flag byte (RFC 9293 section 3.1).
    const SYN: u8 = 0x02;
    const RST_ACK: u8 = 0x04 | 0x10;
    if *packet.get(9)? != PROTOCOL_TCP {
        return None;
    }
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let tcp = packet.get(header_len.max(IPV4_HEADER_LEN)..)?;
    let flags = *tcp.get(13)?;
    let to_service = tcp.get(2..4)? == SERVICE_PORT.to_be_bytes();
    let port = u16::from_be_bytes([tcp[0], tcp[1]]);
    (to_service && flags & SYN != 0 && flags & RST_ACK == 0).then(|| (source_address(packet), port))
}

fn source_address(header: &[u8]) -> Ipv4Addr {
    let octets: Option<[u8; 4]> = header.get(12..16).and_then(|octets| octets.try_into().ok());
    Ipv4Addr::from(octets.unwrap_or_default())
}

/// Whether a host can have this address; the service's own would make it talk
/// to itself.
fn can_be_guest(address: Ipv4Addr) -> bool {
    address.octets()[0] != 0
        && address.octets()[0] < 224
        && !address.is_loopback()
        && address.octets() != SERVICE_ADDRESS
}

fn unicast_mac(bytes: &[u8]) -> Option<[u8; 6]> {
    let mac: [u8; 6] = bytes.try_into().ok()?;
    is_unicast(&mac).then_some(mac)
}

/// Whether a MAC address names one station.
pub(crate) fn is_unicast(mac: &[u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != &[0; 6]
}

/// A packet on its way into the stack.
pub(crate) struct RxToken(Box<[u8]>);

/// Room for one packet from the stack.
pub(crate) struct TxToken<'a>(&'a mut Outgoing);

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

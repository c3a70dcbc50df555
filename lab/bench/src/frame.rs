//! The frames that are measured: built once, right to the last checksum.
//!
//! Frames up to 9014 bytes are UDP over IPv4 in one piece. Longer ones are TCP over IPv4, which the
//! receiver cuts (GSO). Their virtio-net header gives the segment size and the place of the
//! checksum (virtio 1.3 §5.1.6.2), as a Linux guest sends them.

use anyhow::{Result, bail};
use zerowire_wire::arp::{self, ArpPacket};
use zerowire_wire::vnet::{VNET_HEADER_BYTES, VnetHeader};
use zerowire_wire::{ethernet, ip, ipv4, tcp, udp};

use crate::netns::VNET_HEADER_LEN;

/// Length of an Ethernet header.
pub const ETHERNET_LEN: usize = ethernet::HEADER_BYTES;
/// The longest frame sent without segmentation: MTU 9000 and the Ethernet header.
pub const LARGEST_PLAIN: usize = 9000 + ETHERNET_LEN;
/// The longest frame at all: the length field of IPv4 has 16 bits (RFC 791).
pub const LARGEST: usize = ETHERNET_LEN + 65535;
/// The shortest frame on Ethernet without its check sequence.
pub const SMALLEST: usize = 60;

/// TCP payload of one segment of a large frame: MTU 1500 less IPv4, TCP and its timestamp option.
pub const GSO_SEGMENT: u16 = 1448;

/// TCP header with two no-operations and the timestamp option (RFC 7323).
const TCP_LEN: usize = tcp::MIN_HEADER_BYTES + 12;
/// Ports of UDP and TCP: from 40 000 to 9.
const PORTS: [u8; 4] = [0x9c, 0x40, 0, 9];

/// The networks set aside for benchmarks, 198.18.0.0/15 (RFC 2544): never local, never routed.
pub const SOURCE_IP: [u8; 4] = [198, 18, 0, 1];
/// The other end, which nobody has.
pub const TARGET_IP: [u8; 4] = [198, 19, 0, 1];
const ENDS: [[u8; 4]; 2] = [SOURCE_IP, TARGET_IP];
/// The station that a guest's frames are sent to in the transmit benchmarks. It is not the host, so
/// the host's IP layer drops them at its first check (ip_rcv_core, net/ipv4/ip_input.c). A route
/// lookup that fails later would add some 400 ns to every frame, of floor and back end alike. The
/// ratio would then look better than it is.
pub const SINK_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x5a, 0x57, 0xff];
/// The Ethernet address of the guest's side (locally administered).
pub const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x5a, 0x57, 0x01];

/// A frame with its virtio-net header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The virtio-net header (virtio 1.3 §5.1.6, num_buffers 0).
    header: [u8; VNET_HEADER_LEN],
    bytes: Vec<u8>,
}

impl Frame {
    /// A frame of `len` bytes, Ethernet header included, from one station to the other.
    ///
    /// Refuses lengths outside 60 to 65 549 bytes.
    pub fn build(len: usize, to: [u8; 6], from: [u8; 6]) -> Result<Self> {
        if !(SMALLEST..=LARGEST).contains(&len) {
            bail!("frame of {len} bytes: choose {SMALLEST} to {LARGEST}");
        }
        let gso = len > LARGEST_PLAIN;
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(ethernet::header(to, from, ethernet::IPV4));
        bytes.extend(ipv4_header(len - ETHERNET_LEN, if gso { ip::TCP } else { ip::UDP }, ENDS));
        let transport = bytes.len();
        bytes.extend(PORTS);
        if gso {
            bytes.extend(TCP_REST);
        } else {
            bytes.extend(((len - transport) as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend((0..len - bytes.len()).map(|at| (at % 251) as u8));
        let mut header = [0; VNET_HEADER_LEN];
        if gso {
            let offload = VnetHeader::prepare(&mut bytes, Some(GSO_SEGMENT))?;
            header[..VNET_HEADER_BYTES].copy_from_slice(&offload.to_bytes());
        } else {
            let datagram = &mut bytes[transport..];
            let mut sum = ip::pseudo_header(ENDS.as_flattened(), ip::UDP, datagram.len() as u32);
            sum.add(datagram);
            let place = udp::CHECKSUM_AT..udp::HEADER_BYTES;
            datagram[place].copy_from_slice(&sum.finish_nonzero().to_be_bytes());
        }
        Ok(Self { header, bytes })
    }

    /// Any frame in one piece, with a virtio-net header of zeroes.
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self { header: [0; VNET_HEADER_LEN], bytes }
    }

    /// The header without num_buffers (10 bytes), as `PACKET_VNET_HDR` takes it.
    pub fn short_header(&self) -> &[u8] {
        &self.header[..VNET_HEADER_BYTES]
    }

    /// The frame from its Ethernet header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Header and frame in one piece.
    pub fn with_header(&self) -> Vec<u8> {
        [&self.header[..], &self.bytes].concat()
    }

    /// Length of its Ethernet, IP and transport headers in bytes.
    pub fn header_len(&self) -> usize {
        ETHERNET_LEN + ipv4::MIN_HEADER_BYTES + if self.is_gso() { TCP_LEN } else { udp::HEADER_BYTES }
    }

    /// Whether the receiver has to cut it into segments.
    pub fn is_gso(&self) -> bool {
        self.header[1] != 0
    }

    /// The MTU that an interface needs for it: frames to be cut need no more than 1500.
    pub fn mtu(&self) -> usize {
        if self.is_gso() { 1500 } else { (self.bytes.len() - ETHERNET_LEN).max(1500) }
    }
}

/// A TCP header behind its ports: sequence number 1, acknowledgement of 1, 8 words long, ACK, any
/// window, no checksum yet (RFC 9293 §3.1); two no-operations and the timestamp option of 10 bytes
/// (RFC 7323 §3.2).
const TCP_REST: [u8; TCP_LEN - PORTS.len()] =
    [0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 255, 255, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];

/// An IPv4 header from one address to the other.
pub(crate) fn ipv4_header(
    total_len: usize,
    protocol: u8,
    ends: [[u8; 4]; 2],
) -> [u8; ipv4::MIN_HEADER_BYTES] {
    let mut header = [0; ipv4::MIN_HEADER_BYTES];
    header[0] = 0x45;
    header[ipv4::TOTAL_LEN].copy_from_slice(&(total_len as u16).to_be_bytes());
    // Don't fragment (RFC 791 §3.1).
    header[6] = 0x40;
    header[8] = 64;
    header[9] = protocol;
    header[ipv4::ADDRESSES].copy_from_slice(ends.as_flattened());
    ipv4::complete_checksum(&mut header);
    header
}

/// An ARP request for `target`, in a frame of 60 bytes: the host's kernel answers it by itself.
pub fn arp_request(from: [u8; 6], source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let request =
        ArpPacket { operation: arp::REQUEST, sender_mac: from, sender: source, target_mac: [0; 6], target };
    let mut bytes = ethernet::header(ethernet::BROADCAST, from, ethernet::ARP).to_vec();
    bytes.extend(request.to_bytes());
    bytes.resize(SMALLEST, 0);
    bytes
}

#[cfg(test)]
mod tests;

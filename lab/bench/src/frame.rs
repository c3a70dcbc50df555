//! The frames that are measured: built once, right to the last checksum.
//!
//! Frames up to 9014 bytes are UDP over IPv4 in one piece. Longer ones are TCP over IPv4, which the
//! receiver cuts (GSO). Their virtio-net header gives the segment size and the place of the
//! checksum (virtio 1.3 §5.1.6.2), as a Linux guest sends them.

use anyhow::{Result, bail};
use zerowire_wire::checksum::Checksum;
use zerowire_wire::vnet::{GSO_TCPV4, NEEDS_CSUM};

use crate::tap::VNET_HEADER_LEN;

/// Length of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// The longest frame sent without segmentation: MTU 9000 and the Ethernet header.
pub const LARGEST_PLAIN: usize = 9000 + ETHERNET_LEN;
/// The longest frame at all: the length field of IPv4 has 16 bits (RFC 791).
pub const LARGEST: usize = ETHERNET_LEN + 65535;
/// The shortest frame on Ethernet without its check sequence.
pub const SMALLEST: usize = 60;

/// TCP payload of one segment of a large frame: MTU 1500 less IPv4, TCP and its timestamp option.
pub const GSO_SEGMENT: u16 = 1448;

const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// TCP header with two no-operations and the timestamp option (RFC 7323).
const TCP_LEN: usize = 32;

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
        bytes.extend(to);
        bytes.extend(from);
        bytes.extend(0x0800u16.to_be_bytes());
        bytes.extend(ipv4_header(len - ETHERNET_LEN, if gso { 6 } else { 17 }, ENDS));
        let transport = bytes.len();
        bytes.resize(len, 0);
        let head = transport + if gso { TCP_LEN } else { UDP_LEN };
        for (at, byte) in bytes[head..].iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let header = if gso {
            tcp(&mut bytes, transport);
            gso_header(transport)
        } else {
            udp(&mut bytes, transport);
            [0; VNET_HEADER_LEN]
        };
        Ok(Self { header, bytes })
    }

    /// Any frame in one piece, with a virtio-net header of zeroes.
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self { header: [0; VNET_HEADER_LEN], bytes }
    }

    /// The virtio-net header (12 bytes, virtio 1.3 §5.1.6, num_buffers 0).
    pub fn header(&self) -> &[u8; VNET_HEADER_LEN] {
        &self.header
    }

    /// The header without num_buffers (10 bytes), as `PACKET_VNET_HDR` takes it.
    pub fn short_header(&self) -> &[u8] {
        &self.header[..10]
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
        ETHERNET_LEN + IPV4_LEN + if self.is_gso() { TCP_LEN } else { UDP_LEN }
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

fn gso_header(transport: usize) -> [u8; VNET_HEADER_LEN] {
    let mut header = [0; VNET_HEADER_LEN];
    header[0] = NEEDS_CSUM;
    header[1] = GSO_TCPV4;
    header[2..4].copy_from_slice(&((transport + TCP_LEN) as u16).to_le_bytes());
    header[4..6].copy_from_slice(&GSO_SEGMENT.to_le_bytes());
    header[6..8].copy_from_slice(&(transport as u16).to_le_bytes());
    // The checksum is 16 bytes into the TCP header (RFC 9293 §3.1).
    header[8..10].copy_from_slice(&16u16.to_le_bytes());
    header
}

/// An IPv4 header from one address to the other.
pub(crate) fn ipv4_header(total_len: usize, protocol: u8, ends: [[u8; 4]; 2]) -> [u8; IPV4_LEN] {
    let mut header = [0; IPV4_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(total_len as u16).to_be_bytes());
    // Don't fragment (RFC 791 §3.1).
    header[6] = 0x40;
    header[8] = 64;
    header[9] = protocol;
    header[12..20].copy_from_slice(ends.as_flattened());
    let mut sum = Checksum::new();
    sum.add(&header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    header
}

/// Completes a UDP datagram whose payload is in place.
fn udp(bytes: &mut [u8], transport: usize) {
    let len = (bytes.len() - transport) as u16;
    let header = &mut bytes[transport..transport + UDP_LEN];
    header[0..2].copy_from_slice(&40_000u16.to_be_bytes());
    header[2..4].copy_from_slice(&9u16.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    let mut sum = pseudo_header(17, len, ENDS);
    sum.add(&bytes[transport..]);
    bytes[transport + 6..transport + 8].copy_from_slice(&sum.finish_nonzero().to_be_bytes());
}

/// Completes a TCP segment; its checksum field holds the sum of the pseudo header only, as
/// `NEEDS_CSUM` asks.
fn tcp(bytes: &mut [u8], transport: usize) {
    let len = (bytes.len() - transport) as u16;
    let header = &mut bytes[transport..transport + TCP_LEN];
    header[0..2].copy_from_slice(&40_000u16.to_be_bytes());
    header[2..4].copy_from_slice(&9u16.to_be_bytes());
    header[4..8].copy_from_slice(&1u32.to_be_bytes());
    header[8..12].copy_from_slice(&1u32.to_be_bytes());
    header[12] = ((TCP_LEN / 4) as u8) << 4;
    // ACK (RFC 9293 §3.1).
    header[13] = 0x10;
    header[14..16].copy_from_slice(&0xffffu16.to_be_bytes());
    header[16..18].copy_from_slice(&pseudo_header(6, len, ENDS).folded().to_be_bytes());
    // Two no-operations, then the timestamp option of 10 bytes (RFC 7323 §3.2).
    header[20..24].copy_from_slice(&[1, 1, 8, 10]);
}

/// The sum of the pseudo header of a UDP or TCP packet of `len` bytes.
pub(crate) fn pseudo_header(protocol: u8, len: u16, ends: [[u8; 4]; 2]) -> Checksum {
    let mut sum = Checksum::new();
    sum.add(ends.as_flattened());
    sum.add_word(protocol.into());
    sum.add_word(len);
    sum
}

/// An ARP request for `target`, in a frame of 60 bytes: the host's kernel answers it by itself.
pub fn arp_request(from: [u8; 6], source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SMALLEST);
    bytes.extend([0xff; 6]);
    bytes.extend(from);
    // Ethernet type ARP; Ethernet and IPv4 addresses of 6 and 4 bytes; request (RFC 826).
    bytes.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    bytes.extend(from);
    bytes.extend(source);
    bytes.extend([0; 6]);
    bytes.extend(target);
    bytes.resize(SMALLEST, 0);
    bytes
}

#[cfg(test)]
mod tests;

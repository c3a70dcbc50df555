//! Captures made for tests.

#![allow(dead_code, missing_docs, reason = "no test uses all of it")]

/// A packet to write: seconds, nanoseconds, bytes, and its length on the wire.
#[derive(Clone, Debug)]
pub struct P {
    pub sec: u32,
    pub nsec: u32,
    pub data: Vec<u8>,
    pub wire: u32,
}

impl P {
    pub fn at(nanoseconds: u64, data: &[u8]) -> Self {
        let (sec, nsec) = ((nanoseconds / 1_000_000_000) as u32, (nanoseconds % 1_000_000_000) as u32);
        Self { sec, nsec, data: data.to_vec(), wire: data.len() as u32 }
    }
}

/// An Ethernet frame with a number in it and `len` bytes.
pub fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    f.extend_from_slice(&number.to_be_bytes());
    f.extend((f.len()..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(number) as u8));
    f.truncate(len);
    f
}

/// Writes numbers in one byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    pub const BOTH: [Self; 2] = [Self::Little, Self::Big];

    pub fn u16(self, n: u16) -> [u8; 2] {
        if self == Self::Big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    pub fn u32(self, n: u32) -> [u8; 4] {
        if self == Self::Big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    pub fn u64(self, n: u64) -> [u8; 8] {
        if self == Self::Big { n.to_be_bytes() } else { n.to_le_bytes() }
    }
}

/// Header of a pcap file.
pub fn pcap_header(order: Order, nanoseconds: bool, network: u32) -> Vec<u8> {
    let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    [
        &order.u32(magic)[..],
        &order.u16(2),
        &order.u16(4),
        &order.u32(0),
        &order.u32(0),
        &order.u32(65_535),
        &order.u32(network),
    ]
    .concat()
}

/// A pcap file.
pub fn pcap(order: Order, nanoseconds: bool, packets: &[P]) -> Vec<u8> {
    let mut out = pcap_header(order, nanoseconds, 1);
    for p in packets {
        let fraction = if nanoseconds { p.nsec } else { p.nsec / 1000 };
        for n in [p.sec, fraction, p.data.len() as u32, p.wire] {
            out.extend_from_slice(&order.u32(n));
        }
        out.extend_from_slice(&p.data);
    }
    out
}

/// A pcap file with the defaults of today's tools.
pub fn simple(packets: &[P]) -> Vec<u8> {
    pcap(Order::Little, true, packets)
}

/// A pcapng block.
pub fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let length = order.u32(body.len() as u32 + 12);
    [&order.u32(kind)[..], &length, &body, &length].concat()
}

/// An option of a block.
pub fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    let mut out = [&order.u16(code)[..], &order.u16(value.len() as u16), value].concat();
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// A section header.
pub fn section(order: Order) -> Vec<u8> {
    let body = [&order.u32(0x1a2b_3c4d)[..], &order.u16(1), &order.u16(0), &order.u64(u64::MAX)].concat();
    block(order, 0x0a0d_0d0a, &body)
}

/// An interface with options.
pub fn interface(order: Order, link: u16, snaplen: u32, options: &[u8]) -> Vec<u8> {
    let end = if options.is_empty() { Vec::new() } else { option(order, 0, &[]) };
    let body = [&order.u16(link)[..], &order.u16(0), &order.u32(snaplen), options, &end].concat();
    block(order, 1, &body)
}

/// An enhanced packet block, its time in the interface's units.
pub fn enhanced(order: Order, id: u32, units: u64, data: &[u8], wire: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for n in [id, (units >> 32) as u32, units as u32, data.len() as u32, wire] {
        body.extend_from_slice(&order.u32(n));
    }
    body.extend_from_slice(data);
    block(order, 6, &body)
}

/// A simple packet block.
pub fn plain(order: Order, data: &[u8], wire: u32) -> Vec<u8> {
    block(order, 3, &[&order.u32(wire)[..], data].concat())
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A TCP frame over IPv4 with `payload` bytes of payload and good checksums.
pub fn tcp4(payload: usize) -> Vec<u8> {
    let tcp = tcp(payload);
    let mut ip = vec![0x45, 0];
    ip.extend_from_slice(&((20 + tcp.len()) as u16).to_be_bytes());
    ip.extend_from_slice(&[0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = [&ip[12..20], &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
    finish([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00].to_vec(), ip, pseudo, tcp)
}

/// The same over IPv6.
pub fn tcp6(payload: usize) -> Vec<u8> {
    let tcp = tcp(payload);
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
    ip.extend_from_slice(&[6, 64]);
    ip.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    let pseudo = [&ip[8..40], &(tcp.len() as u32).to_be_bytes(), &[0, 0, 0, 6]].concat();
    finish([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd].to_vec(), ip, pseudo, tcp)
}

fn tcp(payload: usize) -> Vec<u8> {
    let mut tcp = vec![0x13, 0x88, 0x13, 0x89, 0, 0, 0, 100, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0];
    tcp.extend((0..payload).map(|i| (i % 251) as u8));
    tcp
}

fn finish(mut frame: Vec<u8>, ip: Vec<u8>, pseudo: Vec<u8>, mut tcp: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&[pseudo, tcp.clone()].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

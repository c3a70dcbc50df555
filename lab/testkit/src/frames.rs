//! Frames for tests: each carries its number, and its content follows from number and length.

/// EtherType for local experiments (IEEE 802).
pub const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Address of the guest, locally administered.
pub const GUEST_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Address of nobody, locally administered: the host's stack drops such frames.
pub const HOST_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// Frame number `n` of `len` bytes (at least 18).
pub fn frame(n: u32, len: usize) -> Vec<u8> {
    assert!(len >= 18);
    let mut f = Vec::with_capacity(len);
    f.extend_from_slice(&HOST_MAC);
    f.extend_from_slice(&GUEST_MAC);
    f.extend_from_slice(&EXPERIMENT);
    f.extend_from_slice(&n.to_be_bytes());
    fill(&mut f, n, len);
    f
}

/// From this number on frames are probes: no test sends such ones otherwise.
pub const PROBE: u32 = 0xf000_0000;

/// The number in a frame of [`frame`].
pub fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

/// Bytes up to `len` that follow from `n` and their place.
pub fn fill(f: &mut Vec<u8>, n: u32, len: usize) {
    // Eight bytes at a time: tests fill frames by the million.
    let mut state = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while f.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f.extend_from_slice(&state.to_le_bytes()[..(len - f.len()).min(8)]);
    }
}

/// Ethernet, IPv4 and UDP headers in front of `payload`, addressed to `to`.
pub fn udp_frame(to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut f = ipv4([10, 0, 0, 2], to, 17, 8 + payload.len());
    f.extend_from_slice(&[0x30, 0x39, 0x00, 0x50]);
    f.extend_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    f.extend_from_slice(&[0, 0]);
    f.extend_from_slice(payload);
    f
}

/// Bytes of Ethernet, IPv4 and TCP headers of [`tcp_frame`].
pub const TCP_HEADERS: usize = 54;

/// Ethernet, IPv4 and TCP headers in front of `payload` bytes that follow from `n`. The checksum
/// field holds the pseudo-header's sum, as a partial checksum does.
pub fn tcp_frame(n: u32, payload: usize) -> Vec<u8> {
    let (from, to) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let mut f = ipv4(from, to, 6, 20 + payload);
    f.extend_from_slice(&[0x30, 0x39, 0x14, 0x51]);
    f.extend_from_slice(&n.to_be_bytes());
    f.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff]);
    let pseudo = [&from[..], &to[..], &[0, 6], &((20 + payload) as u16).to_be_bytes()].concat();
    f.extend_from_slice(&sum(&pseudo, 0).to_be_bytes());
    f.extend_from_slice(&[0, 0]);
    let len = f.len() + payload;
    fill(&mut f, n, len);
    f
}

/// As [`tcp_frame`], over IPv6.
pub fn tcp6_frame(n: u32, payload: usize) -> Vec<u8> {
    let address = |last| {
        let mut a = [0u8; 16];
        (a[0], a[15]) = (0xfd, last);
        a
    };
    let (from, to) = (address(2), address(1));
    let len = (20 + payload) as u16;
    let mut f = [HOST_MAC.as_slice(), &GUEST_MAC, &[0x86, 0xdd], &[0x60, 0, 0, 0]].concat();
    f.extend_from_slice(&len.to_be_bytes());
    f.extend_from_slice(&[6, 64]);
    f.extend_from_slice(&from);
    f.extend_from_slice(&to);
    f.extend_from_slice(&[0x30, 0x39, 0x14, 0x51]);
    f.extend_from_slice(&n.to_be_bytes());
    f.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff]);
    let pseudo = [&from[..], &to[..], &u32::from(len).to_be_bytes(), &[0, 0, 0, 6]].concat();
    f.extend_from_slice(&sum(&pseudo, 0).to_be_bytes());
    f.extend_from_slice(&[0, 0]);
    let whole = f.len() + payload;
    fill(&mut f, n, whole);
    f
}

/// Ethernet and IPv4 headers for `payload` bytes of `protocol`.
pub fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, payload: usize) -> Vec<u8> {
    let mut f = [HOST_MAC.as_slice(), &GUEST_MAC, &[0x08, 0x00]].concat();
    let mut ip = vec![0x45, 0];
    ip.extend_from_slice(&((20 + payload) as u16).to_be_bytes());
    ip.extend_from_slice(&[0, 1, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend_from_slice(&from);
    ip.extend_from_slice(&to);
    let checksum = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    f.extend_from_slice(&ip);
    f
}

/// The ones' complement sum of RFC 1071.
pub fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut s = start;
    for pair in bytes.chunks(2) {
        s += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// A neighbour solicitation for the metadata service (RFC 4861 §4.3).
pub fn neighbour_solicitation() -> Vec<u8> {
    let target = [0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x54];
    let from = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 2, 0x54];
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0], &target[..]].concat();
    let checksum = !sum(&[&from[..], &to, &[0, 0, 0, 24, 0, 0, 0, 58], &message].concat(), 0);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut f = [&[0x33, 0x33, 0xff, 0, 2, 0x54], &GUEST_MAC[..], &[0x86, 0xdd]].concat();
    f.extend_from_slice(&[0x60, 0, 0, 0, 0, 24, 58, 255]);
    f.extend_from_slice(&[&from[..], &to, &message].concat());
    f
}

/// An ARP request for the metadata service.
pub fn arp_request() -> Vec<u8> {
    let mut f = [[0xff; 6].as_slice(), &GUEST_MAC, &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]].concat();
    f.extend_from_slice(&GUEST_MAC);
    f.extend_from_slice(&[10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 169, 254, 169, 254]);
    f
}

//! What tests and fuzz targets hold the real code against. There are frames to cut, the whole way
//! of one frame through the code, and an independent model that takes nothing from it.

use zerowire_vhost::memory::Segment;
use zerowire_wire::vnet::Gso;

use super::{Checksum, Cursor, HEADERS_BYTES, Headers, Request, Segmenter, add_guest, complete};
use crate::header;

/// A frame as a guest's stack would make it.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What it asks for.
    pub kind: Gso,
    /// Over IPv6.
    pub v6: bool,
    /// VLAN tags, 0 to 2.
    pub tags: usize,
    /// Words of 4 bytes of options in the TCP header; of UDP over IPv4 in the IP header.
    pub options: usize,
    /// Flags of the TCP header.
    pub flags: u8,
    /// Bytes of payload.
    pub payload: usize,
    /// What the bytes follow from.
    pub seed: u32,
}

impl Example {
    fn tcp(&self) -> bool {
        self.kind != Gso::UdpL4
    }

    fn ip_options(&self) -> usize {
        if self.tcp() || self.v6 { 0 } else { self.options.min(10) }
    }

    /// Where the IP header begins, bytes.
    pub fn network_at(&self) -> usize {
        14 + 4 * self.tags
    }

    /// Where the TCP or UDP header begins, bytes.
    pub fn transport_at(&self) -> usize {
        self.network_at() + if self.v6 { 40 } else { 20 + 4 * self.ip_options() }
    }

    /// Where the payload begins, bytes.
    pub fn payload_at(&self) -> usize {
        self.transport_at() + if self.tcp() { 20 + 4 * self.options.min(10) } else { 8 }
    }

    /// The virtio-net header, without `num_buffers`.
    pub fn header(&self, size: u16) -> [u8; 10] {
        let mut h = [header::NEEDS_CSUM, self.kind as u8, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.payload_at() as u16, size, self.transport_at() as u16, self.kind.checksum_at()];
        for (to, word) in h[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        h
    }

    /// The frame, with the pseudo header's sum in the checksum field.
    pub fn frame(&self) -> Vec<u8> {
        let mut state = self.seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        let mut f: Vec<u8> = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        f.extend([0x81, 0, 0, 5].repeat(self.tags));
        let transport_len = self.payload_at() - self.transport_at() + self.payload;
        let protocol = if self.tcp() { 6 } else { 17 };
        if self.v6 {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend((transport_len as u16).to_be_bytes());
            f.extend([protocol, 64]);
            for last in [2, 1] {
                f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        } else {
            f.extend([8, 0, 0x45 + self.ip_options() as u8, 0]);
            let total = self.transport_at() - self.network_at() + transport_len;
            f.extend((total as u16).to_be_bytes());
            f.extend([random(), random(), 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
            f.extend(vec![1; 4 * self.ip_options()]);
            let at = self.network_at();
            let sum = !sum(&f[at..], 0);
            f[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        f.extend([0x30, 0x39, 0x14, 0x51]);
        if self.tcp() {
            f.extend((0..8).map(|_| random()));
            let words = 5 + self.options.min(10) as u8;
            f.extend([words << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
            f.extend(vec![1; 4 * self.options.min(10)]);
        } else {
            f.extend((transport_len as u16).to_be_bytes());
            f.extend([0, 0]);
        }
        f.extend((0..self.payload).map(|_| random()));
        let field = self.transport_at() + usize::from(self.kind.checksum_at());
        let pseudo = sum(&self.pseudo(&f, transport_len), 0);
        f[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        f
    }

    /// The pseudo header of a frame with these addresses (RFC 9293 §3.1, RFC 8200 §8.1).
    fn pseudo(&self, frame: &[u8], transport_len: usize) -> Vec<u8> {
        let at = self.network_at();
        let addresses = if self.v6 { &frame[at + 8..at + 40] } else { &frame[at + 12..at + 20] };
        let mut pseudo = addresses.to_vec();
        pseudo.extend((transport_len as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, if self.tcp() { 6 } else { 17 }]);
        pseudo
    }

    /// What belongs into the checksum field of the frame as it is, whatever the field holds now.
    pub fn checksum(&self, frame: &[u8]) -> u16 {
        let at = self.transport_at();
        let mut transport = frame[at..].to_vec();
        let field = usize::from(self.kind.checksum_at());
        transport[field..field + 2].fill(0);
        let pseudo = sum(&self.pseudo(frame, transport.len()), 0);
        match !sum(&transport, u32::from(pseudo)) {
            0 => 0xffff,
            n => n,
        }
    }
}

/// RFC 1071 as it is written there.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The wire frames that `frame`, which `example` describes, becomes: written down from the
/// protocols, one byte field after the other.
pub fn naive(frame: &[u8], example: &Example, size: usize) -> Vec<Vec<u8>> {
    let (network, transport, payload) = (example.network_at(), example.transport_at(), example.payload_at());
    let parts: Vec<_> = frame[payload..].chunks(size).collect();
    let count = parts.len();
    let frames = parts.into_iter().enumerate().map(|(i, part)| {
        let mut f = [&frame[..payload], part].concat();
        let transport_len = (f.len() - transport) as u16;
        if example.v6 {
            let len = (f.len() - network - 40) as u16;
            f[network + 4..network + 6].copy_from_slice(&len.to_be_bytes());
        } else {
            let len = (f.len() - network) as u16;
            f[network + 2..network + 4].copy_from_slice(&len.to_be_bytes());
            let id = u16::from_be_bytes([f[network + 4], f[network + 5]]).wrapping_add(i as u16);
            f[network + 4..network + 6].copy_from_slice(&id.to_be_bytes());
            f[network + 10..network + 12].fill(0);
            let checksum = !sum(&f[network..transport], 0);
            f[network + 10..network + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        if example.tcp() {
            let mut sequence = [0; 4];
            sequence.copy_from_slice(&f[transport + 4..transport + 8]);
            let sequence = u32::from_be_bytes(sequence).wrapping_add((i * size) as u32);
            f[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            let flags = &mut f[transport + 13];
            if i + 1 < count {
                *flags &= !0x09;
            }
            if i > 0 {
                *flags &= !0x80;
            }
        } else {
            f[transport + 4..transport + 6].copy_from_slice(&transport_len.to_be_bytes());
        }
        let mut checksum = example.checksum(&f);
        if example.tcp() && checksum == 0xffff {
            checksum = 0;
        }
        let field = transport + usize::from(example.kind.checksum_at());
        f[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        f
    });
    frames.collect()
}

/// Bytes as a guest's scatter list of pieces of `piece` bytes, which must not outlive them.
pub fn segments_of(bytes: &[u8], piece: usize) -> Vec<Segment> {
    let segment = |c: &[u8]| Segment { ptr: c.as_ptr().cast_mut().into(), len: c.len() as u32, region: 0 };
    bytes.chunks(piece.max(1)).map(segment).collect()
}

/// Takes a frame in pieces of `piece` bytes the whole way, to a port whose longest frame has
/// `longest` bytes. `vnet` is its virtio-net header, without `num_buffers`. Returns the wire frames
/// that come out.
///
/// # Errors
/// Why it is dropped.
pub fn cut(vnet: &[u8; 10], frame: &[u8], longest: usize, piece: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut head = frame[..frame.len().min(HEADERS_BYTES)].to_vec();
    let mut private = [vnet.as_slice(), &head].concat();
    header::check(&mut private, 10, frame.len(), u64::MAX).map_err(|e| e.to_string())?;
    let mut vnet = [0; 10];
    vnet.copy_from_slice(&private[..10]);
    let request = Request::read(&vnet).ok_or("not offered")?;
    let segments = segments_of(frame, piece);
    let (start, offset) = match request {
        Request::Plain => return Ok(vec![frame.to_vec()]),
        Request::Checksum { start, offset } => (start, offset),
        Request::Segments { kind, size, start, offset } => {
            let headers = Headers::find(&head, kind, start, offset).map_err(|e| e.to_string())?;
            if frame.len() - headers.payload_at > usize::from(size) {
                let segmenter = Segmenter::new(&head, frame.len(), headers, size, longest);
                return Ok(all(&segmenter.map_err(|e| e.to_string())?, &segments));
            }
            (start, offset)
        }
    };
    let mut rest = Checksum::new();
    Cursor::at(&segments, head.len()).take(&segments, frame.len(), |run| add_guest(&mut rest, &run));
    if complete(&mut head, start, offset, rest) {
        return Ok(vec![[&head, &frame[head.len()..]].concat()]);
    }
    // The field lies further behind: the frame is copied as a whole.
    let mut whole = frame.to_vec();
    match complete(&mut whole, start, offset, Checksum::new()) {
        true => Ok(vec![whole]),
        false => Err("a checksum outside the frame".to_owned()),
    }
}

fn all(segmenter: &Segmenter, segments: &[Segment]) -> Vec<Vec<u8>> {
    let mut cursor = Cursor::at(segments, segmenter.headers_len());
    let frames = (0..segmenter.frames()).map(|i| {
        let mut runs = Vec::new();
        let sum = segmenter.sum_payload(i, segments, &mut cursor, |run| runs.push(run));
        let mut f = vec![0; segmenter.headers_len()];
        segmenter.write(i, sum, &mut f);
        let at = f.len();
        f.resize(at + segmenter.payload_len(i), 0);
        let read = zerowire_vhost::memory::access::read(&runs, 0, &mut f[at..]);
        assert_eq!(read, segmenter.payload_len(i), "the runs are the payload");
        f
    });
    frames.collect()
}

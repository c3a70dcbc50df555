//! Frames that ask more of the guest than it takes: checksums and segments, made here (virtio 1.3 §5.1.6.4.1: a device sets no
//! flag and no segmentation that was not negotiated).
//!
//! A tap is told what its reader takes (TUNSETOFFLOAD) and does this itself; a packet socket gives what there is. Plain code
//! on private memory. The bytes are those of some sender on the network, the offload fields those of the kernel.

use crate::net::header::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use crate::port::TapOffloads;

/// Bytes of the virtio-net header that tell of offloads.
pub(super) const HEADER_BYTES: usize = 10;

/// A frame that its offload fields don't fit. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

/// Whether the guest takes a frame with this header as it is.
#[inline]
pub(super) fn passes(header: &[u8; HEADER_BYTES], accepts: TapOffloads) -> bool {
    let [flags, gso, ..] = *header;
    let taken = match gso & !GSO_ECN {
        GSO_NONE => true,
        GSO_TCPV4 => accepts.tso4,
        GSO_TCPV6 => accepts.tso6,
        GSO_UDP_L4 => accepts.uso,
        _ => false,
    };
    taken && (gso & GSO_ECN == 0 || accepts.ecn) && (flags == 0 || accepts.csum)
}

/// Makes of a frame, its virtio-net header in front, frames that ask for nothing, and gives them to `give` one after the
/// other. Segments are built in `piece`.
pub(super) fn rebuild(
    frame: &mut [u8],
    header_len: usize,
    piece: &mut Vec<u8>,
    mut give: impl FnMut(&[u8]),
) -> Result<(), Unfit> {
    let (header, bytes) = frame.split_at_mut_checked(header_len).ok_or(Unfit)?;
    let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (flags, gso, size, start, offset) = (header[0], header[1] & !GSO_ECN, word(4), word(6), word(8));
    if gso == GSO_NONE {
        if flags & NEEDS_CSUM != 0 {
            complete(bytes, start, offset)?;
        }
        header.fill(0);
        give(frame);
        return Ok(());
    }
    let headers = Headers::find(bytes, gso, start)?;
    let (all, payload) = bytes.split_at_checked(headers.end).ok_or(Unfit)?;
    if size == 0 {
        return Err(Unfit);
    }
    let count = payload.len().div_ceil(size).max(1);
    for i in 0..count {
        let part = &payload[i * size..payload.len().min((i + 1) * size)];
        piece.clear();
        piece.resize(header_len, 0);
        piece.extend_from_slice(all);
        piece.extend_from_slice(part);
        headers.fill_in(&mut piece[header_len..], i, i * size, i + 1 == count)?;
        give(piece);
    }
    Ok(())
}

/// Where the headers of a frame are that is to be segmented.
#[derive(Clone, Copy, Debug)]
struct Headers {
    network: usize,
    v6: bool,
    transport: usize,
    tcp: bool,
    end: usize,
}

impl Headers {
    fn find(frame: &[u8], gso: u8, transport: usize) -> Result<Self, Unfit> {
        let mut network = 14;
        while matches!(frame.get(network - 2..network), Some([0x81, 0] | [0x88, 0xa8])) && network < 22 {
            network += 4;
        }
        let v6 = match frame.get(network).map(|b| b >> 4) {
            Some(4) => false,
            Some(6) => true,
            _ => return Err(Unfit),
        };
        let tcp = match gso {
            GSO_TCPV4 if !v6 => true,
            GSO_TCPV6 if v6 => true,
            GSO_UDP_L4 => false,
            _ => return Err(Unfit),
        };
        let least = if v6 { 40 } else { 20 };
        let transport_len = match tcp {
            true => usize::from(frame.get(transport + 12).ok_or(Unfit)? >> 4) * 4,
            false => 8,
        };
        let end = transport + transport_len;
        if transport < network + least || (tcp && transport_len < 20) || end > frame.len() {
            return Err(Unfit);
        }
        Ok(Self { network, v6, transport, tcp, end })
    }

    /// Makes `frame` segment number `i`, whose payload begins `at` bytes into the whole.
    fn fill_in(&self, frame: &mut [u8], i: usize, at: usize, last: bool) -> Result<(), Unfit> {
        let (network, transport) = (self.network, self.transport);
        let ip_len = frame.len() - network;
        let transport_len = frame.len() - transport;
        if self.v6 {
            put(frame, network + 4, (ip_len - 40) as u16)?;
        } else {
            put(frame, network + 2, ip_len as u16)?;
            let id = get(frame, network + 4)?;
            put(frame, network + 4, id.wrapping_add(i as u16))?;
            put(frame, network + 10, 0)?;
            let header_len = usize::from(frame[network] & 15) * 4;
            let sum = fold(add(0, frame.get(network..network + header_len).ok_or(Unfit)?));
            put(frame, network + 10, !sum)?;
        }
        let (protocol, offset) = if self.tcp { (6, 16) } else { (17, 6) };
        if self.tcp {
            let bytes = frame.get_mut(transport + 4..transport + 8).ok_or(Unfit)?;
            let seq = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes.copy_from_slice(&seq.wrapping_add(at as u32).to_be_bytes());
            // FIN and PSH belong to the last segment, CWR to the first one (RFC 3168 §6.1.2).
            let flags = frame.get_mut(transport + 13).ok_or(Unfit)?;
            if !last {
                *flags &= !0x09;
            }
            if i > 0 {
                *flags &= !0x80;
            }
        } else {
            put(frame, transport + 4, transport_len as u16)?;
        }
        let addresses = if self.v6 { network + 8..network + 40 } else { network + 12..network + 20 };
        let pseudo = add(u64::from(protocol as u16) + transport_len as u64, &frame[addresses]);
        put(frame, transport + offset, fold(pseudo))?;
        complete(frame, transport, offset)
    }
}

/// Completes the checksum of the bytes from `start` on: its field, `offset` bytes behind, holds the pseudo header's sum.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> Result<(), Unfit> {
    let sum = !fold(add(0, frame.get(start..).ok_or(Unfit)?));
    // In UDP zero means that there is none (RFC 768); elsewhere both stand for the same.
    put(frame, start + offset, if sum == 0 { 0xffff } else { sum })
}

fn get(frame: &[u8], at: usize) -> Result<u16, Unfit> {
    frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(Unfit)
}

fn put(frame: &mut [u8], at: usize, word: u16) -> Result<(), Unfit> {
    frame.get_mut(at..at + 2).ok_or(Unfit)?.copy_from_slice(&word.to_be_bytes());
    Ok(())
}

/// Adds words of 16 bits (RFC 1071).
fn add(start: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut sum = start;
    for w in &mut words {
        sum += u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
    }
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    sum + u64::from(u32::from_be_bytes(rest))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: TapOffloads =
        TapOffloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };

    fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> Vec<u8> {
        let mut h = vec![flags, gso, 0, 0];
        [size, start, offset, 0].iter().for_each(|w| h.extend_from_slice(&w.to_le_bytes()));
        h
    }

    /// Ethernet with `tags` tags, IPv4 or IPv6, TCP or UDP, and so much payload.
    fn frame(tags: usize, v6: bool, tcp: bool, payload: usize) -> (Vec<u8>, usize) {
        let mut f = vec![2; 12];
        (0..tags).for_each(|_| f.extend_from_slice(&[0x81, 0, 0, 5]));
        let transport_len = if tcp { 20 } else { 8 } + payload;
        if v6 {
            f.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend_from_slice(&(transport_len as u16).to_be_bytes());
            f.extend_from_slice(&[if tcp { 6 } else { 17 }, 64]);
            f.extend_from_slice(&[0xfd; 32]);
        } else {
            f.extend_from_slice(&[0x08, 0, 0x45, 0]);
            f.extend_from_slice(&(20 + transport_len as u16).to_be_bytes());
            f.extend_from_slice(&[0xff, 0xfe, 0, 0, 64, if tcp { 6 } else { 17 }, 0, 0]);
            f.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let start = f.len();
        f.extend_from_slice(&[1, 2, 3, 4]);
        match tcp {
            true => f.extend_from_slice(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0x50, 0x99, 0, 9, 0, 0, 0, 0]),
            false => {
                f.extend_from_slice(&(transport_len as u16).to_be_bytes());
                f.extend_from_slice(&[0, 0]);
            }
        }
        f.extend((0..payload).map(|i| (i * 7 + i / 251) as u8));
        (f, start)
    }

    /// The frame is one that a receiver takes.
    fn check(f: &[u8], start: usize) {
        let network = if f[start - 20] >> 4 == 4 && f[start - 22] == 8 { start - 20 } else { start - 40 };
        let (protocol, addresses) = match f[network] >> 4 {
            4 => {
                assert_eq!(fold(add(0, &f[network..network + 20])), 0xffff, "IPv4 header");
                assert_eq!(usize::from(get(f, network + 2).expect("there")), f.len() - network);
                (f[network + 9], network + 12..network + 20)
            }
            _ => {
                assert_eq!(usize::from(get(f, network + 4).expect("there")), f.len() - start);
                (f[network + 6], network + 8..network + 40)
            }
        };
        let pseudo = add(u64::from(protocol) + (f.len() - start) as u64, &f[addresses]);
        assert_eq!(fold(pseudo + u64::from(fold(add(0, &f[start..])))), 0xffff, "checksum");
    }

    fn pieces(header_len: usize, header: &[u8], frame: &[u8]) -> Result<Vec<Vec<u8>>, Unfit> {
        let mut whole = header.to_vec();
        whole.resize(header_len, 0);
        whole.extend_from_slice(frame);
        let mut all = Vec::new();
        rebuild(&mut whole, header_len, &mut Vec::new(), |p| {
            assert!(p[..header_len].iter().all(|b| *b == 0), "asks for nothing");
            all.push(p[header_len..].to_vec());
        })?;
        Ok(all)
    }

    #[test]
    fn what_was_negotiated_passes() {
        let h = |flags, gso| [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
        for gso in [0, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_TCPV4 | GSO_ECN] {
            assert!(passes(&h(1, gso), ALL) && passes(&h(2, gso), ALL));
            assert_eq!(passes(&h(0, gso), TapOffloads::default()), gso == 0);
        }
        assert!(!passes(&h(1, 0), TapOffloads::default()) && !passes(&h(2, 0), TapOffloads::default()));
        assert!(!passes(&h(1, GSO_TCPV4 | GSO_ECN), TapOffloads { ecn: false, ..ALL }));
        assert!(!passes(&h(1, 9), ALL));
    }

    #[test]
    fn every_segment_is_a_frame_of_its_own() {
        for tags in 0..3 {
            for v6 in [false, true] {
                for tcp in [false, true] {
                    for payload in [1, 999, 1000, 1001, 60_001] {
                        let (f, start) = frame(tags, v6, tcp, payload);
                        let (gso, offset) = match (tcp, v6) {
                            (true, false) => (GSO_TCPV4, 16),
                            (true, true) => (GSO_TCPV6, 16),
                            _ => (GSO_UDP_L4, 6),
                        };
                        let all = pieces(12, &header(1, gso, 1000, start as u16, offset), &f).expect("good");
                        assert_eq!(all.len(), payload.div_ceil(1000));
                        let end = f.len() - payload;
                        all.iter().for_each(|p| check(p, start));
                        let again: Vec<u8> = all.iter().flat_map(|p| p[end..].to_vec()).collect();
                        assert_eq!(again, f[end..]);
                        if tcp {
                            let flags: Vec<u8> = all.iter().map(|p| p[start + 13]).collect();
                            let want = |i| match (i == 0, i + 1 == all.len()) {
                                (true, true) => 0x99,
                                (true, false) => 0x90,
                                (false, true) => 0x19,
                                (false, false) => 0x10,
                            };
                            assert_eq!(flags, (0..all.len()).map(want).collect::<Vec<_>>());
                            let third = all.get(2).map(|p| p[start + 4..start + 8].to_vec());
                            assert_eq!(third.unwrap_or(vec![0, 0, 6, 0xd0]), [0, 0, 6, 0xd0]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let (mut f, start) = frame(0, false, false, 77);
        let sum = fold(add(17 + 85, &f[26..34]));
        put(&mut f, start + 6, sum).expect("there");
        let all = pieces(10, &header(1, 0, 0, start as u16, 6), &f).expect("good");
        // The IPv4 header's own checksum is not this code's.
        let ip = !fold(add(0, &f[14..34]));
        let mut got = all[0].clone();
        put(&mut got, 24, ip).expect("there");
        check(&got, start);
        // A checksum that was found right is just not mentioned.
        assert_eq!(pieces(12, &header(2, 0, 0, 0, 0), &f), Ok(vec![f.clone()]));
    }

    #[test]
    fn fields_that_do_not_fit_are_refused_and_nothing_is_read_outside() {
        let (f, start) = frame(0, false, true, 3000);
        let start = start as u16;
        for h in [
            header(1, GSO_TCPV4, 0, start, 16),
            header(1, GSO_TCPV6, 1000, start, 16),
            header(1, 3, 1000, start, 16),
            header(1, GSO_TCPV4, 1000, 20, 16),
            header(1, GSO_TCPV4, 1000, 0xffff, 0xffff),
            header(1, GSO_NONE, 0, 0xffff, 16),
            header(1, GSO_NONE, 0, start, 0xffff),
        ] {
            assert_eq!(pieces(12, &h, &f), Err(Unfit), "{h:?}");
        }
        for len in 0..f.len().min(54) {
            assert_eq!(pieces(12, &header(1, GSO_TCPV4, 1000, start, 16), &f[..len]), Err(Unfit));
        }
    }
}

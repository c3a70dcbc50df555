//! Frames that ask more of the guest than it takes: their checksums and segments are made here. A
//! device sets no flag and no segmentation that was not negotiated (virtio 1.3 §5.1.6.4.1).
//!
//! This is for ports that can't be asked for frames that ask for less
//! ([`ANY_OFFLOAD`](super::Inlet::ANY_OFFLOAD)). Plain code on private memory. The bytes are those
//! of some sender on the network, the offload fields those of the kernel.

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::ring::RingError;

use super::ReceiveContext;
use super::inlet::{CopySide, Given};
use super::pending::HeldFrame;
use super::side::{Headed, Room};
use crate::features::Offloads;
use crate::header::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
use crate::offload::{Checksum, Headers, Request, Segmenter, complete};

/// Bytes of the virtio-net header that tell of offloads.
pub(super) const HEADER_BYTES: usize = 10;

/// A frame that its offload fields don't fit. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

/// What frames may ask of the guest.
#[derive(Debug, Default)]
pub(super) struct Fit {
    /// None where the port sees to that.
    pub accepts: Option<Offloads>,
    /// A segment of a frame that the guest does not take whole.
    piece: Vec<u8>,
}

impl CopySide {
    /// What frames may ask of the guest; None where the port sees to that.
    #[inline]
    pub fn accepts(&self) -> Option<Offloads> {
        self.fit.accepts
    }

    /// Whether nearly each frame of another program's may have to be changed for this guest.
    #[inline]
    pub fn rebuilds_most(&self) -> bool {
        self.accepts().is_some_and(|a| !a.csum)
    }

    /// Gives the guest a frame of the port's, or keeps it until there are buffers.
    #[inline]
    pub fn fit_or_hold<G: Given>(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let room = self.fit(frame, reason, given, cx)?;
        self.hold(room, frame, reason, cx.counters);
        Ok(())
    }

    /// Gives the guest a frame of the port's, which may have to be changed to be what it takes. The
    /// frames that come of a change are kept if they find no room. Otherwise the frame is as it was
    /// unless it was taken.
    #[inline]
    pub fn fit<G: Given>(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match (self.accepts(), frame.first_chunk()) {
            (Some(accepts), Some(header)) if !passes(header, accepts) => {
                self.rebuild(frame, given, cx).map(|()| Room::Taken)
            }
            _ if frame.len() > self.longest() => {
                cx.counters.dropped(DropReason::TooLong);
                Ok(Room::Taken)
            }
            _ => self.copy_in_turn(frame, reason, given, cx),
        }
    }

    /// Does what the frame asks for, and gives the guest the frames that result.
    #[cold]
    fn rebuild<G: Given>(
        &mut self,
        frame: &mut [u8],
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let mut piece = std::mem::take(&mut self.fit.piece);
        let mut broken = Ok(());
        let reason = CopyReason::Rebuilt;
        let done = rebuild(frame, self.setup.header_len, &mut piece, |frame| {
            match self.copy_in_turn(frame, reason, given, cx) {
                Ok(room) => self.hold(room, frame, reason, cx.counters),
                Err(e) => {
                    broken = Err(e);
                    false
                }
            }
        });
        self.fit.piece = piece;
        match done {
            Ok(left) => cx.counters.dropped_many(DropReason::NoRoom, left as u64),
            Err(_) => cx.counters.dropped(DropReason::BadOffload),
        }
        broken
    }

    /// Gives the guest a frame, if nothing waits that came before it.
    #[inline]
    fn copy_in_turn<G: Given>(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match self.is_waiting() {
            false => self.copy_out(Headed(frame), reason, given, cx),
            true => Ok(Room::Short),
        }
    }

    /// Keeps a frame for which there was no `room` until there are buffers; where too many are kept
    /// already it is dropped. Returns whether there may be room for a further one.
    #[inline]
    pub fn hold(&mut self, room: Room, frame: &[u8], reason: CopyReason, counters: &Counters) -> bool {
        match room {
            Room::Taken => true,
            Room::Short => {
                let kept = self.keep(frame.len(), || HeldFrame { bytes: frame.to_vec(), reason });
                if !kept {
                    counters.dropped(DropReason::NoRoom);
                }
                kept
            }
            Room::Never => {
                counters.dropped(DropReason::NoRoom);
                true
            }
        }
    }
}

/// Whether the guest takes a frame with this header as it is.
#[inline]
pub(super) fn passes(header: &[u8; HEADER_BYTES], accepts: Offloads) -> bool {
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

/// Makes frames that ask for nothing from one frame, its virtio-net header in front. Gives them to
/// `give` one after the other, as long as that returns true. Segments are built in `piece`. Returns
/// how many were not made.
pub(super) fn rebuild(
    frame: &mut [u8],
    header_len: usize,
    piece: &mut Vec<u8>,
    mut give: impl FnMut(&[u8]) -> bool,
) -> Result<usize, Unfit> {
    let (header, bytes) = frame.split_at_mut_checked(header_len).ok_or(Unfit)?;
    match header.first_chunk().and_then(Request::read).ok_or(Unfit)? {
        Request::Plain => {}
        Request::Checksum { start, offset } => {
            if !complete(bytes, start, offset, Checksum::new()) {
                return Err(Unfit);
            }
        }
        Request::Segments { kind, size, start, offset } => {
            let headers = Headers::find(bytes, kind, start, offset).map_err(|_| Unfit)?;
            let segmenter =
                Segmenter::new(bytes, bytes.len(), headers, size, usize::MAX).map_err(|_| Unfit)?;
            let mut payload = &bytes[segmenter.headers_len()..];
            for i in 0..segmenter.frames() {
                let (part, rest) = payload.split_at(segmenter.payload_len(i));
                payload = rest;
                let mut sum = Checksum::new();
                sum.add(part);
                piece.clear();
                piece.resize(header_len + segmenter.headers_len(), 0);
                segmenter.write(i, sum, &mut piece[header_len..]);
                piece.extend_from_slice(part);
                if !give(piece) {
                    return Ok(segmenter.frames() - i - 1);
                }
            }
            return Ok(0);
        }
    }
    header.fill(0);
    give(frame);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A plain checksum of the tests' own.

    fn get(frame: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([frame[at], frame[at + 1]])
    }

    fn put(frame: &mut [u8], at: usize, word: u16) {
        frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }

    /// Adds words of 16 bits (RFC 1071).
    fn add(start: u64, bytes: &[u8]) -> u64 {
        let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0));
        start + bytes.chunks(2).map(word).sum::<u64>()
    }

    fn fold(mut sum: u64) -> u16 {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    const ALL: Offloads = Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };

    fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> Vec<u8> {
        let mut h = vec![flags, gso, 0, 0];
        [size, start, offset, 0].iter().for_each(|w| h.extend_from_slice(&w.to_le_bytes()));
        h
    }

    /// Ethernet with `tags` tags, IPv4 or IPv6, TCP or UDP, and `payload` bytes of payload.
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
        // The field holds the pseudo header's sum, as the kernel leaves it (virtio 1.3 §5.1.6.4).
        let (protocol, field) = if tcp { (6, start + 16) } else { (17, start + 6) };
        let addresses = if v6 { start - 32..start } else { start - 8..start };
        let pseudo = fold(add(protocol + transport_len as u64, &f[addresses]));
        put(&mut f, field, pseudo);
        (f, start)
    }

    /// The frame is one that a receiver takes.
    fn check(f: &[u8], start: usize) {
        let network = if f[start - 20] >> 4 == 4 && f[start - 22] == 8 { start - 20 } else { start - 40 };
        let (protocol, addresses) = match f[network] >> 4 {
            4 => {
                assert_eq!(fold(add(0, &f[network..network + 20])), 0xffff, "IPv4 header");
                assert_eq!(usize::from(get(f, network + 2)), f.len() - network);
                (f[network + 9], network + 12..network + 20)
            }
            _ => {
                assert_eq!(usize::from(get(f, network + 4)), f.len() - start);
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
            true
        })?;
        Ok(all)
    }

    #[test]
    fn what_was_negotiated_passes() {
        let h = |flags, gso| [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
        for gso in [0, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_TCPV4 | GSO_ECN] {
            assert!(passes(&h(1, gso), ALL) && passes(&h(2, gso), ALL));
            assert_eq!(passes(&h(0, gso), Offloads::default()), gso == 0);
        }
        assert!(!passes(&h(1, 0), Offloads::default()) && !passes(&h(2, 0), Offloads::default()));
        assert!(!passes(&h(1, GSO_TCPV4 | GSO_ECN), Offloads { ecn: false, ..ALL }));
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
    fn no_segment_is_made_that_nobody_takes() {
        let (f, start) = frame(0, false, true, 10_000);
        for taken in [1, 3, 9999, 10_000] {
            let mut whole = [header(1, GSO_TCPV4, 1, start as u16, 16), f.clone()].concat();
            let mut given = 0;
            let left = rebuild(&mut whole, 12, &mut Vec::new(), |_| {
                given += 1;
                given < taken
            });
            assert_eq!((given, left), (taken, Ok(10_000 - taken)));
        }
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let (f, start) = frame(0, false, false, 77);
        let all = pieces(10, &header(1, 0, 0, start as u16, 6), &f).expect("good");
        // The IPv4 header's own checksum is not this code's.
        let ip = !fold(add(0, &f[14..34]));
        let mut got = all[0].clone();
        put(&mut got, 24, ip);
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

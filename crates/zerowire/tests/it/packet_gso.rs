//! Frames of up to 64 K with a virtio-net header arrive at a veth peer as one large frame. Where
//! the sending interface has no segmentation, they arrive as the right segments with the right
//! checksums. Needs root.

use zerowire::packet::{Gso, MAX_FRAME_BYTES, PacketOptions, PacketRing, PacketSocket, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, Capture, Lab, Offload, in_lab};

/// One kind of frame: its protocol and its header lengths.
#[derive(Clone, Copy, Debug)]
struct Kind {
    gso: Gso,
    ip_bytes: usize,
    transport_bytes: usize,
}

const KINDS: [Kind; 3] = [
    Kind { gso: Gso::TcpV4, ip_bytes: 20, transport_bytes: 20 },
    Kind { gso: Gso::TcpV6, ip_bytes: 40, transport_bytes: 20 },
    Kind { gso: Gso::UdpL4, ip_bytes: 20, transport_bytes: 8 },
];

impl Kind {
    fn headers(self) -> usize {
        14 + self.ip_bytes + self.transport_bytes
    }

    /// A frame for nobody with `payload`.
    fn frame(self, payload: &[u8]) -> Vec<u8> {
        let protocol = if self.gso == Gso::UdpL4 { 17 } else { 6 };
        let len = self.transport_bytes + payload.len();
        let mut f = [&lab::NOBODY_MAC[..], &lab::HERE_MAC].concat();
        if self.ip_bytes == 20 {
            f.extend([0x08, 0x00, 0x45, 0]);
            f.extend(((20 + len) as u16).to_be_bytes());
            f.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 9]);
            let sum = !fold(sum(&f[14..34]));
            f[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend((len as u16).to_be_bytes());
            f.extend([protocol, 64]);
            f.extend([[0xfd, 0x77].as_slice(), &[0; 13], &[1], &[0xfd, 0x77], &[0; 13], &[9]].concat());
        }
        f.extend([0x30, 0x39, 0x00, 0x09]);
        if protocol == 6 {
            f.extend([0, 0, 0x10, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        } else {
            f.extend((len as u16).to_be_bytes());
            f.extend([0, 0]);
        }
        f.extend_from_slice(payload);
        f
    }

    /// Whether the transport checksum of a received frame is right.
    fn checksum_is_right(self, f: &[u8]) -> bool {
        let transport = &f[14 + self.ip_bytes..];
        let addresses = if self.ip_bytes == 20 { &f[26..34] } else { &f[22..54] };
        let protocol = if self.gso == Gso::UdpL4 { 17 } else { 6 };
        fold(sum(addresses) + sum(transport) + protocol + transport.len() as u64) == 0xffff
    }

    /// TCP sequence number.
    fn sequence(self, f: &[u8]) -> u32 {
        u32::from_be_bytes(f[18 + self.ip_bytes..22 + self.ip_bytes].try_into().expect("four bytes"))
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|w| u64::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A sender that takes offload headers.
type Push<'a> = dyn FnMut(&VnetHeader, &[u8]) + 'a;

/// Bytes of payload, and those of each segment.
const CASES: [(usize, u16); 5] =
    [(65_000, 1426), (60_001, 1400), (2_801, 1400), (1_000, 1400), (30_000, 500)];

fn whole_frames(capture: &Capture, push: &mut Push<'_>) {
    for kind in KINDS {
        for (n, (payload, size)) in CASES.into_iter().enumerate() {
            if kind.gso == Gso::UdpL4 && payload.div_ceil(usize::from(size)) > 128 {
                continue;
            }
            let mut frame = kind.frame(&lab::pattern(n as u32, payload));
            let header = VnetHeader::prepare(&mut frame, Some(size)).expect("a good frame");
            push(&header, &frame);
            assert!(capture.expect() == frame, "{kind:?}, {payload} bytes");
        }
    }
}

fn segments(capture: &Capture, push: &mut Push<'_>) {
    for kind in KINDS {
        for (n, (payload, size)) in CASES.into_iter().enumerate() {
            if kind.gso == Gso::UdpL4 && payload.div_ceil(usize::from(size)) > 128 {
                continue;
            }
            let payload = lab::pattern(n as u32, payload);
            let mut frame = kind.frame(&payload);
            let header = VnetHeader::prepare(&mut frame, Some(size)).expect("a good frame");
            push(&header, &frame);
            let mut at = 0;
            for piece in payload.chunks(size.into()) {
                let got = capture.expect();
                let what = format!("{kind:?}, {} bytes, segment at {at}: {} bytes", payload.len(), got.len());
                assert!(got[kind.headers()..] == *piece, "{what}");
                assert!(kind.checksum_is_right(&got), "checksum: {what}");
                if kind.gso != Gso::UdpL4 {
                    assert_eq!(kind.sequence(&got), 0x1000 + at as u32, "{what}");
                }
                at += piece.len();
            }
        }
    }
    assert!(capture.rest().is_empty());
}

fn options() -> PacketOptions {
    PacketOptions::default().slots(8).offload(true)
}

fn push_ring(ring: &mut PacketRing, header: &VnetHeader, frame: &[u8]) {
    let pushed = ring.push_offload(header, frame.len(), &mut |to| to.copy_from_slice(frame));
    assert!(pushed.expect("a good frame"), "a free place");
    ring.drain(PATIENCE).expect("back");
}

fn without_segmentation(lab: &Lab) {
    lab.offload(lab::HERE, Offload::Tso, false);
    lab.offload(lab::HERE, Offload::Gso, false);
    lab.offload(lab::HERE, Offload::TransmitChecksum, false);
}

#[test]
fn large_frames_arrive_whole() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options()).expect("a ring");
        assert_eq!((ring.max_frame_bytes(), ring.slot_frame_bytes() >= MAX_FRAME_BYTES), (1514, true));
        whole_frames(&capture, &mut |header, frame| push_ring(&mut ring, header, frame));
        assert_eq!(ring.counters().snapshot().copied_total(), 0);
    });
}

#[test]
fn large_frames_arrive_as_segments() {
    in_lab(|lab| {
        lab.veth();
        without_segmentation(lab);
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options()).expect("a ring");
        segments(&capture, &mut |header, frame| push_ring(&mut ring, header, frame));
    });
}

#[test]
fn the_copying_socket_does_the_same() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut socket = PacketSocket::open(lab::HERE, &options()).expect("a socket");
        let mut push = |header: &VnetHeader, frame: &[u8]| {
            let pushed = socket.push_offload(header, frame.len(), &mut |to| to.copy_from_slice(frame));
            assert!(pushed.expect("a good frame"), "a free place");
            socket.drain(PATIENCE).expect("taken");
        };
        whole_frames(&capture, &mut push);
        without_segmentation(lab);
        segments(&capture, &mut push);
    });
}

#[test]
fn loaded_large_frames_are_sent_again() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = options().slots(3);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        let frames: Vec<_> = (0..3)
            .map(|n| {
                let mut frame = KINDS[0].frame(&lab::pattern(n, 64_000));
                let header = VnetHeader::prepare(&mut frame, Some(1448)).expect("a good frame");
                ring.load(n as usize, &header, &frame).expect("loaded");
                frame
            })
            .collect();
        for n in 0..30 {
            while ring.send_loaded(1).expect("loaded") == 0 {
                assert!(ring.wait(PATIENCE).expect("sent"), "a place comes back");
            }
            ring.flush().expect("handed over");
            assert!(capture.expect() == frames[n % 3]);
        }
        ring.drain(PATIENCE).expect("back");
    });
}

#[test]
fn the_checksum_alone_can_be_left_to_the_kernel() {
    in_lab(|lab| {
        lab.veth();
        without_segmentation(lab);
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options()).expect("a ring");
        for kind in KINDS {
            let mut frame = kind.frame(&lab::pattern(3, 777));
            let header = VnetHeader::prepare(&mut frame, None).expect("a good frame");
            assert!(!header.is_segmented());
            push_ring(&mut ring, &header, &frame);
            let got = capture.expect();
            assert!(kind.checksum_is_right(&got) && got[kind.headers()..] == frame[kind.headers()..]);
        }
    });
}

#[test]
fn wrong_offload_is_refused_and_the_ring_goes_on() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options()).expect("a ring");
        let mut frame = KINDS[0].frame(&lab::pattern(1, 5000));
        let header = VnetHeader::prepare(&mut frame, Some(1448)).expect("a good frame");
        let mut never = |_: &mut [u8]| panic!("nothing is built");
        // Headers behind the end of the frame.
        let error = ring.push_offload(&header, 50, &mut never).expect_err("refused").to_string();
        assert!(error.contains("go to byte 54") && error.contains("50 bytes"), "{error}");
        // Segments longer than the MTU, and a long frame that isn't cut.
        let wide = VnetHeader::prepare(&mut frame, Some(1461)).expect("the MTU isn't known here");
        match ring.push_offload(&wide, frame.len(), &mut |to| to.copy_from_slice(&frame)) {
            Err(FrameError::LongerThanMtu { frame_bytes: 1515, mtu_bytes: 1500, .. }) => {}
            other => panic!("{other:?}"),
        }
        match ring.push(frame.len(), &mut never) {
            Err(FrameError::LongerThanMtu { frame_bytes: 5054, .. }) => {}
            other => panic!("{other:?}"),
        }
        match ring.push_offload(&header, MAX_FRAME_BYTES + 5000, &mut never) {
            Err(FrameError::TooLong { .. }) => {}
            other => panic!("{other:?}"),
        }
        // Offload on a ring without it.
        let mut plain = PacketRing::open(lab::HERE, &PacketOptions::default()).expect("a ring");
        let error = plain.push_offload(&header, 100, &mut never).expect_err("refused").to_string();
        assert!(error.contains("`offload`"), "{error}");
        push_ring(&mut ring, &header, &frame);
        assert!(capture.expect() == frame);
        assert!(capture.rest().is_empty());
    });
}

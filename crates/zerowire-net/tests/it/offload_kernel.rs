//! Segments made here against those that the kernel makes of the same frames, byte by byte. A
//! packet socket gives it frames with a virtio-net header for an interface that takes no offloads.

use crate::support::{Peer, in_netns};
use zerowire_net::offload::testing::{Example, cut};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::lab::{Offload, set_offload};
use zerowire_testkit::net::veth::veth;
use zerowire_wire::vnet::Gso;

/// A pair of interfaces that the kernel has to do everything for, and both ends of it.
fn bare() -> (Peer, Peer) {
    veth("v0", "v1", 1, 1500);
    for name in ["v0", "v1"] {
        ip(&["link", "set", name, "addrgenmode", "none"]);
        // The kernel completes checksums before the interface sees a frame, and with that segments
        // long ones.
        set_offload(name, Offload::TransmitChecksum, false);
    }
    let mut peers = (Peer::new("v0"), Peer::new("v1"));
    // What the kernel itself said before that.
    peers.1.drain();
    peers
}

fn compare(ends: &mut (Peer, Peer), header: [u8; 10], frame: &[u8], what: &dyn std::fmt::Debug) -> usize {
    let ours = cut(&header, frame, 1518, 1000).unwrap_or_else(|e| panic!("{what:?}: {e}"));
    ends.0.send_with(&header, frame).unwrap_or_else(|e| panic!("{what:?}: {e}"));
    for (i, want) in ours.iter().enumerate() {
        // A receiving kernel takes the outer tag out of the frame, and says it apart
        // (net/core/skbuff.c, `skb_vlan_untag`).
        let tag = if want[12..14] == [0x81, 0] { 12..16 } else { 0..0 };
        let want = &[&want[..tag.start], &want[tag.end..]].concat();
        let got = ends.1.expect();
        assert!(!got.needs_csum() && got.gso_type() == 0, "{what:?}: {got:?}");
        let differs = got.bytes.iter().zip(want).position(|(a, b)| a != b);
        assert!(
            got.bytes == *want,
            "{what:?}: frame {i} of {}: {} bytes, the kernel's has {}; first difference at {differs:?}",
            ours.len(),
            want.len(),
            got.bytes.len()
        );
    }
    ours.len()
}

#[test]
fn segments_are_the_kernels_byte_by_byte() {
    in_netns(|| {
        let mut ends = bare();
        let mut frames = 0;
        for (kind, v6) in [(Gso::TcpV4, false), (Gso::TcpV6, true), (Gso::UdpL4, false), (Gso::UdpL4, true)] {
            for (n, (size, payload)) in [
                (1420, 60_000),
                (1400, 1401),
                (1, 3),
                (1, 40),
                (536, 65_000),
                (1371, 13_710),
                (777, 778),
                // Shorter than a segment by more than the kernel's guess at the headers' length is
                // wrong by.
                (1000, 900),
                (500, 1),
            ]
            .into_iter()
            .enumerate()
            {
                // The kernel makes 128 segments of UDP at most (include/linux/udp.h,
                // `UDP_MAX_SEGMENTS`).
                if kind == Gso::UdpL4 && payload / usize::from(size) > 120 {
                    continue;
                }
                let example = Example {
                    kind,
                    v6,
                    tags: n % 2,
                    options: if payload + 100 < 65_000 { n % 4 } else { 0 },
                    flags: [0x10, 0x18, 0x99, 0xd9][n % 4],
                    payload,
                    seed: n as u32 + 7,
                };
                // CWR in the kernel is for frames that say so.
                let mut header = example.header(size);
                if kind != Gso::UdpL4 && example.flags & 0x80 != 0 {
                    header[1] |= 0x80;
                }
                frames += compare(&mut ends, header, &example.frame(), &example);
            }
        }
        assert!(frames > 500, "{frames} frames");
        assert!(ends.1.drain().is_empty(), "the kernel made no more frames");
    });
}

#[test]
fn checksums_are_the_kernels() {
    in_netns(|| {
        let mut ends = bare();
        for n in 0..300u32 {
            let kind = [Gso::TcpV4, Gso::TcpV6, Gso::UdpL4][n as usize % 3];
            let example = Example {
                kind,
                v6: kind == Gso::TcpV6,
                tags: n as usize / 3 % 3,
                options: 0,
                flags: 0x10,
                payload: n as usize * 4 + n as usize % 7,
                seed: n,
            };
            let mut header = example.header(0);
            (header[1], header[2], header[3]) = (0, 0, 0);
            assert_eq!(compare(&mut ends, header, &example.frame(), &example), 1);
        }
    });
}

/// Extension headers go with each segment.
#[test]
fn segments_behind_extension_headers_are_the_kernels() {
    in_netns(|| {
        let mut ends = bare();
        for kind in [Gso::TcpV6, Gso::UdpL4] {
            let example =
                Example { kind, v6: true, tags: 0, options: 0, flags: 0x18, payload: 9000, seed: 5 };
            let mut frame = example.frame();
            let protocol = std::mem::replace(&mut frame[20], 0);
            // Hop by hop and destination options, of padding (RFC 8200 §4.2).
            let hop = [60, 0, 1, 4, 0, 0, 0, 0];
            let destination = [protocol, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            frame.splice(54..54, [&hop[..], &destination].concat());
            let mut header = example.header(1300);
            let add = |at: usize, header: &mut [u8; 10]| {
                let n = u16::from_le_bytes([header[at], header[at + 1]]) + 24;
                header[at..at + 2].copy_from_slice(&n.to_le_bytes());
            };
            add(2, &mut header);
            add(6, &mut header);
            assert_eq!(compare(&mut ends, header, &frame, &example), 7);
        }
    });
}

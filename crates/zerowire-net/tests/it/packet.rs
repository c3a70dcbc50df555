//! A VM on a veth by packet sockets: every length and layout, both ways, with offloads and tags,
//! and what the ledger says of it.

use crate::support::frames::{self, arp_request, frame, number};
use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, peer_header, tso, wait_until, with_metadata,
};
use zerowire_guest::features as f;
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4};
use zerowire_guest::net::{Layout, NetOptions, OFFLOADS, RxMode, RxOptions, VirtioNetHdr};
use zerowire_net::port::packet::{Frames, PacketSocket};
use zerowire_testkit::net::veth::veth;

/// The kernel copies frames; or they are copied into a ring, out of one, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Calls,
    Ring,
    Slots,
    SlotsAndCalls,
}

const WAYS: [Way; 4] = [Way::Calls, Way::Ring, Way::Slots, Way::SlotsAndCalls];

impl Way {
    /// Frames to the guest come by a ring.
    fn in_slots(self) -> bool {
        matches!(self, Self::Slots | Self::SlotsAndCalls)
    }
}

fn vm(way: Way) -> Vm {
    let port = match way {
        Way::Calls => "packet:v0,receive=socket",
        Way::Ring => "packet:v0,rings=on,receive=socket",
        Way::Slots => "packet:v0,rings=on,receive=ring",
        Way::SlotsAndCalls => "packet:v0,receive=ring",
    };
    Vm::on("a", port)
}

/// Frames of each of these lengths, numbered from `first`.
fn of_lengths(first: u32, lengths: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
    lengths.zip(first..).map(|(len, n)| frame(n, len)).collect()
}

#[test]
fn frames_pass_both_ways() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        const OUT: &str = "frames out by a TPACKET_V3 ring of 256 slots";
        const IN: &str = "frames in by a TPACKET_V2 ring of 1024 slots of 2048 bytes";
        const SOCKET: &str = "no receive ring, as asked";
        const COPIED: &str = "no ring, since a veth copies what it is lent";
        for (way, words) in [
            (Way::Calls, ["sendmmsg", SOCKET, COPIED]),
            (Way::Ring, ["sendmmsg", SOCKET, OUT]),
            (Way::Slots, ["sendmmsg", IN, OUT]),
            (Way::SlotsAndCalls, ["sendmmsg", IN, COPIED]),
        ] {
            let backend = Backend::start(&[vm(way)]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.ping(&mut peer, 1);
            // A frame may pass before the path that it took is described.
            wait_until("the path is described", || {
                let path = backend.stats("a").path;
                path.starts_with("AF_PACKET, interface v0, ") && words.iter().all(|w| path.contains(w))
            });
            let stats = backend.stats("a");
            assert_eq!((stats.port, stats.last_error), (vm(way).port, None));
            assert_eq!((stats.transmit.totals.frames, stats.receive.totals.frames), (1, 1));
        }
    });
}

#[test]
fn every_length_goes_out_from_every_layout() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        for way in WAYS {
            let backend = Backend::start(&[vm(way)]);
            let mut sent = 0;
            for layout in [Layout::Single, Layout::Split, Layout::Segments(16), Layout::Pages] {
                let mut guest = backend.guest("a", &options(0, layout));
                let all = of_lengths(sent, 18..=1514);
                for some in all.chunks(100) {
                    guest.send_plain(some);
                    for want in some {
                        let got = peer.expect().bytes;
                        assert!(got == *want, "{layout:?}: {} bytes, came {}", want.len(), got.len());
                    }
                }
                sent += all.len() as u32;
            }
            let totals = backend.stats("a").transmit.totals;
            assert_eq!((totals.frames, totals.dropped_total()), (u64::from(sent), 0));
            let reason = if matches!(way, Way::Ring | Way::Slots) { "outside" } else { "small" };
            assert_eq!(totals.copied_bytes.keys().collect::<Vec<_>>(), [&reason]);
            assert_eq!(totals.copied_total(), totals.bytes);
        }
    });
}

/// A TCP or UDP frame over IPv6 with `options` bytes of destination options (RFC 8200 §4.6), and
/// where its transport header begins.
fn with_options(protocol: u8, options: usize, payload: usize) -> (Vec<u8>, u16) {
    let transport: &[u8] =
        if protocol == 6 { &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10] } else { &[1, 0, 2, 0] };
    let len = if protocol == 6 { 20 } else { 8 };
    let mut f = frames::tcp6_frame(0, 0);
    f.truncate(54);
    f[18..20].copy_from_slice(&((options + len + payload) as u16).to_be_bytes());
    f[20] = protocol;
    if options > 0 {
        f[20] = 60;
        // One option of padding fills the rest (PadN).
        f.extend_from_slice(&[protocol, (options / 8 - 1) as u8, 1, (options - 4) as u8]);
        f.resize(54 + options, 0);
    }
    let start = f.len();
    f.extend_from_slice(transport);
    f.resize(start + len + payload, 7);
    if protocol == 17 {
        f[start + 4..start + 6].copy_from_slice(&((len + payload) as u16).to_be_bytes());
    }
    (f, start as u16)
}

/// The kernel cuts by gso_size, and drivers need not look. Whatever the kind of frame and the
/// length of its headers, nothing longer than the MTU gets to the interface.
#[test]
fn segments_and_fragments_of_any_kind_fit_the_mtu() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        let mut udp4 = frames::udp_frame([10, 0, 0, 1], &[7; 30_000]);
        let mut udp4_options = udp4.clone();
        // 40 bytes of no operation (RFC 791 §3.1) that the virtio-net header does not count.
        udp4_options.splice(34..34, [1; 40]);
        udp4_options[14] = 0x4f;
        for (f, header) in [(&mut udp4, 20), (&mut udp4_options, 60)] {
            let len = (f.len() - 14) as u16;
            f[16..18].copy_from_slice(&len.to_be_bytes());
            // Fragments are allowed.
            f[20..22].copy_from_slice(&[0, 0]);
            f[24..26].copy_from_slice(&[0, 0]);
            let sum = !frames::sum(&f[14..14 + header], 0);
            f[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let tcp6 = |options, payload| with_options(6, options, payload);
        let udp6 = |options, payload| with_options(17, options, payload);
        for way in WAYS {
            let backend = Backend::start(&[vm(way)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            let mut wrong = [0, 0];
            let mut send =
                |gso_type: u8, gso_size: u16, (frame, start): (Vec<u8>, u16), counted: Option<&str>| {
                    let csum_offset = if matches!(gso_type, GSO_UDP | GSO_UDP_L4) { 6 } else { 16 };
                    let header = VirtioNetHdr { gso_type, gso_size, csum_start: start, csum_offset, ..tso() };
                    let before = backend.stats("a").transmit.totals;
                    guest.send(0, &[(header, frame)]);
                    guest.send_plain(&[crate::support::frames::frame(9, 60)]);
                    let mut came = Vec::new();
                    loop {
                        let f = peer.expect();
                        if f.bytes == crate::support::frames::frame(9, 60) {
                            break;
                        }
                        came.push(f);
                    }
                    let what =
                        format!("{way:?}: gso_type {gso_type}, gso_size {gso_size}, csum_start {start}");
                    let after = backend.stats("a").transmit.totals;
                    match counted {
                        Some(reason) => {
                            wrong[usize::from(reason == "too_long")] += 1;
                            assert_eq!((after.frames - before.frames, came), (1, vec![]), "{what}");
                            let n = wrong[usize::from(reason == "too_long")];
                            assert_eq!(after.dropped_frames.get(reason), Some(&n), "{what}");
                        }
                        None => {
                            assert_eq!(after.frames - before.frames, 2, "{what}");
                            // Whole frames carry the segment size.
                            assert!(
                                came.iter().all(|f| f.gso_type() != 0 || f.bytes.len() <= 1514),
                                "{what}: {came:?}"
                            );
                            assert!(!came.is_empty(), "{what}");
                        }
                    }
                };
            // The longest fragments: 1514 bytes over IPv4, 1510 over IPv6, whose fragments are
            // multiples of 8 bytes.
            send(GSO_UDP, 1480, (udp4.clone(), 34), None);
            send(GSO_UDP, 1481, (udp4.clone(), 34), Some("too_long"));
            send(GSO_UDP, 20_000, (udp4.clone(), 34), Some("too_long"));
            send(GSO_UDP, 1480, (udp4_options.clone(), 34), Some("bad_offload"));
            send(GSO_UDP, 1440, (udp4_options.clone(), 74), None);
            send(GSO_UDP, 1441, (udp4_options.clone(), 74), Some("too_long"));
            send(GSO_UDP, 1448, udp6(0, 5000), None);
            send(GSO_UDP, 1456, udp6(0, 5000), Some("too_long"));
            send(GSO_TCPV6, 1440, tcp6(0, 5000), None);
            send(GSO_TCPV6, 1441, tcp6(0, 5000), Some("too_long"));
            send(GSO_TCPV6, 1400, tcp6(40, 5000), None);
            send(GSO_TCPV6, 1401, tcp6(40, 5000), Some("too_long"));
            send(GSO_UDP_L4, 1412, udp6(40, 5000), None);
            send(GSO_UDP_L4, 1413, udp6(40, 5000), Some("too_long"));
            // Headers longer than the part that the back end inspects.
            send(GSO_TCPV6, 1360, tcp6(80, 30_000), Some("bad_offload"));
            send(GSO_TCPV6, 20_000, tcp6(80, 30_000), Some("bad_offload"));
            send(GSO_UDP, 20_000, udp6(96, 30_000), Some("bad_offload"));
        }
    });
}

#[test]
fn a_frame_longer_than_the_mtu_is_refused_and_the_next_one_passes() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        for way in WAYS {
            let backend = Backend::start(&[vm(way)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            // Segments longer than the MTU: the kernel looks at that only where it is not to
            // segment.
            let long = VirtioNetHdr { gso_size: 1461, ..tso() };
            let plain = |frame| (VirtioNetHdr::default(), frame);
            // A frame with a tag may be longer by that: one that says so and has none is found by
            // the kernel, or here.
            guest
                .send(0, &[plain(frame(1, 1515)), (long, frames::tcp_frame(1, 3000)), plain(frame(2, 1514))]);
            assert_eq!(peer.expect().bytes, frame(2, 1514));
            let dropped = backend.stats("a").transmit.totals.dropped_frames;
            assert_eq!((dropped["port_refused"], dropped["too_long"]), (1, 1), "{way:?}");
            let fits = VirtioNetHdr { gso_size: 1460, ..tso() };
            guest.send(0, &[(fits, frames::tcp_frame(2, 3000))]);
            assert_eq!(peer.expect().bytes, frames::tcp_frame(2, 3000));
        }
    });
}

#[test]
fn every_length_comes_in_to_every_kind_of_buffer() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let peer = Peer::new("v1");
        let modes = [
            (RxMode::Mergeable { buffer_len: 1536 }, 0),
            (RxMode::Mergeable { buffer_len: 300 }, 0),
            (RxMode::Small, f::NET_MRG_RXBUF | OFFLOADS),
            (RxMode::Big { descriptors: 17, header_apart: true }, f::NET_MRG_RXBUF),
            (RxMode::Big { descriptors: 2, header_apart: false }, f::NET_MRG_RXBUF | OFFLOADS),
        ];
        for way in WAYS {
            let backend = Backend::start(&[vm(way)]);
            let mut sent = 0;
            for (mode, without) in modes {
                let rx = Some(RxOptions { mode, indirect: matches!(mode, RxMode::Big { .. }), buffers: 0 });
                let mut guest = backend.guest("a", &NetOptions { rx, ..options(without, Layout::Single) });
                let all = of_lengths(sent, 18..=1514);
                for some in all.chunks(12) {
                    some.iter().for_each(|want| peer.send(want));
                    for want in some {
                        let got = guest
                            .recv(0, PATIENCE)
                            .unwrap_or_else(|| panic!("{mode:?}: frame {} came not", number(want)));
                        assert!(got.1 == *want, "{mode:?}: {} bytes, came {}", want.len(), got.1.len());
                        assert_eq!((got.0.flags, got.0.gso_type), (0, 0));
                    }
                }
                sent += all.len() as u32;
            }
            let totals = backend.stats("a").receive.totals;
            assert_eq!((totals.frames, totals.dropped_total()), (u64::from(sent), 0));
            // They all fit into a slot.
            assert_eq!(totals.zero_copied_frames > 0, !way.in_slots());
            assert!(!way.in_slots() || totals.copied_bytes.keys().eq(["outside"].iter()), "{totals:?}");
        }
    });
}

/// Frames to be segmented, of each kind and about this payload, with their headers.
fn segmented(n: u32, payload: usize) -> Vec<(VirtioNetHdr, Vec<u8>)> {
    let tcp6 = VirtioNetHdr { gso_type: GSO_TCPV6, gso_size: 1428, hdr_len: 74, csum_start: 54, ..tso() };
    let udp = VirtioNetHdr { gso_type: GSO_UDP_L4, hdr_len: 42, csum_offset: 6, ..tso() };
    let mut udp_frame = frames::udp_frame([10, 0, 0, 1], &vec![n as u8; payload.min(60_000)]);
    partial(&mut udp_frame, 17, 6);
    vec![(tso(), frames::tcp_frame(n, payload)), (tcp6, frames::tcp6_frame(n, payload)), (udp, udp_frame)]
}

/// Makes the checksum of an IPv4 frame a partial one.
fn partial(frame: &mut [u8], protocol: u8, offset: usize) {
    let len = (frame.len() - 34) as u16;
    let pseudo = [&frame[26..34], &[0, protocol], &len.to_be_bytes()].concat();
    frame[34 + offset..36 + offset].copy_from_slice(&frames::sum(&pseudo, 0).to_be_bytes());
}

#[test]
fn segmentation_frames_of_up_to_64_kib_pass_whole_both_ways() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        for way in WAYS {
            for layout in [Layout::Single, Layout::Pages, Layout::Segments(60)] {
                let backend = Backend::start(&[vm(way)]);
                let mut guest = backend.guest("a", &options(0, layout));
                for (n, payload) in [3000, 20_000, 40_001, 60_000, 65_461].into_iter().enumerate() {
                    for (header, frame) in segmented(n as u32, payload) {
                        guest.send(0, &[(header, frame.clone())]);
                        let got = peer.expect();
                        assert!(got.bytes == frame, "{layout:?}: {} bytes came", got.bytes.len());
                        assert_eq!((got.gso_type(), got.needs_csum()), (header.gso_type, true));
                        peer.send_with(&peer_header(header), &frame).expect("sent");
                        let (got, bytes) = guest.expect();
                        assert!(bytes == frame, "{layout:?}: {} bytes came", bytes.len());
                        assert_eq!((got.gso_type, got.gso_size), (header.gso_type, header.gso_size));
                        assert_eq!(
                            (got.csum_start, got.csum_offset),
                            (header.csum_start, header.csum_offset)
                        );
                    }
                }
                let stats = backend.stats("a");
                assert_eq!(stats.transmit.totals.dropped_total() + stats.receive.totals.dropped_total(), 0);
                assert!(!stats.receive.totals.copied_bytes.contains_key("rebuilt"));
                assert!(stats.receive.totals.zero_copied_frames > 0);
                if layout != Layout::Segments(60) {
                    assert_eq!(
                        stats.transmit.totals.zero_copied_frames > 0,
                        !matches!(way, Way::Ring | Way::Slots)
                    );
                }
            }
        }
    });
}

/// UDP fragmentation is a type that packet sockets can't show (include/linux/virtio_net.h,
/// `virtio_net_hdr_from_skb`), but take: fragments come out of the other end.
#[test]
fn frames_to_be_fragmented_are() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        let backend = Backend::start(&[vm(Way::Calls)]);
        let mut guest = backend.guest("a", &options(0, Layout::Pages));
        let mut whole = frames::udp_frame([10, 0, 0, 1], &[0x5a; 10_000]);
        partial(&mut whole, 17, 6);
        let header = VirtioNetHdr { gso_type: GSO_UDP, gso_size: 1480, hdr_len: 42, csum_offset: 6, ..tso() };
        guest.send(0, &[(header, whole.clone())]);
        let mut came = 0;
        while came < whole.len() - 34 {
            let fragment = peer.expect().bytes;
            assert!(fragment.len() <= 1514 && fragment[20..22] != [0, 0], "{} bytes", fragment.len());
            came += fragment.len() - 34;
        }
        assert_eq!(backend.stats("a").transmit.totals.dropped_total(), 0);
    });
}

/// The sum of a TCP or UDP frame over IPv4 or IPv6 is right.
fn check_sum(frame: &[u8]) {
    let (addresses, start, protocol) = match frame[12..14] {
        [0x08, 0x00] => {
            assert_eq!(frames::sum(&frame[14..34], 0), 0xffff, "the IPv4 header's checksum");
            (26..34, 34, frame[23])
        }
        _ => (22..54, 54, frame[20]),
    };
    let len = ((frame.len() - start) as u16).to_be_bytes();
    let pseudo = frames::sum(&[&frame[addresses], &[0, protocol], &len].concat(), 0);
    assert_eq!(frames::sum(&frame[start..], u32::from(pseudo)), 0xffff, "the checksum");
}

fn rebuilt(backend: &Backend) -> u64 {
    backend.stats("a").receive.totals.copied_bytes.get("rebuilt").copied().unwrap_or(0)
}

#[test]
fn a_guest_gets_segments_of_what_it_does_not_take_whole() {
    let uso = f::NET_HOST_USO | f::NET_GUEST_USO4 | f::NET_GUEST_USO6;
    for (without, kinds) in [(OFFLOADS, 3), (uso, 1), (OFFLOADS & !(f::NET_CSUM | f::NET_GUEST_CSUM), 3)] {
        for (without, way) in [without, without | f::NET_MRG_RXBUF]
            .into_iter()
            .flat_map(|w| [Way::Calls, Way::Slots].map(|way| (w, way)))
        {
            in_netns(move || {
                veth("v0", "v1", 1, 1500);
                let peer = Peer::new("v1");
                let backend = Backend::start(&[vm(way)]);
                let mut guest = backend.guest("a", &options(without, Layout::Single));
                let mut before = 0;
                for (n, payload) in [3000, 14_000, 3000].into_iter().enumerate() {
                    for (kind, (header, whole)) in segmented(n as u32, payload).into_iter().enumerate() {
                        peer.send_with(&peer_header(header), &whole).expect("sent");
                        let headers = whole.len() - payload;
                        if kind < 3 - kinds {
                            assert_eq!(guest.expect().1, whole);
                            continue;
                        }
                        let mut got = Vec::new();
                        while got.len() < payload {
                            let (header, frame) = guest.expect();
                            assert_eq!((header.flags, header.gso_type, header.num_buffers), (0, 0, 1));
                            check_sum(&frame);
                            got.extend_from_slice(&frame[headers..]);
                        }
                        assert!(got == whole[headers..], "{payload} bytes of kind {kind}");
                        let now = rebuilt(&backend);
                        assert!(now >= before + payload as u64, "{now}");
                        before = now;
                    }
                }
                assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
            });
        }
    }
}

#[test]
fn a_partial_checksum_passes_or_is_completed() {
    for way in [Way::Calls, Way::Slots] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let mut peer = Peer::new("v1");
            let backend = Backend::start(&[vm(way)]);
            let header = VirtioNetHdr { gso_type: 0, gso_size: 0, hdr_len: 0, ..tso() };
            let frame = frames::tcp_frame(3, 1000);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            for _ in 0..50 {
                guest.send(0, &[(header, frame.clone())]);
                let got = peer.expect();
                assert_eq!((&got.bytes, got.needs_csum()), (&frame, true));
                peer.send_with(&peer_header(header), &frame).expect("sent");
                let (got, bytes) = guest.expect();
                assert_eq!(
                    (got.flags & FLAG_NEEDS_CSUM, got.csum_start, got.csum_offset),
                    (FLAG_NEEDS_CSUM, 34, 16)
                );
                assert_eq!(bytes, frame);
            }
            assert_eq!(rebuilt(&backend), 0);
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
            let mut guest = backend.guest("a", &options(OFFLOADS, Layout::Single));
            for _ in 0..50 {
                peer.send_with(&peer_header(header), &frame).expect("sent");
                let (got, bytes) = guest.expect();
                assert_eq!((got.flags, got.gso_type), (0, 0));
                check_sum(&bytes);
                assert_eq!((&bytes[..50], &bytes[52..]), (&frame[..50], &frame[52..]));
            }
            assert_eq!(rebuilt(&backend), 50 * (12 + frame.len() as u64));
        });
    }
}

fn with_tag(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// The next tagged frame of an interface, as the kernel gives it: without its tag, which comes
/// beside it.
fn next_tagged(socket: &PacketSocket) -> (Vec<u8>, [u8; 4]) {
    let mut buffer = vec![0; 70_000];
    let mut got = None;
    wait_until("a tagged frame", || {
        got = socket.recv_tagged(&mut buffer).expect("received");
        got.is_some()
    });
    let (len, tag) = got.expect("a frame");
    let tag = tag.expect("its tag");
    let [a, b] = tag.protocol.to_be_bytes();
    let [c, d] = tag.control.to_be_bytes();
    (buffer[12..len].to_vec(), [a, b, c, d])
}

#[test]
fn tagged_frames_keep_their_tags_both_ways() {
    const TAGS: [[u8; 4]; 3] = [[0x81, 0, 0, 5], [0x81, 0, 0xef, 0xff], [0x88, 0xa8, 0x20, 7]];
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let peer = Peer::new("v1");
        let tagged = PacketSocket::open("v1", Frames::Tagged, 12).expect("a socket");
        tagged.bind().expect("bound");
        for way in WAYS {
            let backend = Backend::start(&[vm(way)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            let mut bytes = 0;
            for (n, len) in (18..=1514).step_by(7).enumerate() {
                let tag = TAGS[n % 3];
                let bare = frame(n as u32, len);
                let whole = with_tag(&bare, tag);
                // IEEE 802.1ad tags are in the way of the MTU, as ordinary bytes are.
                if whole.len() <= 1514 || tag[0] == 0x81 {
                    guest.send_plain(std::slice::from_ref(&whole));
                    assert_eq!(next_tagged(&tagged), (bare.clone(), tag), "{len} bytes out");
                    peer.send(&whole);
                    assert!(guest.expect().1 == whole, "{len} bytes in");
                    bytes += 12 + whole.len() as u64;
                }
                // Frames without a tag between them.
                peer.send(&bare);
                assert_eq!(guest.expect().1, bare);
            }
            assert_eq!(rebuilt(&backend), bytes);
            // Two tags.
            let twice = with_tag(&with_tag(&frame(1, 500), TAGS[0]), TAGS[2]);
            peer.send(&twice);
            assert_eq!(guest.expect().1, twice);
            // Many at once, more than the guest has buffers.
            let all: Vec<_> = (0..600).map(|n| with_tag(&frame(n, 700), TAGS[0])).collect();
            all.iter().for_each(|f| peer.send(f));
            all.iter().for_each(|want| assert!(guest.expect().1 == *want, "one of many"));
            // To be segmented.
            for payload in [3000, 60_000] {
                let whole = with_tag(&frames::tcp_frame(9, payload), TAGS[0]);
                let header = VirtioNetHdr { csum_start: 38, hdr_len: 58, ..tso() };
                guest.send(0, &[(header, whole.clone())]);
                assert_eq!(next_tagged(&tagged), (frames::tcp_frame(9, payload), TAGS[0]));
                peer.send_with(&peer_header(header), &whole).expect("sent");
                let (got, bytes) = guest.expect();
                assert!(bytes == whole, "{} bytes came", bytes.len());
                assert_eq!((got.gso_type, got.csum_start, got.gso_size), (GSO_TCPV4, 38, 1448));
            }
            assert!(backend.stats("a").receive.totals.dropped_total() == 0);
        }
    });
}

/// The segments of a tagged frame that the guest does not take whole have the tag, each.
#[test]
fn a_tag_and_segments_at_once() {
    for way in [Way::Calls, Way::Slots] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let peer = Peer::new("v1");
            let backend = Backend::start(&[vm(way)]);
            let mut guest = backend.guest("a", &options(OFFLOADS, Layout::Single));
            let whole = with_tag(&frames::tcp_frame(9, 5000), [0x81, 0, 0, 9]);
            let header = VirtioNetHdr { csum_start: 38, hdr_len: 58, ..tso() };
            peer.send_with(&peer_header(header), &whole).expect("sent");
            let mut payload = Vec::new();
            while payload.len() < 5000 {
                let (header, frame) = guest.expect();
                assert_eq!((header.flags, &frame[12..16]), (0, &[0x81, 0, 0, 9][..]));
                check_sum(&[&frame[..12], &frame[16..]].concat());
                payload.extend_from_slice(&frame[58..]);
            }
            assert_eq!(payload, whole[58..]);
        });
    }
}

#[test]
fn metadata_is_answered_beside_frames() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(vm(Way::Slots), dir.path())]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        for n in 0..20 {
            guest.send_plain(&[arp_request()]);
            assert_eq!(guest.expect().1[28..32], [169, 254, 169, 254]);
            guest.send_plain(&[frames::neighbour_solicitation()]);
            assert_eq!(guest.expect().1[54], 136, "an advertisement");
            guest.ping(&mut peer, n);
        }
        assert!(peer.drain().is_empty(), "nothing of it reaches the port");
        let asked = 2 * 12 + (arp_request().len() + frames::neighbour_solicitation().len()) as u64;
        assert_eq!(backend.stats("a").transmit.totals.copied_bytes["metadata"], 20 * asked);
    });
}

/// What the host itself sends there is on the wire, and not the guest's; what the guest sends does
/// not come back.
#[test]
fn frames_of_the_host_itself_are_not_the_guests() {
    for way in [Way::Calls, Way::Slots] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[vm(way)]);
            let (mut peer, host) = (Peer::new("v1"), Peer::new("v0"));
            let mut guest: Guest = backend.guest("a", &options(0, Layout::Single));
            for n in 0..20 {
                host.send(&frame(n, 100));
                host.send(&with_tag(&frame(n, 100), [0x81, 0, 0, 5]));
                guest.send_plain(&[with_tag(&frame(n, 100), [0x81, 0, 0, 5])]);
                // With and without its tag, and the guest's.
                (0..3).for_each(|_| assert_eq!(peer.expect().bytes, frame(n, 100)));
                guest.ping(&mut peer, n);
            }
            assert_eq!(backend.stats("a").receive.totals.frames, 20);
        });
    }
}

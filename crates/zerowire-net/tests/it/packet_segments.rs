//! Frames that are segmented for a guest which does not take them whole: what senders on the
//! network can make of that.

use std::time::{Duration, Instant};

use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns, options, wait_until};
use zerowire_guest::features as f;
use zerowire_guest::net::header::GSO_TCPV4;
use zerowire_guest::net::{Layout, OFFLOADS};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;

/// Frames come by the socket, or by a ring.
const PORTS: [&str; 2] = ["packet:v0,receive=socket", "packet:v0,receive=ring"];

/// Whoever can send to the interface chooses how many segments a frame is cut into for a guest that
/// does not take it whole.
#[test]
fn segments_that_wait_for_buffers_are_bounded() {
    for port in PORTS {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            for without in [OFFLOADS, OFFLOADS & !(f::NET_CSUM | f::NET_GUEST_CSUM)] {
                let mut guest = backend.guest("a", &options(without, Layout::Single));
                for _ in 0..3 {
                    let before = backend.stats("a").receive.totals;
                    let all = 60_000;
                    let whole = frames::tcp_frame(1, all as usize);
                    peer.send_with(&[1, GSO_TCPV4, 54, 0, 1, 0, 34, 0, 16, 0], &whole).expect("sent");
                    // What has no buffer and no place is dropped at once, not a frame a second.
                    let lost = || {
                        let now = backend.stats("a").receive.totals;
                        now.dropped_total() - before.dropped_total()
                    };
                    wait_until("most are dropped", || lost() >= all - 2 * 4096);
                    let (begin, mut came) = (Instant::now(), 0u64);
                    loop {
                        let Some((header, segment)) = guest.recv(0, Duration::from_millis(200)) else {
                            if came + lost() >= all {
                                break;
                            }
                            assert!(begin.elapsed() < PATIENCE, "{came} came, {} are lost", lost());
                            continue;
                        };
                        assert_eq!((header.gso_type, segment.len()), (0, 55));
                        let sequence = u32::from_be_bytes(segment[38..42].try_into().expect("four bytes"));
                        // One may have been given up for having waited long.
                        assert!(u64::from(sequence) > came, "{sequence} as number {came}");
                        came += 1;
                    }
                    assert!(came > 256, "those that found a buffer or a place came: {came}");
                    let after = backend.stats("a").receive.totals;
                    assert_eq!((after.frames - before.frames, lost() + came), (came, all));
                    assert_eq!(after.dropped_frames.keys().collect::<Vec<_>>(), [&"no_room"]);
                    guest.ping(&mut peer, 1);
                }
                drop(guest);
                wait_until("the connection has ended", || !backend.stats("a").connected);
            }
        });
    }
}

/// What reaches the interface encapsulated and not yet segmented has a virtio-net header that names
/// the inner protocol, and where the inner checksum starts.
#[test]
fn an_encapsulated_frame_is_given_whole_or_not_at_all() {
    for port in PORTS {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let mut peer = Peer::new("v1");
            ip(&["addr", "add", "10.9.0.1/24", "dev", "v1"]);
            ip(&["neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:01", "dev", "v1", "nud", "permanent"]);
            let tunnel = ["type", "vxlan", "id", "1", "dev", "v1", "remote", "10.9.0.2", "dstport", "4789"];
            ip(&[&["link", "add", "vx0"][..], &tunnel].concat());
            ip(&["link", "set", "vx0", "up"]);
            let inside = Peer::new("vx0");
            let inner = frames::tcp_frame(1, 5000);
            let backend = Backend::start(&[Vm::on("a", port)]);
            for (without, is_given) in [(0, true), (OFFLOADS, false)] {
                let mut guest = backend.guest("a", &options(without, Layout::Single));
                guest.ping(&mut peer, 1);
                inside.send_with(&[1, GSO_TCPV4, 54, 0, 0x14, 5, 34, 0, 16, 0], &inner).expect("sent");
                if is_given {
                    let (header, got) = guest.expect();
                    // Ethernet, IPv4, UDP and VXLAN (RFC 7348 §5) around it.
                    assert_eq!(
                        (header.gso_type, header.gso_size, header.csum_start),
                        (GSO_TCPV4, 1300, 50 + 34)
                    );
                    assert!(got[50..] == inner, "{} bytes came", got.len());
                } else {
                    let dropped = || backend.stats("a").receive.totals.dropped_frames;
                    wait_until("it is dropped", || dropped().get("bad_offload") == Some(&1));
                }
                peer.drain();
                guest.ping(&mut peer, 2);
                drop(guest);
                wait_until("the connection has ended", || !backend.stats("a").connected);
            }
        });
    }
}

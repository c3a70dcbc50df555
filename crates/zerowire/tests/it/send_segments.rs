//! UDP_SEGMENT and the path's MTU: segments that fit are cut by the kernel, longer ones are refused
//! with the remedy, and the remedy works. Needs root.

use crate::support::sockets::{datagram, pattern, sender, tcp_pair};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use zerowire::send::{Payload, SendBackend, SendError, SendMode, SendOptions, Sender, longest_segment};
use zerowire_testkit::net::lab::{HERE, Lab, in_lab, stir};

const LONG: Duration = Duration::from_secs(20);

fn options(mode: SendMode, backend: SendBackend, segment: usize) -> SendOptions {
    let segment_bytes = Some(u16::try_from(segment).unwrap());
    SendOptions::default().mode(mode).backend(backend).segment_bytes(segment_bytes).timeout(Some(LONG))
}

fn every_way() -> impl Iterator<Item = (SendMode, SendBackend)> {
    let backends = [SendBackend::Socket, SendBackend::Uring];
    backends
        .into_iter()
        .flat_map(|backend| [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto].map(|mode| (mode, backend)))
}

/// A socket of the peer's, and one that is connected to it.
fn pair(lab: &Lab, ipv6: bool) -> (UdpSocket, UdpSocket) {
    let (peer, to) = match ipv6 {
        false => lab.udp(),
        true => lab.at_peer(|| {
            let there: Ipv6Addr = "fd77::2".parse().unwrap();
            let peer = UdpSocket::bind((there, 0)).unwrap();
            peer.set_read_timeout(Some(LONG)).unwrap();
            let to = peer.local_addr().unwrap();
            (peer, to)
        }),
    };
    let from: SocketAddr = if ipv6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { ([0, 0, 0, 0], 0).into() };
    let socket = UdpSocket::bind(from).unwrap();
    socket.connect(to).unwrap();
    (socket, peer)
}

/// The datagrams of `segment` bytes that `payload` is cut into arrive.
fn arrives(peer: &UdpSocket, payload: &[u8], segment: usize, case: &str) {
    let mut got = vec![0; 70_000];
    for (n, part) in payload.chunks(segment).enumerate() {
        let len = datagram(peer, &mut got);
        assert!(got[..len] == *part, "{case}: datagram {n}, {len} bytes");
    }
}

/// Waits for all memory. Lent fragments are back when the receiver has read them.
fn wait_all(s: &mut Sender, case: &str) {
    let start = Instant::now();
    while let Err(e) = s.wait_all(Duration::from_millis(20)) {
        assert!(matches!(e, SendError::TimedOut { .. }) && start.elapsed() < LONG, "{case}: {e}");
        stir();
    }
}

/// Sends a payload of `count` segments, which the path takes or not, and takes the remedy in the
/// second case.
fn send(lab: &Lab, ipv6: bool, segment: usize, longest: u16) {
    for (mode, backend) in every_way() {
        let case = format!("{mode:?} {backend:?}, IPv{}, {segment} bytes", if ipv6 { 6 } else { 4 });
        let (socket, peer) = pair(lab, ipv6);
        assert_eq!(longest_segment(&socket), Some(longest), "{case}");
        let mut s = sender(socket, options(mode, backend, segment));
        let bytes = pattern(segment, segment * 2 + segment / 2);
        if segment <= usize::from(longest) {
            s.send(bytes.clone()).unwrap();
            arrives(&peer, &bytes, segment, &case);
            wait_all(&mut s, &case);
            continue;
        }
        let refused = s.try_send(bytes.clone()).unwrap_err();
        assert_eq!(refused.payload.len(), bytes.len(), "{case}");
        told(&refused.error, segment, longest, &case);
        let mut payloads = vec![Payload::from(bytes.clone()), bytes.clone().into()];
        told(&s.send_many(&mut payloads).unwrap_err(), segment, longest, &case);
        assert_eq!(payloads.len(), 2, "{case}: none was taken");

        s.set_segment_bytes(None).unwrap();
        let mut payloads = refused.payload.split(segment);
        assert_eq!(s.send_many(&mut payloads).unwrap(), 3, "{case}");
        arrives(&peer, &bytes, segment, &case);
        s.set_segment_bytes(Some(longest)).unwrap();
        s.send(bytes.clone()).unwrap();
        arrives(&peer, &bytes, longest.into(), &case);
        wait_all(&mut s, &case);
        assert_eq!(s.counters().snapshot().bytes, 2 * bytes.len() as u64, "{case}");
    }
}

fn told(e: &SendError, segment: usize, most: u16, case: &str) {
    match e {
        SendError::SegmentTooLong { segment_bytes, longest } => {
            assert_eq!((usize::from(*segment_bytes), *longest), (segment, Some(most)), "{case}");
        }
        other => panic!("{case}: {other}"),
    }
    let text = e.to_string();
    for word in [&format!("segment_bytes {segment}"), &format!("({most} bytes"), "without segment_bytes"] {
        assert!(text.contains(word), "{case}: {text}");
    }
    assert_eq!(e.errno(), Some(libc::EMSGSIZE), "{case}");
}

#[test]
fn segments_beyond_the_mtu_are_named_and_the_remedy_works() {
    in_lab(|lab| {
        lab.veth();
        lab.ipv6();
        for mtu in [1500, 1420] {
            lab.mtu(HERE, mtu.into());
            for ipv6 in [false, true] {
                let longest = mtu - if ipv6 { 48 } else { 28 };
                for segment in [1000, longest.into(), usize::from(longest) + 1, 9000] {
                    send(lab, ipv6, segment, longest);
                }
            }
        }
    });
}

/// Not every payload that is too long is so because of its segments.
#[test]
fn other_errors_stay_what_they_are() {
    in_lab(|lab| {
        lab.veth();
        for (mode, backend) in every_way() {
            let (socket, _peer) = pair(lab, false);
            let mut s = sender(socket, options(mode, backend, 1472));
            match s.send(vec![0; 65_508]) {
                Err(SendError::TooLong { len: 65_508 }) => {}
                other => panic!("{mode:?} {backend:?}: {other:?}"),
            }
            s.set_segment_bytes(Some(10)).unwrap();
            match s.send(vec![0; 10_000]) {
                Err(SendError::TooManySegments { segments: 1000, segment_bytes: 10, .. }) => {}
                other => panic!("{mode:?} {backend:?}: {other:?}"),
            }
        }
    });
}

#[test]
fn only_udp_has_segments() {
    let (a, _b) = tcp_pair();
    assert_eq!(longest_segment(&a), None);
    let mut s = Sender::new(a.into(), SendOptions::default()).unwrap();
    assert!(matches!(s.set_segment_bytes(Some(1000)), Err(SendError::Segments(1000))));
    s.set_segment_bytes(None).unwrap();
    // Loopback, where what fits a datagram fits a packet.
    let a = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(longest_segment(&a), None, "nobody is connected");
    a.connect(a.local_addr().unwrap()).unwrap();
    assert!(longest_segment(&a).is_some_and(|longest| longest >= 65_507));
    let mut s = Sender::new(a.into(), SendOptions::default()).unwrap();
    assert!(matches!(s.set_segment_bytes(Some(0)), Err(SendError::Segments(0))));
}

//! An interface goes down while sends are on their way. All memory comes back, what TCP carries
//! arrives once the interface is up again, and datagrams go again. Needs root.

use crate::support::sockets::{area, datagram, lease, pattern};
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use zerowire::send::{SendBackend, SendError, SendMode, SendOptions, Sender};
use zerowire_testkit::net::lab::{HERE, in_lab};

const LONG: Duration = Duration::from_secs(20);
const LEN: usize = 1200;

fn options(mode: SendMode, backend: SendBackend) -> SendOptions {
    SendOptions::default().mode(mode).backend(backend).timeout(Some(LONG))
}

#[test]
fn a_tcp_connection_outlives_an_interface_that_is_down_for_a_while() {
    in_lab(|lab| {
        lab.veth();
        for backend in [SendBackend::Socket, SendBackend::Uring] {
            for mode in [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto] {
                let case = format!("{mode:?} {backend:?}");
                let area = area(64, 16 << 10);
                let (listener, to) = lab.tcp();
                let socket = TcpStream::connect(to).unwrap();
                let (mut peer, _) = listener.accept().unwrap();
                let mut s =
                    Sender::with_areas(socket.into(), options(mode, backend), std::slice::from_ref(&area))
                        .unwrap();
                lab.hold(HERE);
                let mut want = Vec::new();
                let mut send = |s: &mut Sender, n: usize| {
                    s.send(lease(&area, &pattern(n, 8000))).unwrap();
                    want.extend_from_slice(&pattern(n, 8000));
                };
                // Short of what the socket's buffer takes: none of these waits for the peer.
                (0..4).for_each(|n| send(&mut s, n));
                lab.down(HERE);
                (4..8).for_each(|n| send(&mut s, n));
                if mode == SendMode::ZeroCopy {
                    match s.wait_all(Duration::from_millis(50)) {
                        Err(SendError::TimedOut { outstanding: 8, .. }) => {}
                        other => panic!("{case}: lent until it is acknowledged: {other:?}"),
                    }
                }
                lab.up(HERE);
                lab.release(HERE);
                let mut got = vec![0; want.len()];
                peer.read_exact(&mut got).unwrap();
                assert!(got == want, "{case}: other bytes arrived");
                s.wait_all(LONG).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{case}");
                assert_eq!(s.counters().snapshot().bytes, want.len() as u64, "{case}");
            }
        }
    });
}

#[test]
fn datagrams_that_an_interface_drops_as_it_goes_down_give_their_memory_back() {
    in_lab(|lab| {
        lab.veth();
        for backend in [SendBackend::Socket, SendBackend::Uring] {
            for mode in [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto] {
                let case = format!("{mode:?} {backend:?}");
                let area = area(64, 16 << 10);
                let (peer, to) = lab.udp();
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(to).unwrap();
                let mut s =
                    Sender::with_areas(socket.into(), options(mode, backend), std::slice::from_ref(&area))
                        .unwrap();
                lab.hold(HERE);
                for n in 0..30 {
                    s.send(lease(&area, &pattern(n, LEN))).unwrap();
                }
                if mode == SendMode::ZeroCopy {
                    assert_eq!(s.outstanding(), 30, "{case}");
                }
                lab.down(HERE);
                s.wait_all(LONG).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!(area.free(), area.buffers(), "{case}");
                // Down: refused, not lent, and said.
                let e = s.send(lease(&area, &pattern(99, LEN))).unwrap_err();
                assert!(matches!(e, SendError::System { .. }), "{case}: {e}");
                assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{case}");

                lab.up(HERE);
                lab.release(HERE);
                let mut got = [0; 2000];
                let start = Instant::now();
                for n in 100..110 {
                    while let Err(e) = s.send(lease(&area, &pattern(n, LEN))) {
                        assert!(start.elapsed() < LONG, "{case}: {e}");
                    }
                    let len = datagram(&peer, &mut got);
                    assert!(got[..len] == pattern(n, LEN), "{case}: {n}");
                }
                s.wait_all(LONG).unwrap();
                assert_eq!(s.counters().snapshot().frames, 40, "{case}");
            }
        }
    });
}

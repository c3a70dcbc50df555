//! A path whose MTU falls on the way. The ICMP answer to a datagram that was too long is an
//! EMSGSIZE of a later call, whatever that sends: it must not be blamed. Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;
use zerowire::send::{Payload, SendBackend, SendError, SendMode, SendOptions, Sender, longest_segment};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};

/// Sends a datagram that the path does not take, and waits for the answer.
fn lose_one(s: &mut Sender, case: &str) {
    s.send(vec![1; 1400]).unwrap();
    let start = Instant::now();
    while longest_segment(&*s) != Some(1280 - 28) {
        assert!(start.elapsed() < PATIENCE, "{case}: no answer");
        lab::stir();
    }
}

#[test]
fn a_datagram_is_not_blamed_for_an_earlier_one_that_was_too_long() {
    in_lab(|lab| {
        lab.veth();
        lab.behind(1280);
        let mut host = 10;
        for mode in [SendMode::Copy, SendMode::ZeroCopy] {
            for backend in [SendBackend::Socket, SendBackend::Uring] {
                let case = format!("{mode:?} {backend:?}");
                let mut next = || {
                    host += 1;
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.connect((Ipv4Addr::new(10, 78, 0, host), 5000)).unwrap();
                    Sender::new(socket.into(), SendOptions::default().mode(mode).backend(backend)).unwrap()
                };
                let dropped = |s: &Sender| s.counters().snapshot().dropped_frames.get("too_long").copied();

                let mut s = next();
                lose_one(&mut s, &case);
                s.send(vec![2; 10]).unwrap_or_else(|e| panic!("{case}: {e}"));
                s.send(vec![3; 1400]).unwrap_or_else(|e| panic!("{case}: in fragments: {e}"));
                assert_eq!(dropped(&s), Some(1), "{case}");
                // One that is too long itself is named.
                let e = s.send(vec![4; 65_508]).unwrap_err();
                assert!(matches!(e, SendError::TooLong { len: 65_508 }), "{case}: {e}");
                s.wait_all(PATIENCE).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!((dropped(&s), s.counters().snapshot().frames), (Some(1), 3), "{case}");

                let mut s = next();
                lose_one(&mut s, &case);
                let mut batch: Vec<Payload> = (0..4).map(|i| Payload::from(vec![i; 10])).collect();
                assert_eq!(s.send_many(&mut batch).unwrap(), 4, "{case}");
                assert_eq!(dropped(&s), Some(1), "{case}, a batch");
                batch.extend([10, 65_508, 10].map(|len| Payload::from(vec![5; len])));
                let e = s.send_many(&mut batch).unwrap_err();
                assert!(matches!(e, SendError::TooLong { len: 65_508 }), "{case}: {e}");
                s.wait_all(PATIENCE).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!((dropped(&s), s.counters().snapshot().frames), (Some(1), 6), "{case}, a batch");
            }
        }
    });
}

use super::super::backend::UringBackend;
use super::super::engine::Engine;
use super::*;
use crate::send::kind::SocketKind;
use crate::send::{Payload, SendOptions, SendWay, Window};
use std::net::UdpSocket;
use std::time::Duration;
use std::time::Instant;

use zerowire_sys::lock;

/// The kernel takes two entries of a chain, and has no memory for the rest.
#[test]
fn a_chain_that_is_taken_in_parts_keeps_its_order_and_ends_at_the_first_error() {
    let engine = Engine::new(&EngineOptions::default(), &[]).expect("io_uring is needed for this test");
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let kind = SocketKind::of(&a).unwrap();
    let mut back =
        UringBackend::on(&engine, a.into(), kind, &SendOptions::default().timeout(Some(Duration::ZERO)));
    let payloads = |lens: &[usize]| -> Vec<Payload> {
        lens.iter().zip(0..).map(|(n, i)| Payload::from(vec![i; *n])).collect()
    };
    let mut window = Window::default();
    let mut sent = Vec::new();
    for (lens, taken, rings) in
        [(&[300; 5][..], 5, 0), (&[300, 70_000, 300, 300][..], 1, 1), (&[300; 3][..], 3, 1)]
    {
        lock(engine.core()).hand_over_at_most = 2;
        sent.clear();
        let batch = payloads(lens);
        let result = back.submit_many(&batch, SendWay::Lend, &mut sent);
        assert_eq!(result.is_ok(), taken == lens.len(), "{lens:?}");
        assert_eq!(sent.len(), taken, "{lens:?}");
        assert!(lock(engine.core()).retired.len() <= rings, "{lens:?}");
        for (s, p) in sent.iter().zip(batch) {
            window.lend(p, s.id.expect("lent"), false).unwrap();
        }
        let mut got = [0; 400];
        for i in 0..taken {
            assert_eq!((b.recv(&mut got).unwrap(), got[0]), (300, i as u8), "{lens:?}");
        }
    }
    b.set_nonblocking(true).unwrap();
    assert!(b.recv(&mut [0; 400]).is_err(), "what lies behind an error was sent");
    // Also those of the closed ring, the failed entry's notification among them.
    let end = Instant::now() + Duration::from_secs(20);
    while window.outstanding() > 0 || engine.outstanding() > 0 {
        back.wait(false, Duration::from_millis(10)).unwrap();
        back.reap(&mut window).unwrap();
        assert!(Instant::now() < end, "{window:?}, {} of the engine", engine.outstanding());
    }
}

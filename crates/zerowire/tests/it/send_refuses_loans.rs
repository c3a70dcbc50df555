//! A connection that takes SO_ZEROCOPY and then refuses MSG_ZEROCOPY with EOPNOTSUPP, as TLS in the
//! kernel does (`tls_sw_sendmsg`, net/tls/tls_sw.c). Few kernels of test machines have that, so a
//! filter on this thread answers here. `zerowire-vmtest tls` asks the kernels of stock guests.

use crate::support::sockets::{pattern, sender, tcp_pair};
use std::io::Read;
use std::time::Duration;
use zerowire::send::testing::BLOCK;
use zerowire::send::{SendBackend, SendMode, SendOptions};
use zerowire_testkit::refuse::{Argument, refuse_if};

const LONG: Duration = Duration::from_secs(20);
const LEN: usize = 65_536;

/// From now on each sendto of this thread with MSG_ZEROCOPY fails with EOPNOTSUPP.
fn refuse_loans() {
    refuse_if(libc::SYS_sendto, 3, Argument::Has(libc::MSG_ZEROCOPY as u32), libc::EOPNOTSUPP);
}

#[test]
fn auto_copies_on_a_connection_that_refuses_loans() {
    let (a, mut b) = tcp_pair();
    let mut s = sender(a, SendOptions::default().backend(SendBackend::Socket));
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; LEN];
        for i in 0..100 {
            b.read_exact(&mut got).unwrap();
            assert!(got == pattern(i, LEN), "payload {i}");
        }
    });
    refuse_loans();
    for i in 0..100 {
        s.send(pattern(i, LEN)).unwrap();
    }
    s.wait_all(LONG).unwrap();
    reader.join().unwrap();
    let c = s.counters().snapshot();
    // A block of the trial copies, the first loan is refused, and nothing is lent from then on.
    let of = |payloads: u32| u64::from(payloads) * LEN as u64;
    let expected = [("trial", of(BLOCK)), ("unsupported", of(100 - BLOCK))];
    assert_eq!(c.copied_bytes, expected.into());
    assert!(s.path().contains("EOPNOTSUPP"), "{}", s.path());
}

/// TLS begins in the middle: what was lent before comes back.
#[test]
fn a_connection_that_refuses_loans_from_some_time_on() {
    let (a, mut b) = tcp_pair();
    let options = SendOptions::default().mode(SendMode::ZeroCopy).backend(SendBackend::Socket);
    let mut s = sender(a, options);
    s.send(pattern(0, LEN)).unwrap();
    refuse_loans();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; LEN];
        for i in 0..3 {
            b.read_exact(&mut got).unwrap();
            assert!(got == pattern(i, LEN), "payload {i}");
        }
    });
    (1..3).for_each(|i| assert!(s.send(pattern(i, LEN)).is_ok()));
    s.wait_all(LONG).unwrap();
    reader.join().unwrap();
    let c = s.counters().snapshot();
    assert_eq!(c.copied_bytes, [("kernel", LEN as u64), ("unsupported", 2 * LEN as u64)].into());
}

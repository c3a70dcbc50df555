//! Ten thousand senders at a time.

use crate::support::sockets::{area, sender, tcp_pair};
use std::io::Read;
use std::net::UdpSocket;
use std::time::Duration;
use zerowire::send::{SendBackend, SendMode, SendOptions};
use zerowire_testkit::own_process;

const LONG: Duration = Duration::from_secs(30);
const UDP: usize = 9000;
const TCP: usize = 1000;
/// One descriptor a UDP sender (they share a receiver), two a TCP pair, and some for the test
/// itself.
const DESCRIPTORS: u64 = (UDP + 2 * TCP + 200) as u64;

fn raise_the_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|n| n >= DESCRIPTORS) {
        return;
    }
    let wanted = Rlimit { current: Some(DESCRIPTORS), maximum: now.maximum };
    if let Err(e) = setrlimit(Resource::Nofile, wanted) {
        panic!("{DESCRIPTORS} descriptors are needed, the limit is {now:?}, and it can't be raised: {e}");
    }
}

#[test]
fn ten_thousand_senders() {
    own_process!();
    raise_the_limit();
    let area = area(UDP + TCP, 1024);
    let options = |mode| SendOptions::default().mode(mode).backend(SendBackend::Socket);
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(LONG)).unwrap();
    let to = sink.local_addr().unwrap();
    let mut senders = Vec::new();
    let mut streams = Vec::new();
    let mut got = [0; 2048];
    for i in 0..UDP + TCP {
        let s = if i < UDP {
            let u = UdpSocket::bind("127.0.0.1:0").unwrap();
            u.connect(to).unwrap();
            sender(u, options(SendMode::ZeroCopy))
        } else {
            let (a, b) = tcp_pair();
            streams.push(b);
            sender(a, options(SendMode::ZeroCopy))
        };
        senders.push(s);
    }
    // All of them lend before any waits for its notifications.
    for (i, s) in senders.iter_mut().enumerate() {
        let mut l = area.lease().unwrap();
        l.fill(i as u8);
        s.send(l).unwrap();
        if i < UDP {
            assert_eq!((sink.recv(&mut got).unwrap(), got[1023]), (1024, i as u8));
        }
    }
    assert_eq!(area.free(), 0);
    for s in senders.iter_mut().rev() {
        s.wait_all(LONG).unwrap();
    }
    assert_eq!(area.free(), UDP + TCP);
    for (i, b) in streams.iter_mut().enumerate() {
        let mut got = [0; 1024];
        b.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|b| *b == (UDP + i) as u8));
    }
}

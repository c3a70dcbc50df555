//! How long kicks take: each is measured once, and what no kick made is not.

use std::io::Write;
use std::os::unix::net::UnixListener;

use crate::support::harness::{one_guest, received};
use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{Kind, Op};
use zerowire_vsock::testing::{Flow, Layout};

#[test]
fn each_kick_is_measured_once_and_bytes_of_a_program_are_not() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    harness.rest();
    let begin = harness.totals(0).kicks;
    let listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
    let mut flow = Flow::new(3, 100, 1, Kind::Stream);
    assert!(flow.control(&mut guest, Op::Request, 0), "room");
    harness.rest();
    flow.take(&received(&mut guest)[0].0);
    let (mut stream, _) = listener.accept().expect("a connection");
    for _ in 0..3 {
        assert!(flow.send(&mut guest, 1000, 0, Layout(0)), "room and credit");
        harness.rest();
    }
    let (totals, kicks) = (harness.totals(0), harness.totals(0).kicks);
    assert_eq!(kicks.transmit_kick_seconds.count(), totals.transmit.kicks);
    assert_eq!(kicks.receive_kick_seconds.count(), totals.receive.kicks);
    assert!(kicks.transmit_kick_seconds.count() >= begin.transmit_kick_seconds.count() + 4);
    assert!(kicks.transmit_kick_seconds.sum > begin.transmit_kick_seconds.sum);

    stream.write_all(&[1; 1000]).expect("room");
    harness.rest();
    assert_eq!(harness.totals(0).receive.bytes, 1000);
    assert_eq!(harness.totals(0).kicks, kicks);
}

//! What a VM, or programs at its sockets, can have done in a turn of the thread that serves its
//! whole group. Turns are counted, and no clock is read.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::harness::{received, start};
use zerowire_vsock::packet::{Kind, Op};
use zerowire_vsock::testing::{Flow, Harness, Layout};
use zerowire_vsock::{TX_QUEUE, VsockLimits};

/// Requests that come at once: as many as the guest's queue takes.
const REQUESTS: u32 = 16;
/// The most of them in a turn.
const FEW_REQUESTS: u64 = 2;
/// Programs that connect at once.
const PROGRAMS: u32 = 32;
/// The most of them in a turn: some where their socket tells of them, some behind the guest's
/// packets.
const FEW_PROGRAMS: u64 = 8;

#[test]
fn requests_of_one_guest_leave_turns_to_the_others() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let mut harness = Harness::new(dir.path(), &[3, 4], VsockLimits::default()).expect("a device");
    let (mut hostile, mut sound) = (start(&mut harness, 0), start(&mut harness, 1));
    let listener = UnixListener::bind(dir.path().join("4_1")).expect("a free path");
    let mut flow = Flow::new(4, 100, 1, Kind::Stream);
    assert!(flow.control(&mut sound, Op::Request, 0), "room");
    harness.rest();
    flow.take(&received(&mut sound)[0].0);
    sound.reap(TX_QUEUE, |_| {});
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("non-blocking");

    // Nobody listens there.
    for port in 0..REQUESTS {
        let request = Flow::new(3, 1000 + port, 9, Kind::Stream);
        assert!(request.control(&mut hostile, Op::Request, 0), "room");
    }
    // The device slept: this turn hears that there is something.
    assert!(flow.send(&mut sound, 1000, 0, Layout(0)), "room and credit");
    harness.turn();
    assert_eq!(harness.totals(0).connections_refused, 0);
    let (mut turns, mut done) = (0, 0);
    while done < u64::from(REQUESTS) {
        harness.turn();
        turns += 1;
        // The other guest has a turn between.
        let mut bytes = [0; 2000];
        assert_eq!(stream.read(&mut bytes).expect("this turn's bytes"), 1000);
        sound.reap(TX_QUEUE, |_| {});
        received(&mut sound).iter().for_each(|(header, _)| flow.take(header));
        let now = harness.totals(0).connections_refused;
        assert!((1..=FEW_REQUESTS).contains(&(now - done)), "{} requests in a turn", now - done);
        done = now;
        // There is room for all answers.
        received(&mut hostile);
        assert!(flow.send(&mut sound, 1000, 0, Layout(0)), "room and credit");
    }
    assert!(turns >= u64::from(REQUESTS) / FEW_REQUESTS, "{turns} turns");
    harness.rest();
    assert_eq!(harness.totals(0).connections_refused, u64::from(REQUESTS));
}

#[test]
fn programs_that_connect_leave_turns_to_the_others() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let mut harness = Harness::new(dir.path(), &[3, 4], VsockLimits::default()).expect("a device");
    let _guest = start(&mut harness, 0);
    harness.rest();
    let programs: Vec<UnixStream> = (0..PROGRAMS)
        .map(|_| {
            let mut program = UnixStream::connect(dir.path().join("3")).expect("the device listens");
            program.write_all(b"HELLO\n").expect("room");
            program
        })
        .collect();
    let (mut turns, mut done) = (0, 0);
    while done < u64::from(PROGRAMS) {
        assert!(turns < 1000, "{done} of {PROGRAMS} were turned away");
        harness.turn();
        turns += 1;
        let now = harness.totals(0).bad_handshakes;
        assert!(now - done <= FEW_PROGRAMS, "{} programs in a turn", now - done);
        done = now;
    }
    harness.rest();
    assert_eq!(harness.totals(0).bad_handshakes, u64::from(PROGRAMS), "each is counted once");
    for mut program in programs {
        // Its line was not read: the end is a reset.
        assert_eq!(program.read(&mut [0; 8]).map_err(|e| e.kind()), Err(std::io::ErrorKind::ConnectionReset));
    }
}

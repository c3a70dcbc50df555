//! What a guest of a group can take of another one's connections: a part of them, and none for
//! ever.

use std::time::Duration;

use crate::support::harness::{received, start};
use crate::support::vsock::{Guest, Vm, VsockBackend, accept, read_ok, together};
use zerowire_guest::vsock::{ConnState, SocketType};
use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{Header, Kind, Op};
use zerowire_vsock::testing::{Flow, Guest as Driver, Harness, Layout};

/// How many of `count` connections to port 80 of `to` are granted.
fn granted(from: &mut Guest, to: &mut Guest, count: usize) -> usize {
    let cid = to.stack.cid();
    let asked: Vec<_> =
        (0..count).map(|_| from.stack.connect(cid, 80, SocketType::Stream).expect("asked")).collect();
    together([from, to], "answers", |[from, _]| {
        asked.iter().all(|c| from.stack.state(*c) != ConnState::Connecting)
    });
    asked.iter().filter(|c| from.stack.state(**c) == ConnState::Established).count()
}

/// Three neighbours take what they can get of a guest's connections; the host still reaches it, and
/// it the host.
#[test]
fn neighbours_leave_each_other_and_the_host_a_share() {
    let all = [("a", 3), ("b", 4), ("c", 5), ("d", 6), ("e", 7)];
    let backend = VsockBackend::start(&all.map(|(name, cid)| Vm::new(name, cid).most(16)));
    let mut b = backend.guest("b");
    b.stack.listen(80, SocketType::Stream);
    let mut others = ["a", "c", "d", "e"].map(|name| backend.guest(name));
    // A quarter of 16 each, and all together seven eighths.
    let got = others.each_mut().map(|other| granted(other, &mut b, 16));
    assert_eq!(got, [4, 4, 4, 2]);
    assert_eq!(backend.stats("b").totals.connections_open, 14);

    let listener = backend.listen("b", 1234);
    let conn = b.connect(1234);
    let mut stream = accept(&listener);
    b.ping(conn, &mut stream);
    let mut host = backend.dial("b", 80);
    assert!(b.with_host(|| read_ok(&mut host)).is_some(), "a host program reaches the guest");

    // What goes comes free.
    drop(others);
    crate::support::wait_until("all ends", || backend.stats("b").totals.connections_open == 2);
    let mut a = backend.guest("a");
    assert_eq!(granted(&mut a, &mut b, 16), 4);
}

/// The shares can be chosen.
#[test]
fn shares_are_options() {
    let wide = |vm: Vm, peer, siblings| Vm {
        limits: vm.limits.peer_connections(Some(peer)).sibling_connections(Some(siblings)),
        ..vm
    };
    let backend = VsockBackend::start(&[
        Vm::new("a", 3),
        wide(Vm::new("b", 4).most(16), 16, 10),
        wide(Vm::new("c", 5).most(16), 1, 16),
        wide(Vm::new("d", 6).most(16), 16, 0),
    ]);
    let mut a = backend.guest("a");
    for (name, want) in [("b", 10), ("c", 1), ("d", 0)] {
        let mut to = backend.guest(name);
        to.stack.listen(80, SocketType::Stream);
        assert_eq!(granted(&mut a, &mut to, 16), want, "{name}");
    }
}

/// A packet to the guest with CID 4.
fn say(guest: &mut Driver, flow: &Flow, op: Op) {
    let header = Header { dst_cid: 4, ..flow.header(op, 0) };
    assert!(guest.send(&header.to_bytes(), 0, Layout(0)), "room");
}

/// A neighbour resets the connections of a guest that takes no packet. After 8 s their places are
/// free, and the guest learns of it once it takes packets again.
#[test]
fn resets_that_nobody_takes_hold_no_place_for_long() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let limits = VsockLimits::default().max_connections(32);
    let mut harness = Harness::new(dir.path(), &[3, 4], limits).expect("a device");
    let mut a = start(&mut harness, 0);
    let mut b = Driver::new().expect("memory");
    harness.set_memory(1, b.memory());
    harness.start(1, &b).expect("rings");
    let flows: Vec<_> = (0..8)
        .map(|port| {
            let flow = Flow::new(3, port, 80, Kind::Stream);
            say(&mut a, &flow, Op::Request);
            flow
        })
        .collect();
    harness.rest();
    assert_eq!((harness.connections(0), harness.connections(1)), (8, 8), "asked for");
    for flow in &flows {
        say(&mut a, flow, Op::Rst);
    }
    harness.rest();
    assert_eq!((harness.connections(0), harness.connections(1)), (0, 8), "resets wait for b");
    for (seconds, left) in [(7, 8), (1, 0)] {
        harness.pass(Duration::from_secs(seconds));
        harness.rest();
        assert_eq!(harness.connections(1), left);
    }
    while b.post(4096, Layout(0)) {}
    harness.rest();
    let told: Vec<_> = received(&mut b).iter().map(|(h, _)| (Op::new(h.op), h.src_cid, h.src_port)).collect();
    let want: Vec<_> = (0..8).map(|port| (Some(Op::Rst), 3, port)).collect();
    assert_eq!(told, want);
}

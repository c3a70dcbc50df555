//! Queues, front ends, memory and servers come and go with connections open.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::raw::RawGuest;
use crate::support::vsock::{Guest, Vm, VsockBackend, accept, pattern, read_exact, read_ok, read_to_end};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{ConnState, HOST_CID, Op, SocketType, StackOptions, VsockOptions, VsockStack};
use zerowire_guest::{GuestAddr, Transport};
use zerowire_testkit::{SetAtEnd, own_process};

#[test]
fn connections_survive_queues_that_stop_and_go_on() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (out, mut stream) = backend.open("vm", &mut guest, 1);
    let (inward, mut other) = backend.dial_in("vm", &mut guest, 80);
    for round in 0..20 {
        // Bytes are on their way in both directions.
        let (there, back) = (pattern(20_000, round), pattern(30_000, round + 100));
        let sent = guest.stack.send(out, &there).expect("open");
        other.write_all(&back).expect("room");
        guest.driver.stop().expect("stopped");
        let used = guest.stack.queues().rx.ring().memory().used_idx();
        stream.write_all(&back).expect("room");
        guest.driver.transport().barrier().expect("all handled");
        assert_eq!(guest.stack.queues().rx.ring().memory().used_idx(), used, "a stopped queue is left alone");
        guest.driver.resume(guest.stack.queues()).expect("resumed");
        guest.send(out, &there[sent..]);
        assert!(guest.with_host(|| read_exact(&mut stream, there.len())) == there);
        assert!(guest.recv(inward, back.len()) == back);
        assert!(guest.recv(out, back.len()) == back);
    }
    let stats = backend.stats("vm").totals;
    assert_eq!((stats.connections_open, stats.connections_opened, stats.resets), (2, 2, 0));
}

/// Its ports may belong to another connection by then.
#[test]
fn a_connection_that_the_guest_has_reset_is_not_spoken_of_while_it_drains() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(8 << 20)]);
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut conn = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut host = accept(&listener);
    for _ in 0..100 {
        guest.send(&mut conn, &[1; 60_000], 0);
    }
    guest.flush();
    guest.say(&conn, Op::Rst, 0);
    guest.flush();
    guest.discard();
    assert_eq!(read_to_end(&mut host).len(), 6_000_000, "what was sent before still arrives");
    wait_until("the end", || backend.stats("vm").totals.connections_open == 0);
    assert_eq!(guest.discard(), 0, "packets of a connection that is over");
}

#[test]
fn a_driver_that_begins_anew_has_no_connections() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    for round in 0..6 {
        let (conn, mut stream) = backend.open("vm", &mut guest, 1);
        let (_, mut other) = backend.dial_in("vm", &mut guest, 80);
        guest.ping(conn, &mut stream);
        stream.write_all(&[1; 1000]).expect("room");
        if round % 2 == 0 {
            let queues = guest.driver.reset(&VsockOptions::default()).expect("reset");
            guest.stack = VsockStack::new(queues, StackOptions::default());
        } else {
            // Another front end; this one is gone.
            drop(guest);
            guest = backend.guest("vm");
        }
        for s in [&mut stream, &mut other] {
            let mut rest = Vec::new();
            // Bytes that the device had not read are lost, which the kernel tells.
            match s.read_to_end(&mut rest) {
                Ok(_) => assert!(rest.is_empty()),
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
        assert_eq!(backend.stats("vm").totals.connections_open, 0);
    }
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut stream);
}

#[test]
fn without_a_guest_host_programs_are_turned_away() {
    let backend = VsockBackend::one();
    assert_eq!(read_ok(&mut backend.dial("vm", 80)), None);
    let mut transport = backend.connect("vm");
    assert_eq!(read_ok(&mut backend.dial("vm", 80)), None);
    transport.barrier().expect("sound");
    drop(transport);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.dial_in("vm", &mut guest, 80);
    guest.ping(conn, &mut stream);
    guest.driver.transport().enable_queue(0, false).expect("disabled");
    assert_eq!(read_ok(&mut backend.dial("vm", 80)), None);
    guest.driver.transport().enable_queue(0, true).expect("enabled");
    guest.ping(conn, &mut stream);
    drop(guest);
    assert!(read_to_end(&mut stream).is_empty());
    wait_until("gone", || !backend.stats("vm").connected);
    assert_eq!(read_ok(&mut backend.dial("vm", 80)), None);
}

#[test]
fn memory_comes_and_goes_under_traffic() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    let mut writer = stream.try_clone().expect("a descriptor");
    let done = AtomicBool::new(false);
    let bytes = pattern(100_000, 1);
    std::thread::scope(|s| {
        let ends = SetAtEnd(&done);
        let host = s.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                writer.write_all(&bytes).expect("written");
                assert!(read_exact(&mut stream, bytes.len()) == bytes);
                rounds += 1;
            }
            rounds
        });
        let mut rounds = 0;
        for n in 0..40u64 {
            let at = GuestAddr((2 << 32) + n * (4 << 20));
            let region = guest.memory.add_region(at, 2 << 20).expect("memory");
            guest.driver.transport().add_memory(&region).expect("plugged");
            assert!(guest.recv(conn, bytes.len()) == bytes);
            let removed = guest.memory.remove_region(at).expect("there");
            guest.driver.transport().remove_memory(&removed).expect("unplugged");
            guest.send(conn, &bytes);
            rounds += 1;
        }
        drop(ends);
        // The host may have begun another round before it saw.
        while !host.is_finished() {
            guest.stack.turn(Duration::from_micros(300)).expect("sound");
            if guest.stack.readable(conn) >= bytes.len() {
                assert!(guest.recv(conn, bytes.len()) == bytes);
                guest.send(conn, &bytes);
                rounds += 1;
            }
        }
        assert_eq!(host.join().expect("sound"), rounds);
    });
    assert_eq!(backend.stats("vm").totals.ring_errors, 0);
}

#[test]
fn a_server_that_stops_ends_everything_and_another_one_takes_over() {
    let vms = [Vm::new("a", 3), Vm::new("b", 4)];
    let backend = VsockBackend::start(&vms);
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    let (conn, mut stream) = backend.open("a", &mut a, 1);
    let (_, mut other) = backend.dial_in("b", &mut b, 80);
    b.stack.listen(81, SocketType::Stream);
    let sibling = a.stack.connect(4, 81, SocketType::Stream).expect("asked");
    b.accept(81);
    assert!(a.stack.wait_connected(sibling, PATIENCE).expect("answered"));
    let silent = backend.dial("a", 5);
    let uds = backend.uds("a");
    let backend = backend.restart(&vms);
    drop(silent);
    assert!(uds.exists(), "bound anew");
    assert!(read_to_end(&mut stream).is_empty());
    assert!(read_to_end(&mut other).is_empty());
    // As a VMM does with the option reconnect.
    for (vm, g) in [("a", &mut a), ("b", &mut b)] {
        g.driver.reconnect(backend.connect(vm), g.stack.queues()).expect("reconnected");
        g.stack.reset_connections();
    }
    assert_eq!(a.stack.state(conn), ConnState::Reset);
    let (conn, mut stream) = backend.open("a", &mut a, 1);
    a.ping(conn, &mut stream);
    let (conn, mut other) = backend.dial_in("b", &mut b, 82);
    b.ping(conn, &mut other);
    drop(backend);
    assert!(!uds.exists(), "removed");
}

#[test]
fn a_guest_that_stalls_delays_no_other_vm() {
    let backend =
        VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4), Vm::new("c", 5).groups(&["alone"])]);
    // `a` posts no buffers and has much to receive.
    let mut a = backend.guest("a");
    let mut stalled: Vec<_> = (0..10).map(|_| backend.open("a", &mut a, 1)).collect();
    a.stack.queues().rx.set_limit(0);
    for (_, stream) in &mut stalled {
        stream.set_nonblocking(true).expect("set");
        while stream.write(&[1; 65_536]).is_ok() {}
    }
    for vm in ["b", "c"] {
        let mut guest = backend.guest(vm);
        let (conn, mut stream) = backend.open(vm, &mut guest, 1);
        let bytes = pattern(4 << 20, 2);
        let ((), got) = guest.both(|g| g.send(conn, &bytes), || read_exact(&mut stream, bytes.len()));
        assert!(got == bytes);
        let (got, ()) =
            guest.both(|g| g.recv(conn, bytes.len()), || stream.write_all(&bytes).expect("written"));
        assert!(got == bytes);
    }
    assert_eq!(backend.stats("a").totals.connections_open, 10);
}

#[test]
fn nothing_is_left_behind() {
    own_process!();
    let fds = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    let start = fds();
    let backend = VsockBackend::one();
    let listener = backend.listen("vm", 1);
    let mut guest = backend.guest("vm");
    let round = |guest: &mut Guest, n: usize| {
        let conn = guest.connect(1);
        let mut stream = accept(&listener);
        guest.ping(conn, &mut stream);
        guest.stack.listen(80, SocketType::Stream);
        let mut inward = backend.dial("vm", 80);
        let at_guest = guest.accept(80);
        guest.with_host(|| read_ok(&mut inward)).expect("accepted");
        // Ends of every kind.
        match n % 4 {
            0 => guest.stack.close(conn).expect("sound"),
            1 => guest.stack.abort(conn).expect("sound"),
            2 => drop(stream),
            _ => {}
        }
        drop(backend.dial("vm", 12_345));
        drop(inward);
        guest.until("the end", |s| {
            s.state(at_guest) != ConnState::Established || s.peer_shutdown(at_guest) != 0
        });
        guest.stack.close(at_guest).expect("sound");
        guest.stack.close(conn).expect("sound");
        guest.until("all gone", |s| s.connections() == 0 && backend.stats("vm").totals.connections_open == 0);
    };
    round(&mut guest, 0);
    let before = fds();
    for n in 0..100 {
        round(&mut guest, n);
    }
    wait_until("as many descriptors as before", || {
        guest.stack.turn(Duration::ZERO).expect("sound");
        fds() == before
    });
    drop((guest, listener, backend));
    wait_until("no descriptor is left", || fds() == start);
}

/// A reset that is under way from before a restart meets no new connection: host programs' ports
/// begin elsewhere.
#[test]
fn host_programs_ports_begin_elsewhere_after_a_restart() {
    let vms = [Vm::new("vm", 3)];
    let mut backend = VsockBackend::start(&vms);
    let mut ports = Vec::new();
    for _ in 0..3 {
        let mut guest = backend.guest("vm");
        guest.stack.listen(80, SocketType::Stream);
        let mut stream = backend.dial("vm", 80);
        guest.accept(80);
        ports.extend(guest.with_host(|| read_ok(&mut stream)));
        drop((guest, stream));
        backend = backend.restart(&vms);
    }
    assert!(ports.len() == 3 && ports.iter().all(|port| *port >= 1 << 30), "{ports:?}");
    ports.dedup();
    assert!(ports.len() > 1, "{ports:?}");
}

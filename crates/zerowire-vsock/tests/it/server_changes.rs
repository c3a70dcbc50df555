//! VMs come, go and change while the server runs.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;

use crate::support::vsock::{Guest, Vm, VsockBackend, exchange, pattern, try_join};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SocketType};
use zerowire_vhost::serve::{Endpoint, VmState};
use zerowire_vsock::VsockChangeError;

fn names(backend: &VsockBackend) -> Vec<(String, VmState)> {
    backend.server.vms().into_iter().map(|vm| (vm.config.name, vm.state)).collect()
}

/// Its sockets, which are all there or all gone.
fn sockets(backend: &VsockBackend, vm: &str) -> bool {
    let mut paths = vec![backend.vhost_path(vm), backend.uds(vm)];
    paths.extend(["seqpacket", "map"].map(|suffix| backend.uds(vm).with_extension(suffix)));
    let there = paths.iter().filter(|path| path.exists()).count();
    assert!([0, paths.len()].contains(&there), "{there} of {paths:?}");
    there > 0
}

/// A stream from `a` to a port of `b`, if there is one.
fn connect(a: &mut Guest, b: &mut Guest, port: u32) -> Option<(ConnId, ConnId)> {
    try_join(a, b, port, SocketType::Stream)
}

#[test]
fn a_vm_comes_and_goes_while_another_ones_connection_goes_on() {
    let backend = VsockBackend::empty();
    assert!(backend.server.stats().vms.is_empty() && !backend.server.is_alive());
    backend.add(&Vm::new("stays", 3).groups(&["one"]));
    let mut guest = backend.guest("stays");
    let (conn, mut stream) = backend.open("stays", &mut guest, 1000);
    // One with a thread of its own, and one on that of the first.
    for (groups, round) in [&["two"][..], &["one"]].into_iter().cycle().zip(0..10) {
        backend.add(&Vm::new("comes", 4).groups(groups));
        assert!(sockets(&backend, "comes"));
        let mut second = backend.guest("comes");
        let (other, mut program) = backend.open("comes", &mut second, 1000 + round);
        second.ping(other, &mut program);
        guest.ping(conn, &mut stream);
        let both = ["stays", "comes"].map(|name| (name.to_owned(), VmState::Running));
        assert_eq!(names(&backend), both);
        backend.server.remove("comes").expect("removed");
        // All of it is gone when that returns.
        assert!(!sockets(&backend, "comes"));
        assert_eq!(program.read(&mut [0]).expect("the end"), 0, "its program sees the end");
        guest.ping(conn, &mut stream);
    }
    let stats = backend.stats("stays");
    assert_eq!((stats.connections, stats.totals.connections_opened, stats.totals.resets), (1, 1, 0));
}

#[test]
fn a_vm_that_joins_reaches_its_siblings_and_they_see_it_go() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("c", 5)]);
    let (mut a, mut c) = (backend.guest("a"), backend.guest("c"));
    let between = connect(&mut a, &mut c, 70).expect("siblings from the start");
    for round in 0..3 {
        backend.add(&Vm::new("b", 4));
        let mut b = backend.guest("b");
        let to = connect(&mut a, &mut b, 80).expect("a reaches b");
        exchange(&mut a, &mut b, to, [&pattern(100_000, round), &[]]);
        let from = connect(&mut b, &mut a, 90).expect("b reaches a");
        exchange(&mut b, &mut a, from, [&pattern(1000, round), &[]]);
        backend.server.remove("b").expect("removed");
        for conn in [to.0, from.1] {
            a.until("the reset", |stack| stack.state(conn) != ConnState::Established);
        }
        assert_eq!(
            a.stack.connect(4, 80, SocketType::Stream).map(|conn| a.ended(conn)).ok(),
            Some(ConnState::Refused)
        );
        // Its place is another one's now.
        backend.add(&Vm::new("d", 6));
        let mut d = backend.guest("d");
        let to = connect(&mut c, &mut d, 80).expect("c reaches d");
        exchange(&mut c, &mut d, to, [&pattern(5000, round), &[]]);
        backend.server.remove("d").expect("removed");
        exchange(&mut a, &mut c, between, [&pattern(10_000, round), &[]]);
    }
    assert_eq!(backend.stats("c").totals.ring_errors, 0);
}

#[test]
fn what_waits_for_a_program_goes_with_its_vm() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    let (conn, mut stream) = backend.open("a", &mut a, 1000);
    // More than the socket takes: the rest is held until its program reads.
    let bytes = pattern(10 << 20, 1);
    let sent = (0..1000).fold(0, |sent, _| sent + a.stack.send(conn, &bytes[sent..]).expect("open"));
    drop(a);
    backend.server.remove("a").expect("removed");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("the end");
    assert!(got.len() <= sent && bytes.starts_with(&got), "{} of {sent} bytes", got.len());
    let (conn, mut stream) = backend.open("b", &mut b, 1000);
    b.ping(conn, &mut stream);
}

#[test]
fn a_vm_that_would_connect_two_threads_is_refused_with_the_way_out() {
    let backend = VsockBackend::empty();
    for vm in [Vm::new("x", 3).groups(&["x"]), Vm::new("y", 4).groups(&["y"]), Vm::new("z", 5).groups(&["y"])]
    {
        backend.add(&vm);
    }
    let both = Vm::new("both", 6).groups(&["x", "y"]);
    let refused = backend.server.add(backend.config(&both)).expect_err("two threads").to_string();
    let words = "connect VMs x with y, z, and threads that run can't become one: remove y, z, add both, and add y, z again";
    assert!(refused.contains(words), "{refused}");
    assert!(!sockets(&backend, "both") && names(&backend).len() == 3);
    // As it says.
    for vm in ["y", "z"] {
        backend.server.remove(vm).expect("removed");
    }
    backend.add(&both);
    backend.add(&Vm::new("y", 4).groups(&["y"]));
    let [mut x, mut y, mut middle] = ["x", "y", "both"].map(|vm| backend.guest(vm));
    assert!(connect(&mut middle, &mut x, 80).is_some() && connect(&mut middle, &mut y, 80).is_some());
    assert!(connect(&mut x, &mut y, 81).is_none(), "strangers on one thread");
    // From the start they are put together in any order.
    let all = [Vm::new("x", 3).groups(&["x"]), Vm::new("y", 4).groups(&["y"]), both];
    drop(VsockBackend::start(&all));
}

#[test]
fn a_vm_that_cannot_be_added_leaves_nothing_behind() {
    let backend = VsockBackend::start(&[Vm::new("first", 3)]);
    let other = backend.config(&Vm::new("other", 4));
    let first = backend.config(&Vm::new("first", 3));
    let file = backend.uds("file");
    std::fs::write(&file, "precious").expect("a file");
    let cases = [
        (other.clone().name("first".into()), "two VMs are named 'first'"),
        (other.clone().name("a\n".into()), "control characters"),
        (other.clone().cid(3), "both have CID 3"),
        (other.clone().cid(2), "is the host's"),
        (other.clone().endpoint(first.endpoint.clone()), "is taken by"),
        (other.clone().uds(first.uds.clone()), "is taken by"),
        (other.clone().uds(backend.port_path("first", 80)), "guest to port 80 arrive"),
        (other.clone().uds(file.clone()), "is not a socket"),
        (other.clone().endpoint(Endpoint::Path(file.clone())), "is not a socket"),
        (other.clone().endpoint(Endpoint::Fd(3)), "only be handed over at the start"),
        (other.clone().groups(vec![String::new()]), "--groups"),
    ];
    for (config, words) in cases {
        let said = backend.server.add(config).expect_err(words).to_string();
        assert!(said.contains(words), "{said}");
        assert_eq!(names(&backend).len(), 1, "{words}");
        assert!(!sockets(&backend, "other"), "{words}");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
    backend.server.add(other).expect("nothing of it is taken");
    assert!(
        matches!(backend.server.remove("nobody"), Err(VsockChangeError::Unknown(name)) if name == "nobody")
    );
    assert!(matches!(backend.server.drain("nobody"), Err(VsockChangeError::Unknown(_))));
}

#[test]
fn a_drained_vm_keeps_its_front_end_and_takes_no_other() {
    let backend = VsockBackend::start(&[Vm::new("drains", 3), Vm::new("idle", 4)]);
    let mut guest = backend.guest("drains");
    let (conn, mut stream) = backend.open("drains", &mut guest, 1000);
    backend.server.drain("drains").expect("drained");
    wait_until("front ends are refused", || UnixStream::connect(backend.vhost_path("drains")).is_err());
    guest.ping(conn, &mut stream);
    assert_eq!(names(&backend)[0], ("drains".to_owned(), VmState::Draining));
    assert!(backend.server.add(backend.config(&Vm::new("drains", 5))).is_err(), "its name is taken");
    drop(guest);
    wait_until("it is gone with its front end", || names(&backend).len() == 1);
    assert!(!sockets(&backend, "drains"));
    // Without a front end it goes at once.
    backend.server.drain("idle").expect("drained");
    wait_until("it is gone", || names(&backend).is_empty());
    // A VM that is drained can be removed all the same.
    backend.add(&Vm::new("drains", 3));
    let _guest = backend.guest("drains");
    backend.server.drain("drains").expect("drained");
    backend.server.remove("drains").expect("removed");
    assert!(names(&backend).is_empty() && !sockets(&backend, "drains"));
}

/// No guest reaches a socket of a VM that came later, by whatever name; nor that of a VM which has
/// left and whose name a program has taken.
#[test]
fn sockets_of_added_vms_are_not_host_programs() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).groups(&["one"])]);
    let mut guest = backend.guest("vm");
    backend.add(&Vm::new("other", 4).groups(&["two"]));
    for (port, path) in (1..).zip([backend.uds("other"), backend.vhost_path("other")]) {
        symlink(path, backend.port_path("vm", port)).expect("a link");
        let conn = guest.stack.connect(HOST_CID, port, SocketType::Stream).expect("asked");
        assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"), "port {port}");
    }
    let other = backend.stats("other");
    assert_eq!((other.connections, other.totals.bad_handshakes), (0, 0), "nothing arrived there");
    backend.server.remove("other").expect("removed");
    let listener = std::os::unix::net::UnixListener::bind(backend.uds("other")).expect("free");
    let conn = guest.connect(1);
    guest.ping(conn, &mut listener.accept().expect("the guest's connection").0);
}

#[test]
fn limits_change_while_the_guest_runs() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3)]);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1000);
    guest.ping(conn, &mut stream);
    assert_eq!(backend.stats("vm").totals.limits.transmit_limit_waits, 0);
    let transmit = Some("2M/s,burst=10k".parse().expect("a limit"));
    let rates = zerowire_vsock::Limits { transmit, receive: None };
    backend.server.set_rates("vm", rates).expect("set");
    assert_eq!(backend.server.vms()[0].config.rates, rates);
    let bytes = pattern(300_000, 1);
    let send = |guest: &mut Guest, stream: &mut UnixStream| {
        let got = guest.both(
            |g| g.send(conn, &bytes),
            || {
                let mut got = vec![0; bytes.len()];
                stream.read_exact(&mut got).expect("all of it");
                got
            },
        );
        assert!(got.1 == bytes);
        backend.stats("vm").totals.limits.transmit_limit_waits
    };
    assert!(send(&mut guest, &mut stream) > 0, "it waits at once");
    let fleet: &dyn zerowire_vsock::VsockFleet = &backend.server;
    let limited = backend.server.vms().remove(0).config;
    let unlimited = limited.clone().rates(zerowire_vsock::Limits::default());
    fleet.replace(&limited, unlimited, &zerowire_vhost::serve::ChangeTurn::default()).expect("taken away");
    let before = send(&mut guest, &mut stream);
    assert_eq!(send(&mut guest, &mut stream), before, "it waits no more");
}

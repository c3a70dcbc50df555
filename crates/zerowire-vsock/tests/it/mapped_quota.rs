//! How many mapped connections a VM may have, and how many bytes of windows. Further ones are
//! refused with the bound and the remedy, and what ends gives its part back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::harness::{one_guest_with, received};
use crate::support::vsock::{Guest, Vm, VsockBackend};
use crate::support::{PATIENCE, wait_until};
use zerowire::recv::vsock::{self, Error, MappedConnection, MappedListener, MappedOptions};
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SocketType};
use zerowire_testkit::own_process;
use zerowire_vsock::VsockLimits;
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::packet::{Header, Kind, Op};
use zerowire_vsock::testing::{Answer, Flow, Program};
use zerowire_wire::mapped::{MapOp, MapOptions, MapRequest};

const PORT: u32 = 9;

fn map_path(backend: &VsockBackend, vm: &str) -> PathBuf {
    let mut path = backend.uds(vm).into_os_string();
    path.push(".map");
    path.into()
}

/// "vm" with these bounds, and "other" with none of its own.
fn start(max_connections: usize, max_total_bytes: u64) -> (VsockBackend, Guest, Guest) {
    let map = MapPolicy::default().max_connections(Some(max_connections)).max_total_bytes(max_total_bytes);
    let backend = VsockBackend::start(&[Vm { map, ..Vm::new("vm", 3) }, Vm::new("other", 4)]);
    let mut guests = ["vm", "other"].map(|name| backend.guest(name));
    guests.iter_mut().for_each(|guest| guest.stack.listen(PORT, SocketType::Stream));
    let [guest, other] = guests;
    (backend, guest, other)
}

/// A program connects to the guest, which accepts.
fn connect(path: &Path, guest: &mut Guest, options: MappedOptions) -> (ConnId, MappedConnection) {
    let (conn, program) = guest.both(|g| g.accept(PORT), || vsock::connect(path, PORT, &options));
    (conn, program.unwrap_or_else(|e| panic!("{e}")))
}

/// A program connects and is refused with these words.
fn refused(path: &Path, guest: &mut Guest, options: MappedOptions, words: &[&str]) {
    let e = guest.with_host(|| vsock::connect(path, PORT, &options)).map(drop).expect_err("a refusal");
    assert!(matches!(&e, Error::Status { errno: libc::EDQUOT, .. }), "{e:?}");
    for word in words {
        assert!(e.to_string().contains(word), "no '{word}' in {e}");
    }
}

/// Mapped connections, windows, their bytes, and how many were refused.
fn mapped(backend: &VsockBackend) -> (u64, u64, u64, u64) {
    let t = backend.stats("vm").totals;
    (t.mapped.mapped_connections, t.mapped.mapped_windows, t.mapped.mapped_bytes, t.mapped.mapped_refused)
}

#[test]
fn programs_get_as_many_connections_as_the_vm_has_and_no_more() {
    let (backend, mut guest, mut other) = start(3, 1 << 30);
    let path = map_path(&backend, "vm");
    let options = MappedOptions::stream();
    let each = options.map_options().total_len();
    let mut open: Vec<_> = (0..3).map(|_| connect(&path, &mut guest, options)).collect();
    assert_eq!(mapped(&backend), (3, 12, 3 * each, 0));
    for n in 1..=4 {
        refused(
            &path,
            &mut guest,
            options,
            &["3 of 3 mapped connections", "--map-connections", "give it more"],
        );
        assert_eq!(mapped(&backend), (3, 12, 3 * each, n));
    }
    // Everything else goes on: the VM's other connections, and another VM's mapped ones.
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut stream);
    let others = map_path(&backend, "other");
    let _others: Vec<_> = (0..4).map(|_| connect(&others, &mut other, options)).collect();

    // The program leaves, or the guest does: either way another one has the place.
    drop(open.pop());
    wait_until("its place is free", || mapped(&backend).0 == 2);
    let (conn, ended) = connect(&path, &mut guest, options);
    refused(&path, &mut guest, options, &["3 of 3"]);
    guest.stack.abort(conn).expect("a connection");
    guest.until("the other place is free", |_| mapped(&backend).0 == 2);
    open.push(connect(&path, &mut guest, options));
    drop((open, ended));
    wait_until("all is given back", || mapped(&backend) == (0, 0, 0, 5));
}

#[test]
fn windows_of_all_connections_are_bounded_in_bytes() {
    let small = MappedOptions::stream().windows(2).data_pages(1);
    let (large_bytes, small_bytes) =
        (MappedOptions::stream().map_options().total_len(), small.map_options().total_len());
    let most = 2 * large_bytes + small_bytes;
    let (backend, mut guest, _other) = start(100, most);
    let path = map_path(&backend, "vm");
    let first = connect(&path, &mut guest, MappedOptions::stream());
    let _second = connect(&path, &mut guest, MappedOptions::stream());
    let (need, has, all) = (large_bytes.to_string(), (2 * large_bytes).to_string(), most.to_string());
    refused(
        &path,
        &mut guest,
        MappedOptions::stream(),
        &[&need, &has, &all, "--map-total", "smaller windows"],
    );
    let _third = connect(&path, &mut guest, small);
    assert_eq!(mapped(&backend), (3, 10, most, 1));
    refused(&path, &mut guest, small, &["--map-total"]);
    drop(first);
    wait_until("its bytes are free", || mapped(&backend).2 == most - large_bytes);
    let _again = connect(&path, &mut guest, MappedOptions::stream());

    // What could never be had is said at once, also to a program that listens.
    let huge = MappedOptions::stream().windows(16);
    for refusal in [
        vsock::connect(&path, PORT, &huge).map(drop).expect_err("too much"),
        MappedListener::bind(&path, PORT, &huge).map(drop).expect_err("too much"),
    ] {
        assert!(matches!(refusal, Error::InvalidOptions { .. }), "{refusal:?}");
        assert!(refusal.to_string().contains(&format!("{most} of --map-total")), "{refusal}");
    }
}

/// The guest is refused as where nobody listens, and the program that listens serves on.
#[test]
fn a_guest_makes_as_many_mapped_connections_as_its_vm_has() {
    let (backend, mut guest, _other) = start(2, 1 << 30);
    let path = map_path(&backend, "vm");
    let listener =
        MappedListener::bind(&path, PORT, &MappedOptions::stream()).unwrap_or_else(|e| panic!("{e}"));
    let accept = || listener.accept_within(Some(PATIENCE)).expect("it listens").expect("a connection");
    let mut open: Vec<_> = (0..2).map(|_| (guest.connect(PORT), accept())).collect();
    for _ in 0..20 {
        let conn = guest.stack.connect(HOST_CID, PORT, SocketType::Stream).expect("asked");
        assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"));
        assert_eq!(guest.stack.state(conn), ConnState::Refused);
    }
    let t = backend.stats("vm").totals;
    assert_eq!(
        (t.mapped.mapped_connections, t.mapped.mapped_refused, t.connections_refused, t.resets),
        (2, 20, 20, 0)
    );
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut stream);
    let (conn, program) = open.pop().expect("a connection");
    drop(program);
    guest.ended(conn);
    wait_until("its place is free", || mapped(&backend).0 == 1);
    open.push((guest.connect(PORT), accept()));
    assert_eq!(mapped(&backend).0, 2);
}

/// A program that asks takes a place while its guest does not answer, and for no longer.
#[test]
fn connections_that_a_guest_does_not_answer_have_their_place_until_then() {
    own_process!();
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let map = MapPolicy::default().max_connections(Some(2));
    let (mut harness, mut guest) = one_guest_with(dir.path(), VsockLimits::default(), &map);
    let options = MapOptions::default().windows(2).data_pages(1);
    let request = MapRequest { op: MapOp::Connect, port: PORT, kind: 1, options };
    let mut ask = || {
        let program = Program::ask(&dir.path().join("3.map"), &request).expect("the device listens");
        harness.rest();
        program
    };
    let [first, second, third] = [ask(), ask(), ask()];
    let status = |program: &Program| match program.take() {
        Answer::Reply(reply) => Some(i32::from(reply.status)),
        _ => None,
    };
    assert_eq!([&first, &second, &third].map(status), [None, None, Some(libc::EDQUOT)]);
    harness.pass(Duration::from_secs(10));
    harness.rest();
    assert_eq!([&first, &second].map(status), [Some(libc::ETIMEDOUT); 2]);
    assert_eq!(harness.totals(0).mapped.mapped_connections, 0);

    // One that the guest takes keeps it.
    received(&mut guest);
    let program = Program::ask(&dir.path().join("3.map"), &request).expect("the device listens");
    harness.rest();
    let mut offered = received(&mut guest).into_iter().map(|(h, _): (Header, _)| h);
    let offer = offered.rfind(|h| h.op == Op::Request as u16).expect("an offer");
    let flow = Flow::new(3, offer.dst_port, offer.src_port, Kind::Stream);
    assert!(flow.control(&mut guest, Op::Response, 0));
    harness.rest();
    let Answer::Mapped(program) = program.take() else { panic!("no connection") };
    assert_eq!(harness.totals(0).mapped.mapped_connections, 1);
    drop(program);
    harness.rest();
    assert_eq!(harness.totals(0).mapped.mapped_connections, 0);
}

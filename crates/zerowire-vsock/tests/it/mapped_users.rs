//! Who may map receive buffers: root, the back end's own user, and those who were named. Needs
//! root.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::vsock::{Vm, VsockBackend, accept};
use zerowire::recv::vsock::{self, MappedListener, MappedOptions};
use zerowire_guest::vsock::SocketType;
use zerowire_testkit::own_process;
use zerowire_vsock::mapped::{MapListen, MapPolicy};

const PORT: u32 = 9;
/// nobody, and another user who has no more rights.
const USERS: [libc::uid_t; 2] = [65534, 65533];

/// Runs `program` in a thread of the user `uid`. A system call that the C library doesn't make
/// changes one thread only.
fn by_user<T: Send>(uid: libc::uid_t, program: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the call takes numbers only.
            let failed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(failed, 0, "this test becomes another user: run it as root");
            program()
        });
        thread.join().expect("the user's thread")
    })
}

/// The control socket of the only VM, where anybody may connect as far as the file system is
/// concerned.
fn open_to_all(backend: &VsockBackend) -> PathBuf {
    let mut path = backend.uds("vm").into_os_string();
    path.push(".map");
    let path = PathBuf::from(path);
    let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    allow(path.parent().expect("a folder"), 0o755).expect("the folder is this test's");
    allow(&path, 0o666).expect("the socket is this test's");
    path
}

#[test]
fn a_user_who_was_not_named_is_refused_and_told_the_remedy() {
    own_process!();
    let backend = VsockBackend::one();
    let path = open_to_all(&backend);
    for (count, uid) in (1..).zip(USERS) {
        let refused = by_user(uid, || vsock::connect(&path, PORT, &MappedOptions::default()));
        let text = refused.map(drop).expect_err("this user was not named").to_string();
        assert!(text.contains(&format!("user {uid} may not")), "{text}");
        assert!(text.contains(&format!("--map-allow {uid}")), "{text}");
        let totals = backend.stats("vm").totals;
        assert_eq!((totals.bad_handshakes, totals.receive.frames), (count, 0));
    }
}

#[test]
fn a_user_who_was_named_is_served_and_no_other_one() {
    own_process!();
    let [named, other] = USERS;
    let vm = Vm { map: MapPolicy::default().allow(vec![named]), ..Vm::new("vm", 3) };
    let backend = VsockBackend::start(&[vm]);
    let path = open_to_all(&backend);
    let refused = by_user(other, || vsock::connect(&path, PORT, &MappedOptions::default()));
    assert!(refused.is_err(), "user {other} was not named");
    let mut guest = backend.guest("vm");
    guest.stack.listen(PORT, SocketType::Stream);
    for uid in [named, 0] {
        let connect = || by_user(uid, || vsock::connect(&path, PORT, &MappedOptions::default()));
        let (conn, program) = guest.both(|g| g.accept(PORT), connect);
        let program = program.unwrap_or_else(|e| panic!("user {uid}: {e}"));
        guest.send(conn, b"for those who may");
        guest.stack.flush(crate::support::PATIENCE).expect("sent");
        let window = loop {
            match program.dequeue().unwrap_or_else(|e| panic!("{e}")) {
                vsock::Dequeued::Window(window) => break window,
                vsock::Dequeued::NotYet => {
                    assert!(program.wait(Some(crate::support::PATIENCE)).expect("it waits"))
                }
                vsock::Dequeued::End => panic!("the end"),
            }
        };
        let mut got = [0; 17];
        let packet = window.packets().next().expect("a packet");
        assert_eq!((packet.copy_to(0, &mut got), &got), (17, b"for those who may"));
    }
    assert_eq!(backend.stats("vm").totals.bad_handshakes, 1);
}

/// Connecting to the guest and taking ports of the host are two permissions, the second one by
/// port.
#[test]
fn who_may_connect_may_not_listen_and_the_other_way_round() {
    own_process!();
    let [connects, listens] = USERS;
    let map = MapPolicy::default()
        .allow(vec![connects])
        .listen(vec![MapListen { user: listens, ports: vec![PORT..=PORT, 20..=29] }]);
    let backend = VsockBackend::start(&[Vm { map, ..Vm::new("vm", 3) }]);
    let path = open_to_all(&backend);
    let listen =
        |uid, port| by_user(uid, || MappedListener::bind(&path, port, &MappedOptions::default()).map(drop));
    let text =
        |r: Result<(), _>| r.map_err(|e: zerowire::recv::vsock::Error| e.to_string()).expect_err("refused");
    let e = text(listen(connects, PORT));
    assert!(e.contains(&format!("user {connects} may not listen on port {PORT}")), "{e}");
    assert!(e.contains(&format!("--map-listen {connects}:{PORT}")), "{e}");
    for port in [PORT - 1, 19, 30] {
        let e = text(listen(listens, port));
        assert!(e.contains(&format!("--map-listen {listens}:{port}")), "{e}");
    }
    for (uid, port) in [(listens, 20), (listens, 29), (0, 1)] {
        listen(uid, port).unwrap_or_else(|e| panic!("user {uid} at port {port}: {e}"));
    }
    let e = text(by_user(listens, || vsock::connect(&path, PORT, &MappedOptions::default()).map(drop)));
    assert!(e.contains("may not connect") && e.contains(&format!("--map-allow {listens}")), "{e}");

    let mut guest = backend.guest("vm");
    let listener = by_user(listens, || MappedListener::bind(&path, PORT, &MappedOptions::default()));
    let listener = listener.unwrap_or_else(|e| panic!("{e}"));
    guest.connect(PORT);
    let accepted = listener.accept_within(Some(crate::support::PATIENCE)).unwrap_or_else(|e| panic!("{e}"));
    assert!(accepted.is_some(), "the port is this user's");
}

/// A program at `UDS_PORT` keeps its port, whoever asks for it at `UDS.map`, before or after.
#[test]
fn a_program_that_listens_keeps_its_port() {
    own_process!();
    let backend = VsockBackend::one();
    let mut map = backend.uds("vm").into_os_string();
    map.push(".map");
    let map = PathBuf::from(map);
    let mut guest = backend.guest("vm");
    let early = MappedListener::bind(&map, PORT, &MappedOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let plain = backend.listen("vm", PORT);
    let conn = guest.connect(PORT);
    let mut stream = accept(&plain);
    guest.ping(conn, &mut stream);
    assert!(
        early.try_accept().expect("it listens").is_none(),
        "the connection went to the program that maps"
    );

    // Its backlog is full: the connection waits for it, and goes to nobody else.
    rustix::net::listen(&plain, 0).expect("a short backlog");
    let asked: Vec<_> = (0..3)
        .map(|_| {
            guest.stack.connect(zerowire_guest::vsock::HOST_CID, PORT, SocketType::Stream).expect("asked")
        })
        .collect();
    for _ in &asked {
        guest.with_host(|| accept(&plain));
    }
    for conn in asked {
        assert!(guest.stack.wait_connected(conn, crate::support::PATIENCE).expect("answered"));
    }
    assert!(early.try_accept().expect("it listens").is_none(), "a full backlog is not nobody");

    // Once it is gone, and its socket left behind, the port is the other one's.
    drop(plain);
    guest.connect(PORT);
    let accepted = early.accept_within(Some(crate::support::PATIENCE)).unwrap_or_else(|e| panic!("{e}"));
    assert!(accepted.is_some());
}

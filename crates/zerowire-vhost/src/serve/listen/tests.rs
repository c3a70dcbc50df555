use std::any::Any;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;

use zerowire_testkit::PATIENCE;
use zerowire_testkit::linger::send_lingering;

use super::super::control_socket::ControlSocket;
use super::*;

const OWN: SocketAccess = SocketAccess { owner: None, group: None, mode: None };
const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

fn client(path: &Path, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

#[test]
fn both_kinds_listen_and_do_not_block() {
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let path = dir.path().join(format!("{kind:?}"));
        let listener = bind_unix(&path, kind, &OWN).unwrap();
        assert_eq!(rustix::net::accept(&listener.socket).unwrap_err(), Errno::AGAIN);
        let _client = client(&path, kind).unwrap();
        rustix::net::accept(&listener.socket).unwrap();
        assert!(rustix::io::fcntl_getfd(&listener.socket).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_of_any_kind_is_refused() {
    // A child that another test starts has the sockets until it calls execve(2).
    zerowire_testkit::own_process!();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for (first, second) in KINDS.into_iter().flat_map(|a| KINDS.map(|b| (a, b))) {
        let listener = bind_unix(&path, first, &OWN).unwrap();
        assert!(matches!(bind_unix(&path, second, &OWN), Err(ListenError::InUse(p)) if p == path));
        // Its file stays behind.
        drop(listener.socket);
        let next = bind_unix(&path, second, &OWN).unwrap();
        drop(listener.file);
        let _client = client(&path, second).unwrap();
        drop(next);
        assert!(!path.exists());
    }
}

/// Another thread ends those that wait.
fn is_ended(waiting: &UnixStream) {
    zerowire_testkit::wait_until("who waits is ended", || {
        rustix::net::send(waiting, &[0], rustix::net::SendFlags::NOSIGNAL) == Err(Errno::PIPE)
    });
}

#[test]
fn a_listener_that_is_shut_refuses_and_listens_again_as_it_was() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut listener = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(123), Some(456)).unwrap();
    let waiting = UnixStream::connect(&path).unwrap();
    listener.shut().unwrap();
    assert!(listener.is_lasting() && listener.poll_fd().is_none());
    assert!(listener.accept().unwrap().is_none());
    is_ended(&waiting);
    assert_eq!(client(&path, SocketType::STREAM).unwrap_err(), Errno::CONNREFUSED);
    listener.reopen().unwrap();
    let _client = client(&path, SocketType::STREAM).unwrap();
    assert!(listener.accept().unwrap().is_some());
    let now = std::fs::metadata(&path).unwrap();
    assert_eq!((now.mode() & 0o7777, now.uid(), now.gid()), (0o640, 123, 456));

    listener.shut().unwrap();
    let _taken = {
        std::fs::remove_file(&path).unwrap();
        bind_unix(&path, SocketType::STREAM, &OWN).unwrap()
    };
    assert!(matches!(listener.reopen(), Err(ListenError::InUse(_))));
}

/// The process that has opened a socket, and the number of answers that it does not give first.
#[derive(Debug)]
struct SlowKeeper(Mutex<(Listener, u32)>);

impl SlowKeeper {
    fn asked(&self, verb: impl FnOnce(&mut Listener) -> Result<(), ListenError>) -> Result<(), String> {
        let (listener, unanswered) = &mut *self.0.lock().unwrap();
        verb(listener).unwrap();
        let left = unanswered.checked_sub(1);
        *unanswered = left.unwrap_or_default();
        left.map_or(Ok(()), |_| Err("no answer".to_owned()))
    }
}

impl SocketKeeper for SlowKeeper {
    fn refuse(&self) -> Result<(), String> {
        self.asked(Listener::shut)
    }

    fn listen(&self) -> Result<OwnedFd, String> {
        self.asked(Listener::reopen)?;
        let (listener, _) = &*self.0.lock().unwrap();
        Ok(listener.socket().unwrap().try_clone_to_owned().unwrap())
    }
}

#[test]
fn a_socket_that_another_process_keeps_is_shut_and_opened_by_it_though_answers_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let own = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
    let socket = own.socket().unwrap().try_clone_to_owned().unwrap();
    let keeper = Arc::new(SlowKeeper(Mutex::new((own, 1))));
    let mut listener = Listener::kept(socket, keeper.clone()).unwrap();
    let waiting = UnixStream::connect(&path).unwrap();
    assert!(matches!(listener.shut(), Err(ListenError::Keeper(_))));
    assert!(listener.accept().unwrap().is_none(), "none is accepted meanwhile");
    listener.shut().unwrap();
    is_ended(&waiting);
    assert_eq!(client(&path, SocketType::STREAM).unwrap_err(), Errno::CONNREFUSED);

    keeper.0.lock().unwrap().1 = 1;
    assert!(matches!(listener.reopen(), Err(ListenError::Keeper(_))));
    // It listens by now.
    listener.shut().unwrap();
    assert_eq!(client(&path, SocketType::STREAM).unwrap_err(), Errno::CONNREFUSED);
    listener.reopen().unwrap();
    let _client = client(&path, SocketType::STREAM).unwrap();
    assert!(listener.accept().unwrap().is_some());
}

/// A front end that waits to be accepted has sent a descriptor that takes an hour to close.
#[test]
fn front_ends_that_wait_hold_up_nobody_who_closes_a_listener() {
    let dir = tempfile::tempdir().unwrap();
    let ends: [fn(&mut Listener); 2] = [|listener| listener.shut().unwrap(), |_| ()];
    for (i, end) in ends.into_iter().enumerate() {
        let path = dir.path().join(i.to_string());
        let mut listener = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        let peer = send_lingering(&waiting, b"x").unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            end(&mut listener);
            drop(listener);
            done.send(()).unwrap();
        });
        ended.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{i}: {e}"));
        assert!(!path.exists());
        drop(peer);
    }
}

#[test]
fn a_socket_that_is_shut_refuses_whoever_else_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut listener = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
    let _other = listener.socket().unwrap().try_clone_to_owned().unwrap();
    listener.shut().unwrap();
    assert_eq!(client(&path, SocketType::STREAM).unwrap_err(), Errno::CONNREFUSED);
    listener.reopen().unwrap();
    let _client = client(&path, SocketType::STREAM).unwrap();
}

#[test]
fn what_took_the_place_of_a_socket_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = || Box::new(Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap()) as Box<dyn Any>;
    let shut = || {
        let mut listener = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
        listener.shut().unwrap();
        Box::new(listener) as Box<dyn Any>
    };
    let control = || Box::new(ControlSocket::bind(&path, &OWN).unwrap()) as Box<dyn Any>;
    for make in [&listener as &dyn Fn() -> Box<dyn Any>, &shut, &control] {
        drop(make());
        assert!(!path.exists(), "its own file goes");
        for other in KINDS {
            let made = make();
            std::fs::remove_file(&path).unwrap();
            let bound = bind_unix(&path, other, &OWN).unwrap();
            drop(made);
            let _client = client(&path, other).unwrap();
            drop(bound);
        }
        let made = make();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        drop(made);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        std::fs::remove_file(&path).unwrap();
        drop(make());
    }
}

/// As the sockets of a VM whose child has a copy.
#[test]
fn a_listener_that_refuses_does_so_for_all_copies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut listener = Listener::new(&Endpoint::Path(path.clone()), &OWN).unwrap();
    let mut copy = Listener::of(listener.socket().unwrap().try_clone_to_owned().unwrap()).unwrap();
    let connect = || UnixStream::connect(&path);
    let (_first, mut waits) = (connect().unwrap(), connect().unwrap());
    assert!(copy.accept().unwrap().is_some());
    copy.refuse();
    let _third = connect().expect("the socket is not the copy's to shut");
    listener.refuse();
    assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(waits.read(&mut [0]).ok(), Some(0), "it ends");
    assert!(copy.accept().unwrap().is_none() && copy.poll_fd().is_none(), "nothing is waited for");
    // The next child's.
    let mut next = Listener::of(listener.socket().unwrap().try_clone_to_owned().unwrap()).unwrap();
    assert!(next.is_lasting() && next.accept().unwrap().is_none());
}

#[test]
fn a_socket_that_its_maker_has_block_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let maker = UnixListener::bind(dir.path().join("s")).unwrap();
    let mut listener = Listener::of(maker.try_clone().unwrap().into()).unwrap();
    maker.set_nonblocking(false).unwrap();
    let (accepts, accepted) = std::sync::mpsc::channel();
    std::thread::spawn(move || accepts.send(listener.accept().map(|front_end| front_end.is_none())));
    assert!(accepted.recv_timeout(PATIENCE).expect("it does not wait").unwrap());
}

#[test]
fn other_files_and_paths_of_no_socket_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(bind_unix(&file, SocketType::STREAM, &OWN), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");

    let datagram = dir.path().join("datagram");
    let _alive = UnixDatagram::bind(&datagram).unwrap();
    assert!(matches!(bind_unix(&datagram, SocketType::STREAM, &OWN), Err(ListenError::InUse(_))));

    let long = dir.path().join("x".repeat(108));
    assert!(matches!(bind_unix(&long, SocketType::SEQPACKET, &OWN), Err(ListenError::TooLong(_))));
    assert!(matches!(bind_unix(Path::new(""), SocketType::STREAM, &OWN), Err(ListenError::Empty)));
    let missing = dir.path().join("missing/s");
    assert!(matches!(bind_unix(&missing, SocketType::STREAM, &OWN), Err(ListenError::Bind { .. })));
}

/// Also one that nobody listens on any more.
#[test]
fn a_socket_that_may_not_be_tried_is_not_said_to_be_in_use() {
    zerowire_testkit::own_process!();
    let dir = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    zerowire_testkit::process::become_ordinary(60_000, 0);
    let said = bind_unix(&path, SocketType::STREAM, &OWN).unwrap_err();
    assert!(matches!(&said, ListenError::Untold { path: at, .. } if *at == path), "{said}");
    assert!(said.to_string().contains("Permission denied"), "{said}");
}

#[test]
fn a_socket_that_this_program_opened_is_taken_once_where_it_was_given_up() {
    let (socket, mut far) = UnixStream::pair().unwrap();
    let endpoint = Endpoint::of(socket);
    let Endpoint::Fd(fd) = endpoint else { panic!("{endpoint}") };
    let listener = Listener::new(&endpoint, &OWN).unwrap();
    let said = Listener::new(&endpoint, &OWN).unwrap_err().to_string();
    assert!(said.contains(&format!("descriptor {fd} was not handed over, or it is taken already")), "{said}");
    drop(listener);
    assert_eq!(std::io::Read::read(&mut far, &mut [0]).unwrap(), 0, "the listener owned it");

    let (socket, _far) = UnixStream::pair().unwrap();
    let fd = socket.into_raw_fd();
    let said = Listener::inherit(fd).unwrap_err().to_string();
    assert!(said.contains(&format!("descriptor {fd} ")) && said.contains("Endpoint::of"), "{said}");
}

#[test]
fn standard_descriptors_are_refused() {
    for fd in 0..=2 {
        let said = Listener::inherit(fd).unwrap_err().to_string();
        assert!(said.contains(&format!("descriptor {fd} ")) && said.contains(&format!("3<&{fd}")), "{said}");
    }
}

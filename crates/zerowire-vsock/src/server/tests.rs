//! A VM that comes as soon as the one of its name has gone, one that comes drained, and those that
//! their thread does not let go of.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use zerowire_testkit::linger::lingering;
use zerowire_testkit::wait_until;
use zerowire_vhost::serve::{Endpoint, VmState};

use super::*;
use crate::HostQuestion;

fn vm(dir: &Path, cid: u64) -> VsockConfig {
    named("held", dir, cid)
}

fn named(name: &str, dir: &Path, cid: u64) -> VsockConfig {
    VsockConfig::new(
        name,
        Endpoint::Path(dir.join(format!("{cid}.socket"))),
        cid,
        dir.join(format!("{cid}.uds")),
    )
    .groups(vec!["one".to_owned()])
}

/// A server with one VM, whose removal has given up.
fn held_up(dir: &Path) -> VsockServer {
    let server = VsockServer::start(vec![vm(dir, 3)]).expect("a server");
    assert!(matches!(
        server.parts.roster.hold_up::<VsockServerError>("held"),
        Err(serve::ChangeError::Stuck(_))
    ));
    server
}

fn cids(server: &VsockServer) -> Vec<(u64, VmState)> {
    server.vms().iter().map(|vm| (vm.config.cid, vm.state)).collect()
}

#[test]
fn a_vm_that_is_added_later_comes_when_the_one_before_has_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = held_up(dir.path());
    assert!(server.add(vm(dir.path(), 4)).is_err(), "the name is taken");
    server.add_later(vm(dir.path(), 4)).expect("it comes later");
    assert_eq!(cids(&server), [(3, VmState::Leaving)]);
    server.parts.roster.let_go("held");
    wait_until("the next one runs", || cids(&server) == [(4, VmState::Running)]);
    assert!(dir.path().join("4.socket").exists() && dir.path().join("4.uds").exists());
    assert!(!dir.path().join("3.socket").exists() && !dir.path().join("3.uds").exists());
    server.remove("held").expect("it goes");
    assert_eq!(cids(&server), []);
}

#[test]
fn a_vm_that_can_not_be_added_later_leaves_the_one_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = held_up(dir.path());
    std::fs::write(dir.path().join("4.socket"), "precious").expect("a file");
    server.add_later(vm(dir.path(), 4)).expect("it comes later");
    server.parts.roster.let_go("held");
    wait_until("the one before runs", || cids(&server) == [(3, VmState::Running)]);
    assert!(dir.path().join("3.socket").exists() && dir.path().join("3.uds").exists());
}

#[test]
fn a_vm_that_is_added_later_comes_at_once_where_none_has_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = VsockServer::empty_captured(None, OwnSockets::default());
    server.add_later(vm(dir.path(), 3)).expect("a VM");
    assert_eq!(cids(&server), [(3, VmState::Running)]);
}

/// Somebody wants it gone for good.
#[test]
fn nothing_comes_after_a_vm_that_is_removed_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = held_up(dir.path());
    server.add_later(vm(dir.path(), 4)).expect("it comes later");
    assert!(server.parts.roster.hold_up::<VsockServerError>("held").is_err());
    assert!(!server.parts.roster.has_next("held"));
    server.parts.roster.let_go("held");
    wait_until("it is gone", || server.vms().is_empty());
}

/// The thread of all VMs closes a socket that answers no question, which takes an hour.
#[test]
fn vms_leave_when_the_thread_of_their_groups_lets_go_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let vms = [("a", 3), ("b", 4), ("c", 5)].map(|(name, cid)| named(name, dir.path(), cid));
    let server = VsockServer::start(vms.to_vec()).expect("a server");
    let (socket, peer) = lingering();
    server.parts.roster.with_running(|vms| {
        let (_, a) = vms.next().expect("a VM");
        a.vm.place.rings.send(GroupCommand::Answered { number: 7, outcome: Ok(socket.into()) });
    });
    server.drain("b").expect("it has no front end");
    let removed = server.remove("c");
    assert!(matches!(removed, Err(VsockChangeError::Stuck(_))), "{removed:?}");
    assert_eq!(cids(&server), [(3, VmState::Running), (4, VmState::Draining), (5, VmState::Leaving)]);
    // The service manager's watchdog would end all VMs for one that is silent.
    server.ask();
    wait_until("the others count as alive", || server.silent().is_empty());
    drop(peer);
    wait_until("both go by themselves", || cids(&server) == [(3, VmState::Running)]);
}

/// Keeps which front ends came and went.
#[derive(Debug, Default)]
struct FrontEnds(Mutex<Vec<bool>>);

impl HostKeeper for FrontEnds {
    fn ask(&self, _question: HostQuestion) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&self, _vm: usize, now: bool) {
        self.0.lock().expect("front ends").push(now);
    }
}

/// One waits at its socket already.
#[test]
fn a_vm_that_comes_drained_lets_no_front_end_in_and_leaves() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = vm(dir.path(), 3);
    let listener = UnixListener::bind(config.endpoint.to_string()).expect("a socket");
    listener.set_nonblocking(true).expect("it does not wait");
    let _waits = UnixStream::connect(config.endpoint.to_string()).expect("room");
    let own = HostSockets::bind(&config.uds, &config.uds_access).expect("sockets");
    let front_ends = Arc::<FrontEnds>::default();
    let keeper: Arc<dyn HostKeeper> = front_ends.clone();
    // Its thread ends before the VM runs, or behind that.
    for number in 0..100 {
        let fds = own.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
        let handed = HandedVsock {
            number,
            listener: listener.as_fd().try_clone_to_owned().expect("a descriptor").into(),
            sockets: HostSockets::handed(fds),
            capture: None,
            names: None,
            sessions: None,
            session: None,
            drains: true,
        };
        let server = VsockServer::start_handed(vec![(config.clone(), handed)], &keeper).expect("a server");
        wait_until("it has left", || server.vms().is_empty());
    }
    assert!(front_ends.0.lock().expect("front ends").is_empty(), "nobody was let in");
}

#[test]
fn a_server_needs_a_vm_to_start() {
    let keeper: Arc<dyn HostKeeper> = Arc::<FrontEnds>::default();
    for server in [VsockServer::start(Vec::new()), VsockServer::start_handed(Vec::new(), &keeper)] {
        assert!(server.err().expect("none").to_string().starts_with("0 VMs"));
    }
}

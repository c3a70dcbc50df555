//! A server that opens no path: its sockets were handed over, and another process connects to host
//! programs for it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::vsock::{Guest, Vm, VsockBackend, accept, read_to_end};
use crate::support::wait_until;
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SocketType};
use zerowire_testkit::linger::lingering;
use zerowire_vhost::serve::VmState;
use zerowire_vsock::packet::Kind;
use zerowire_vsock::{HostKeeper, HostQuestion, OwnSockets, PathConnector};

/// Questions that a VM may have under way.
const QUESTIONS: usize = 64;

/// Keeps what it is asked until the test answers, and what it is told of front ends.
#[derive(Debug, Default)]
struct Keeper(Mutex<VecDeque<HostQuestion>>, Mutex<Vec<(usize, bool)>>);

impl HostKeeper for Keeper {
    fn ask(&self, question: HostQuestion) -> io::Result<()> {
        self.0.lock().expect("its questions").push_back(question);
        Ok(())
    }

    fn connected(&self, vm: usize, now: bool) {
        self.1.lock().expect("front ends").push((vm, now));
    }
}

struct Scene {
    backend: VsockBackend,
    keeper: Arc<Keeper>,
}

impl Scene {
    fn start(vms: &[Vm]) -> Self {
        let keeper = Arc::new(Keeper::default());
        let asked: Arc<dyn HostKeeper> = keeper.clone();
        Self { backend: VsockBackend::handed(vms, &asked), keeper }
    }

    fn asked(&self) -> usize {
        self.keeper.0.lock().expect("its questions").len()
    }

    /// The next question.
    fn question(&self) -> HostQuestion {
        wait_until("a question", || self.asked() > 0);
        self.keeper.0.lock().expect("its questions").pop_front().expect("a question")
    }

    /// Answers a question as the process would that opens paths.
    fn answer(&self, vm: &str, question: HostQuestion) {
        let paths = PathConnector::new(&self.backend.uds(vm), OwnSockets::default());
        let outcome = paths.connect(question.port, question.kind);
        self.backend.server.answer(question.vm, question.number, outcome);
    }

    fn refuse(&self, question: HostQuestion, errno: i32) {
        let outcome = Err(io::Error::from_raw_os_error(errno));
        self.backend.server.answer(question.vm, question.number, outcome);
    }
}

fn ask(guest: &mut Guest, port: u32, kind: SocketType) -> ConnId {
    let conn = guest.stack.connect(HOST_CID, port, kind).expect("a free port");
    guest.stack.turn(Duration::ZERO).expect("a sound ring");
    conn
}

fn has_state(guest: &mut Guest, conn: ConnId, wanted: ConnState) {
    guest.until("the connection's state", |stack| stack.state(conn) == wanted);
}

#[test]
fn a_connection_begins_when_the_answer_comes() {
    let scene = Scene::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    let mut guest = scene.backend.guest("b");
    let listener = scene.backend.listen("b", 5000);
    let conn = ask(&mut guest, 5000, SocketType::Stream);
    let question = scene.question();
    assert_eq!((question.vm, question.port, question.kind), (1, 5000, Kind::Stream));
    // Others are served meanwhile.
    let (other, mut stream) = scene.backend.dial_in("b", &mut guest, 700);
    guest.ping(other, &mut stream);
    assert_eq!(guest.stack.state(conn), ConnState::Connecting);
    scene.answer("b", question);
    let mut program = accept(&listener);
    has_state(&mut guest, conn, ConnState::Established);
    guest.ping(conn, &mut program);

    let refused = ask(&mut guest, 5001, SocketType::Stream);
    scene.answer("b", scene.question());
    has_state(&mut guest, refused, ConnState::Refused);
    assert_eq!(scene.backend.stats("b").totals.connections_refused, 1);
}

/// Numbers are not places: those of VMs that have gone are nobody's.
#[test]
fn vms_come_and_go_by_their_numbers() {
    let mut scene = Scene::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    let keeper: Arc<dyn HostKeeper> = scene.keeper.clone();
    let mut guest = scene.backend.guest("b");
    scene.backend.server.remove("a").expect("it goes");
    scene.backend.add_handed(&Vm::new("c", 5).groups(&["others"]), 7, &keeper);
    let (b, mut c) = (scene.backend.listen("b", 5000), scene.backend.guest("c"));
    let listener = scene.backend.listen("c", 5000);
    let conn = ask(&mut c, 5000, SocketType::Stream);
    let question = scene.question();
    assert_eq!(question.vm, 7);
    // An answer to a VM that has gone is nobody's.
    scene.backend.server.answer(0, question.number, Err(io::Error::from_raw_os_error(libc::ENOENT)));
    scene.answer("c", question);
    let mut program = accept(&listener);
    has_state(&mut c, conn, ConnState::Established);
    c.ping(conn, &mut program);
    let conn = ask(&mut guest, 5000, SocketType::Stream);
    let question = scene.question();
    assert_eq!(question.vm, 1);
    scene.answer("b", question);
    has_state(&mut guest, conn, ConnState::Established);
    drop(accept(&b));

    let server = &scene.backend.server;
    let sets: Vec<_> = server.members().into_iter().map(|m| m.set).collect();
    assert!(sets.len() == 2 && sets[0] == sets[1], "one thread serves all that were handed over: {sets:?}");
    assert_eq!((server.handed_name(7).as_deref(), server.handed_name(0)), (Some("c"), None));
    let told: Vec<_> = server.handed_stats(&[0, 1, 7]).into_iter().map(|(n, vm)| (n, vm.vm.name)).collect();
    assert_eq!(told, [(1, "b".to_owned()), (7, "c".to_owned())]);
    drop(c);
    wait_until("its end is told", || {
        let told = scene.keeper.1.lock().expect("front ends").clone();
        told.contains(&(1, true)) && told.ends_with(&[(7, true), (7, false)])
    });
}

#[test]
fn messages_are_asked_for_as_such() {
    let scene = Scene::start(&[Vm::new("vm", 3)]);
    let mut guest = scene.backend.guest("vm");
    let listener = scene.backend.listen_messages("vm", 5000);
    let conn = ask(&mut guest, 5000, SocketType::SeqPacket);
    let question = scene.question();
    assert_eq!(question.kind, Kind::SeqPacket);
    scene.answer("vm", question);
    let program = listener.accept();
    has_state(&mut guest, conn, ConnState::Established);
    guest.send(conn, b"a message");
    assert_eq!(program.recv(), b"a message");
}

#[test]
fn an_answer_that_nobody_waits_for_is_dropped() {
    let scene = Scene::start(&[Vm::new("vm", 3)]);
    let mut guest = scene.backend.guest("vm");
    let listener = scene.backend.listen("vm", 5000);
    let conn = ask(&mut guest, 5000, SocketType::Stream);
    let question = scene.question();
    guest.stack.abort(conn).expect("aborted");
    guest.stack.turn(Duration::ZERO).expect("a sound ring");
    // This one takes the place of the other.
    let next = ask(&mut guest, 5000, SocketType::Stream);
    let other = scene.question();
    assert_ne!(question.number, other.number);
    scene.answer("vm", question);
    assert!(read_to_end(&mut accept(&listener)).is_empty());
    assert_eq!(guest.stack.state(next), ConnState::Connecting);
    // One that was answered already, and one that was never asked.
    scene.refuse(question, libc::ENOENT);
    scene.refuse(HostQuestion { number: u64::MAX, ..other }, libc::ENOENT);
    scene.answer("vm", other);
    let mut program = accept(&listener);
    has_state(&mut guest, next, ConnState::Established);
    guest.ping(next, &mut program);
}

#[test]
fn a_full_backlog_is_asked_for_again() {
    let scene = Scene::start(&[Vm::new("vm", 3)]);
    let mut guest = scene.backend.guest("vm");
    let listener = scene.backend.listen("vm", 5000);
    let conns = [0; 3].map(|_| ask(&mut guest, 5000, SocketType::Stream));
    for _ in conns {
        scene.refuse(scene.question(), libc::EAGAIN);
    }
    for _ in 0..3 {
        // One asks for all of them, as long as the answer stays the same.
        let question = scene.question();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(scene.asked(), 0);
        scene.refuse(question, libc::EAGAIN);
    }
    for _ in conns {
        scene.answer("vm", scene.question());
        drop(accept(&listener));
    }
    for conn in conns {
        guest.until("it was accepted", |stack| stack.state(conn) != ConnState::Connecting);
        assert_ne!(guest.stack.state(conn), ConnState::Refused);
    }
}

#[test]
fn questions_of_a_vm_are_bounded_and_all_are_asked_in_the_end() {
    let scene = Scene::start(&[Vm::new("vm", 3)]);
    let mut guest = scene.backend.guest("vm");
    let conns: Vec<_> =
        (0..3 * QUESTIONS as u32).map(|n| ask(&mut guest, 6000 + n, SocketType::Stream)).collect();
    guest.until("the first ones", |_| scene.asked() == QUESTIONS);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(scene.asked(), QUESTIONS, "the others wait");
    for _ in &conns {
        guest.until("a question", |_| scene.asked() > 0);
        scene.refuse(scene.question(), libc::ENOENT);
        assert!(scene.asked() <= QUESTIONS);
    }
    for conn in conns {
        has_state(&mut guest, conn, ConnState::Refused);
    }
    assert_eq!(scene.asked(), 0);
}

/// The thread of both VMs closes a socket that answers no question, which takes an hour. Who has
/// handed the VMs over ends a process that does not remove one, and all VMs with it.
#[test]
fn a_vm_goes_while_the_thread_of_all_vms_is_held_up() {
    let scene = Scene::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    let (socket, _peer) = lingering();
    scene.backend.server.answer(0, 7, Ok(socket.into()));
    scene.backend.server.remove("b").expect("it goes");
    let vms = scene.backend.server.vms().into_iter();
    let states: Vec<_> = vms.map(|vm| (vm.config.name, vm.state)).collect();
    assert_eq!(states, [("a".to_owned(), VmState::Running)]);
}

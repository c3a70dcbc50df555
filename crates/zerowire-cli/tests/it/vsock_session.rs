//! `zerowire vsock --sandbox on`: front ends stay connected although the children that serve them
//! die. Run as root.

use std::io::{ErrorKind, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use zerowire_guest::VhostUser;
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SocketType, VsockDriver, VsockStack};

use crate::support::processes::{kill, runs, wait_idle};
use crate::support::{PATIENCE, connect, median_within, vsock, wait_until};
use crate::vsock_sandbox::Scene;

/// How often the child of each VM is killed. The sixth within 10 s would wait.
const DEATHS: usize = 5;
/// A child that dies within 1 s may have died of its session.
const CALM: Duration = Duration::from_millis(1100);
/// The guest's port to which host programs connect.
const PORT: u32 = 700;
/// Whether a guest hears of events.
#[derive(Clone, Copy, PartialEq)]
enum Events {
    /// Its driver has posted buffers for them.
    Taken,
    /// Its driver posts no buffers.
    NoBuffers,
    /// Its front end keeps the queue to itself, as QEMU does.
    Kept,
}

/// A guest, and a program of the host's that listens for it.
struct Guest {
    stack: VsockStack,
    driver: VsockDriver<VhostUser>,
    events: Option<RawQueue>,
    listener: UnixListener,
    name: String,
}

impl Guest {
    fn start(scene: &Scene, name: &str, events: Events) -> Self {
        let started = vsock::Guest::start(&scene.path(&format!("{name}.s")));
        let vsock::Guest { mut stack, mut driver, memory } = started;
        stack.listen(PORT, SocketType::Stream);
        let events = (events != Events::Kept).then(|| {
            let mut queue = RawQueue::start(&memory, driver.transport(), 2, 16).expect("a queue");
            for head in 0..if events == Events::Taken { 3 } else { 0 } {
                let buffer = queue.place(&[0xee; 8]).expect("guest memory");
                queue.write_chain(head, &[RawDesc::writable(&buffer)]);
                queue.offer(head);
            }
            queue.kick().expect("a kick");
            queue
        });
        // The child has told of the last message.
        wait_idle(scene.child_of(name));
        Self { stack, driver, events, listener: scene.listen(name, 5000), name: name.to_owned() }
    }

    /// A connection that the guest has made.
    fn connect(&mut self) -> (ConnId, UnixStream) {
        let conn = self.stack.connect(HOST_CID, 5000, SocketType::Stream).expect("a free port");
        assert!(self.stack.wait_connected(conn, PATIENCE).expect("an answer"), "the program takes it");
        let (stream, _) = self.listener.accept().expect("the guest's connection");
        (conn, patient(stream))
    }

    /// A connection that a program of the host's has made.
    fn take(&mut self, scene: &Scene) -> (ConnId, UnixStream) {
        let stream = UnixStream::connect(scene.path(&format!("{}.u", self.name)));
        let mut stream = patient(stream.expect("the supervisor keeps the socket"));
        stream.write_all(format!("CONNECT {PORT}\n").as_bytes()).expect("room");
        let conn = self.stack.accept_wait(PORT, PATIENCE).expect("a connection");
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte).expect("the answer");
        }
        (conn, stream)
    }

    /// A connection each way, with bytes each way.
    fn open(&mut self, scene: &Scene) -> [(ConnId, UnixStream); 2] {
        let mut both = [self.connect(), self.take(scene)];
        both.iter_mut().for_each(|(conn, stream)| self.ping(*conn, stream));
        both
    }

    fn ping(&mut self, conn: ConnId, stream: &mut UnixStream) {
        vsock::ping(&mut self.stack, conn, stream);
    }

    /// The guest learns that its connections are gone: by the event, or by a reset of each.
    fn lose(&mut self, open: &[ConnId], deaths: u16) {
        if let Some(queue) = self.events.as_mut().filter(|queue| queue.avail_idx() > 0) {
            assert!(queue.wait_used(deaths, PATIENCE), "the event of death {deaths}");
            let (head, len) = queue.ring().used_entry(deaths - 1);
            assert_eq!(len, 4);
            self.stack.reset_connections();
            queue.offer(u16::try_from(head).expect("a head"));
            queue.kick().expect("a kick");
        }
        for conn in open {
            assert_eq!(self.stack.wait_closed(*conn, PATIENCE).expect("a sound ring"), ConnState::Reset);
        }
    }
}

fn patient(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// A program of the host's sees its socket closed.
fn expect_end(stream: &mut UnixStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        // The child had not read all.
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
}

/// A connection of a guest, and its other end.
type Open = (ConnId, UnixStream);

/// Connections each way, with bytes under way.
fn load(scene: &Scene, guests: &mut [&mut Guest]) -> Vec<[Open; 2]> {
    let mut open: Vec<_> = guests.iter_mut().map(|guest| guest.open(scene)).collect();
    for (guest, both) in guests.iter_mut().zip(&mut open) {
        for (conn, stream) in both {
            let _ = guest.stack.send(*conn, &[1; 200_000]).expect("a sound ring");
            stream.set_nonblocking(true).expect("it does not wait");
            let _ = stream.write(&[2; 200_000]);
            stream.set_nonblocking(false).expect("it waits");
        }
    }
    open
}

/// Kills the child of these guests. Returns how long it took until new connections worked, each way
/// and for each guest.
fn survive(scene: &Scene, guests: &mut [&mut Guest], mut open: Vec<[Open; 2]>, deaths: u16) -> Duration {
    let begin = Instant::now();
    kill(scene.child_of(&guests[0].name), libc::SIGKILL);
    for (guest, both) in guests.iter_mut().zip(&mut open) {
        both.iter_mut().for_each(|(_, stream)| expect_end(stream));
        guest.lose(&[both[0].0, both[1].0], deaths);
    }
    guests.iter_mut().for_each(|guest| drop(guest.open(scene)));
    let took = begin.elapsed();
    assert!(guests.iter_mut().all(|guest| guest.driver.transport().is_alive()), "never disconnected");
    took
}

#[test]
fn front_ends_stay_connected_while_their_children_are_killed() {
    let names = ["a", "b", "c", "d"];
    let scene = Scene::start(&[("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("calm", "e")], &[]);
    let mut calm = Guest::start(&scene, "calm", Events::Taken);
    let mut unharmed = calm.open(&scene);
    let mut guests: Vec<_> = names.iter().map(|name| Guest::start(&scene, name, Events::Taken)).collect();
    // Counters of a child count as it told them last.
    scene.stats(1);
    let mut gaps = Vec::new();
    for deaths in 1..=DEATHS {
        for guest in &mut guests {
            let open = load(&scene, &mut [guest]);
            gaps.push(survive(&scene, &mut [guest], open, deaths as u16));
            unharmed.iter_mut().for_each(|(conn, stream)| calm.ping(*conn, stream));
        }
        std::thread::sleep(CALM);
    }
    let stats = scene.stats(2);
    for vm in stats["vms"].as_array().expect("a list") {
        assert_eq!((&vm["connections"], &vm["connected"]), (&1.into(), &true.into()), "{vm}");
        assert_eq!((&vm["ring_errors"], &vm["connection_errors"]), (&0.into(), &0.into()), "{vm}");
    }
    gaps.sort_unstable();
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("{} deaths: connections each way after {median:?} (median), {worst:?} (worst)", gaps.len());
    assert_eq!(calm.events.as_ref().expect("a queue").ring().used_idx(), 0, "no event");
    scene.program.wait_log("and goes on with its front end");
    drop((guests, calm));
    scene.program.stop();
}

/// Each VM's child is killed DEATHS times. Bytes pass each way then, by a connection of the guest
/// and by one of the host's.
#[test]
fn connections_work_again_within_50_ms_of_a_death() {
    median_within("connections work again", Duration::from_millis(50), || {
        let names = ["a", "b", "c"];
        let scene = Scene::start(&names.map(|name| (name, name)), &[]);
        let mut guests = names.map(|name| Guest::start(&scene, name, Events::Taken));
        let mut gaps = Vec::new();
        for deaths in 1..=DEATHS {
            for guest in &mut guests {
                let open = vec![guest.open(&scene)];
                gaps.push(survive(&scene, &mut [guest], open, deaths as u16));
            }
            std::thread::sleep(CALM);
        }
        drop(guests);
        scene.program.stop();
        gaps
    });
}

/// The next child does not serve the guest yet when it takes the sockets over.
#[test]
fn programs_that_connect_behind_a_death_wait() {
    let scene = Scene::start(&[("a", "a")], &[]);
    let mut guest = Guest::start(&scene, "a", Events::Kept);
    for _ in 0..3 {
        let child = scene.child_of("a");
        kill(child, libc::SIGKILL);
        wait_until("it has ended", || !runs(&child));
        let (conn, mut stream) = guest.take(&scene);
        guest.ping(conn, &mut stream);
        std::thread::sleep(CALM);
    }
    drop(guest);
    scene.program.stop();
}

/// Two deaths in a row, the second one as soon as the session goes on.
#[test]
fn guests_of_a_group_go_on_behind_two_deaths() {
    let scene = Scene::start(&[("a", "x"), ("b", "x")], &[]);
    let (mut a, mut b) = (Guest::start(&scene, "a", Events::Taken), Guest::start(&scene, "b", Events::Taken));
    for deaths in 1..=2 {
        let (to_b, from_a) = vsock::reach(&mut a.stack, &mut b.stack, 4, PORT);
        a.stack.send_all(to_b, b"from a", PATIENCE).expect("sent");
        assert_eq!(b.stack.recv_exact(from_a, 6, PATIENCE).expect("a's bytes"), b"from a");
        let open = load(&scene, &mut [&mut a, &mut b]);
        survive(&scene, &mut [&mut a, &mut b], open, deaths);
        assert_eq!(a.stack.state(to_b), ConnState::Reset);
        assert_eq!(b.stack.state(from_a), ConnState::Reset);
    }
    drop((a, b));
    scene.program.stop();
}

/// Its front end keeps the event queue, and has stopped the rings.
#[test]
fn a_guest_that_was_paused_loses_its_connections_when_it_goes_on() {
    let scene = Scene::start(&[("a", "a")], &[]);
    let mut guest = Guest::start(&scene, "a", Events::Kept);
    let mut open = guest.open(&scene);
    guest.driver.stop().expect("the rings stop");
    wait_idle(scene.child_of("a"));
    kill(scene.child_of("a"), libc::SIGKILL);
    open.iter_mut().for_each(|(_, stream)| expect_end(stream));
    wait_until("another child has the session", || {
        scene.program.log().matches("served by a confined process").count() == 2
    });
    guest.driver.resume(guest.stack.queues()).expect("the rings go on");
    guest.lose(&[open[0].0, open[1].0], 1);
    drop(guest.open(&scene));
    assert!(guest.driver.transport().is_alive(), "never disconnected");
    drop(guest);
    scene.program.stop();
}

/// A front end that lets the back end wait within a message, for 1 s: it does not close its end of
/// a transfer whose outcome it asks for.
fn keep_busy(front: &mut VhostUser) -> PipeWriter {
    const DEVICE_STATE: u64 = 1 << 19;
    let message = |request: u32, body: &[u8]| {
        let head = [request, 1, body.len() as u32];
        [&head.map(u32::to_le_bytes).concat()[..], body].concat()
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let features = (front.protocol() | DEVICE_STATE).to_le_bytes();
    let load = [1u32, 0].map(u32::to_le_bytes).concat();
    let connection = front.connection();
    connection.send_raw(&message(16, &features), &[]).expect("SET_PROTOCOL_FEATURES");
    connection.send_raw(&message(42, &load), &[reader.as_fd()]).expect("SET_DEVICE_STATE_FD");
    let mut answer = [0; 20];
    connection.stream().read_exact(&mut answer).expect("an answer");
    connection.send_raw(&message(43, &[]), &[]).expect("CHECK_DEVICE_STATE");
    let mut unread: libc::c_int = 1;
    wait_until("it is read", || {
        // SAFETY: the descriptor is open, and the kernel writes an int.
        let asked = unsafe { libc::ioctl(connection.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        asked == 0 && unread == 0
    });
    writer
}

#[test]
fn a_death_within_a_message_of_one_front_end_ends_that_session_alone() {
    let scene = Scene::start(&[("a", "x"), ("b", "x")], &[]);
    let mut guest = Guest::start(&scene, "a", Events::Taken);
    let mut front = connect(&scene.path("b.s"));
    let open = load(&scene, &mut [&mut guest]);
    let _writer = keep_busy(&mut front);
    survive(&scene, &mut [&mut guest], open, 1);
    wait_until("it is disconnected", || !front.is_alive());
    scene.program.wait_log("its front end is disconnected: its child died while it carried a message out");
    drop(front);
    let mut other = Guest::start(&scene, "b", Events::Taken);
    other.open(&scene);
    drop((guest, other));
    scene.program.stop();
}

#[test]
fn connections_of_guests_without_events_are_reset_by_name() {
    let scene = Scene::start(&[("a", "x"), ("b", "x")], &[]);
    let (mut a, mut b) = (Guest::start(&scene, "a", Events::Kept), Guest::start(&scene, "b", Events::Kept));
    let mut gaps = Vec::new();
    for deaths in 1..=DEATHS {
        let (to_b, from_a) = vsock::reach(&mut a.stack, &mut b.stack, 4, PORT);
        let open = load(&scene, &mut [&mut a, &mut b]);
        gaps.push(survive(&scene, &mut [&mut a, &mut b], open, deaths as u16));
        for (guest, conn) in [(&mut a, to_b), (&mut b, from_a)] {
            let state = guest.stack.wait_closed(conn, PATIENCE).expect("a sound ring");
            assert_eq!(state, ConnState::Reset);
        }
        std::thread::sleep(CALM);
    }
    gaps.sort_unstable();
    println!("{DEATHS} deaths: connections of both guests after {gaps:?}");
    assert_eq!(scene.stats(1)["vms"][0]["connection_errors"], 0);
    drop((a, b));
    scene.program.stop();
}

/// They are waited for, and then each connection is reset by its name.
#[test]
fn a_guest_without_buffers_for_events_goes_on() {
    let scene = Scene::start(&[("a", "x")], &[]);
    let mut guest = Guest::start(&scene, "a", Events::NoBuffers);
    let open = load(&scene, &mut [&mut guest]);
    survive(&scene, &mut [&mut guest], open, 1);
    assert_eq!(guest.events.as_ref().expect("a queue").ring().used_idx(), 0);
    drop(guest);
    scene.program.stop();
}

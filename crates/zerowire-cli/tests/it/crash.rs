//! `zerowire net` and `zerowire vsock` killed in the middle of traffic, many times, by front ends
//! that keep the region in which chains in flight are marked.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use crate::support::{Guest, PATIENCE, Peer, Program, Restrict, frames, in_netns, tap, wait_until};
use zerowire::recv::vsock::{self, Dequeued, MappedConnection, MappedOptions};
use zerowire_guest::net::VirtioNetHdr;
use zerowire_guest::vsock::{
    ConnId, ConnState, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{
    GuestAddr, GuestMemory, InflightArea, Transport, VhostUser, VhostUserOptions, protocol,
};
use zerowire_testkit::net::veth;
use zerowire_testkit::random::Random;

/// How often each program is killed.
const DEATHS: u32 = 50;

/// Connects as a front end that has the region, or asks for one.
fn connect(socket: &Path, area: Option<InflightArea>) -> VhostUser {
    let options = VhostUserOptions::default();
    let options = VhostUserOptions { protocol: options.protocol | protocol::INFLIGHT_SHMFD, ..options };
    let mut transport = VhostUser::connect_with(socket, PATIENCE, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(transport.protocol() & protocol::INFLIGHT_SHMFD != 0, "it is offered");
    transport.set_inflight(area);
    transport
}

/// Kills the program after a while.
fn kill(program: Program, most: Duration, random: &mut Random) -> JoinHandle<()> {
    let wait = Duration::from_micros(random.below(most.as_micros() as usize) as u64);
    spawn(move || {
        std::thread::sleep(wait);
        program.kill();
    })
}

fn unsure(program: &Program) -> u64 {
    program.signal(libc::SIGUSR1);
    let line = program.wait_line(1);
    let stats: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let vm = &stats["vms"][0];
    assert_eq!((&vm["ring_errors"], &vm["connection_errors"]), (&0.into(), &0.into()), "{vm}");
    vm["unsure_frames"].as_u64().expect("a count")
}

/// What came of numbered frames.
#[derive(Default)]
struct Seen {
    /// The number behind the last one.
    next: u32,
    count: u64,
}

impl Seen {
    /// Each comes whole, and at most once.
    fn take(&mut self, bytes: &[u8], len: impl Fn(u32) -> usize) {
        let n = frames::number(bytes);
        assert!(n >= self.next, "frame {n} came again, or behind frame {}", self.next - 1);
        assert_eq!(bytes, frames::frame(n, len(n)), "frame {n} is whole");
        self.next = n + 1;
        self.count += 1;
    }
}

#[test]
fn a_network_back_end_that_is_killed_repeats_no_frame_and_loses_no_descriptor() {
    in_netns(|| {
        const NAME: &str = "zwcrash";
        tap::persistent(NAME, 0);
        killed_under_load(&format!("tap:{NAME}"), NAME, 6000, true);
    });
}

/// The same where chains come back out of order, and receive buffers lie with the kernel when the
/// program dies.
#[test]
fn an_af_xdp_back_end_that_is_killed_repeats_no_frame_and_loses_no_descriptor() {
    in_netns(|| {
        veth::veth("v0", "v1", 1, 1500);
        killed_under_load("xdp:v0,mode=copy", "v1", 1400, false);
    });
}

/// Frames both ways between a guest on `port` and a peer on `interface`, while the program is
/// killed again and again. Toward the peer some have up to `longest` bytes. `in_order`: chains are
/// used in the order in which they became available.
fn killed_under_load(port: &str, interface: &str, longest: usize, in_order: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("net");
    let start = || {
        let socket = socket.display().to_string();
        Program::net(&["--sandbox", "off", "--socket", &socket, "--port", port, "--json"])
    };
    let mut program = start();
    let mut guest = Guest::start(connect(&socket, None));
    let mut peer = Peer::new(interface);
    let mut random = Random::new(7);
    // Mostly short ones, so that the program is busier than the test; some that go out as they lie
    // in guest memory.
    let out_len = |n: u32| 18 + (n as usize * 37) % if n.is_multiple_of(16) { longest } else { 80 };
    let back_len = |n: u32| 18 + (n as usize * 13) % if n.is_multiple_of(16) { 1400 } else { 80 };
    let (mut out, mut seen) = (0u32, Seen::default());
    let (mut back, mut got) = (0u32, Seen::default());
    let mut may_be_lost = 0;
    for round in 0..DEATHS {
        let killer = kill(program, Duration::from_millis(8), &mut random);
        let mut sent = 0;
        while !killer.is_finished() && sent < 20_000 {
            guest.pairs[0].tx.reap().expect("a sound ring");
            for _ in 0..random.below(96) {
                let frame = frames::frame(out, out_len(out));
                if !guest.pairs[0].tx.send(&VirtioNetHdr::default(), &frame).expect("a sound ring") {
                    break;
                }
                out += 1;
                sent += 1;
            }
            guest.pairs[0].tx.publish().expect("published");
            for _ in 0..random.below(32) {
                // A tap that nobody has open takes none.
                let frame = frames::frame(back, back_len(back));
                back += u32::from(peer.send_with(&[0; 10], &frame).is_ok());
            }
            harvest(&mut guest, &mut got, back_len);
            take_all(&mut peer, &mut seen, out_len);
        }
        killer.join().expect("it was killed");
        program = start();
        let area = guest.driver.transport().inflight().cloned();
        assert!(area.is_some(), "the front end has the region");
        let transport = connect(&socket, area);
        guest.driver.reconnect(transport, &mut guest.pairs).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(guest.pairs[0].tx.drain(PATIENCE).expect("a sound ring"), "all descriptors come back");
        assert_eq!(guest.pairs[0].tx.in_flight(), 0);
        take_all(&mut peer, &mut seen, out_len);
        harvest(&mut guest, &mut got, back_len);
        may_be_lost += unsure(&program);
    }
    let lost = u64::from(out) - seen.count;
    println!("{out} frames sent, {lost} of {may_be_lost} unsure ones lost; {} of {back} received", got.count);
    assert!(lost <= may_be_lost, "{lost} of {out} frames are missing, {may_be_lost} were counted");
    assert!(seen.count > 0 && got.count > 0, "frames moved");
    if !in_order {
        // Buffers lie with the kernel again before frames come to the guest. All of them are there:
        // more frames than the ring has entries pass.
        guest.wait_for_frames(&mut peer);
        for n in 0..600 {
            let bytes = frames::frame(n, 60 + n as usize);
            peer.send(&bytes);
            assert_eq!(guest.pairs[0].rx.recv(PATIENCE).expect("a sound ring").expect("a frame").1, bytes);
        }
        assert_eq!(guest.pairs[0].rx.ring().in_flight(), guest.pairs[0].rx.ring().memory().size());
        program.stop();
        return;
    }
    tap::wait_for_carrier(interface);
    guest.ping(&mut peer);
    // All receive buffers are the device's, and it has lost none: what it did not use it would take
    // next.
    guest.pairs[0].rx.publish().expect("published");
    let used = guest.pairs[0].rx.ring().setup().next_avail;
    assert_eq!(guest.driver.transport().stop_queue(0).expect("stopped"), used);
    assert_eq!(guest.pairs[0].rx.ring().in_flight(), guest.pairs[0].rx.ring().memory().size());
    program.stop();
}

/// Takes what has come out of the port; the kernel has things to say there, too.
fn take_all(peer: &mut Peer, seen: &mut Seen, len: impl Fn(u32) -> usize) {
    let of_guest = |f: &zerowire_testkit::net::PeerFrame| f.bytes[12..14] == frames::EXPERIMENT;
    peer.drain().iter().filter(|f| of_guest(f)).for_each(|f| seen.take(&f.bytes, &len));
}

fn harvest(guest: &mut Guest, got: &mut Seen, len: impl Fn(u32) -> usize) {
    let mut all = Vec::new();
    guest.pairs[0].rx.harvest(usize::MAX, |f| all.push(f.to_vec())).expect("a sound ring");
    guest.pairs[0].rx.publish().expect("published");
    for bytes in all {
        // The kernel has things to say on a tap, too.
        if bytes[12..14] == frames::EXPERIMENT {
            got.take(&bytes, &len);
        }
    }
}

/// A guest with a stack of connections.
struct VsockGuest {
    driver: VsockDriver<VhostUser>,
    stack: VsockStack,
}

const MAPPED: u32 = 9;
const PLAIN: u32 = 80;

/// The byte at a place of a stream.
fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// A host program that reads mapped windows, checks them, and holds on to some, out of order, until
/// the end.
fn holder(program: MappedConnection, mut random: Random) -> usize {
    let (mut held, mut at) = (Vec::new(), 0);
    loop {
        match program.dequeue() {
            Ok(Dequeued::Window(w)) => {
                for p in w.packets() {
                    let mut bytes = vec![0; p.len()];
                    assert_eq!(p.copy_to(0, &mut bytes), p.len());
                    assert!(bytes.iter().enumerate().all(|(i, b)| *b == byte(at + i)), "at {at}");
                    at += p.len();
                }
                held.push(w);
                if held.len() > 5 {
                    let i = random.below(held.len());
                    drop(held.swap_remove(i));
                }
            }
            Ok(Dequeued::NotYet) => match program.wait(Some(PATIENCE)) {
                Ok(true) => {}
                Ok(false) => panic!("nothing came, and the end neither"),
                Err(_) => return at,
            },
            Ok(Dequeued::End) | Err(_) => return at,
        }
    }
}

/// A host program that sends back what it reads.
fn echo(mut stream: UnixStream) {
    let mut bytes = [0; 16_384];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

impl VsockGuest {
    fn start(socket: &Path) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let (driver, queues) = VsockDriver::start(connect(socket, None), &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
        let mut stack = VsockStack::new(queues, StackOptions::default());
        stack.listen(MAPPED, SocketType::Stream);
        stack.listen(PLAIN, SocketType::Stream);
        Self { driver, stack }
    }

    /// Sends as much more of a stream as there is room for, up to `most` bytes.
    fn send(&mut self, conn: ConnId, at: &mut usize, most: usize) {
        if self.stack.state(conn) == ConnState::Established {
            let bytes: Vec<u8> = (*at..*at + most).map(byte).collect();
            *at += self.stack.send(conn, &bytes).expect("a sound ring");
        }
    }

    /// Reads what came back, which must be the beginning of what was sent.
    fn check(&mut self, conn: ConnId, at: &mut usize, sent: usize) {
        let mut bytes = Vec::new();
        self.stack.recv(conn, &mut bytes).expect("a sound ring");
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == byte(*at + i)), "at {at}");
        *at += bytes.len();
        assert!(*at <= sent, "more came back than was sent");
    }
}

#[test]
fn a_vsock_back_end_that_is_killed_with_chains_lent_gives_all_of_them_back_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, uds) = (dir.path().join("s"), dir.path().join("u"));
    let map = PathBuf::from(format!("{}.map", uds.display()));
    let start = || {
        let (socket, uds) = (socket.display().to_string(), uds.display().to_string());
        let args = ["--socket", &socket, "--cid", "3", "--uds", &uds, "--share-guest-memory", "--json"];
        Program::vsock(&[&["--sandbox", "off"][..], &args].concat(), Restrict::default())
    };
    let mut program = start();
    let mut guest = VsockGuest::start(&socket);
    let mut random = Random::new(11);
    let (mut mapped_bytes, mut plain_bytes, mut in_flight) = (0, 0, 0u64);
    for round in 0..DEATHS {
        // Both ends of two connections.
        let path = map.clone();
        let options = MappedOptions::stream().direct(true).windows(8).packed(false);
        let dialled =
            spawn(move || vsock::connect(&path, MAPPED, &options).unwrap_or_else(|e| panic!("{e}")));
        let mapped = guest.stack.accept_wait(MAPPED, PATIENCE).expect("the mapped connection");
        wait_until("the mapped connection", || {
            guest.stack.turn(Duration::from_millis(1)).expect("a sound ring");
            dialled.is_finished()
        });
        let dialled = dialled.join().expect("connected");
        let holding = spawn(move || holder(dialled, Random::new(1 + u64::from(round))));
        let mut stream = UnixStream::connect(&uds).expect("it listens");
        writeln!(stream, "CONNECT {PLAIN}").expect("a line");
        let plain = guest.stack.accept_wait(PLAIN, PATIENCE).expect("the plain connection");
        let echoing = spawn(move || {
            // "OK PORT\n"
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    return;
                }
                line.push(byte[0]);
            }
            echo(stream);
        });
        let killer = kill(program, Duration::from_millis(10), &mut random);
        let (mut lent, mut sent, mut back) = (0, 0, 0);
        while !killer.is_finished() {
            let (a, b) = (random.below(20_000), random.below(20_000));
            guest.send(mapped, &mut lent, a);
            guest.send(plain, &mut sent, b);
            guest.stack.turn(Duration::ZERO).expect("a sound ring");
            guest.check(plain, &mut back, sent);
        }
        killer.join().expect("it was killed");
        guest.stack.turn(Duration::ZERO).expect("a sound ring");
        guest.check(plain, &mut back, sent);
        in_flight += u64::from(guest.stack.queues().tx.in_flight());
        let read = holding.join().expect("its assertions hold");
        assert!(read <= lent, "the program has read more than was sent");
        echoing.join().expect("the end");
        (mapped_bytes, plain_bytes) = (mapped_bytes + read, plain_bytes + back);

        program = start();
        let area = guest.driver.transport().inflight().cloned();
        assert!(area.is_some(), "the front end has the region");
        let transport = connect(&socket, area);
        guest
            .driver
            .reconnect(transport, guest.stack.queues())
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        guest.stack.reset_connections();
        wait_until("all descriptors come back", || {
            guest.stack.turn(Duration::from_millis(1)).expect("a sound ring");
            guest.stack.queues().tx.in_flight() == 0
        });
    }
    println!(
        "{mapped_bytes} bytes in windows, {plain_bytes} back; {in_flight} chains in flight at {DEATHS} deaths"
    );
    assert!(mapped_bytes > 0 && plain_bytes > 0 && in_flight > 0, "packets moved, and chains were out");
    let used = guest.stack.queues().rx.ring().setup().next_avail;
    assert_eq!(guest.driver.transport().stop_queue(0).expect("stopped"), used);
    program.stop();
}

//! What programs with direct windows can hold of a guest: half of its ring, and past the hold time
//! nothing more. The device runs without its thread, so that the test says when time passes.

use std::path::Path;
use std::time::Duration;

use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::packet::{HEADER_LEN, Header, Kind, Op};
use zerowire_vsock::testing::{
    Answer, Flow, Guest, Harness, Layout, Mapped, Next, Program, RING_SIZE, Window,
};
use zerowire_vsock::{RX_QUEUE, TX_QUEUE, VsockLimits};
use zerowire_wire::mapped::{MapOp, MapOptions, MapRequest};

/// Only [`Harness::pass`] gets there: a test that waits for a CPU does not.
const HOLD: Duration = Duration::from_secs(60);
const PORT: u32 = 7;
/// Bytes of a packet.
const LEN: u32 = 1000;
/// A chain of four descriptors: header and payload across them.
const FOUR: Layout = Layout(3);
/// A chain of one descriptor with an indirect table behind it.
const INDIRECT: Layout = Layout(8 | 3);

/// A device whose VM shares its memory, a guest, and a connection to a program with direct windows.
struct Scene {
    harness: Harness,
    guest: Guest,
    flow: Flow,
    listening: Program,
    program: Mapped,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new(windows: u32) -> Self {
        Self::with(MapOptions::default().windows(windows).data_pages(4).direct(true))
    }

    fn with(options: MapOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let policy = MapPolicy::default().share_guest_memory(true).hold(HOLD);
        let mut harness =
            Harness::with_map(dir.path(), &[3], VsockLimits::default(), &policy).expect("a device");
        let mut guest = Guest::new().expect("memory");
        harness.set_memory(0, guest.memory());
        harness.start(0, &guest).expect("rings");
        while guest.post(4096, Layout(0)) {}
        let listening = listen(dir.path(), options);
        harness.rest();
        assert!(matches!(listening.take(), Answer::Reply(r) if r.status == 0), "it listens");
        let flow = Flow::new(3, 100, PORT, Kind::Stream);
        let mut scene = Self {
            program: connect(&mut harness, &mut guest, &flow, &listening),
            harness,
            guest,
            flow,
            listening,
            _dir: dir,
        };
        scene.rest();
        assert!(scene.flow.open);
        scene
    }

    /// The device does what it has to, and the guest takes what came.
    fn rest(&mut self) {
        self.harness.rest();
        self.guest.reap(TX_QUEUE, |_| {});
        let flow = &mut self.flow;
        self.guest.reap(RX_QUEUE, |p| {
            let h = p.first_chunk::<HEADER_LEN>().map(Header::from_bytes).expect("a header");
            if flow.is_of(&h) {
                flow.take(&h);
            }
        });
        while self.guest.post(4096, Layout(0)) {}
    }

    fn send(&mut self, layout: Layout) {
        assert!(self.flow.send(&mut self.guest, LEN, 0, layout), "a chain is free");
        self.rest();
    }

    fn window(&mut self) -> Window {
        match self.program.dequeue() {
            Next::Window(w) => w,
            other => panic!("{other:?}"),
        }
    }

    /// Bytes that were not copied, and those that were since a program held too much.
    fn moved(&self) -> (u64, u64) {
        let t = self.harness.totals(0).transmit;
        (t.zero_copied_bytes, t.copied_bytes.get("held").copied().unwrap_or(0))
    }
}

fn listen(dir: &Path, options: MapOptions) -> Program {
    Program::ask(&dir.join("3.map"), &MapRequest { op: MapOp::Listen, port: PORT, kind: 1, options })
        .expect("the device listens")
}

fn connect(harness: &mut Harness, guest: &mut Guest, flow: &Flow, listening: &Program) -> Mapped {
    assert!(flow.control(guest, Op::Request, 0));
    harness.rest();
    match listening.take() {
        Answer::Mapped(m) => *m,
        _ => panic!("no connection"),
    }
}

/// The bound in number, in the ring's descriptors: of chains of four, an eighth of the ring's size.
#[test]
fn half_of_the_rings_descriptors_are_lent_and_no_more() {
    let mut s = Scene::new(64);
    let most = u64::from(RING_SIZE / 2 / 4);
    for n in 1..=most {
        s.send(FOUR);
        assert_eq!((s.moved(), s.harness.lent(0)), ((n * u64::from(LEN), 0), 4 * n as usize));
    }
    assert_eq!(s.guest.lent(TX_QUEUE), most as usize);
    for n in 1..=20 {
        s.send(FOUR);
        assert_eq!(
            s.moved(),
            (most * u64::from(LEN), n * u64::from(LEN)),
            "past it all is copied, and goes on"
        );
        assert_eq!(s.guest.lent(TX_QUEUE), most as usize, "the guest has its chain back");
    }
    // One that is released makes room for one, by the next turn.
    let first = s.window();
    assert_eq!((first.direct, first.bytes.len()), (LEN as usize, LEN as usize));
    s.program.release(first.window);
    s.rest();
    assert_eq!(s.harness.lent(0), 4 * (most as usize - 1));
    s.send(FOUR);
    assert_eq!(s.moved().0, (most + 1) * u64::from(LEN));
    // All of it has arrived, in order, whichever way it came.
    let mut bytes = first.bytes.len();
    while let Next::Window(w) = s.program.dequeue() {
        bytes += w.bytes.len();
        s.program.release(w.window);
        s.rest();
    }
    assert_eq!((bytes, s.guest.lent(TX_QUEUE)), (s.flow.sent as usize, 0));
}

/// An indirect table takes one descriptor of the ring, whatever is in it.
#[test]
fn chains_with_an_indirect_table_count_as_one_descriptor() {
    let mut s = Scene::new(64);
    for n in 1..=12 {
        s.send(INDIRECT);
        assert_eq!((s.moved().1, s.harness.lent(0)), (0, n));
    }
}

/// All connections of a VM together have one half: those that come later get theirs by copying.
#[test]
fn what_one_program_holds_is_not_lent_to_another() {
    let mut s = Scene::new(64);
    for _ in 0..RING_SIZE / 2 / 4 {
        s.send(FOUR);
    }
    let mut other = Flow::new(3, 101, PORT, Kind::Stream);
    let mut second = connect(&mut s.harness, &mut s.guest, &other, &s.listening);
    s.rest();
    let before = s.moved();
    assert!(other.send(&mut s.guest, LEN, 0, FOUR));
    s.rest();
    assert_eq!(s.moved(), (before.0, before.1 + u64::from(LEN)));
    let Next::Window(w) = second.dequeue() else { panic!("no window") };
    assert_eq!((w.direct, w.bytes.len()), (0, LEN as usize));
    // The first one leaves: what it held is the guest's again, and there is room for the other one.
    let Scene { program, .. } = &s;
    rustix::net::shutdown(&program.socket, rustix::net::Shutdown::Both).expect("a socket");
    s.rest();
    assert_eq!((s.harness.lent(0), s.guest.lent(TX_QUEUE)), (0, 0));
    assert!(other.send(&mut s.guest, LEN, 0, FOUR));
    s.rest();
    assert_eq!((s.moved().0, s.harness.lent(0)), (before.0 + u64::from(LEN), 4));
}

/// The bound in time: up to the hold time payload is lent, past it copied, until all is back.
#[test]
fn past_the_hold_time_payload_is_copied_until_all_is_back() {
    let mut s = Scene::new(8);
    let len = u64::from(LEN);
    s.send(FOUR);
    let first = s.window();
    s.harness.pass(HOLD / 2);
    s.send(FOUR);
    assert_eq!(s.moved(), (2 * len, 0), "within the hold time");
    let second = s.window();
    s.harness.pass(HOLD / 2 + Duration::from_millis(1));
    s.send(FOUR);
    assert_eq!((s.moved(), s.guest.lent(TX_QUEUE)), ((2 * len, len), 2), "past it");
    // It arrives all the same.
    let third = s.window();
    assert_eq!((third.direct, third.bytes.len()), (0, LEN as usize));
    s.program.release(third.window);
    s.program.release(first.window);
    s.rest();
    s.send(FOUR);
    assert_eq!((s.moved(), s.guest.lent(TX_QUEUE)), ((2 * len, 2 * len), 1), "one is still held");
    let fourth = s.window();
    s.program.release(fourth.window);
    s.program.release(second.window);
    s.rest();
    assert_eq!(s.guest.lent(TX_QUEUE), 0);
    s.send(FOUR);
    assert_eq!((s.moved(), s.window().direct), ((3 * len, 2 * len), LEN as usize), "direct again");
}

/// A program that gives back nothing at all: its sender is stopped by credit, and the guest's ring
/// is not.
#[test]
fn a_program_that_gives_nothing_back_stops_its_sender_by_credit_alone() {
    let mut s = Scene::new(2);
    s.send(FOUR);
    s.harness.pass(2 * HOLD);
    while s.flow.credit() >= LEN {
        s.send(FOUR);
    }
    assert_eq!(s.guest.lent(TX_QUEUE), 1, "all but what it got before");
    assert!(s.harness.held_bytes(0) > 0);
    assert!(s.harness.held_bytes(0) <= VsockLimits::default().buffer_bytes as usize);
    // And then it does: all arrives.
    let mut bytes = 0;
    for _ in 0..1000 {
        if let Next::Window(w) = s.program.dequeue() {
            bytes += w.bytes.len();
            s.program.release(w.window);
        }
        s.rest();
    }
    assert_eq!((bytes, s.harness.held_bytes(0), s.guest.lent(TX_QUEUE)), (s.flow.sent as usize, 0, 0));
}

/// What it waits for may be behind what it keeps: a message that is longer than half of the credit,
/// say.
#[test]
fn a_program_that_keeps_windows_while_it_waits_gets_more() {
    let options = MapOptions::default().windows(32).data_pages(4).credit(16 * LEN);
    let mut s = Scene::with(options);
    let mut kept = Vec::new();
    for n in 0..3 {
        while s.flow.credit() >= LEN {
            s.send(FOUR);
        }
        while let Next::Window(w) = s.program.dequeue() {
            kept.push(w);
        }
        let all: usize = kept.iter().map(|w| w.bytes.len()).sum();
        assert!(all > 12 * LEN as usize, "{all}");
        let before = s.flow.credit();
        let back = kept.remove(0);
        s.program.release(back.window);
        // Nothing else happens; the device says it within a moment.
        s.rest();
        s.rest();
        assert_eq!(s.flow.credit(), before + back.bytes.len() as u32, "{n}: less than half of it");
    }
}

/// A ring that stops, as before its guest migrates, has all its chains back, whatever programs
/// hold.
#[test]
fn a_ring_that_stops_has_lent_nothing() {
    let mut s = Scene::new(64);
    for _ in 0..5 {
        s.send(FOUR);
        s.send(INDIRECT);
    }
    let held = s.window();
    assert_eq!((s.harness.lent(0), s.guest.lent(TX_QUEUE)), (5 * 4 + 5, 10));
    let base = s.harness.stop(0, TX_QUEUE);
    s.guest.reap(TX_QUEUE, |_| {});
    assert_eq!((s.harness.lent(0), s.guest.lent(TX_QUEUE)), (0, 0));
    // The connection's packets, its request, and what it said of credit.
    assert!(base.is_some_and(|taken| taken >= 11), "{base:?}");
    s.program.release(held.window);
    s.harness.rest();
    assert_eq!(s.harness.lent(0), 0, "what is released later is not given back twice");
}

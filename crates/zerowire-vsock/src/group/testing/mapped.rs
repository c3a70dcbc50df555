//! A byte string as what hostile programs with mapped receive do, beside two sound connections of
//! the same guest.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use zerowire_wire::mapped::{DAEMON_WAITS_AT, MapOp, MapOptions, MapRequest, PROGRAM_SLEEPS_AT};

use super::flow::Flow;
use super::guest::{Guest, Layout};
use super::program::{Answer, Mapped, Program};
use super::scene::Script;
use super::sound::Sound;
use super::{Harness, RX_QUEUE, TX_QUEUE};
use crate::VsockLimits;
use crate::mapped::MapPolicy;
use crate::packet::{HEADER_LEN, Header, Kind, Op};

const VM: usize = 0;
const CID: u64 = 3;
/// A sound program listens here with a unix socket, and another one with mapped receive.
const STREAM_PORT: u32 = 1;
const MAPPED_PORT: u32 = 2;
/// Hostile programs listen at these and the three behind them.
const HOSTILE_PORT: u32 = 20;

/// Hostile programs and their connections at once.
const MAX_PROGRAMS: usize = 6;

const LIMITS: VsockLimits = VsockLimits {
    buffer_bytes: 16 << 10,
    max_connections: 12,
    peer_connections: None,
    sibling_connections: None,
    request_rate: 10_000,
};
const HOLD: Duration = Duration::from_millis(100);
const MAX_MAP_BYTES: u64 = 1 << 20;
/// The sound one, and fewer than the hostile programs may ask for.
const MAX_MAPPED: usize = 5;
const SHUT_SEND: u32 = 2;

/// Chains that the guest has lent when it looks for those that are back before it sends.
const MANY: usize = 10;

/// What is due before a connection counts as stalled, looks at it.
const PATIENCE: usize = 2000;

/// A layout that makes four descriptors of a packet that is long enough.
const LONG: Layout = Layout(3);

struct Scene {
    harness: Harness,
    guest: Guest,
    dir: PathBuf,
    sound: Sound,
    /// What the guest knows of the hostile programs' connections.
    flows: Vec<Flow>,
    programs: Vec<Program>,
    mapped: Vec<Mapped>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Plays a script, with sockets in a new directory below `dir`. Panics where the device does what
/// it must not.
pub fn play_mapped(dir: &Path, script: &[u8]) {
    let mut s = Script(script);
    let mut scene = Scene::new(dir, s.byte()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    while !s.0.is_empty() {
        scene.act(&mut s);
    }
    scene.end();
}

impl Scene {
    fn new(dir: &Path, choice: u8) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = dir.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&dir)?;
        let policy = MapPolicy {
            own_user: None,
            allow: Vec::new(),
            listen: Vec::new(),
            max_bytes: MAX_MAP_BYTES,
            max_connections: Some(MAX_MAPPED),
            max_total_bytes: MAX_MAP_BYTES / 4,
            share_guest_memory: choice & 1 == 0,
            hold: HOLD,
        };
        let mut harness = Harness::with_map(&dir, &[CID], LIMITS, &policy)?;
        let mut guest = Guest::new()?;
        harness.set_memory(VM, guest.memory());
        harness.start(VM, &guest).map_err(std::io::Error::other)?;
        while guest.post(4096, Layout(0)) {}
        let listener = UnixListener::bind(dir.join(format!("{CID}_{STREAM_PORT}")))?;
        let options = MapOptions::default()
            .windows(2 + u32::from(choice >> 1 & 3))
            .data_pages(1 + u32::from(choice >> 3 & 3))
            .packed(choice & 32 == 0)
            .direct(choice & 65 == 64);
        let request = MapRequest { op: MapOp::Listen, port: MAPPED_PORT, kind: 1, options };
        let listening = Program::ask(&dir.join(format!("{CID}.map")), &request)?;
        harness.rest();
        let Answer::Reply(reply) = listening.take() else { panic!("no reply to LISTEN") };
        assert_eq!(reply.status, 0, "{reply:?}");
        let mut plain = Flow::new(CID, 100, STREAM_PORT, Kind::Stream);
        let mut flow = Flow::new(CID, 101, MAPPED_PORT, Kind::Stream);
        for f in [&plain, &flow] {
            assert!(f.control(&mut guest, Op::Request, 0));
        }
        harness.rest();
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let Answer::Mapped(program) = listening.take() else { panic!("no connection") };
        guest.reap(TX_QUEUE, |_| {});
        guest.reap(RX_QUEUE, |p| {
            let Some(h) = p.first_chunk::<HEADER_LEN>().map(Header::from_bytes) else { return };
            [&mut plain, &mut flow].into_iter().filter(|f| f.is_of(&h)).for_each(|f| f.take(&h));
        });
        assert!(plain.open && flow.open, "the sound connections open");
        let sound = Sound::new(plain, stream, flow, *program, listening);
        let (flows, programs, mapped) = Default::default();
        Ok(Self { harness, guest, dir, sound, flows, programs, mapped })
    }

    fn act(&mut self, s: &mut Script<'_>) {
        match s.byte() % 16 {
            0..=2 => self.send(s),
            3 => self.control(s),
            4 => self.program(s),
            5 => {
                let port = HOSTILE_PORT + u32::from(s.byte() & 3);
                let kind = if s.byte() & 1 == 0 { Kind::Stream } else { Kind::SeqPacket };
                self.open(Flow::new(CID, 200 + u32::from(s.byte() & 7), port, kind));
            }
            6 | 7 => self.set_poll(s),
            8 => self.store(s),
            9 => self.ring(s),
            10 => self.write(s),
            11 => self.close(s),
            12 => self.take(),
            13 => {
                let ms = s.of(&[1, 50, 101, 150, 1000, 10_001, 31_000]);
                self.harness.pass(Duration::from_millis(ms));
                self.turns(s);
            }
            14 => self.turns(s),
            _ => match s.byte() % 8 {
                0 => self.pause(s),
                n => self.step(u32::from(n) * 500, u32::from(s.byte()) * 8, s.byte()),
            },
        }
    }

    fn turns(&mut self, s: &mut Script<'_>) {
        match s.byte() % 8 {
            0 => self.harness.rest(),
            n => {
                for _ in 0..n {
                    self.harness.turn();
                }
            }
        }
        self.reap();
    }

    /// The guest takes what came for it.
    fn reap(&mut self) {
        self.guest.reap(TX_QUEUE, |_| {});
        let mut packets = Vec::new();
        self.guest.reap(RX_QUEUE, |p| packets.push(p));
        for p in packets {
            let Some(h) = p.first_chunk::<HEADER_LEN>().map(Header::from_bytes) else { continue };
            assert_eq!((h.dst_cid, p.len()), (CID, HEADER_LEN + h.len as usize), "{h:?}");
            let sound = [&mut self.sound.plain, &mut self.sound.flow].into_iter().find(|f| f.is_of(&h));
            if let Some(f) = sound {
                assert!(matches!(Op::new(h.op), Some(Op::CreditUpdate)), "a sound connection: {h:?}");
                f.take(&h);
            } else if h.op == Op::Request as u16 {
                self.flows.retain(|f| !f.is_of(&h));
                // Whether it accepts is up to the script: see `control`.
                self.flows.extend(Flow::offered(&h));
            } else if let Some(f) = self.flows.iter_mut().find(|f| f.is_of(&h)) {
                f.take(&h);
            }
        }
        self.flows.retain(|f| !f.over);
        while self.guest.post(4096, Layout(0)) {}
    }

    /// The guest makes a connection of the hostile programs'.
    fn open(&mut self, flow: Flow) {
        if flow.control(&mut self.guest, Op::Request, 0) {
            self.flows.retain(|f| (f.port, f.host_port) != (flow.port, flow.host_port));
            self.flows.push(flow);
        }
        if self.flows.len() > 2 * MAX_PROGRAMS {
            self.flows.remove(0);
        }
    }

    /// Looks for chains that are back before the ring is full.
    fn make_room(&mut self) {
        if self.guest.lent(TX_QUEUE) >= MANY {
            self.harness.rest();
            self.reap();
        }
    }

    /// Payload for a hostile program, within its credit but for rare cases.
    fn send(&mut self, s: &mut Script<'_>) {
        let (pick, shape, mut len) = (usize::from(s.byte()), s.byte(), s.word() as u32 % 6000);
        self.make_room();
        let n = self.flows.len().max(1);
        let Some(f) = self.flows.get_mut(pick % n) else { return };
        if shape & 0xf0 != 0xf0 {
            len = len.min(f.credit());
        }
        let flags = if f.kind == Kind::SeqPacket { u32::from(shape & 3) } else { 0 };
        let layout = if shape & 4 != 0 { LONG } else { Layout(shape >> 3 & 15) };
        if Flow::leaves_room(&self.guest, len, layout) {
            f.send(&mut self.guest, len, flags, layout);
        }
    }

    /// The guest accepts, asks for credit, shuts down or resets.
    fn control(&mut self, s: &mut Script<'_>) {
        let (pick, what) = (usize::from(s.byte()), s.byte());
        self.make_room();
        let n = self.flows.len().max(1);
        let Some(f) = self.flows.get(pick % n) else { return };
        let op = [Op::Response, Op::Response, Op::Response, Op::CreditRequest, Op::Shutdown, Op::Rst];
        let op = op[usize::from(what & 15) % op.len()];
        let flags = if op == Op::Shutdown { u32::from(what >> 4 & 3) | SHUT_SEND } else { 0 };
        f.control(&mut self.guest, op, flags);
    }

    /// A program comes to the control socket and says something.
    fn program(&mut self, s: &mut Script<'_>) {
        let (shape, size) = (s.byte(), s.byte());
        if self.programs.len() == MAX_PROGRAMS {
            self.programs.remove(0);
        }
        let Ok(program) = Program::connect(&self.dir.join(format!("{CID}.map"))) else { return };
        let options = MapOptions::default()
            .windows(2 + u32::from(size & 3))
            .header_pages(1 + u32::from(size >> 2 & 1))
            .data_pages(1 + u32::from(size >> 3 & 3))
            .packed(size & 32 == 0)
            .direct(size & 64 != 0)
            .lowat(if size & 128 != 0 { 3000 } else { 1 })
            .credit([0, 1, 4096, 64 << 10][usize::from(shape >> 2 & 3)]);
        let (op, port) = match shape & 1 {
            0 => (MapOp::Connect, 10 + u32::from(shape >> 4 & 3)),
            _ => (MapOp::Listen, HOSTILE_PORT + u32::from(shape >> 4 & 3)),
        };
        let kind = 1 + u16::from(shape >> 1 & 1);
        let mut said = MapRequest { op, port, kind, options }.to_bytes().to_vec();
        match shape >> 6 {
            0 | 1 => {}
            2 => {
                let at = usize::from(s.byte()) % said.len();
                said[at] = s.byte();
            }
            _ => said.resize(usize::from(s.byte()), 7),
        }
        if !said.is_empty() {
            program.say(&said);
        }
        if s.byte() & 7 == 0 {
            program.say(&said);
        }
        self.programs.push(program);
    }

    /// Programs take what their control sockets say.
    fn take(&mut self) {
        for p in &self.programs {
            if let Answer::Mapped(m) = p.take() {
                assert!(m.is_sealed(), "the files are sealed");
                self.mapped.push(*m);
            }
        }
        while self.mapped.len() > MAX_PROGRAMS {
            self.mapped.remove(0);
        }
    }

    fn pick(&self, n: u8) -> Option<&Mapped> {
        self.mapped.get(usize::from(n) % self.mapped.len().max(1))
    }

    /// A window's `poll_value`: given back, in any order, or anything else; with the doorbell or
    /// without.
    fn set_poll(&mut self, s: &mut Script<'_>) {
        let (pick, window, value) = (s.byte(), s.byte(), s.of(&[0, 0, 0, 0, 1, 2, 1 << 31, u32::MAX]));
        let Some(m) = self.pick(pick) else { return };
        m.set_poll(u32::from(window & 63), value);
        if window & 64 != 0 {
            m.ring(1);
        }
    }

    /// Any word of the control page and of the header pages.
    fn store(&mut self, s: &mut Script<'_>) {
        let (pick, at) = (s.byte(), s.word());
        let at = if at & 0x8000 != 0 { [PROGRAM_SLEEPS_AT, DAEMON_WAITS_AT][at & 1] } else { at };
        let value = s.of(&[0, 1, 2, 4096, u32::MAX]);
        if let Some(m) = self.pick(pick) {
            m.store(at, value);
        }
    }

    /// The doorbells: any value, too much of it, and what the daemon would never expect there.
    fn ring(&mut self, s: &mut Script<'_>) {
        let (pick, what) = (s.byte(), s.byte());
        let Some(m) = self.pick(pick) else { return };
        match what % 8 {
            0 | 1 => m.ring(1),
            2 => m.ring(u64::MAX - 1),
            3 => drop(rustix::io::read(&m.released, &mut [0u8; 8][..])),
            4 => drop(rustix::net::send(&m.ready, &[what; 300], SendFlags::NOSIGNAL)),
            5 => drop(rustix::net::recv(&m.ready, &mut [0u8; 64][..], RecvFlags::DONTWAIT)),
            6 => drop(rustix::net::shutdown(&m.ready, Shutdown::Both)),
            _ => {
                // The flags belong to the open file, which both sides share. This side must not
                // block because of them. A program that itself blocks would test nothing: the flags
                // are put back.
                let _ = rustix::fs::fcntl_setfl(&m.released, rustix::fs::OFlags::empty());
                self.harness.turn();
                if let Some(m) = self.pick(pick) {
                    let _ = rustix::fs::fcntl_setfl(&m.released, rustix::fs::OFlags::NONBLOCK);
                }
            }
        }
    }

    /// The way to the guest.
    fn write(&mut self, s: &mut Script<'_>) {
        let (pick, what, len) = (s.byte(), s.byte(), s.word());
        let Some(m) = self.pick(pick) else { return };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match what % 4 {
            0 | 1 => drop(rustix::net::send(&m.socket, &vec![7; len], flags)),
            2 => drop(rustix::net::shutdown(&m.socket, Shutdown::Write)),
            _ => drop(rustix::net::shutdown(&m.socket, Shutdown::Read)),
        }
    }

    /// Programs leave at any moment, with all or a part of what they have.
    fn close(&mut self, s: &mut Script<'_>) {
        let (pick, what) = (usize::from(s.byte()), s.byte());
        if what & 1 == 0 {
            if pick < 4 * self.programs.len() {
                self.programs.remove(pick / 4);
            }
        } else if pick < 4 * self.mapped.len() {
            let gone = self.mapped.remove(pick / 4);
            if what & 2 != 0 {
                // It keeps all but its socket; the script can still store and ring.
                if let Some(kept) = gone.without_socket() {
                    self.mapped.push(kept);
                }
            }
        }
    }

    /// The VM is paused and goes on, with the same memory or told of it anew.
    fn pause(&mut self, s: &mut Script<'_>) {
        // What is direct goes back to the guest then: a sound program has read it before.
        self.finish(0);
        if s.byte() & 1 == 0 {
            self.harness.set_memory(VM, self.guest.memory());
        }
        self.harness.pause(VM, &self.guest, TX_QUEUE).unwrap_or_else(|e| panic!("{e}"));
    }

    /// The sound connections: some bytes each, and reads.
    fn step(&mut self, n: u32, m: u32, hold: u8) {
        self.make_room();
        let n = n.min(self.sound.plain.credit());
        if n > 0 {
            self.sound.plain.send(&mut self.guest, n, 0, LONG);
        }
        let m = m.min(self.sound.flow.credit());
        if m > 0 && Flow::leaves_room(&self.guest, m, LONG) {
            self.sound.flow.send(&mut self.guest, m, 0, LONG);
        }
        self.harness.turn();
        self.sound.read(usize::from(hold & 3), hold & 4 != 0);
    }

    /// All bytes of the sound connections arrive, `len` more each, whatever others hold.
    fn finish(&mut self, len: u32) {
        let (plain, mapped) =
            (self.sound.plain.sent.wrapping_add(len), self.sound.flow.sent.wrapping_add(len));
        for _ in 0..PATIENCE {
            self.harness.rest();
            self.reap();
            self.sound.read(0, false);
            for (f, all) in [(&mut self.sound.plain, plain), (&mut self.sound.flow, mapped)] {
                let n = all.wrapping_sub(f.sent).min(f.credit()).min(4000);
                // As long as it is, it takes four descriptors, for which there must be room.
                if n > 0 {
                    assert!(self.guest.lent(TX_QUEUE) < 16, "no chain is left for the others");
                    f.send(&mut self.guest, n, 0, LONG);
                }
            }
            if self.sound.read == plain && self.sound.got == mapped && self.sound.held.is_empty() {
                self.harness.rest();
                return self.reap();
            }
        }
        panic!(
            "of {plain} bytes {} reached the program, of {mapped} bytes {} the one with windows",
            self.sound.read, self.sound.got
        );
    }

    fn end(&mut self) {
        self.harness.rest();
        self.reap();
        // With whatever the hostile programs hold.
        self.finish(20_000);
        // Then they go, one way or the other.
        self.programs.clear();
        self.mapped.clear();
        self.harness.rest();
        self.reap();
        self.finish(5000);
        assert_eq!(self.guest.lent(TX_QUEUE), 0, "transmit chains that did not come back");
        assert_eq!(self.harness.lent(VM), 0);
        self.harness.leave(VM);
        self.sound.close();
        self.harness.rest();
        // Windows that hold the end back may wait for their program for a while, and no longer.
        self.harness.pass(Duration::from_secs(40));
        self.harness.rest();
        assert_eq!((self.harness.connections(VM), self.harness.held_bytes(VM)), (0, 0));
    }
}

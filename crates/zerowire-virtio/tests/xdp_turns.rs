//! Both sides of a queue pair on an AF_XDP socket turn by turn, without a server: what is between two turns can be said exactly.

mod common;

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::frames::frame;
use common::lab::Lab;
use common::veth::{ip, slow_peer, veth};
use common::{PATIENCE, Peer, in_netns, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire::ledger::{Counters, Totals};
use zerowire::xdp::program::{Hook, Steering};
use zerowire::xdp::{Interface, Mode, XdpError};
use zerowire_guest::ring::{DESC_WRITE, RingMemory};
use zerowire_virtio::memory::GuestMemory;
use zerowire_virtio::net::offload::Kind;
use zerowire_virtio::net::offload::testing::Example;
use zerowire_virtio::net::xdp::{Attach, Link, LinkOptions, Registrar};
use zerowire_virtio::net::xdp::{XdpReceive, XdpReceiveSetup, XdpTransmit};
use zerowire_virtio::net::{PathMode, Policy};
use zerowire_virtio::ring::SplitRing;
use zerowire_virtio::ring::inflight::{InflightRegion, Tracker};

const HEADER: usize = 12;
/// Entries of the ring.
const SIZE: u16 = 512;
/// Where buffers lie, and how far apart.
const BUFFERS: u64 = 1 << 32;
const STRIDE: u64 = 0x2000;
/// Where there is room for a long frame.
const LONG: u64 = BUFFERS + (6 << 20);
/// `VIRTIO_NET_F_CSUM`, `VIRTIO_NET_F_HOST_TSO4` (virtio 1.3 §5.1.3).
const OFFLOADS: u64 = 1 | 1 << 11;

/// A driver's ring, and the socket on interface `v0`.
struct Pair {
    driver: RingMemory,
    memory: Arc<GuestMemory>,
    link: Link,
    counters: Counters,
    offered: u16,
    lab: Lab,
}

impl Pair {
    fn new(receives: bool) -> Self {
        let lab = Lab::new(&[(0, 1 << 20), (BUFFERS, 8 << 20)]);
        let memory = Arc::new(lab.memory.with_log(None));
        let attached: Mutex<Option<Arc<Steering>>> = Mutex::new(None);
        let attach: Attach = Arc::new(move |interface: &Interface| -> Result<_, XdpError> {
            let mut attached = attached.lock().expect("no panic");
            if attached.is_none() {
                *attached = Some(Arc::new(Steering::attach(interface.name(), 16, Hook::Auto)?));
            }
            Ok(attached.clone().expect("made above"))
        });
        let mut link = Link::new(LinkOptions {
            promiscuous: false,
            interface: "v0".into(),
            queue: 0,
            pair: 0,
            mode: Mode::Copy,
            mtu: 1500,
            registrar: Arc::new(Registrar::new("v0".into(), 1, false)),
            attach,
            address: None,
        });
        link.set_memory(&memory);
        link.start(receives).expect("bound");
        Self { driver: lab.ring(SIZE), memory, link, counters: Counters::default(), offered: 0, lab }
    }

    fn device(&self) -> SplitRing {
        self.lab.device(&self.driver, 0, false)
    }

    fn receive(&self) -> XdpReceive {
        let setup = XdpReceiveSetup { mergeable: true, header_len: HEADER, copy: false, reserve: 0 };
        XdpReceive::new(self.device(), setup)
    }

    fn transmit(&self, ring: SplitRing, mode: PathMode) -> XdpTransmit {
        XdpTransmit::new(ring, OFFLOADS, HEADER, Policy { mode, ..Policy::default() })
    }

    /// Offers buffers of these lengths, each where its number says.
    fn post(&mut self, lengths: &[u32]) {
        for len in lengths {
            self.driver.write_desc(self.offered, self.place(self.offered), *len, DESC_WRITE, 0);
            self.offer();
        }
    }

    /// Offers a frame behind this virtio-net header.
    fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) {
        self.write(self.offered, self.place(self.offered), header, frame);
        self.offer();
    }

    fn write(&self, head: u16, place: u64, header: &[u8; HEADER], frame: &[u8]) {
        self.lab.write(place, &[header.as_slice(), frame].concat());
        self.driver.write_desc(head, place, (HEADER + frame.len()) as u32, 0, 0);
    }

    fn offer(&mut self) {
        self.driver.write_avail(self.offered, self.offered);
        self.offered += 1;
        self.driver.publish_avail_idx(self.offered);
    }

    fn place(&self, head: u16) -> u64 {
        BUFFERS + u64::from(head) * STRIDE
    }

    /// What was used: heads and bytes.
    fn used(&self) -> Vec<(u32, u32)> {
        (0..self.driver.used_idx()).map(|i| self.driver.used_entry(i)).collect()
    }

    /// Waits until a received frame lies in the socket.
    fn wait_for_frame(&self) {
        let port = self.link.port().expect("a socket");
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&limit)), Ok(1), "no frame comes");
    }

    fn totals(&self) -> Totals {
        self.counters.snapshot()
    }
}

/// One turn.
fn receive(side: &mut XdpReceive, pair: &mut Pair) {
    side.run(&mut pair.link, &pair.memory, &pair.counters).expect("a sound ring");
}

/// One turn. Returns what was moved.
fn transmit(side: &mut XdpTransmit, pair: &mut Pair) -> usize {
    side.run(&mut pair.link, &pair.memory, &pair.counters, None).expect("a sound ring").chains
}

/// A buffer is kept for a frame of the slab that turns out to be longer.
#[test]
fn a_frame_that_waits_gets_the_next_buffers_whatever_their_length() {
    in_netns(|| {
        veth("v0", "v1", 1, 3000);
        let peer = Peer::new("v1");
        let mut pair = Pair::new(true);
        let mut side = pair.receive();
        pair.post(&[1536]);
        receive(&mut side, &mut pair);
        peer.send(&frame(1, 2500));
        pair.wait_for_frame();
        receive(&mut side, &mut pair);
        assert_eq!(pair.used(), []);
        pair.post(&[4096, 4096, 4096]);
        receive(&mut side, &mut pair);
        let rest = HEADER as u32 + 2500 - 1536;
        assert_eq!(pair.used(), [(0, 1536), (1, rest)]);
        let got =
            [pair.lab.bytes(pair.place(0), 1536), pair.lab.bytes(pair.place(1), rest as usize)].concat();
        assert_eq!((got[10], got[HEADER..] == frame(1, 2500)), (2, true));
        // The others are with the kernel.
        for n in [2, 3] {
            peer.send(&frame(n, 2500));
            pair.wait_for_frame();
            receive(&mut side, &mut pair);
            assert_eq!(pair.used()[n as usize..], [(n, 2512)]);
        }
        let totals = pair.totals();
        assert_eq!((totals.frames, totals.zero_copied_frames, totals.dropped_total()), (3, 2, 0));
        side.release(&mut pair.link, &pair.memory, &pair.counters);
    });
}

#[test]
fn frames_that_came_before_a_stop_reach_the_buffers_that_are_kept() {
    // One buffer is too few.
    for (buffers, used) in [(3, vec![(0, 700), (1, 312)]), (1, vec![])] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let peer = Peer::new("v1");
            let mut pair = Pair::new(true);
            let mut side = pair.receive();
            pair.post(&vec![700; buffers]);
            receive(&mut side, &mut pair);
            peer.send(&frame(1, 1000));
            pair.wait_for_frame();
            side.release(&mut pair.link, &pair.memory, &pair.counters);
            assert_eq!(pair.used(), used);
            assert_eq!(usize::from(side.ring().next_avail()), used.len(), "the others are put back");
            let totals = pair.totals();
            let came = u64::from(!used.is_empty());
            assert_eq!((totals.frames, totals.dropped_total()), (came, 1 - came), "{totals:?}");
        });
    }
}

/// Has `w0` pass nothing on: a byte a second behind some frames.
fn block() {
    shape(&["replace", "dev", "w0", "root", "tbf", "rate", "8bit", "burst", "3000", "limit", "10000000"]);
}

fn shape(arguments: &[&str]) {
    let done = Command::new("tc").arg("qdisc").args(arguments).output();
    let done = done.expect("the program tc (iproute2) to be there");
    assert!(done.status.success(), "tc: {}", String::from_utf8_lossy(&done.stderr));
}

/// What the next process would find of the chains in flight: those that it would work on again, and those that it would not.
fn after_a_crash(pair: &Pair, file: &OwnedFd) -> (usize, usize) {
    let len = rustix::fs::fstat(file).expect("a file").st_size as u64;
    let region = InflightRegion::open(file, 0, len, 1, SIZE).expect("the region");
    let tracker = Box::new(Tracker::new(&Arc::new(region), 0).expect("a place"));
    let recovered = pair.device().track(tracker).expect("the same ring");
    (recovered.again, recovered.unsure)
}

/// Of a long frame that finds all places taken nothing is sent in its first turn.
#[test]
fn a_long_frame_is_marked_and_counted_in_the_turn_in_which_it_begins_to_go_out() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let _peer = slow_peer("v1", "w0", "w1");
        block();
        let mut pair = Pair::new(false);
        let (region, file) = InflightRegion::create(1, SIZE).expect("a region");
        let mut ring = pair.device();
        let tracker = Tracker::new(&Arc::new(region), 0).expect("a place");
        ring.track(Box::new(tracker)).expect("a new region");
        let mut side = pair.transmit(ring, PathMode::Copy);
        let mut plain = 0;
        while usize::from(pair.offered) == pair.used().len() {
            assert!(pair.offered < SIZE, "places are never all taken");
            // Short ones, of which the kernel takes more at once than there are places.
            pair.send(&[0; HEADER], &frame(plain, 60));
            transmit(&mut side, &mut pair);
            plain += 1;
        }
        // The frame that waits is a long one now, of more pieces than there are places.
        let example = Example {
            kind: Kind::Tcp4,
            v6: false,
            tags: 0,
            options: 0,
            flags: 0x10,
            payload: 64_000,
            seed: 1,
        };
        let mut header = [0; HEADER];
        header[..10].copy_from_slice(&example.header(210));
        let (before, head) = (pair.totals(), pair.offered - 1);
        pair.write(head, LONG, &header, &example.frame());
        transmit(&mut side, &mut pair);
        assert_eq!(pair.totals(), Totals { system_calls: pair.totals().system_calls, ..before });
        shape(&["del", "dev", "w0", "root"]);
        wait_until("it begins to go out", || transmit(&mut side, &mut pair) > 0);
        assert_eq!(pair.used().len(), usize::from(head), "it is under way");
        assert_eq!(pair.totals().copied_bytes["header"], HEADER as u64);
        assert_eq!(after_a_crash(&pair, &file), (0, 1), "part of it went out");
        side.abandon(&mut pair.link, &pair.counters);
    });
}

#[test]
fn a_ring_that_discards_still_sends_what_it_had_queued() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut pair = Pair::new(false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        ip(&["link", "set", "v0", "down"]);
        let sent = frame(1, 700);
        pair.send(&[0; HEADER], &sent);
        transmit(&mut side, &mut pair);
        assert_eq!(pair.used(), [], "the frame waits for its interface");
        ip(&["link", "set", "v0", "up"]);
        let mut peer = Peer::new("v1");
        pair.send(&[0; HEADER], &frame(2, 700));
        wait_until("both are back", || {
            side.discard(&mut pair.link, &pair.counters).expect("a sound ring");
            pair.used().len() == 2
        });
        assert_eq!(peer.expect().bytes, sent);
        assert!(peer.recv(std::time::Duration::from_millis(50)).is_none(), "the other one was discarded");
        let totals = pair.totals();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (1, 1));
    });
}

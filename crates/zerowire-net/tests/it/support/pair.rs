//! Both sides of a queue pair on an AF_XDP socket turn by turn, without a server: a driver's ring,
//! and the socket.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use zerowire::ledger::{Counters, Totals};
use zerowire_guest::ring::{DESC_WRITE, RingMemory};
use zerowire_net::port::xdp::{
    Link, LinkOptions, Registrar, XdpAccess, XdpInlet, XdpMode, XdpOutlet, XdpPin, XdpQueues, XdpSpec,
};
use zerowire_net::receive::{ReceiveContext, ReceiveSetup};
use zerowire_net::transmit::TransmitContext;
use zerowire_net::{PathMode, Policy, Receive, Transmit};
use zerowire_sys::xdp::Mode;
use zerowire_testkit::net::run;
use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::SplitRing;
use zerowire_vhost::ring::inflight::{InflightRegion, Tracker};
use zerowire_vhost::serve::VisitLog;

use super::PATIENCE;
use super::lab::Lab;

/// Bytes of the virtio-net header.
pub const HEADER: usize = 12;
/// Entries of the ring.
pub const SIZE: u16 = 512;
/// Where buffers lie.
const BUFFERS: u64 = 1 << 32;
/// How far apart they are.
const STRIDE: u64 = 0x2000;
/// Where there is room for a long frame.
pub const LONG: u64 = BUFFERS + (6 << 20);
/// `VIRTIO_NET_F_CSUM`, `VIRTIO_NET_F_HOST_TSO4` (virtio 1.3 §5.1.3).
const OFFLOADS: u64 = 1 | 1 << 11;

/// A driver's ring, and the socket.
pub struct Pair {
    /// The driver's ring.
    pub driver: RingMemory,
    /// The guest's memory as the device has it.
    pub memory: Arc<GuestMemory>,
    /// The socket.
    pub link: Link,
    /// The ledger.
    pub counters: Counters,
    /// Chains that were given back before earlier ones.
    pub out_of_order: Arc<AtomicU64>,
    /// Entries that the driver has made available.
    pub offered: u16,
    /// Memory and rings.
    pub lab: Lab,
}

impl Pair {
    /// On interface `v0`.
    pub fn new(receives: bool) -> Self {
        Self::on("v0", receives)
    }

    /// On another one.
    pub fn on(interface: &str, receives: bool) -> Self {
        let out_of_order = Arc::<AtomicU64>::default();
        let lab = Lab::new(&[(0, 1 << 20), (BUFFERS, 8 << 20)]);
        let memory = Arc::new(lab.memory.with_log(None));
        let queues = XdpQueues::open(&XdpSpec::new(interface).mode(XdpMode::Copy));
        let access = XdpAccess::new(Arc::new(queues.expect("its queue"))).expect("descriptors");
        let mut link = Link::new(LinkOptions {
            promiscuous: false,
            out_of_order: out_of_order.clone(),
            interface: interface.into(),
            queue: 0,
            pair: 0,
            mode: Mode::Copy,
            mtu: 1500,
            registrar: Arc::new(Registrar::new(access.clone(), 1, XdpPin::All)),
            access,
            served: Arc::default(),
            log: VisitLog::default(),
            address: None,
            policy: Policy::default(),
            reserve: 0,
        });
        link.set_memory(&memory);
        link.start(receives).expect("bound");
        let (driver, counters) = (lab.ring(SIZE), Counters::default());
        Self { driver, memory, link, counters, out_of_order, offered: 0, lab }
    }

    /// The device's side of the ring.
    pub fn device(&self) -> SplitRing {
        self.lab.device(&self.driver, 0, false)
    }

    /// The receive side.
    pub fn receive(&self) -> Receive<XdpInlet> {
        let setup = ReceiveSetup { mergeable: true, header_len: HEADER, clears_flags: false };
        Receive::new(self.device(), XdpInlet::new(Policy::default(), SIZE, 0), setup)
    }

    /// The transmit side.
    pub fn transmit(&self, ring: SplitRing, mode: PathMode) -> Transmit<XdpOutlet> {
        let outlet = XdpOutlet::new(Policy::default().mode(mode), ring.size());
        Transmit::new(ring, outlet, OFFLOADS, HEADER)
    }

    /// Offers buffers of these lengths, each where its number says.
    pub fn post(&mut self, lengths: &[u32]) {
        for len in lengths {
            self.driver.write_desc(self.offered, self.place(self.offered), *len, DESC_WRITE, 0);
            self.offer();
        }
    }

    /// Offers a frame behind this virtio-net header.
    pub fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) {
        self.write(self.offered, self.place(self.offered), header, frame);
        self.offer();
    }

    /// Writes a frame, and the descriptor of it.
    pub fn write(&self, head: u16, place: u64, header: &[u8; HEADER], frame: &[u8]) {
        self.lab.write(place, &[header.as_slice(), frame].concat());
        self.driver.write_desc(head, place, (HEADER + frame.len()) as u32, 0, 0);
    }

    fn offer(&mut self) {
        self.driver.write_avail(self.offered, self.offered);
        self.offered += 1;
        self.driver.publish_avail_idx(self.offered);
    }

    /// Where the buffer of a chain lies.
    pub fn place(&self, head: u16) -> u64 {
        BUFFERS + u64::from(head) * STRIDE
    }

    /// What was used: heads and bytes.
    pub fn used(&self) -> Vec<(u32, u32)> {
        (0..self.driver.used_idx()).map(|i| self.driver.used_entry(i)).collect()
    }

    /// Heads of the chains that were used.
    pub fn heads(&self) -> Vec<u32> {
        self.used().into_iter().map(|(head, _)| head).collect()
    }

    /// How many chains were given back before earlier ones.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order.load(Ordering::Relaxed)
    }

    /// Waits until a received frame lies in the socket.
    pub fn wait_for_frame(&self) {
        let port = self.link.port().expect("a socket");
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&limit)), Ok(1), "no frame comes");
    }

    /// What was counted.
    pub fn totals(&self) -> Totals {
        self.counters.snapshot()
    }
}

/// What a ring notifies its driver by from now on, of which nothing has come yet.
pub fn call(host: &mut HostRing) -> OwnedFd {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    let fd = eventfd(0, flags).expect("an eventfd");
    host.set_call(Some(Arc::new(fd.try_clone().expect("a descriptor"))));
    assert!(is_called(&fd), "a new descriptor is notified");
    fd
}

/// Whether the driver was notified since this was asked last.
pub fn is_called(call: &OwnedFd) -> bool {
    rustix::io::read(call, &mut [0; 8]).is_ok()
}

/// One turn.
pub fn receive(side: &mut Receive<XdpInlet>, pair: &mut Pair) {
    let cx = ReceiveContext { memory: &pair.memory, counters: &pair.counters };
    side.run(&mut pair.link, &cx).expect("a sound ring");
}

/// Ends the receive side's turns.
pub fn release(side: &mut Receive<XdpInlet>, pair: &mut Pair) {
    let cx = ReceiveContext { memory: &pair.memory, counters: &pair.counters };
    side.release(&mut pair.link, &cx);
}

/// One turn. Returns what was moved.
pub fn transmit(side: &mut Transmit<XdpOutlet>, pair: &mut Pair) -> usize {
    let mut cx =
        TransmitContext { memory: &pair.memory, counters: &pair.counters, detour: None, guard: None };
    side.run(&mut pair.link, &mut cx).expect("a sound ring").chains
}

/// Has `w0` pass nothing on: a byte a second behind some frames.
pub fn block() {
    shape(&["replace", "dev", "w0", "root", "tbf", "rate", "8bit", "burst", "3000", "limit", "10000000"]);
}

/// Runs `tc qdisc` with these arguments, which must succeed.
pub fn shape(arguments: &[&str]) {
    run("tc", &[&["qdisc"], arguments].concat());
}

/// What the next process would find of the chains in flight: those that it would work on again, and
/// those that it would not.
pub fn after_a_crash(pair: &Pair, file: &OwnedFd) -> (usize, usize) {
    let len = rustix::fs::fstat(file).expect("a file").st_size as u64;
    let region = InflightRegion::open(file, 0, len, 1, SIZE).expect("the region");
    let tracker = Box::new(Tracker::new(&Arc::new(region), 0).expect("a place"));
    let recovered = pair.device().track(tracker).expect("the same ring");
    (recovered.again, recovered.unsure)
}

//! The guest that drives a back end: one pair of queues, run natively.
//!
//! The guest owns its memory; the back end maps it. Frames are written once, in
//! [`NetGuest::prepare_transmit`]. To send one writes descriptors only, so the driver's CPU doesn't
//! warm the payload for the back end. Receive buffers are posted by count: the benchmark decides
//! when the back end sees how many. So the back end sleeps while the tap's queue is filled.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};
use zerowire_guest::net::SUPPORTED;
use zerowire_guest::ring::{BufferPiece, DriverRing};
use zerowire_guest::{DriverQueue, GuestAddr, GuestMemory, GuestSlice, Transport, VhostUser, features};

use crate::area::{RECEIVE_BUFFER, Slots};
use crate::frame::Frame;
use crate::netns::VNET_HEADER_LEN;

/// Entries of each queue: what QEMU gives by default.
pub const QUEUE_SIZE: u16 = 256;

/// Buffers that are given back together.
const REFILL: usize = QUEUE_SIZE as usize / 8;

/// Memory of the guest beside the buffers: rings.
const RING_MEMORY: usize = 1 << 20;

/// How long the back end may make no progress before the run is given up.
pub const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Spins of the driver between two reads of the used index. It polls, but leaves the cache line to
/// the back end most of the time.
const SPINS: usize = 64;

/// Guest memory of at least `bytes`. Its pages are all there and in order, as in a guest that has
/// run for a while. Otherwise the order in which a back end has them allocated decides: an eighth
/// of the CPU time of cold frames of 9000 bytes.
pub fn filled_memory(bytes: usize) -> Result<GuestMemory> {
    let bytes = bytes.next_multiple_of(2 << 20);
    let memory = GuestMemory::new(&[(GuestAddr(0), bytes)])?;
    for region in memory.regions() {
        fallocate(region.file(), FallocateFlags::empty(), 0, bytes as u64).context("no guest memory")?;
    }
    Ok(memory)
}

/// Lets the back end see what was added.
fn publish(queue: &mut DriverQueue) -> Result<()> {
    queue.publish().context("the back end can't be notified").map(drop)
}

/// A guest with one pair of queues, connected and running.
pub struct NetGuest {
    // Its end tells the back end that the guest is gone.
    _transport: VhostUser,
    memory: GuestMemory,
    rx: DriverQueue,
    tx: DriverQueue,
    buffers: Option<RxBuffers>,
    frames: Option<Frames>,
}

/// Receive buffers in their working set.
struct RxBuffers {
    area: GuestSlice,
    slots: Slots,
    len: u32,
    next: usize,
}

/// Frames to send in their working set.
struct Frames {
    segments: Vec<BufferPiece>,
    per_frame: usize,
    next: usize,
    /// What the descriptors point into.
    area: GuestSlice,
}

impl NetGuest {
    /// Connects to the back end at `socket` with `memory_bytes` for buffers.
    pub fn connect(socket: &Path, memory_bytes: usize) -> Result<Self> {
        Self::connect_without(socket, memory_bytes, 0)
    }

    /// As [`NetGuest::connect`]; the guest leaves out these features.
    pub fn connect_without(socket: &Path, memory_bytes: usize, without: u64) -> Result<Self> {
        let memory = filled_memory(memory_bytes + RING_MEMORY)?;
        let mut transport = VhostUser::connect(socket, STALL_LIMIT)?;
        let offered = transport.device_features()?;
        if offered & features::VERSION_1 == 0 || offered & features::NET_MRG_RXBUF == 0 {
            bail!("the back end offers features {offered:#x}: VERSION_1 and MRG_RXBUF are needed");
        }
        let acked = offered & SUPPORTED & !without;
        transport.negotiate(acked)?;
        transport.share_memory(&memory)?;
        // The driver polls, as a guest under load does: interrupts stay off.
        let rx = DriverQueue::start(&mut transport, &memory, 0, QUEUE_SIZE, acked)?;
        let tx = DriverQueue::start(&mut transport, &memory, 1, QUEUE_SIZE, acked)?;
        for index in 0..2 {
            transport.enable_queue(index, true)?;
        }
        transport.driver_ok()?;
        Ok(Self { _transport: transport, memory, rx, tx, buffers: None, frames: None })
    }

    /// Memory that [`NetGuest::prepare_transmit`] takes for frames of `len` bytes.
    pub fn transmit_bytes(working_set: usize, frame: &Frame, fragment_len: usize) -> usize {
        frame_slots(working_set, frame, fragment_len).total()
    }

    /// Memory that [`NetGuest::prepare_receive`] takes.
    pub fn receive_bytes(working_set: usize, frame_len: usize) -> usize {
        Slots::received(working_set, buffer_len(frame_len)).total()
    }

    /// Fills `working_set` bytes with copies of `frame`.
    ///
    /// A frame in one piece is one descriptor, as a Linux guest sends linear ones. A frame for
    /// segmentation is a head (virtio-net header and packet headers) and fragments of
    /// `fragment_len` bytes that don't touch each other.
    pub fn prepare_transmit(&mut self, working_set: usize, frame: &Frame, fragment_len: usize) -> Result<()> {
        self.frames = None;
        let slots = frame_slots(working_set, frame, fragment_len);
        let area = self.memory.allocate(slots.total(), 4096)?;
        let image = frame.with_header();
        let pieces = pieces(frame, fragment_len);
        let mut segments = Vec::with_capacity(slots.places() * pieces.len());
        for place in 0..slots.places() {
            let mut rest = &image[..];
            for piece in &pieces {
                let (bytes, behind) = rest.split_at(piece.len());
                let at = slots.offset(place) + piece.start;
                area.write(at, bytes);
                let addr = GuestAddr(area.guest_addr().0 + at as u64);
                segments.push(BufferPiece { addr, len: piece.len() as u32, writable: false });
                rest = behind;
            }
        }
        self.frames = Some(Frames { segments, per_frame: pieces.len(), next: 0, area });
        Ok(())
    }

    /// Sends `count` frames, the ring kept full, and waits until all were given back.
    pub fn transmit(&mut self, count: usize) -> Result<Duration> {
        let frames = self.frames.as_mut().context("no frames were prepared")?;
        let mut watch = ChainWatch::new("transmit", count);
        let (mut added, mut done) = (0, 0);
        while done < count {
            while added < count && frames.send(self.tx.ring_mut()) {
                added += 1;
            }
            publish(&mut self.tx)?;
            // A quarter of the ring at a time: refilling frame by frame would make the two CPUs
            // fight for the cache lines of the ring.
            let enough = (usize::from(QUEUE_SIZE) / frames.per_frame / 4).min(count - done);
            let mut got = 0;
            while got < enough {
                match self.tx.ring_mut().reap()? {
                    Some(_) => got += 1,
                    None => watch.spin(done + got)?,
                }
            }
            done += got;
        }
        Ok(watch.elapsed())
    }

    /// Takes what was given back and adds frames until the ring is full, once, without waiting.
    /// Returns how many were given back. With `more` false nothing is added.
    pub fn pump(&mut self, more: bool) -> Result<usize> {
        let frames = self.frames.as_mut().context("no frames were prepared")?;
        let mut done = 0;
        while self.tx.ring_mut().reap()?.is_some() {
            done += 1;
        }
        if more {
            while frames.send(self.tx.ring_mut()) {}
        }
        publish(&mut self.tx)?;
        Ok(done)
    }

    /// Whether frames are on their way.
    pub fn in_flight(&self) -> bool {
        self.tx.in_flight() > 0
    }

    /// Sends one frame and polls until one frame has come back; the time between. The answer must
    /// be of the same Ethernet type.
    pub fn round_trip(&mut self) -> Result<Duration> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        let frames = self.frames.as_mut().context("no frames were prepared")?;
        let at = buffers.slots.offset(buffers.next);
        if !buffers.post(self.rx.ring_mut()) {
            bail!("round trip: the receive ring is full");
        }
        publish(&mut self.rx)?;
        let mut watch = ChainWatch::new("round trip", 1);
        if !frames.send(self.tx.ring_mut()) {
            bail!("round trip: the transmit ring is full");
        }
        publish(&mut self.tx)?;
        while self.rx.ring_mut().reap()?.is_none() {
            watch.spin(0)?;
        }
        let elapsed = watch.elapsed();
        while self.tx.ring_mut().reap()?.is_none() {
            watch.spin(0)?;
        }
        let kind = |area: &GuestSlice, at: usize| {
            let mut bytes = [0; 2];
            area.read(at + VNET_HEADER_LEN + 12, &mut bytes);
            bytes
        };
        let (came, sent) = (kind(&buffers.area, at), kind(&frames.area, 0));
        if came != sent {
            bail!("round trip: a frame of type {came:02x?} came instead of an answer of type {sent:02x?}");
        }
        Ok(elapsed)
    }

    /// Makes receive buffers for frames of `frame_len` bytes, `working_set` bytes of them. None is
    /// posted.
    pub fn prepare_receive(&mut self, working_set: usize, frame_len: usize) -> Result<()> {
        self.buffers = None;
        let len = buffer_len(frame_len);
        let slots = Slots::received(working_set, len);
        let area = self.memory.allocate(slots.total(), 4096)?;
        area.fill(0);
        self.buffers = Some(RxBuffers { area, slots, len: len as u32, next: 0 });
        Ok(())
    }

    /// Receives exactly `count` frames of `frame_len` bytes that wait in the tap's queue. As many
    /// buffers are posted as these frames take, no more: afterwards the back end has none left.
    pub fn receive(&mut self, count: usize, frame_len: usize) -> Result<Duration> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        let per_frame = buffers_of_frame(frame_len);
        let total = count * per_frame;
        let mut watch = ChainWatch::new("receive", total);
        let (mut posted, mut done, mut bytes) = (0, 0, 0);
        while done < total {
            while posted < total && buffers.post(self.rx.ring_mut()) {
                posted += 1;
            }
            publish(&mut self.rx)?;
            let until = done + (usize::from(QUEUE_SIZE) / 4).min(total - done);
            while done < until {
                let Some(used) = self.rx.ring_mut().reap()? else {
                    watch.spin(done)?;
                    continue;
                };
                done += 1;
                bytes += used.len as usize;
                if done.is_multiple_of(per_frame) {
                    if bytes != frame_len + VNET_HEADER_LEN {
                        bail!("a frame of {bytes} bytes, header included, came where {frame_len} were sent");
                    }
                    bytes = 0;
                }
            }
        }
        Ok(watch.elapsed())
    }

    /// Posts buffers until the ring is full. They must be as many as its entries, so that none is
    /// posted twice.
    pub fn fill(&mut self) -> Result<()> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        if buffers.slots.places() < usize::from(QUEUE_SIZE) {
            bail!("{} receive buffers for a ring of {QUEUE_SIZE} entries", buffers.slots.places());
        }
        while buffers.post(self.rx.ring_mut()) {}
        publish(&mut self.rx)
    }

    /// Takes exactly `count` frames of `frame_len` bytes, each in one buffer, and posts a buffer
    /// for each.
    pub fn collect(&mut self, count: usize, frame_len: usize) -> Result<()> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        let mut watch = ChainWatch::new("receive", count);
        let (mut done, mut posted) = (0, 0);
        while done < count {
            let Some(used) = self.rx.ring_mut().reap()? else {
                watch.spin(done)?;
                continue;
            };
            done += 1;
            if used.len as usize != frame_len + VNET_HEADER_LEN {
                bail!("a frame of {} bytes, header included, came where {frame_len} were sent", used.len);
            }
            if done - posted == REFILL || done == count {
                while posted < done && buffers.post(self.rx.ring_mut()) {
                    posted += 1;
                }
                publish(&mut self.rx)?;
            }
        }
        Ok(())
    }
}

impl Frames {
    /// Adds the next frame to the ring; false when the ring is full.
    fn send(&mut self, ring: &mut DriverRing) -> bool {
        let added = ring.add(&self.segments[self.next..self.next + self.per_frame], 0);
        if added {
            self.next += self.per_frame;
            if self.next == self.segments.len() {
                self.next = 0;
            }
        }
        added
    }
}

impl RxBuffers {
    /// Adds the next buffer to the ring; false when the ring is full.
    fn post(&mut self, ring: &mut DriverRing) -> bool {
        let at = self.slots.offset(self.next) as u64;
        let addr = GuestAddr(self.area.guest_addr().0 + at);
        let added = ring.add(&[BufferPiece { addr, len: self.len, writable: true }], 0);
        self.next += usize::from(added);
        added
    }
}

/// Watches that the back end makes progress, while the driver polls.
struct ChainWatch {
    what: &'static str,
    total: usize,
    start: Instant,
    last: (usize, Instant),
    spins: u32,
}

impl ChainWatch {
    fn new(what: &'static str, total: usize) -> Self {
        let start = Instant::now();
        Self { what, total, start, last: (0, start), spins: 0 }
    }

    /// Waits a little; fails when `done` has not changed for [`STALL_LIMIT`].
    fn spin(&mut self, done: usize) -> Result<()> {
        for _ in 0..SPINS {
            std::hint::spin_loop();
        }
        self.spins = self.spins.wrapping_add(1);
        // Reading the clock each time would be most of the loop.
        if self.spins.is_multiple_of(1024) {
            if done != self.last.0 {
                self.last = (done, Instant::now());
            } else if self.last.1.elapsed() > STALL_LIMIT {
                let (what, total) = (self.what, self.total);
                bail!("{what}: the back end stopped after {done} of {total} chains for {STALL_LIMIT:?}");
            }
        }
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Length of the receive buffers, all mergeable: what Linux posts for frames of Ethernet's usual
/// length (drivers/net/virtio_net.c, GOOD_PACKET_LEN), and a page for longer ones.
pub(crate) fn buffer_len(frame_len: usize) -> usize {
    if frame_len + VNET_HEADER_LEN <= RECEIVE_BUFFER { RECEIVE_BUFFER } else { 4096 }
}

/// Receive buffers that one frame fills (virtio 1.3 §5.1.6.4).
pub fn buffers_of_frame(frame_len: usize) -> usize {
    (frame_len + VNET_HEADER_LEN).div_ceil(buffer_len(frame_len))
}

/// Lengths of the descriptors of a frame.
fn segment_lens(frame: &Frame, fragment_len: usize) -> Vec<usize> {
    let total = frame.bytes().len() + VNET_HEADER_LEN;
    if !frame.is_gso() {
        return vec![total];
    }
    let head = VNET_HEADER_LEN + frame.header_len();
    let mut lens = vec![head];
    let mut left = total - head;
    while left > 0 {
        let len = left.min(fragment_len.max(1));
        lens.push(len);
        left -= len;
    }
    lens
}

/// Room that a fragment takes: whole pages and one between it and the next.
fn fragment_room(len: usize) -> usize {
    len.next_multiple_of(4096) + 4096
}

/// Where a frame's descriptors point to, from the start of its slot.
pub(crate) fn pieces(frame: &Frame, fragment_len: usize) -> Vec<Range<usize>> {
    let mut at = 0;
    let piece = |len| {
        let piece = at..at + len;
        at += fragment_room(len);
        piece
    };
    segment_lens(frame, fragment_len).into_iter().map(piece).collect()
}

/// The slots of frames that lie in such pieces.
pub(crate) fn frame_slots(working_set: usize, frame: &Frame, fragment_len: usize) -> Slots {
    let lens = segment_lens(frame, fragment_len);
    match &lens[..] {
        [one] => Slots::new(working_set, *one),
        many => Slots::new(working_set, many.iter().map(|len| fragment_room(*len)).sum()),
    }
}

#[cfg(test)]
mod tests;

//! Sends whole frames through AF_XDP.
//!
//! Memory: `[places to build in][resident frames]`, all the sender's own, registered with the
//! kernel. A place belongs to the caller of `push` while it builds the frame. Then it belongs to
//! the kernel until all pieces of the frame came back over the completion ring. Resident frames are
//! written when they are loaded and only read from then on, so one can be on its way many times at
//! once.

mod in_place;
mod kick;
mod options;
mod resident;
mod slots;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::options::UmemCut;
use self::resident::Residents;
use self::slots::XdpSlots;
use zerowire_sys::socket::ask_send_buffer;
use zerowire_sys::xdp::{
    Descriptor, Interface, RingSizes, Socket, SocketOptions, Statistics, Umem, UmemOptions, XdpError,
};
use zerowire_wire::ethernet::{self, TAG_BYTES as VLAN_TAG_BYTES};

use crate::ledger::{CopyReason, Counters, DropReason};
use crate::send::frame::{ETHERNET_HEADER_BYTES, FrameError, FrameSender};

pub use options::SenderOptions;
pub use resident::Resident;

/// AF_XDP needs a fill ring, which stays empty here.
const FILL_ENTRIES: u32 = 64;

/// The MTU can change at any time and nobody tells; it is read again this often, in flushes.
const MTU_EVERY: u32 = 256;

/// Bytes of frames that may be on their way through the kernel in copy mode; the default would stop
/// a fast interface.
const SEND_BUFFER_BYTES: usize = 8 << 20;

/// The pauses of a wait for completions, which nothing announces.
const PAUSE: std::ops::Range<Duration> = Duration::from_micros(20)..Duration::from_millis(2);

/// Sends frames over one queue of an interface.
///
/// In zero-copy mode the socket also takes over what the queue receives, and drops it: send on a
/// queue that receives nothing else.
#[derive(Debug)]
pub struct XdpSender {
    socket: Socket,
    slots: XdpSlots,
    residents: Residents,
    cut: UmemCut,
    mtu: usize,
    counters: Arc<Counters>,
    /// Frames that were pushed since the sender was opened.
    pushed: u64,
    /// Frames that were pushed and are not back.
    outstanding: usize,
    /// Frames that came back since the last `reap`.
    back: usize,
    /// Frames that the interface dropped, and that were not seen among the completions yet.
    drops: usize,
    flushes: u32,
}

impl XdpSender {
    /// Maps and registers the memory, and binds the queue.
    ///
    /// # Errors
    /// [`XdpError`], per cause.
    pub fn open(options: SenderOptions) -> Result<Self, XdpError> {
        let mtu = Interface::open(&options.interface)?.mtu().map_err(|e| {
            XdpError::system(format!("interface {}", options.interface), "ioctl(SIOCGIFMTU)", e)
        })?;
        let cut = UmemCut::new(&options, mtu)?;
        let umem_options = UmemOptions {
            chunk_bytes: cut.chunk as u32,
            release_timeout: options.busy_timeout,
            ..UmemOptions::default()
        };
        let umem = Umem::new(cut.building + cut.resident, umem_options, options.huge_pages)?;
        let socket_options = SocketOptions {
            interface: options.interface,
            queue: options.queue,
            mode: options.mode,
            multi_buffer: cut.slot > cut.chunk,
            rings: RingSizes {
                fill: FILL_ENTRIES,
                completion: options.ring,
                receive: 0,
                transmit: options.ring,
            },
            first_chunks: Vec::new(),
            busy_timeout: options.busy_timeout,
        };
        let socket = Socket::bind(&umem, &socket_options)?;
        if !socket.zero_copy() {
            ask_send_buffer(&socket, SEND_BUFFER_BYTES);
        }
        Ok(Self {
            socket,
            slots: XdpSlots::new(options.frames),
            residents: Residents::new(cut.building as u64, cut.resident, cut.chunk),
            cut,
            mtu,
            counters: Arc::default(),
            pushed: 0,
            outstanding: 0,
            back: 0,
            drops: 0,
            flushes: 0,
        })
    }

    /// Whether the interface reads the frames from the memory itself.
    pub fn zero_copy(&self) -> bool {
        self.socket.zero_copy()
    }

    /// What runs, in words.
    pub fn path(&self) -> String {
        let mode = if self.zero_copy() {
            "zero-copy mode (the interface reads the frames in place)"
        } else {
            "copy mode (one copy, by the kernel)"
        };
        format!("AF_XDP, interface {}, queue {}, {mode}", self.socket.interface(), self.socket.queue())
    }

    /// What the kernel counted.
    ///
    /// # Errors
    /// Those of getsockopt.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.socket.statistics()
    }

    /// Copies a frame into the resident memory, where it stays until
    /// [`unload_all`](Self::unload_all).
    ///
    /// # Errors
    /// [`FrameError::TooShort`], [`FrameError::TooLong`], [`FrameError::LongerThanMtu`];
    /// [`FrameError::Slot`] if the memory has no room for it.
    pub fn load(&mut self, frame: &[u8]) -> Result<Resident, FrameError> {
        self.check_len(frame.len())?;
        self.check_tag(frame.len(), ethernet::first_type(frame).unwrap_or_default())?;
        let full = FrameError::Slot {
            slot: self.residents.used,
            slots: self.residents.bytes,
            rule: "no room for this resident frame (both numbers are bytes): open the sender with more resident_bytes",
        };
        let resident = self.residents.add(frame.len()).ok_or(full)?;
        self.memory("load", resident.address, frame.len())?.copy_from_slice(frame);
        Ok(resident)
    }

    /// Pushes a resident frame: no byte of it is touched. False: the ring is full; flush, reap, and
    /// try again.
    ///
    /// # Errors
    /// [`FrameError::LongerThanMtu`] if the MTU has shrunk; [`FrameError::Slot`] if the frame is
    /// not one of this sender.
    #[inline]
    pub fn send_resident(&mut self, frame: Resident) -> Result<bool, FrameError> {
        if !self.residents.has(&frame) {
            let (slot, slots) = (frame.address as usize, self.residents.bytes);
            let rule = "no frame was loaded there (both numbers are bytes): load it into this sender first";
            return Err(FrameError::Slot { slot, slots, rule });
        }
        if frame.len() > self.mtu + ETHERNET_HEADER_BYTES {
            self.check_len(frame.len())?;
        }
        let pieces = frame.len().div_ceil(self.cut.chunk) as u32;
        if !self.ring_has(pieces) {
            return Ok(false);
        }
        self.post(frame.address, frame.len());
        Ok(true)
    }

    /// Forgets all resident frames and frees their memory; false, and nothing is changed, while
    /// frames are outstanding.
    pub fn unload_all(&mut self) -> bool {
        let idle = self.outstanding == 0;
        if idle {
            self.residents.clear();
        }
        idle
    }

    /// Whether a frame of this length can go at all; reads the MTU again before it says no.
    #[inline]
    fn check_len(&mut self, len: usize) -> Result<(), FrameError> {
        if len < ETHERNET_HEADER_BYTES {
            return Err(FrameError::TooShort { frame_bytes: len });
        }
        if len > self.cut.slot {
            return Err(FrameError::TooLong { frame_bytes: len, slot_bytes: self.cut.slot });
        }
        self.check_mtu(len, VLAN_TAG_BYTES)
    }

    /// Only a frame with a VLAN tag may be longer than the MTU, by the tag.
    #[inline]
    fn check_tag(&mut self, len: usize, ethertype: u16) -> Result<(), FrameError> {
        match ethertype {
            ethernet::TAG | ethernet::SERVICE_TAG => Ok(()),
            _ => self.check_mtu(len, 0),
        }
    }

    /// Whether a frame is longer than the MTU by at most `tag_bytes`; reads the MTU again before it
    /// says no, for it may have been raised since.
    #[inline]
    fn check_mtu(&mut self, len: usize, tag_bytes: usize) -> Result<(), FrameError> {
        if len <= self.mtu + ETHERNET_HEADER_BYTES + tag_bytes {
            return Ok(());
        }
        self.read_mtu();
        let fits = len <= self.mtu + ETHERNET_HEADER_BYTES + tag_bytes;
        fits.then_some(()).ok_or_else(|| self.longer_than_mtu(len))
    }

    fn longer_than_mtu(&self, frame_bytes: usize) -> FrameError {
        let interface = self.socket.interface().to_owned();
        FrameError::LongerThanMtu { interface, number: self.pushed, frame_bytes, mtu_bytes: self.mtu }
    }

    /// If the interface is gone, the next flush returns the error.
    fn read_mtu(&mut self) {
        if let Ok(mtu) = self.socket.mtu() {
            self.mtu = mtu;
        }
    }

    fn system(&self, call: &'static str, cause: io::Error) -> FrameError {
        FrameError::System { interface: self.socket.interface().to_owned(), call, cause }
    }

    #[inline]
    fn ring_has(&mut self, pieces: u32) -> bool {
        self.socket.transmit().is_some_and(|ring| ring.room(pieces) >= pieces)
    }

    /// Writes the descriptors of a frame for which the ring has room. `address` is such that each
    /// piece of a chunk's length lies in one chunk.
    #[inline]
    fn post(&mut self, address: u64, len: usize) {
        let chunk = self.cut.chunk;
        let Some(ring) = self.socket.transmit() else { return };
        let (mut address, mut left) = (address, len);
        while left > chunk {
            ring.push(Descriptor { address, len: chunk as u32, options: Descriptor::CONTINUES });
            address += chunk as u64;
            left -= chunk;
        }
        ring.push(Descriptor { address, len: left as u32, options: 0 });
        self.pushed += 1;
        self.outstanding += 1;
    }

    /// Counts a frame that came back.
    #[inline]
    fn count(&mut self, len: u32, dropped: bool) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.back += 1;
        let counters = &self.counters;
        if dropped {
            counters.dropped(DropReason::PortRefused);
            return;
        }
        counters.frames.add(1);
        if self.socket.zero_copy() {
            counters.zero_copied_frames.add(1);
            counters.zero_copied_bytes.add(len.into());
        } else {
            counters.copied(CopyReason::Kernel, len.into());
        }
    }

    /// The length of a frame that is now back. A resident one is back with its last piece, a built
    /// one with whatever piece was the last that was missing.
    #[inline]
    fn piece_back(&mut self, address: u64) -> Option<u32> {
        if address < self.cut.building as u64 {
            return self.slots.piece_back((address / self.cut.slot as u64) as u32);
        }
        self.residents.last_piece(address)
    }

    /// Takes everything out of the completion ring.
    ///
    /// The frame that came back last is held back by one step. If the interface drops a frame, the
    /// kernel completes it within the call that says so, behind all others.
    fn collect(&mut self) {
        let mut last = None;
        while let Some(address) = self.socket.completion().pop() {
            if let Some(len) = self.piece_back(address)
                && let Some(before) = last.replace(len)
            {
                self.count(before, false);
            }
        }
        self.socket.completion().release();
        if let Some(len) = last {
            let dropped = self.drops > 0;
            self.drops -= usize::from(dropped);
            self.count(len, dropped);
        }
    }

    /// Frames that were pushed and that the kernel hasn't taken.
    fn unsent(&mut self) -> usize {
        let Some(ring) = self.socket.transmit() else { return 0 };
        let n = ring.waiting();
        let first = ring.consumed();
        (0..n).filter(|i| !ring.entry(first.wrapping_add(*i)).continues()).count()
    }
}

impl FrameSender for XdpSender {
    fn max_frame_bytes(&self) -> usize {
        self.cut.slot.min(self.mtu + ETHERNET_HEADER_BYTES)
    }

    /// A frame that is longer than [`max_frame_bytes`](Self::max_frame_bytes) by a VLAN tag is
    /// built, and refused then if it has none.
    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> Result<bool, FrameError> {
        self.check_len(len)?;
        let pieces = len.div_ceil(self.cut.chunk) as u32;
        let Some(slot) = self.free_place(len) else { return Ok(false) };
        let frame = self.place(slot, len)?;
        build(frame);
        let ethertype = ethernet::first_type(frame).unwrap_or_default();
        self.check_tag(len, ethertype)?;
        self.slots.lend(self.pushed, len as u32, pieces);
        self.post(u64::from(slot) * self.cut.slot as u64, len);
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), FrameError> {
        self.flushes = self.flushes.wrapping_add(1);
        if self.flushes.is_multiple_of(MTU_EVERY) {
            self.read_mtu();
        }
        self.kick(false)
    }

    fn reap(&mut self) -> usize {
        self.collect();
        std::mem::take(&mut self.back)
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let start = Instant::now();
        let mut pause = PAUSE.start;
        let mut before = self.outstanding;
        loop {
            // A driver that stopped is found out by a call only.
            self.kick(pause >= PAUSE.end)?;
            self.collect();
            if self.outstanding == 0 {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let interface = self.socket.interface().to_owned();
                let unsent = self.unsent();
                let guess = (self.pushed - self.outstanding as u64, 0);
                let (oldest, oldest_bytes) = self.slots.oldest().unwrap_or(guess);
                let (frames, oldest_bytes) = (self.outstanding, oldest_bytes as usize);
                return Err(FrameError::Stuck { interface, frames, unsent, oldest, oldest_bytes, waited });
            }
            pause = if self.outstanding < before { PAUSE.start } else { (pause * 2).min(PAUSE.end) };
            before = self.outstanding;
            std::thread::sleep(pause.min(timeout - waited));
        }
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

//! Zero-copy receive of io_uring as the kernel has it: structures, registration, control
//! (include/uapi/linux/io_uring/zcrx.h and io_uring/zcrx.c of Linux 7.x; Documentation/networking/iou-zcrx.rst).
//!
//! ```text
//!  region    | head, tail | entries of the refill ring ............ | statistics |
//!             kernel  user  user writes, kernel reads                 kernel writes
//!  area      | buffer 0 | buffer 1 | ...     written by the NIC or by the kernel; a completion names offset and length,
//!                                            an entry of the refill ring gives that piece back
//! ```
//! Memory: the kernel pins both; they may be unmapped at any time without harm to it. Who may read or write a buffer is up
//! to the caller.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mapping::Mapping;
use super::wide::WideRing;
use io_uring::types::{IORING_MEM_REGION_TYPE_USER, io_uring_region_desc};

const REGISTER_ZCRX_IFQ: u32 = 32;
/// Linux 7.0.
const REGISTER_ZCRX_CTRL: u32 = 36;

/// `ZCRX_REG_NODEV` (Linux 7.1): no interface; the kernel copies everything.
const REG_NODEV: u32 = 2;
const CTRL_FLUSH_RQ: u32 = 0;
const CTRL_ARM_EVENT: u32 = 2;
const EVENT_DESC_FLAG_STATS: u32 = 1;
/// `IORING_ZCRX_AREA_SHIFT`: above this bit an offset holds the area's number.
pub(crate) const AREA_SHIFT: u32 = 48;
/// `IO_RQ_MAX_ENTRIES` (io_uring/zcrx.c).
pub(crate) const MOST_ENTRIES: u32 = 32768;
/// The head of the region, before the entries; what the kernel needs is a part of it.
const REGION_HEAD: usize = 4096;

/// What the kernel tells by a completion of its own (`enum zcrx_event_type`). It does so once, until it is armed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Event {
    /// The NIC asked for a buffer and there was none.
    OutOfBuffers = 0,
    /// Payload was copied into the area.
    Copied = 1,
}

impl Event {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::OutOfBuffers, Self::Copied];

    /// Of a completion's result.
    pub(crate) fn of(result: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|e| *e as i32 == result)
    }
}

/// `struct io_uring_zcrx_rqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rqe {
    /// Offset in the area, with the area's number above.
    pub(crate) off: u64,
    /// Bytes of the piece.
    pub(crate) len: u32,
    pub(crate) pad: u32,
}

/// `struct io_uring_zcrx_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offsets {
    head: u32,
    tail: u32,
    rqes: u32,
    resv2: u32,
    resv: [u64; 2],
}

/// `struct io_uring_zcrx_area_reg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AreaReg {
    addr: u64,
    len: u64,
    rq_area_token: u64,
    flags: u32,
    dmabuf_fd: u32,
    resv2: [u64; 2],
}

/// `struct zcrx_event_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EventDesc {
    user_data: u64,
    type_mask: u32,
    flags: u32,
    stats_offset: u64,
    resv2: [u64; 9],
}

/// `struct io_uring_zcrx_ifq_reg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IfqReg {
    if_idx: u32,
    if_rxq: u32,
    rq_entries: u32,
    flags: u32,
    area_ptr: u64,
    region_ptr: u64,
    offsets: Offsets,
    zcrx_id: u32,
    rx_buf_len: u32,
    event_desc: u64,
    resv: [u64; 2],
}

/// `struct zcrx_ctrl`; the first word of the union is all that is used of it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ctrl {
    zcrx_id: u32,
    op: u32,
    resv: [u64; 2],
    argument: u32,
    rest: [u32; 11],
}

/// `struct zcrx_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyStats {
    /// Pieces that the kernel copied into the area.
    pub(crate) count: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

const _: () = assert!(size_of::<Rqe>() == 16 && size_of::<Offsets>() == 32);
const _: () = assert!(size_of::<AreaReg>() == 48 && size_of::<EventDesc>() == 96);
const _: () = assert!(size_of::<IfqReg>() == 96 && std::mem::offset_of!(IfqReg, zcrx_id) == 64);
const _: () = assert!(std::mem::offset_of!(IfqReg, event_desc) == 72);
const _: () = assert!(size_of::<Ctrl>() == 72 && std::mem::offset_of!(Ctrl, argument) == 24);
const _: () = assert!(size_of::<io_uring_region_desc>() == 64);
const _: () = assert!(size_of::<CopyStats>() == 16);

/// Where payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A receive queue of an interface, by their numbers.
    Queue { interface: u32, queue: u32 },
    /// No device: the kernel copies.
    NoDevice,
}

/// What to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Where payload comes from.
    pub(crate) source: Source,
    /// Start of the area.
    pub(crate) area: *mut u8,
    /// Its bytes.
    pub(crate) area_bytes: usize,
    /// Entries of the refill ring, 1 to [`MOST_ENTRIES`].
    pub(crate) entries: u32,
    /// Bytes of a buffer that the driver is asked for; 0: a page.
    pub(crate) buffer_bytes: u32,
    /// User data of the kernel's events.
    pub(crate) event_data: u64,
}

/// A registration: the refill ring and the statistics. It ends with the ring's descriptor.
#[derive(Debug)]
pub(crate) struct Zcrx {
    region: Mapping,
    fd: Arc<OwnedFd>,
    id: u32,
    entries: u32,
    buffer_bytes: u32,
    token: u64,
    head: usize,
    tail: usize,
    rqes: usize,
    stats: Option<usize>,
}

impl Zcrx {
    /// Registers. Where the kernel knows no events (before 7.2), it is done without them.
    ///
    /// # Errors
    /// That of `io_uring_register`.
    ///
    /// # Safety
    /// The area is mapped, and nobody reads or writes a byte of it but what a completion has named, until it was given
    /// back; the ring outlives this value or is not entered after it.
    pub(crate) unsafe fn new(ring: &WideRing, request: &Request) -> io::Result<Self> {
        match Self::register(ring, request, true) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Self::register(ring, request, false),
            other => other,
        }
    }

    fn register(ring: &WideRing, request: &Request, with_events: bool) -> io::Result<Self> {
        let entries = request.entries.clamp(1, MOST_ENTRIES).next_power_of_two();
        let stats = (REGION_HEAD + entries as usize * size_of::<Rqe>()).next_multiple_of(64);
        let len = (stats + size_of::<CopyStats>()).next_multiple_of(rustix::param::page_size());
        let region = Mapping::anonymous(len)?;
        let (if_idx, if_rxq, flags) = match request.source {
            Source::Queue { interface, queue } => (interface, queue, 0),
            Source::NoDevice => (0, 0, REG_NODEV),
        };
        let mut area =
            AreaReg { addr: request.area as u64, len: request.area_bytes as u64, ..AreaReg::default() };
        let mut desc = io_uring_region_desc {
            user_addr: region.base() as u64,
            size: len as u64,
            flags: IORING_MEM_REGION_TYPE_USER,
            ..Default::default()
        };
        let events = EventDesc {
            user_data: request.event_data,
            type_mask: Event::ALL.iter().fold(0, |m, e| m | 1 << *e as u32),
            flags: EVENT_DESC_FLAG_STATS,
            stats_offset: stats as u64,
            ..EventDesc::default()
        };
        let mut reg = IfqReg {
            if_idx,
            if_rxq,
            rq_entries: entries,
            flags,
            area_ptr: &raw mut area as u64,
            region_ptr: &raw mut desc as u64,
            rx_buf_len: request.buffer_bytes,
            event_desc: if with_events { &raw const events as u64 } else { 0 },
            ..IfqReg::default()
        };
        let fd = Arc::clone(ring.fd());
        // SAFETY: the kernel reads and fills the four structures, which live until it returns, and pins area and region.
        let r = unsafe {
            libc::syscall(libc::SYS_io_uring_register, fd.as_raw_fd(), REGISTER_ZCRX_IFQ, &raw mut reg, 1)
        };
        if r < 0 {
            return Err(io::Error::last_os_error());
        }
        let zcrx = Self {
            fd,
            id: reg.zcrx_id,
            entries: reg.rq_entries,
            // Kernels before 7.0 don't fill this in, and have pages only.
            buffer_bytes: if reg.rx_buf_len == 0 {
                rustix::param::page_size() as u32
            } else {
                reg.rx_buf_len
            },
            token: area.rq_area_token,
            head: reg.offsets.head as usize,
            tail: reg.offsets.tail as usize,
            rqes: reg.offsets.rqes as usize,
            stats: with_events.then_some(stats),
            region,
        };
        let end = zcrx.rqes.checked_add(zcrx.entries as usize * size_of::<Rqe>());
        let is_inside = zcrx.entries.is_power_of_two()
            && zcrx.rqes.is_multiple_of(align_of::<Rqe>())
            && end.is_some_and(|e| e <= stats)
            && zcrx.region.word(zcrx.head).is_some()
            && zcrx.region.word(zcrx.tail).is_some();
        if is_inside { Ok(zcrx) } else { Err(io::Error::other("the refill ring lies outside of its memory")) }
    }

    /// Its number, which receives name.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Entries of the refill ring.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of a buffer.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Whether the kernel sends events and counts what it copies.
    pub(crate) fn has_events(&self) -> bool {
        self.stats.is_some()
    }

    /// The area's number, above an offset's bits.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// How far the kernel has taken entries.
    pub(crate) fn head(&self) -> u32 {
        self.region.word(self.head).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Writes the entry at position `at`, which the kernel has taken or never had.
    pub(crate) fn write(&mut self, at: u32, entry: Rqe) {
        let place = (at & (self.entries - 1)) as usize;
        let to = self.region.base().wrapping_add(self.rqes).cast::<Rqe>().wrapping_add(place);
        // SAFETY: inside the region (checked at the registration) and aligned; the kernel reads no entry between the tail
        // and the head plus the ring's length, and only this thread writes.
        unsafe { to.write(entry) };
    }

    /// Hands the entries before `tail` to the kernel.
    pub(crate) fn publish(&self, tail: u32) {
        if let Some(word) = self.region.word(self.tail) {
            word.store(tail, Ordering::Release);
        }
    }

    /// Makes the kernel take the entries now (`ZCRX_CTRL_FLUSH_RQ`).
    ///
    /// # Errors
    /// EINVAL before Linux 7.0.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.control(CTRL_FLUSH_RQ, 0)
    }

    /// Asks for an event once more (`ZCRX_CTRL_ARM_EVENT`).
    ///
    /// # Errors
    /// EINVAL when it has not come since it was asked for.
    pub(crate) fn arm(&self, event: Event) -> io::Result<()> {
        self.control(CTRL_ARM_EVENT, event as u32)
    }

    fn control(&self, op: u32, argument: u32) -> io::Result<()> {
        let mut ctrl = Ctrl { zcrx_id: self.id, op, argument, ..Ctrl::default() };
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel reads the structure, which lives until it returns.
        let r =
            unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_ZCRX_CTRL, &raw mut ctrl, 0) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// What the kernel has copied so far; zero where it doesn't count.
    pub(crate) fn copied(&self) -> CopyStats {
        let Some(at) = self.stats else { return CopyStats::default() };
        let words = self.region.base().wrapping_add(at).cast::<u64>();
        // SAFETY: inside the region, at a multiple of 64; both sides use whole words, this one atomically.
        let read = |i| unsafe { AtomicU64::from_ptr(words.wrapping_add(i)) }.load(Ordering::Relaxed);
        CopyStats { count: read(0), bytes: read(1) }
    }
}

//! Zero-copy receive of io_uring as the kernel has it: registration, control, export and import
//! (include/uapi/linux/io_uring/zcrx.h and io_uring/zcrx.c of Linux 7.x;
//! Documentation/networking/iou-zcrx.rst).
//!
//! ```text
//!  area      | buffer 0 | buffer 1 | ...     written by the NIC or by the kernel; a completion
//!                                            names offset and length, an entry of the refill
//!                                            ring gives that piece back
//!  region    | refill ring | statistics |    see `region`
//! ```
//! A registration takes one area. From Linux 7.3 on more can be added to it (`ZCRX_CTRL_ADD_AREA`),
//! up to 1024, with a device and without, of buffers of the same length. None can be taken away.
//! The registration ends when all rings that registered or imported it, and all exported
//! descriptors, are closed.
//!
//! Memory: the kernel pins the area; it may be unmapped at any time without harm to the kernel. Who
//! may read or write a buffer is up to the caller.

mod abi;
mod query;
mod region;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::map::Mapping;
use rustix::mm::MapFlags;

use super::calls::register;
use super::wide::{Completions, WideRing};
pub use abi::{AREA_SHIFT, CopyStats, FEATURE_RX_PAGE_SIZE, MOST_ENTRIES, REG_NODEV, Rqe};
use abi::{AreaReg, Ctrl, CtrlAddArea, EventDesc, IfqReg};
use io_uring::types::{IORING_MEM_REGION_TYPE_USER, io_uring_region_desc};
pub use query::{Abilities, abilities};
pub use region::ZcrxRegion;

const _: () = assert!(size_of::<io_uring_region_desc>() == 64);

/// What the kernel tells by a completion of its own (`enum zcrx_event_type`). It does so once,
/// until it is armed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// The NIC wanted a buffer and none was free.
    OutOfBuffers = 0,
    /// Payload was copied into the area.
    Copied = 1,
}

impl Event {
    /// Both.
    pub const ALL: [Self; 2] = [Self::OutOfBuffers, Self::Copied];

    /// Of a completion's result.
    pub fn of(result: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|e| *e as i32 == result)
    }
}

/// Where payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZcrxSource {
    /// A receive queue of an interface, by their numbers.
    Queue {
        /// The interface's.
        interface: u32,
        /// The queue's.
        queue: u32,
    },
    /// No device: the kernel copies.
    NoDevice,
}

/// What to register.
#[derive(Clone, Copy, Debug)]
pub struct ZcrxRequest {
    /// Where payload comes from.
    pub source: ZcrxSource,
    /// Start of the area, if it is memory of the process.
    pub area: *mut u8,
    /// Its bytes.
    pub area_bytes: usize,
    /// The area is that of this DMA buffer, as a whole.
    pub dmabuf: Option<RawFd>,
    /// Entries of the refill ring, 1 to [`MOST_ENTRIES`].
    pub entries: u32,
    /// The refill ring is memory of the kernel, mapped here, and not of the process, pinned.
    pub kernel_ring: bool,
    /// Bytes of a buffer to ask the driver for; 0: a page.
    pub buffer_bytes: u32,
    /// User data of the kernel's events.
    pub event_data: u64,
}

/// A ring's part in a registration. It ends with the ring's descriptor.
#[derive(Debug)]
pub struct Zcrx {
    region: Arc<ZcrxRegion>,
    fd: Arc<OwnedFd>,
    id: u32,
}

/// What the kernel answered to a registration.
#[derive(Clone, Copy, Debug)]
pub struct ZcrxAnswer {
    /// Bytes of a buffer.
    pub buffer_bytes: u32,
    /// The area's number, above an offset's bits.
    pub token: u64,
}

impl Zcrx {
    /// Registers. Where the kernel knows no events (before 7.2), it is done without them.
    ///
    /// # Errors
    /// That of `io_uring_register`.
    ///
    /// # Safety
    /// The area is mapped. Nobody reads or writes a byte of it, except bytes that a completion has
    /// named, until they are given back. The ring outlives this value or is not entered after it.
    pub unsafe fn new(ring: &WideRing, request: &ZcrxRequest) -> io::Result<(Self, ZcrxAnswer)> {
        match Self::register(ring, request, true) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Self::register(ring, request, false),
            other => other,
        }
    }

    fn register(ring: &WideRing, request: &ZcrxRequest, with_events: bool) -> io::Result<(Self, ZcrxAnswer)> {
        let entries = request.entries.clamp(1, MOST_ENTRIES).next_power_of_two();
        let (stats, bytes) = region::lengths(entries);
        let own = if request.kernel_ring { None } else { Some(memory(bytes)?) };
        let (if_idx, if_rxq, flags) = match request.source {
            ZcrxSource::Queue { interface, queue } => (interface, queue, 0),
            ZcrxSource::NoDevice => (0, 0, REG_NODEV),
        };
        let len = request.area_bytes as u64;
        let mut area = match request.dmabuf {
            None => AreaReg { addr: request.area as u64, len, ..AreaReg::default() },
            Some(fd) => AreaReg { len, flags: abi::AREA_DMABUF, dmabuf_fd: fd as u32, ..AreaReg::default() },
        };
        let mut desc = io_uring_region_desc {
            user_addr: own.as_ref().map_or(0, |m| m.as_ptr() as u64),
            size: bytes as u64,
            flags: if own.is_some() { IORING_MEM_REGION_TYPE_USER } else { 0 },
            ..Default::default()
        };
        let events = EventDesc {
            user_data: request.event_data,
            type_mask: Event::ALL.iter().fold(0, |m, e| m | 1 << *e as u32),
            flags: abi::EVENT_DESC_FLAG_STATS,
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
        // SAFETY: the kernel reads and fills the four structures, which live until it returns, and
        // pins area and region.
        unsafe { register(&fd, abi::REGISTER_ZCRX_IFQ, &mut reg, 1)? };
        let memory = match own {
            Some(memory) => memory,
            None => Mapping::ring(&fd, desc.mmap_offset, bytes)?,
        };
        let layout = region::RegionLayout {
            head: reg.offsets.head as usize,
            tail: reg.offsets.tail as usize,
            entries_at: reg.offsets.rqes as usize,
            entries: reg.rq_entries,
            stats: with_events.then_some(stats),
        };
        let region = Arc::new(ZcrxRegion::new(memory, layout, bytes)?);
        // Kernels before 7.0 don't fill this in, and have pages only.
        let page = rustix::param::page_size() as u32;
        let buffer_bytes = if reg.rx_buf_len == 0 { page } else { reg.rx_buf_len };
        let answer = ZcrxAnswer { buffer_bytes, token: area.rq_area_token };
        Ok((Self { region, fd, id: reg.zcrx_id }, answer))
    }

    /// Takes part in a registration that another ring has exported; `region` is that ring's.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN, EBADF if `exported` isn't an exported registration, EINVAL
    /// before Linux 7.0.
    ///
    /// # Safety
    /// As [`Zcrx::new`], for the area of the other ring.
    pub unsafe fn import(
        ring: &WideRing,
        exported: BorrowedFd<'_>,
        region: &Arc<ZcrxRegion>,
    ) -> io::Result<Self> {
        let if_idx = exported.as_raw_fd() as u32;
        let mut reg = IfqReg { if_idx, flags: abi::REG_IMPORT, ..IfqReg::default() };
        let fd = Arc::clone(ring.fd());
        // SAFETY: the kernel reads and fills the structure, which lives until it returns.
        unsafe { register(&fd, abi::REGISTER_ZCRX_IFQ, &mut reg, 1)? };
        Ok(Self { region: Arc::clone(region), fd, id: reg.zcrx_id })
    }

    /// A descriptor by which other rings may take part (`ZCRX_CTRL_EXPORT`).
    ///
    /// # Errors
    /// EINVAL before Linux 7.0; EMFILE.
    pub fn export(&self) -> io::Result<OwnedFd> {
        let fd = self.control(abi::CTRL_EXPORT, 0)?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }

    /// Its number, which receives name.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The refill ring and the statistics.
    pub fn region(&self) -> &Arc<ZcrxRegion> {
        &self.region
    }

    /// Makes the kernel take the entries now (`ZCRX_CTRL_FLUSH_RQ`).
    ///
    /// # Errors
    /// EINVAL before Linux 7.0.
    pub fn flush(&self) -> io::Result<()> {
        self.control(abi::CTRL_FLUSH_RQ, 0).map(drop)
    }

    /// Asks for an event once more (`ZCRX_CTRL_ARM_EVENT`).
    ///
    /// # Errors
    /// EINVAL when the event has not come since the last request for it.
    pub fn arm(&self, event: Event) -> io::Result<()> {
        self.control(abi::CTRL_ARM_EVENT, event as u32).map(drop)
    }

    /// Whether the kernel has [`Zcrx::add_area`].
    pub fn has_more_areas(&self) -> bool {
        abilities().is_some_and(Abilities::has_more_areas)
    }

    /// Adds an area of `bytes`, which is memory of the process, and returns its number, above an
    /// offset's bits. All rings of the registration may get completions for its buffers before this
    /// returns.
    ///
    /// # Errors
    /// EOPNOTSUPP before Linux 7.3; EINVAL where the first area is a DMA buffer, with 1024 areas,
    /// or for bytes that are no pages; ERANGE where buffers are longer than a page and the memory
    /// isn't contiguous; EFAULT where the interface has gone; ENOMEM also beyond RLIMIT_MEMLOCK;
    /// EEXIST from another thread.
    ///
    /// # Safety
    /// As [`Zcrx::new`], for this memory.
    pub unsafe fn add_area(&self, area: *mut u8, bytes: usize) -> io::Result<u64> {
        let mut area = AreaReg { addr: area as u64, len: bytes as u64, ..AreaReg::default() };
        let area_ptr = &raw mut area as u64;
        let op = abi::CTRL_ADD_AREA;
        let mut ctrl = CtrlAddArea { zcrx_id: self.id, op, area_ptr, ..CtrlAddArea::default() };
        // SAFETY: the kernel reads both structures and fills the area's, which live until it
        // returns, and pins the memory.
        unsafe { register(&self.fd, abi::REGISTER_ZCRX_CTRL, &mut ctrl, 0)? };
        Ok(area.rq_area_token)
    }

    /// The argument, as the kernel left it.
    fn control(&self, op: u32, argument: u32) -> io::Result<u32> {
        let mut ctrl = Ctrl { zcrx_id: self.id, op, argument, ..Ctrl::default() };
        // SAFETY: the kernel reads and fills the structure, which lives until it returns.
        unsafe { register(&self.fd, abi::REGISTER_ZCRX_CTRL, &mut ctrl, 0)? };
        Ok(ctrl.argument)
    }
}

/// Tries to register 16 pages, on a ring that takes the registration with it.
///
/// # Errors
/// Those of [`Zcrx::new`], and of the ring.
pub fn attempt(source: ZcrxSource) -> io::Result<()> {
    let ring = WideRing::new(8, 8, Completions::Wide)?;
    let area = Mapping::private_with(16 * rustix::param::page_size(), MapFlags::empty())?;
    let request = ZcrxRequest {
        source,
        area: area.as_ptr(),
        area_bytes: area.len(),
        dmabuf: None,
        entries: 64,
        kernel_ring: false,
        buffer_bytes: 0,
        event_data: 0,
    };
    // SAFETY: nobody accesses the area, and the ring ends here.
    unsafe { Zcrx::new(&ring, &request) }.map(drop)
}

/// Memory that a forked child doesn't get.
fn memory(bytes: usize) -> io::Result<Mapping> {
    Ok(Mapping::private_with(bytes, MapFlags::empty())?.kept_from_children()?)
}

//! Memory that is lent: an [`Area`] of buffers of one length, and files mapped for sending.
//!
//! # Who owns which bytes
//! An [`Area`] owns one mapping, cut into buffers. A [`Lease`] is the only access to its buffer
//! until it is dropped; then the buffer goes back to the area. A [`Frozen`] buffer is a lease that
//! nobody can write any more. It may be shared and lent many times at once, and the last one gives
//! the buffer back. The mapping goes away with the last `Area`, `Lease` or `Frozen`. So a buffer
//! that a sender holds for the kernel keeps the whole area mapped.
//!
//! This process never reads a [`MappedFile`] through its mapping. Another process may truncate the
//! file, and reading past the end of a mapped file raises SIGBUS. The kernel reads the mapping when
//! it sends (it answers EFAULT there). If bytes must be copied in user space, they are read with
//! `pread`.

mod error;
mod file;
mod free;
mod lease;
mod map;

pub use error::AreaError;
pub use file::{FileSlice, MappedFile};
pub use lease::{Frozen, Lease};

use free::FreeList;
use map::Map;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerowire_wire::setters;

/// The pages that an area is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages (of the machine's base size).
    #[default]
    Normal,
    /// 2 MiB pages from the machine's pool (`MAP_HUGETLB`,
    /// Documentation/admin-guide/mm/hugetlbpage.rst). Pinning one is 512 times cheaper than pinning
    /// its 4 KiB parts.
    Huge,
}

/// How an area is cut. `AreaOptions::default()`: 256 buffers of 64 KiB, in normal pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AreaOptions {
    /// Length of a buffer in bytes, 1 to 1 GiB. Buffers lie one behind the other. Their distance is
    /// rounded up to 64 bytes, so no two share a cache line.
    pub buffer_bytes: usize,
    /// Number of buffers, 1 to 2^24.
    pub buffers: usize,
    /// Which pages.
    pub pages: Pages,
}

impl Default for AreaOptions {
    fn default() -> Self {
        Self { buffer_bytes: 64 << 10, buffers: 256, pages: Pages::Normal }
    }
}

impl AreaOptions {
    setters! { buffer_bytes: usize, buffers: usize, pages: Pages }
}

/// Buffers begin at multiples of this: a cache line, so that two owners never write the same line.
const ALIGN: usize = 64;
/// The longest buffer.
const MAX_BUFFER_BYTES: usize = 1 << 30;
/// The most buffers: their indices fit beside a counter in the free list's head.
const MAX_BUFFERS: usize = 1 << 24;

/// The number of the next area.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct AreaInner {
    map: Map,
    buffer_bytes: usize,
    stride: usize,
    buffers: usize,
    id: u64,
    free: FreeList,
}

/// Memory cut into buffers of one length. Clones are handles of the same area.
#[derive(Clone, Debug)]
pub struct Area(Arc<AreaInner>);

impl Area {
    /// Maps the memory, all zeroes, and cuts it. Pages are taken from the system when they are
    /// first written (huge ones are reserved at once).
    ///
    /// # Errors
    /// [`AreaError::BufferBytes`] and [`AreaError::Buffers`]: out of their range.
    /// [`AreaError::HugePages`]: the pool has too few. [`AreaError::Map`]: mmap(2) failed.
    pub fn new(options: AreaOptions) -> Result<Self, AreaError> {
        let AreaOptions { buffer_bytes, buffers, pages } = options;
        if buffer_bytes == 0 || buffer_bytes > MAX_BUFFER_BYTES {
            return Err(AreaError::BufferBytes(buffer_bytes));
        }
        if buffers == 0 || buffers > MAX_BUFFERS {
            return Err(AreaError::Buffers(buffers));
        }
        let stride = buffer_bytes.next_multiple_of(ALIGN);
        let len = stride.checked_mul(buffers).ok_or(AreaError::Buffers(buffers))?;
        Ok(Self::cut(Map::anonymous(len, pages)?, buffer_bytes, stride, buffers))
    }

    /// One buffer, which is the first `len` bytes of a device's memory, read-only here.
    pub(crate) fn of_device(fd: BorrowedFd<'_>, len: usize) -> Result<Self, AreaError> {
        Ok(Self::cut(Map::file(fd, len)?, len, len, 1))
    }

    fn cut(map: Map, buffer_bytes: usize, stride: usize, buffers: usize) -> Self {
        let (id, free) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), FreeList::new(buffers as u32));
        Self(Arc::new(AreaInner { map, buffer_bytes, stride, buffers, id, free }))
    }

    /// Takes a free buffer, or `None` when all are leased. Never waits, and allocates nothing. The
    /// buffer holds what its last owner left there; its length is [`Area::buffer_bytes`].
    ///
    /// Buffers that a living sender lent come back when it reads its notifications:
    /// [`Sender::lease`] does. When no other buffer is free, this also looks for those of senders
    /// that have ended.
    ///
    /// [`Sender::lease`]: crate::send::Sender::lease
    pub fn lease(&self) -> Option<Lease> {
        let index = self.0.free.pop().or_else(|| {
            crate::send::orphans();
            self.0.free.pop()
        })?;
        Some(Lease::new(self.clone(), index))
    }

    /// Buffers that are free now.
    pub fn free(&self) -> usize {
        self.0.free.len()
    }

    /// Buffers in all.
    pub fn buffers(&self) -> usize {
        self.0.buffers
    }

    /// Length of a buffer in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// A number that no other area of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Start of the memory, for registering it (io_uring, AF_XDP). Dereferencing it is up to the
    /// rules of [`Lease`].
    pub fn base(&self) -> *mut u8 {
        self.0.map.base()
    }

    /// Length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.0.map.len()
    }

    /// Never: an area has at least one buffer.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn offset_of(&self, index: u32) -> usize {
        index as usize * self.0.stride
    }

    fn give_back(&self, index: u32) {
        self.0.free.push(index);
    }
}

//! The dirty log: which pages of guest memory this process has written, for live migration.
//!
//! The front end shares a file in which each bit stands for [`PAGE_BYTES`] of guest-physical
//! memory, from address 0 on (QEMU `docs/interop/vhost-user.rst`, "Migration"). A writer sets the
//! bits of what it wrote; the front end clears them when it sends the pages.
//!
//! **Order.** The bytes come first and their bit after them. A front end that clears the bit and
//! then reads the page would miss bytes that are written later than the bit. Bits are set by an
//! atomic OR, since the front end clears them at the same time.
//!
//! **Who owns the log.** The front end does, and may change or truncate it. Nothing is ever read
//! back from it but to set bits. A truncated log is caught as lost guest memory is (`sigbus`). Its
//! length was checked when it was mapped, and bits beyond it are not set.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::{ReadWriteFlags, preadv2};
use thiserror::Error;

use super::file::{NotMemory, check_memory, file_len, memory_file, page_size};
use super::sigbus::Guarded;
use zerowire_sys::map::Mapping;

/// Bytes of guest memory that a bit stands for (`VHOST_LOG_PAGE`).
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of guest memory that a byte of the log stands for.
const BYTE_COVERS: u64 = 8 * PAGE_BYTES;

/// Bytes of a log at most, for guest addresses below 32 TiB, which no guest reaches. A front end
/// that describes memory at the end of the address space can't have this process look through more.
const MAX_BYTES: u64 = 1 << 30;

/// Bytes of a log that are read at once. More take as long.
const READ_BYTES: usize = 64 * 1024;

/// A piece of a log in which no bit is set.
const NOTHING_SET: [u8; 4096] = [0; 4096];

/// What can be wrong with a log. The text is what the log file shows.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum LogError {
    /// No bytes.
    #[error("the dirty log is empty")]
    Empty,
    /// Offset and size leave the range of file offsets.
    #[error("the dirty log's offset {offset:#x} + size {len:#x} is no range of a file")]
    Overflow { offset: u64, len: u64 },
    /// Its file can't be mapped as memory.
    #[error("the dirty log: {0}")]
    File(NotMemory),
    /// The file ends before the log does: setting a bit in the rest would raise SIGBUS.
    #[error("the dirty log needs {need:#x} bytes of its file, which has {have:#x}")]
    FileTooShort { need: u64, have: u64 },
    /// The log does not reach the end of what it must cover.
    #[error(
        "the dirty log's {len} bytes cover guest addresses below {covers:#x}, and {what} ends at {need:#x}: a log of {} bytes is needed",
        need.div_ceil(BYTE_COVERS)
    )]
    TooSmall { len: u64, covers: u64, what: String, need: u64 },
    /// Beyond what any log covers here.
    #[error("{what} ends at guest address {end:#x}: writes beyond {:#x} can't be noted in a dirty log", MAX_BYTES * BYTE_COVERS)]
    TooHigh { what: String, end: u64 },
    /// The kernel refused the mapping.
    #[error("the dirty log can't be mapped: {0}")]
    Map(io::Error),
}

// Not by `#[from]`, which makes it a source, too: a chain of errors would tell it twice.
impl From<NotMemory> for LogError {
    fn from(cause: NotMemory) -> Self {
        Self::File(cause)
    }
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        Self::Map(error)
    }
}

/// The bits.
#[derive(Debug)]
enum Bits {
    /// The front end's.
    Shared(Guarded),
    /// This process's own, until the front end gives its log.
    Private(Mapping),
}

impl Bits {
    #[inline]
    fn mapping(&self) -> &Mapping {
        match self {
            Self::Shared(map) => map.mapping(),
            Self::Private(map) => map,
        }
    }
}

/// A dirty log. Clones share it; it is unmapped when the last one goes.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    bits: Arc<Bits>,
    /// Where the log starts in the mapping, bytes.
    skip: usize,
    /// Bytes of the log.
    len: u64,
    /// Its file, and where in it the log starts, in bytes. Holes of a file get no memory when they
    /// are read.
    file: Option<(Arc<OwnedFd>, u64)>,
    /// Is notified when bits were set.
    signal: Option<Arc<OwnedFd>>,
}

impl DirtyLog {
    /// Maps the log of `len` bytes at `offset` of `file` (vhost-user SET_LOG_BASE). The offset may
    /// be any.
    ///
    /// # Errors
    /// [`LogError`], but for [`LogError::TooSmall`] and [`LogError::TooHigh`].
    pub fn new(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, LogError> {
        if len == 0 {
            return Err(LogError::Empty);
        }
        let overflow = LogError::Overflow { offset, len };
        let Some(need) = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()) else {
            return Err(overflow);
        };
        check_memory(file)?;
        let have = file_len(file)?;
        if have < need {
            return Err(LogError::FileTooShort { need, have });
        }
        let len = len.min(MAX_BYTES);
        // A file on hugetlbfs has its own, and the handler of SIGBUS has to know it.
        let page = page_size(file)?;
        let skip = offset % page;
        // Whole pages, so that the last one is known to the handler, too.
        let Ok(map_len) = usize::try_from((len + skip).next_multiple_of(page)) else {
            return Err(overflow);
        };
        let map = Mapping::shared(file, offset - skip, map_len).map_err(io::Error::from)?;
        let bits = Arc::new(Bits::Shared(Guarded::new(map, page as usize)));
        let file = Some((Arc::new(file.try_clone_to_owned()?), offset));
        Ok(Self { bits, skip: skip as usize, len, file, signal: None })
    }

    /// A log of this process's own, for writes before the front end has given its log. It covers
    /// guest addresses below `end`.
    ///
    /// # Errors
    /// [`LogError::TooHigh`], [`LogError::Map`].
    pub fn private(end: u64) -> Result<Self, LogError> {
        let len = end.div_ceil(BYTE_COVERS).max(1);
        if len > MAX_BYTES {
            return Err(LogError::TooHigh { what: "what is to be noted".to_owned(), end });
        }
        let map_len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let bits = Arc::new(Bits::Private(Mapping::private(map_len).map_err(io::Error::from)?));
        Ok(Self { bits, skip: 0, len, file: None, signal: None })
    }

    /// Its file, where in it the log begins, and its length, in bytes; None for a log of this
    /// process's own.
    pub fn place(&self) -> Option<(&Arc<OwnedFd>, u64, u64)> {
        self.file.as_ref().map(|(file, offset)| (file, *offset, self.len))
    }

    /// A log without bits, as long as this one, in a file that another process can map.
    ///
    /// # Errors
    /// [`LogError::Map`].
    pub fn in_file(&self) -> Result<Self, LogError> {
        let file = memory_file("zerowire-log", self.len)?;
        Self::new(file.as_fd(), 0, self.len)
    }

    /// Whether both are the same log.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bits, &other.bits)
    }

    /// The same log; `signal`, an eventfd, is notified when bits were set (vhost-user SET_LOG_FD).
    pub fn with_signal(self, signal: Option<Arc<OwnedFd>>) -> Self {
        Self { signal, ..self }
    }

    /// The first guest address that it does not cover.
    pub fn covers(&self) -> u64 {
        self.len.saturating_mul(BYTE_COVERS)
    }

    /// Checks that addresses below `end` are covered; `what` ends there.
    ///
    /// # Errors
    /// [`LogError::TooSmall`], [`LogError::TooHigh`].
    pub fn check(&self, end: u64, what: impl FnOnce() -> String) -> Result<(), LogError> {
        if end <= self.covers() {
            return Ok(());
        }
        if end > MAX_BYTES * BYTE_COVERS {
            return Err(LogError::TooHigh { what: what(), end });
        }
        Err(LogError::TooSmall { len: self.len, covers: self.covers(), what: what(), need: end })
    }

    /// Says that `len` bytes at guest address `addr` were written. Pages that the log does not
    /// cover are left out: it was checked against the memory and the rings that are logged.
    pub fn wrote(&self, addr: u64, len: u64) {
        let Some(last) = len.checked_sub(1).map(|more| addr.saturating_add(more) / PAGE_BYTES) else {
            return;
        };
        let first = addr / PAGE_BYTES;
        for byte in first / 8..=(last / 8).min(self.len - 1) {
            let from = first.max(byte * 8) - byte * 8;
            let to = last.min(byte * 8 + 7) - byte * 8;
            self.set(byte, (0xff << from) as u8 & (0xff >> (7 - to)) as u8);
        }
    }

    #[inline]
    fn byte(&self, at: u64) -> &AtomicU8 {
        // The front end changes the bits at the same time, by atomic operations as well.
        self.bits.mapping().byte(self.skip + at as usize)
    }

    #[inline]
    fn set(&self, byte: u64, mask: u8) {
        // What was written before is seen by a front end that finds the bit.
        self.byte(byte).fetch_or(mask, Ordering::AcqRel);
    }

    /// Sets all bits that are set in `other`, as far as this log reaches.
    pub fn take_over(&self, other: &Self) {
        let end = self.len.min(other.len);
        // The threads that come here have small stacks.
        let mut read = vec![0; READ_BYTES];
        let mut at = 0;
        while at < end {
            let part = &mut read[..READ_BYTES.min((end - at) as usize)];
            let got = other.read(at, part);
            // Its file is shorter now.
            if got == 0 {
                break;
            }
            for piece in part[..got].chunks(NOTHING_SET.len()) {
                if piece != &NOTHING_SET[..piece.len()] {
                    for (byte, mask) in (at..).zip(piece).filter(|(_, mask)| **mask != 0) {
                        self.set(byte, *mask);
                    }
                }
                at += piece.len() as u64;
            }
        }
    }

    /// Copies bytes from `at` on, and returns how many. A front end's log is read from its file:
    /// to touch what was never written would have the kernel find memory for the whole log, which
    /// is as long as the front end's address space is wide. One piece is touched where the file
    /// can't be read, as at memory with a hardware error.
    fn read(&self, at: u64, to: &mut [u8]) -> usize {
        if let Some((file, offset)) = &self.file
            && let list = &mut [IoSliceMut::new(to)]
            && let Ok(got) = preadv2(file, list, offset + at, ReadWriteFlags::empty())
        {
            return got;
        }
        let len = to.len().min(NOTHING_SET.len());
        (at..).zip(&mut to[..len]).for_each(|(at, to)| *to = self.byte(at).load(Ordering::Acquire));
        len
    }

    /// Tells the front end that bits were set, if it wants to know.
    pub fn notify(&self) {
        if let Some(fd) = &self.signal {
            let _ = rustix::io::write(fd.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests;

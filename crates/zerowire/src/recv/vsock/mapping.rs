//! Mapping, and access to what is mapped. All `unsafe` of the address space is here.
//!
//! Aliasing: header pages are shared with the daemon, both sides write them; they are accessed by atomics only. Data pages
//! are written by the daemon alone, while it owns the window; a slice of them exists only while the program owns it
//! ([`super::window`]). Guest memory can change at any time and is read by volatile loads only ([`super::volatile`]).

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A stretch of address space into which pieces of files are mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to no thread; all access is by atomics, volatile loads, or slices of read-only pages that the
// owner of a window makes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes, a multiple of the page size, that can't be accessed until something is placed there.
    pub(super) fn reserve(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other one.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, len })
    }

    /// Maps `len` bytes of a file, from `offset` on, shared, at `at` of the reservation. Core dumps
    /// leave them out: guest memory belongs to somebody else.
    pub(super) fn place(
        &mut self,
        at: usize,
        len: usize,
        file: BorrowedFd<'_>,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::Errno::INVAL);
        }
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: FIXED replaces pages of this reservation only, as checked; `&mut self` says that
        // nothing borrows them. The advice changes no bytes.
        unsafe {
            let start = self.base.as_ptr().add(at).cast();
            mmap(start, len, prot, MapFlags::SHARED | MapFlags::FIXED, file, offset)?;
            madvise(start, len, Advice::LinuxDontDump)?;
        }
        Ok(())
    }

    /// The address of a byte.
    pub(super) fn address(&self, at: usize) -> *const u8 {
        self.base.as_ptr().wrapping_add(at)
    }

    /// A word of pages that are mapped for writing. The caller passes offsets that it made from checked options.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.len, "word at {at} of {} bytes", self.len);
        // SAFETY: in bounds and aligned (the base is a page's); the pages are mapped for writing at least as long as
        // `self` lives, and only accessed by atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Bytes of data pages.
    ///
    /// # Safety
    /// `at..at + len` is placed, in a file that can't shrink, and nobody writes those bytes as long as the slice lives.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at + len <= self.len);
        // SAFETY: by the contract of this function.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation is this value's own, and what borrows from it is gone. An error would mean that it is
        // not mapped, and there is nothing to be done about it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn core_dumps_leave_out_what_is_placed() {
        const LEN: usize = 4 << 12;
        let file = rustix::fs::memfd_create("zw-left-out", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN as u64).unwrap();
        let mut mapping = Mapping::reserve(2 * LEN).unwrap();
        mapping.place(0, LEN, file.as_fd(), 0, true).unwrap();
        mapping.place(LEN, LEN, file.as_fd(), 0, false).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.split("\nVmFlags:").collect::<Vec<_>>();
        let flags = ours.windows(2).filter(|pair| pair[0].contains("memfd:zw-left-out"));
        let flags: Vec<_> = flags.filter_map(|pair| pair[1].lines().next()).collect();
        assert_eq!(flags.len(), 2, "{flags:?}");
        assert!(flags.iter().all(|f| f.split(' ').any(|f| f == "dd")), "{flags:?}");
    }
}

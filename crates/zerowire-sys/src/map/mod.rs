//! Memory mappings, unmapped when they are dropped.
//!
//! A [`Mapping`] owns a range of addresses. It gives out addresses and atomic words; who may read
//! or write which other bytes, and when, is the matter of its users. A page that is not mapped, or
//! lies behind the end of its file, ends the process when it is touched (SIGSEGV, SIGBUS).

mod own;

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

pub use own::{PrivateMap, SealedMap};

use crate::plain::PlainData;
use crate::volatile::VolatileSlice;

/// Length of a huge page, bytes: on x86-64, and on arm64 with base pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Pages of 2 MiB from their pool, whatever the default length of huge pages is.
pub const HUGE_PAGES: MapFlags = MapFlags::HUGETLB.union(MapFlags::HUGE_2MB);

/// For reading and writing.
pub const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// What a caller may say about pages. Other flags say where a mapping goes, which is this module's
/// part.
const PAGE_FLAGS: MapFlags =
    MapFlags::POPULATE.union(MapFlags::NORESERVE).union(MapFlags::LOCKED).union(HUGE_PAGES);

/// A range of addresses that is mapped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of addresses belongs to the process, not to a thread. The value itself accesses
// none of its bytes but by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of `fd` from `offset` on, shared, for reading and writing. Core dumps leave them
    /// out.
    pub fn shared(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let mapping = Self::shared_with(fd, offset, len, READ_WRITE, MapFlags::NORESERVE)?;
        leave_out_of_dumps(mapping.as_ptr(), len);
        Ok(mapping)
    }

    /// `len` bytes of private zeroed memory. Pages that are never touched cost nothing, and core
    /// dumps leave them out.
    pub fn private(len: usize) -> io::Result<Self> {
        let mapping = Self::private_with(len, MapFlags::NORESERVE)?;
        leave_out_of_dumps(mapping.as_ptr(), len);
        Ok(mapping)
    }

    /// `len` bytes of a ring that the kernel shares by `fd`, at `offset`: present from the start,
    /// for reading and writing. A forked child doesn't get them.
    pub fn ring(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        Self::shared_with(fd, offset, len, READ_WRITE, MapFlags::POPULATE)?.kept_from_children()
    }

    /// As [`Mapping::shared`], in core dumps as well, with this access. Of `pages` those flags
    /// count that say what the pages are: `POPULATE`, `NORESERVE`, [`HUGE_PAGES`].
    pub fn shared_with(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: ProtFlags,
        pages: MapFlags,
    ) -> io::Result<Self> {
        check(offset)?;
        let flags = MapFlags::SHARED | (pages & PAGE_FLAGS);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other one.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, fd, offset) }?;
        Self::owned(base, len)
    }

    /// As [`Mapping::private`], in core dumps as well. `pages` is as for [`Mapping::shared_with`].
    ///
    /// # Errors
    /// What mmap(2) says: ENOMEM, also without free huge pages; EAGAIN beyond RLIMIT_MEMLOCK, if
    /// all memory is locked.
    pub fn private_with(len: usize, pages: MapFlags) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | (pages & PAGE_FLAGS);
        // SAFETY: as above.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, flags) }?;
        Self::owned(base, len)
    }

    /// Reserves `len` bytes, a multiple of the page size, that can't be accessed until something is
    /// placed there.
    pub fn reserve(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
        Self::owned(base, len)
    }

    fn owned(base: *mut std::ffi::c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Maps `len` bytes of `fd` from `offset` on, shared, over what is at `at` of this mapping.
    /// Core dumps leave them out. `pages` is as for [`Mapping::shared_with`].
    ///
    /// # Errors
    /// What mmap(2) and madvise(2) say; EINVAL for a range that is not in this mapping.
    pub fn place(
        &mut self,
        at: usize,
        len: usize,
        (fd, offset): (impl AsFd, u64),
        access: ProtFlags,
        pages: MapFlags,
    ) -> io::Result<()> {
        check(offset)?;
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::Errno::INVAL);
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED | (pages & PAGE_FLAGS);
        let start = self.base.as_ptr().wrapping_add(at).cast();
        // SAFETY: FIXED replaces pages of this mapping only, as checked; `&mut self` says that
        // nothing borrows them. The advice changes no bytes.
        unsafe {
            mmap(start, len, access, flags, fd, offset)?;
            madvise(start, len, Advice::LinuxDontDump)
        }
    }

    /// The mapping, which a forked child doesn't get. A child that shared it would do harm in two
    /// ways. Once one side writes to a page, a copy that the kernel doesn't know replaces it. And a
    /// ring that stays mapped in the child keeps its queue busy.
    pub fn kept_from_children(self) -> io::Result<Self> {
        // SAFETY: the range of the mapping; nothing changes in this process.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork) }?;
        Ok(self)
    }

    /// Lets go of the pages: private memory holds zeros from now on, and costs nothing until it is
    /// touched again. Best effort.
    pub fn discard(&mut self) {
        // SAFETY: the range of the mapping, which nothing borrows, as `&mut self` says.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontNeed) };
    }

    /// The integer at byte `at`, which others may change at any time; `None` where it is not
    /// inside, or not aligned. The whole process accesses it by atomics only.
    #[inline]
    pub fn atomic<A: AtomicInteger>(&self, at: usize) -> Option<&A> {
        if !at.is_multiple_of(size_of::<A>()) || at.checked_add(size_of::<A>())? > self.len {
            return None;
        }
        // SAFETY: aligned (the base is a page's), inside the mapping, which lives as long as the
        // borrow. Any bytes are a value.
        Some(unsafe { &*self.base.as_ptr().wrapping_add(at).cast::<A>() })
    }

    /// The byte at `at`, as [`Mapping::atomic`].
    ///
    /// # Panics
    /// Where it is not in the mapping.
    #[inline]
    pub fn byte(&self, at: usize) -> &AtomicU8 {
        self.atomic(at).unwrap_or_else(|| panic!("byte {at} of {}", self.len))
    }

    /// The first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty, which is the default one alone.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at byte `at`, as [`Mapping::atomic`].
    ///
    /// # Panics
    /// Where no such word is in the mapping.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        self.find_word(at).unwrap_or_else(|| panic!("word at {at} of {} bytes", self.len))
    }

    /// As [`Mapping::word`]; `None` where `at` is not inside, or not aligned.
    #[inline]
    pub fn find_word(&self, at: usize) -> Option<&AtomicU32> {
        self.atomic(at)
    }

    /// Those of `len` bytes from `at` on that are in the mapping, which others may change at any
    /// time.
    #[inline]
    pub fn volatile(&self, at: usize, len: usize) -> VolatileSlice<'_> {
        let at = at.min(self.len);
        // SAFETY: inside the mapping, which lives as long as the borrow.
        unsafe { VolatileSlice::new(self.base.as_ptr().wrapping_add(at), len.min(self.len - at)) }
    }

    /// Bytes of the mapping.
    ///
    /// # Safety
    /// `at..at + len` is in the mapping and readable, of a file that can't shrink, and nobody
    /// writes those bytes as long as the slice lives.
    #[inline]
    pub unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at + len <= self.len);
        // SAFETY: by the contract of this function.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }

    /// Bytes of the mapping, for writing.
    ///
    /// # Safety
    /// As [`Mapping::bytes`], and nobody reads them by other means.
    #[inline]
    pub(crate) unsafe fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) }
    }
}

impl Default for Mapping {
    /// No addresses at all: what stays where a mapping is taken from.
    fn default() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: exactly the range that was mapped, to which nothing refers any more. An error
        // leaves it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Integers that are accessed by atomics: any bytes are a value.
pub trait AtomicInteger: sealed::Sealed {}

impl<A: sealed::Sealed> AtomicInteger for A {}

mod sealed {
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

    pub trait Sealed {}
    impl Sealed for AtomicU8 {}
    impl Sealed for AtomicU16 {}
    impl Sealed for AtomicU32 {}
    impl Sealed for AtomicU64 {}
}

/// A mapping with a table in it: a power of two of entries of one kind, which a position finds that
/// counts up and wraps. Others may change an entry at any time: words of it are read and written by
/// atomics.
pub(crate) struct EntryTable<T> {
    memory: Mapping,
    /// Where the first entry lies, bytes.
    at: usize,
    mask: u32,
    kind: PhantomData<fn(T) -> T>,
}

impl<T: PlainData> EntryTable<T> {
    const WORDS: usize = size_of::<T>() / size_of::<u64>();

    /// None unless the entries lie in the mapping, at a multiple of 8, and are a power of two.
    pub(crate) fn new(memory: Mapping, at: usize, entries: u32) -> Option<Self> {
        const { assert!(size_of::<T>() == Self::WORDS * size_of::<u64>()) };
        let end = (entries as usize).checked_mul(size_of::<T>())?.checked_add(at)?;
        let is_table = entries.is_power_of_two() && at.is_multiple_of(size_of::<u64>()) && end <= memory.len;
        is_table.then(|| Self { memory, at, mask: entries - 1, kind: PhantomData })
    }

    /// Entries in all.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.mask + 1
    }

    /// The mapping.
    #[inline]
    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Reads an entry.
    #[inline]
    pub(crate) fn read(&self, position: u32) -> T {
        let mut value = MaybeUninit::<T>::uninit();
        for (i, word) in self.words(position).iter().enumerate() {
            // SAFETY: one of the words that a value has.
            unsafe { value.as_mut_ptr().cast::<u64>().add(i).write_unaligned(word.load(Ordering::Relaxed)) };
        }
        // SAFETY: all of its words were written, and any bytes are a value.
        unsafe { value.assume_init() }
    }

    /// Writes an entry.
    #[inline]
    pub(crate) fn write(&self, position: u32, value: &T) {
        let value = std::ptr::from_ref(value).cast::<u64>();
        for (i, word) in self.words(position).iter().enumerate() {
            // SAFETY: one of the words that a value has; none of its bytes is padding.
            word.store(unsafe { value.add(i).read_unaligned() }, Ordering::Relaxed);
        }
    }

    #[inline]
    fn words(&self, position: u32) -> &[AtomicU64] {
        let at = self.at + (position & self.mask) as usize * size_of::<T>();
        // SAFETY: the masked position is that of an entry, and all lie in the mapping, aligned. The
        // mapping lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.memory.base.as_ptr().add(at).cast(), Self::WORDS) }
    }
}

impl<T> fmt::Debug for EntryTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryTable({} at {})", self.mask + 1, self.at)
    }
}

/// Leaves addresses out of core dumps: guests' data must not end up in a file of the host's.
fn leave_out_of_dumps(at: *mut u8, len: usize) {
    // SAFETY: the advice changes no bytes; the kernel checks the range.
    let _ = unsafe { madvise(at.cast(), len, Advice::LinuxDontDump) };
}

/// Puts zeroed memory in the place of `len` bytes at `at`. It makes system calls and nothing else,
/// so that a signal handler may call it.
///
/// # Errors
/// What mmap(2), memfd_create(2) and ftruncate(2) say.
///
/// # Safety
/// These are whole pages of a mapping of the caller's, to which nobody holds a reference.
pub unsafe fn replace_by_zeros(at: *mut u8, len: usize) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // A kernel that never overcommits (vm.overcommit_memory = 2) may refuse private memory as long
    // as this.
    // SAFETY: the caller's promise.
    if unsafe { mmap_anonymous(at.cast(), len, READ_WRITE, flags) }.is_err() {
        // SAFETY: as above.
        unsafe { replace_by_file(at, len) }?;
    }
    leave_out_of_dumps(at, len);
    Ok(())
}

/// As [`replace_by_zeros`], by a file without content: the kernel charges only its pages that are
/// touched.
///
/// # Safety
/// As [`replace_by_zeros`].
unsafe fn replace_by_file(at: *mut u8, len: usize) -> io::Result<()> {
    let file = memfd_create(c"zerowire-lost", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len as u64)?;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    unsafe { mmap(at.cast(), len, READ_WRITE, flags, &file, 0) }.map(drop)
}

/// Offsets have 63 bits.
fn check(offset: u64) -> io::Result<()> {
    i64::try_from(offset).map_or(Err(io::Errno::OVERFLOW), |_| Ok(()))
}

/// For tests of what is left out of core dumps.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    /// Whether core dumps leave out the mapping that has this address (proc_pid_smaps(5): `dd`).
    pub fn is_left_out(at: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
        let mut inside = false;
        for line in maps.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if first == "VmFlags:" && inside {
                return rest.split(' ').any(|flag| flag == "dd");
            }
            if let Some((start, end)) = first.split_once('-') {
                let bound = |text| usize::from_str_radix(text, 16).expect("an address");
                inside = (bound(start)..bound(end)).contains(&at.addr());
            }
        }
        panic!("{at:?} is not mapped")
    }
}

#[cfg(test)]
mod tests;

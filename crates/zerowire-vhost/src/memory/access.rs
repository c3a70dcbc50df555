//! Each access of this process to guest memory: copies from and to private memory, sums, and the
//! words of rings, and system calls over lists.
//!
//! The guest may write the same bytes meanwhile. What arrives is then a mixture of old and new
//! bytes, and a hostile guest could have written worse in the first place. The bytes are data, and
//! this side checks what it relies on in the private copy.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

use zerowire_sys::socket::{self, Received};

use super::{Guarded, IoList, Segment};

/// Bytes of a round of a sum's inner loop.
const ROUND: usize = 64;

/// Where a byte of guest memory is mapped in this process. A number, until somebody accesses the
/// memory: who does must hold the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPtr(*mut u8);

// SAFETY: an address, whatever the thread.
unsafe impl Send for HostPtr {}
// SAFETY: as above.
unsafe impl Sync for HostPtr {}

impl HostPtr {
    /// The address of nothing.
    pub const NULL: Self = Self(std::ptr::null_mut());

    /// The address for a system call.
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        self.0
    }

    /// The address as a number.
    #[inline]
    pub fn addr(self) -> usize {
        self.0.addr()
    }

    /// The address `bytes` further on.
    #[inline]
    pub fn wrapping_add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl From<*mut u8> for HostPtr {
    #[inline]
    fn from(ptr: *mut u8) -> Self {
        Self(ptr)
    }
}

/// What keeps memory mapped, at the same addresses as long as it lives.
pub(crate) trait KeepsMapped: Send + Sync + std::fmt::Debug {
    /// The mapping.
    fn map(&self) -> &Guarded;
}

/// A part of a mapping, in which others change words at any time: this process reads and writes
/// them by atomics, or whole at once. It keeps the mapping.
#[derive(Debug)]
pub(crate) struct SharedWords {
    start: HostPtr,
    len: usize,
    _keeper: Arc<dyn KeepsMapped>,
}

impl SharedWords {
    /// `len` bytes of the mapping from byte `at` on. None where it has no such bytes, or where they
    /// begin at an odd address.
    pub(crate) fn new(keeper: Arc<dyn KeepsMapped>, at: usize, len: usize) -> Option<Self> {
        let mapping = keeper.map().mapping();
        let is_inside = at.checked_add(len)? <= mapping.len();
        let start = HostPtr(mapping.as_ptr().wrapping_add(at));
        (is_inside && start.addr().is_multiple_of(2)).then_some(Self { start, len, _keeper: keeper })
    }

    /// Where `bytes` bytes lie from byte `at` on.
    ///
    /// # Panics
    /// Where not all of them are in this part.
    #[inline(always)]
    fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        if !ends_within(at, bytes, self.len) {
            outside(at, self.len);
        }
        self.start.0.wrapping_add(at)
    }

    /// The byte at `at`.
    ///
    /// # Panics
    /// As [`Self::at`].
    #[inline]
    pub(crate) fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, which lives as long as this value.
        unsafe { AtomicU8::from_ptr(self.at(at, 1)) }
    }

    /// The `i`th of the words of two bytes.
    ///
    /// # Panics
    /// As [`Self::at`].
    #[inline(always)]
    pub(crate) fn word(&self, i: usize) -> &AtomicU16 {
        // SAFETY: as above, and aligned: the part begins at an even address.
        unsafe { AtomicU16::from_ptr(self.at(2 * i, 2).cast()) }
    }

    /// The word of eight bytes at byte `at`.
    ///
    /// # Panics
    /// As [`Self::at`], and where it is not aligned.
    #[inline]
    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        let ptr = self.at(at, 8).cast::<u64>();
        assert!(ptr.is_aligned(), "a word of eight bytes at byte {at}");
        // SAFETY: as above, and aligned.
        unsafe { AtomicU64::from_ptr(ptr) }
    }

    /// Writes eight bytes at byte `at`, whatever their alignment.
    ///
    /// # Panics
    /// As [`Self::at`].
    #[inline(always)]
    pub(crate) fn write(&self, at: usize, bytes: [u8; 8]) {
        // SAFETY: as above. Others may read the bytes meanwhile, and get any mixture.
        unsafe { self.at(at, 8).cast::<[u8; 8]>().write_unaligned(bytes) };
    }

    /// Reads the 16 bytes at byte `at` once; None where there are none.
    #[inline(always)]
    pub(crate) fn read_pair(&self, at: usize) -> Option<[u64; 2]> {
        // SAFETY: inside the mapping, which lives as long as this value.
        ends_within(at, 16, self.len).then(|| unsafe { pair(self.start.0.wrapping_add(at)) })
    }

    /// Asks the CPU for the line of byte `at`, to read it.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        prefetch(self.start.0.wrapping_add(at));
    }

    /// Asks the CPU for the line of byte `at`, to write it.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, at: usize) {
        prefetch_to_write(self.start.0.wrapping_add(at));
    }
}

/// Whether `bytes` bytes from byte `at` on lie within `len`. One comparison is left of it where
/// `at` is made of an index of 16 bits.
#[inline(always)]
fn ends_within(at: usize, bytes: usize, len: usize) -> bool {
    at.checked_add(bytes).is_some_and(|end| end <= len)
}

/// Out of line: the checks stand where each frame passes.
#[cold]
#[inline(never)]
fn outside(at: usize, len: usize) -> ! {
    panic!("byte {at} of {len} bytes of shared memory")
}

/// Two words of the guest's, of any alignment.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct WordPair(u64, u64);

/// Reads two words once, in the guest's byte order.
///
/// # Safety
/// The 16 bytes are mapped.
#[inline(always)]
unsafe fn pair(at: *const u8) -> [u64; 2] {
    // SAFETY: the caller's promise. The guest may write at the same time: a torn value is as good
    // as any other hostile value. The read is volatile, so that it happens once; the type is
    // packed, since tables may lie at any address.
    let WordPair(first, second) = unsafe { at.cast::<WordPair>().read_volatile() };
    [u64::from_le(first), u64::from_le(second)]
}

/// As [`SharedWords::read_pair`], of a segment.
#[inline(always)]
pub(crate) fn read_pair(segment: &Segment, at: usize) -> Option<[u64; 2]> {
    // SAFETY: the segment holds all of the bytes, in mapped guest memory that the caller holds.
    ends_within(at, 16, segment.len as usize).then(|| unsafe { pair(segment.ptr.0.wrapping_add(at)) })
}

/// Brings a cache line nearer. Any address is allowed: a prefetch never faults.
#[inline]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it accesses no memory in the sense of the language and can't
    // fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Brings a cache line nearer that is going to be written. Any address is allowed, as for
/// [`prefetch`].
#[inline]
fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it changes no memory and no register. Every x86-64 processor
    // decodes it, as nothing at all where it is not built in.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    prefetch(at);
}

/// What is done next with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// Asks the CPU for a line each 64 bytes from `start` on.
#[inline]
pub(crate) fn prefetch_bytes(start: HostPtr, bytes: usize, access: Access) {
    for at in (0..bytes).step_by(64) {
        match access {
            Access::Read => prefetch(start.0.wrapping_add(at)),
            Access::Write => prefetch_to_write(start.0.wrapping_add(at)),
        }
    }
}

/// Copies from the segments, `skip` bytes in, to `dst`. Returns how many bytes there were to copy.
#[inline]
pub fn read(segments: &[Segment], skip: usize, dst: &mut [u8]) -> usize {
    let len = dst.len();
    let mut done = 0;
    walk(segments, skip, len, |_, ptr, n| {
        // SAFETY: `ptr..ptr + n` is a part of a segment, which lies in mapped guest memory that the
        // caller holds. dst has room for n more bytes. It is private memory, so the two don't
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(ptr, dst.as_mut_ptr().add(done), n) };
        done += n;
    });
    done
}

/// Copies `src` into the segments, `skip` bytes in. Returns how many bytes there was room for.
#[inline]
pub fn write(segments: &[Segment], skip: usize, src: &[u8]) -> usize {
    let mut done = 0;
    walk(segments, skip, src.len(), |_, ptr, n| {
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr().add(done), ptr, n) };
        done += n;
    });
    done
}

/// As [`write()`], from the beginning, for a header of `N` bytes. Nearly always all of it lies in
/// the first segment, and a copy of a known length costs no call.
#[inline(always)]
pub fn write_header<const N: usize>(segments: &[Segment], header: &[u8; N]) {
    match segments.first() {
        // SAFETY: as in `write`; the segment holds all of the header.
        Some(s) if s.len as usize >= N => unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), s.ptr.0, N);
        },
        _ => {
            write(segments, 0, header);
        }
    }
}

/// Writes `bytes` into the segment, `skip` bytes in, by one volatile store: the compiler neither
/// delays it nor merges it with others. Writes nothing where the segment ends before.
#[inline(always)]
pub fn write_now<const N: usize>(segment: &Segment, skip: usize, bytes: [u8; N]) {
    if skip + N <= segment.len as usize {
        let at = segment.ptr.0.wrapping_add(skip).cast::<[u8; N]>();
        // SAFETY: as in `write`; the segment holds all of the bytes, which as an array may lie at
        // any address.
        unsafe { at.write_volatile(bytes) };
    }
}

/// Leaves segments behind that lie wholly before `skip`, so that a copy in many steps does not walk
/// them with each one.
#[inline]
pub fn pass(segments: &mut &[Segment], skip: &mut usize) {
    while let Some((first, rest)) = segments.split_first()
        && *skip >= first.len as usize
    {
        *skip -= first.len as usize;
        *segments = rest;
    }
}

/// Visits `len` bytes of the segments from `skip` on, run by run: the segment of each, where it
/// begins, and how long it is.
#[inline]
pub(super) fn walk(
    segments: &[Segment],
    mut skip: usize,
    mut len: usize,
    mut visit: impl FnMut(&Segment, *mut u8, usize),
) {
    for s in segments {
        if len == 0 {
            return;
        }
        let seg_len = s.len as usize;
        if skip >= seg_len {
            skip -= seg_len;
            continue;
        }
        let n = (seg_len - skip).min(len);
        visit(s, s.ptr.0.wrapping_add(skip), n);
        len -= n;
        skip = 0;
    }
}

/// Copies `len` bytes from one guest's segments to another's, `from_skip` and `to_skip` bytes in.
/// Returns how many bytes there were to copy and room for.
#[inline]
pub fn copy(from: &[Segment], from_skip: usize, to: &[Segment], to_skip: usize, len: usize) -> usize {
    let mut done = 0;
    walk(from, from_skip, len, |_, src, n| {
        let mut part = 0;
        walk(to, to_skip + done, n, |_, dst, m| {
            // SAFETY: both runs lie in mapped guest memory that the caller holds. Two guests may be
            // given the same memory: the runs may overlap, which `copy` allows.
            unsafe { std::ptr::copy(src.wrapping_add(part), dst, m) };
            part += m;
        });
        done += part;
    });
    done
}

/// The sum of a run's bytes as words in the machine's byte order, the last one filled up with a
/// zero. The guest may write the run meanwhile: the sum is then that of neither content.
#[inline]
pub fn sum(run: &Segment) -> u64 {
    let (ptr, len) = (run.ptr.0.cast_const(), run.len as usize);
    let mut at = 0;
    // Neighbours in a vector register: one addition each for as many words as it holds.
    let mut lanes = [0u64; ROUND / 4];
    while at + ROUND <= len {
        // SAFETY: ROUND bytes from `at` on lie within the run, which lies in mapped guest memory
        // that the caller holds. Every pattern of bytes is a value, and the read asks for no
        // alignment.
        let words = unsafe { ptr.add(at).cast::<[u32; ROUND / 4]>().read_unaligned() };
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(word);
        }
        at += ROUND;
    }
    let mut sum: u64 = lanes.iter().sum();
    while at + 4 <= len {
        // SAFETY: as above, for four bytes.
        sum += u64::from(unsafe { ptr.add(at).cast::<u32>().read_unaligned() });
        at += 4;
    }
    let mut tail = [0u8; 4];
    for (i, byte) in tail.iter_mut().enumerate().take(len - at) {
        // SAFETY: fewer than four bytes are left, and `at + i` is one of them.
        *byte = unsafe { ptr.add(at + i).read() };
    }
    sum + u64::from(u32::from_ne_bytes(tail))
}

/// Sends the bytes that the list names, in one call that does not wait.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send(socket: impl AsFd, list: &IoList<'_>) -> io::Result<usize> {
    // SAFETY: the list borrows what it names for longer than the call.
    unsafe { socket::send(socket, list.entries(), 0) }.map_err(io::Error::from_raw_os_error)
}

/// Messages in a call at most.
pub const MAX_MESSAGES: usize = 64;

/// Sends messages, in one call that does not wait; `ends` says where each ends in the list. Returns
/// how many were sent. Beyond [`MAX_MESSAGES`] they are left.
///
/// # Errors
/// Those of sendmmsg(2).
pub fn send_messages(
    socket: impl AsFd,
    list: &IoList<'_>,
    ends: impl Iterator<Item = usize>,
) -> io::Result<usize> {
    // SAFETY: as in `send`.
    let sent = unsafe { socket::send_parts::<MAX_MESSAGES>(socket, list.entries(), ends) };
    sent.map_err(io::Error::from_raw_os_error)
}

/// Sends private bytes that lie in runs, at most [`MAX_IOV`](socket::MAX_IOV) of them, as [`send`].
/// The list is for the call alone.
///
/// # Errors
/// As [`send`].
pub fn send_runs<'a>(
    socket: impl AsFd,
    runs: impl Iterator<Item = &'a [u8]>,
    list: &mut Vec<libc::iovec>,
) -> io::Result<usize> {
    list.clear();
    list.extend(runs.map(|b| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() }));
    // SAFETY: the runs are borrowed for longer than the call.
    unsafe { socket::send(socket, list, 0) }.map_err(io::Error::from_raw_os_error)
}

/// Receives into the memory that the list names, in one call that does not wait.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(socket: impl AsFd, list: &mut IoList<'_>) -> io::Result<Received> {
    // SAFETY: as in `send`. Private bytes are borrowed exclusively, and no Rust reference points to
    // the guest's.
    unsafe { socket::receive(socket, list.entries()) }.map_err(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::memory::Mapping;

    #[derive(Debug)]
    struct Mapped(Guarded);

    impl KeepsMapped for Mapped {
        fn map(&self) -> &Guarded {
            &self.0
        }
    }

    #[test]
    fn words_lie_in_their_part_and_keep_it_mapped() {
        let mapped = Arc::new(Mapped(Guarded::new(Mapping::private(4096).expect("memory"), 4096)));
        let part = |at, len| SharedWords::new(mapped.clone(), at, len);
        assert!(part(4096, 0).is_some() && part(4094, 2).is_some());
        assert!(part(4095, 2).is_none() && part(usize::MAX, 2).is_none(), "outside");
        assert!(part(1, 2).is_none(), "odd");
        let words = part(2, 24).expect("inside");
        drop(mapped);
        words.word(11).store(u16::from_ne_bytes([7, 8]), Ordering::Relaxed);
        words.write(13, [1; 8]);
        assert_eq!(words.byte(22).load(Ordering::Relaxed), 7);
        let tail = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 7, 8];
        let (first, second) = tail.split_at(8);
        let pair = [first, second].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")));
        assert_eq!(words.read_pair(8), Some(pair));
        assert_eq!(words.long(6).load(Ordering::Relaxed), u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 1]));
        assert!(words.read_pair(9).is_none() && words.read_pair(usize::MAX).is_none());
        let panics = |access: &dyn Fn()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).expect_err("no such word");
        };
        panics(&|| words.word(12).store(0, Ordering::Relaxed));
        panics(&|| words.byte(24).store(0, Ordering::Relaxed));
        panics(&|| words.long(8).store(0, Ordering::Relaxed));
        panics(&|| words.write(17, [0; 8]));
    }

    #[test]
    fn a_pair_lies_in_its_segment() {
        let mut memory = [3u8; 17];
        let segment = Segment { ptr: memory.as_mut_ptr().into(), len: 17, region: 0 };
        assert_eq!(read_pair(&segment, 1), Some([0x0303_0303_0303_0303; 2]));
        assert!(read_pair(&segment, 2).is_none() && read_pair(&segment, usize::MAX).is_none());
    }

    #[test]
    fn a_store_at_once_stays_in_its_segment() {
        let mut memory = [0u8; 4];
        let segment = Segment { ptr: memory.as_mut_ptr().into(), len: 3, region: 0 };
        write_now(&segment, 1, [7, 8]);
        write_now(&segment, 2, [9, 9]);
        assert_eq!(memory, [0, 7, 8, 0]);
    }
}

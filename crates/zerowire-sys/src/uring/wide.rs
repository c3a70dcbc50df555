//! A ring with completions of 32 bytes, as zero-copy receive needs it: set-up, entries,
//! completions.
//!
//! ```text
//!   CQE32:   every place has 32 bytes           | 16 common | 16 more |
//!   MIXED:   every place has 16 bytes; a completion of 32 takes two, never across the end
//!            | 16 | 16 | 16 common, F_32 | 16 more | F_SKIP | ...
//! ```
//! Memory: the queues are mapped from the ring's descriptor. The kernel writes completions between
//! head and tail, and this process reads them. This process writes entries, and the kernel reads
//! and copies them inside `io_uring_enter`. An entry of this module ([`Entry`]) names no memory of
//! the process, so pushing one is safe.
//!
//! Source: include/uapi/linux/io_uring.h of Linux 6.18; the numbers are part of the kernel's
//! interface.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::enter::{Patience, enter};
use crate::map::Mapping;

const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_CLAMP: u32 = 1 << 4;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_TASKRUN_FLAG: u32 = 1 << 9;
const SETUP_CQE32: u32 = 1 << 11;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
/// Linux 6.6: entries are taken in their own order.
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Linux 6.18.
const SETUP_CQE_MIXED: u32 = 1 << 18;

const OFF_SQ_RING: u64 = 0;
const OFF_SQES: u64 = 0x1000_0000;

/// `IORING_SQ_CQ_OVERFLOW`: completions wait on the kernel's own list.
const SQ_CQ_OVERFLOW: u32 = 1 << 1;

/// `IORING_CQE_F_MORE`: the request goes on.
pub const CQE_F_MORE: u32 = 1 << 1;
/// `IORING_CQE_F_SKIP`: fills the end of the queue, no completion.
const CQE_F_SKIP: u32 = 1 << 5;
/// `IORING_CQE_F_32`: this completion has 32 bytes.
const CQE_F_32: u32 = 1 << 15;

/// `IORING_OP_ACCEPT` and `IORING_ACCEPT_MULTISHOT` (Linux 5.19).
const OP_ACCEPT: u8 = 13;
const ACCEPT_MULTISHOT: u16 = 1;
const OP_POLL_ADD: u8 = 6;
const OP_ASYNC_CANCEL: u8 = 14;
const OP_RECV_ZC: u8 = 58;
const RECV_MULTISHOT: u16 = 1 << 1;
const ASYNC_CANCEL_ALL: u32 = 1;
const ASYNC_CANCEL_ANY: u32 = 1 << 2;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv: u32,
    user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv: u32,
    user_addr: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq: SqOffsets,
    cq: CqOffsets,
}
const _: () = assert!(size_of::<Params>() == 120);

/// `struct io_uring_sqe`, of requests that name no memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    zcrx_id: u32,
    addr3: u64,
    pad: u64,
}
const _: () = assert!(size_of::<Entry>() == 64);
const _: () = assert!(std::mem::offset_of!(Entry, user_data) == 32);
const _: () = assert!(std::mem::offset_of!(Entry, zcrx_id) == 44);

impl Entry {
    /// RECV_ZC, multishot (it must be): payload of TCP socket `fd` goes to the area of `zcrx_id`;
    /// ends after `bytes` bytes (0: never).
    #[inline]
    pub fn recv_zc(fd: RawFd, zcrx_id: u32, bytes: u32, user_data: u64) -> Self {
        let (opcode, ioprio) = (OP_RECV_ZC, RECV_MULTISHOT);
        Self { opcode, ioprio, fd, zcrx_id, len: bytes, user_data, ..Self::default() }
    }

    /// Cancels the request with the user data `target`.
    pub fn cancel(target: u64, user_data: u64) -> Self {
        Self { opcode: OP_ASYNC_CANCEL, fd: -1, addr: target, user_data, ..Self::default() }
    }

    /// Cancels every request of the ring.
    pub fn cancel_all(user_data: u64) -> Self {
        let op_flags = ASYNC_CANCEL_ALL | ASYNC_CANCEL_ANY;
        Self { opcode: OP_ASYNC_CANCEL, fd: -1, op_flags, user_data, ..Self::default() }
    }

    /// Accepts one connection of the listening socket `fd`, or all that come (`many`); closed on
    /// exec.
    pub fn accept(fd: RawFd, many: bool, user_data: u64) -> Self {
        let (opcode, ioprio) = (OP_ACCEPT, if many { ACCEPT_MULTISHOT } else { 0 });
        Self { opcode, ioprio, fd, op_flags: libc::SOCK_CLOEXEC as u32, user_data, ..Self::default() }
    }

    /// One completion when `fd` is readable.
    pub fn readable(fd: RawFd, user_data: u64) -> Self {
        // The halves of the mask are swapped on big-endian machines.
        let mask = u32::from(libc::POLLIN as u16);
        let op_flags = if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask };
        Self { opcode: OP_POLL_ADD, fd, op_flags, user_data, ..Self::default() }
    }
}

/// How the ring keeps completions of 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completions {
    /// All have 32 bytes (`IORING_SETUP_CQE32`).
    #[default]
    Wide,
    /// Those that need it have 32 bytes, the others 16 (`IORING_SETUP_CQE_MIXED`, Linux 6.18).
    Mixed,
}

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideCqe {
    /// What the entry was pushed with.
    pub user_data: u64,
    /// Bytes, or a negative errno.
    pub result: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// The first eight of the further bytes; 0 where there are none.
    pub extra: u64,
}

/// Words of a place in the completion queue: 4 (32 bytes) or 2 (16 bytes).
#[inline]
fn place_words(kind: Completions) -> usize {
    match kind {
        Completions::Wide => 4,
        Completions::Mixed => 2,
    }
}

/// The completion at position `head` of a queue of `mask + 1` places, each word of which `word`
/// reads, and the position behind it. `None`: there is none before `tail`.
#[inline]
fn read_at(
    kind: Completions,
    mut head: u32,
    tail: u32,
    mask: u32,
    word: impl Fn(usize) -> u64,
) -> (Option<WideCqe>, u32) {
    let width = place_words(kind);
    while head != tail {
        let at = (head & mask) as usize * width;
        let packed = word(at + 1);
        let (result, flags) = (packed as u32 as i32, (packed >> 32) as u32);
        let (result, flags) =
            if cfg!(target_endian = "big") { (flags as i32, result as u32) } else { (result, flags) };
        let is_wide = kind == Completions::Wide || flags & CQE_F_32 != 0;
        let step = if kind == Completions::Mixed && is_wide { 2 } else { 1 };
        if flags & CQE_F_SKIP != 0 {
            head = head.wrapping_add(1);
            continue;
        }
        // A wide one at the last place would be the kernel's error; it must not be read past the
        // end.
        let is_whole = step == 1 || head & mask != mask;
        let extra = if is_wide && is_whole { word(at + 2) } else { 0 };
        return (Some(WideCqe { user_data: word(at), result, flags, extra }), head.wrapping_add(step));
    }
    (None, head)
}

/// See the module. One thread makes it and enters it (`IORING_SETUP_SINGLE_ISSUER`).
#[derive(Debug)]
pub struct WideRing {
    queues: Mapping,
    entries: Mapping,
    fd: Arc<OwnedFd>,
    kind: Completions,
    sq: SqPlaces,
    cq: CqPlaces,
    /// Not sent to other threads.
    one_thread: PhantomData<*const ()>,
}

/// Where things of the submission queue lie, and its tail as far as it is written.
#[derive(Debug)]
struct SqPlaces {
    head: usize,
    tail: usize,
    flags: usize,
    count: u32,
    next: u32,
}

/// The same of the completion queue.
#[derive(Debug)]
struct CqPlaces {
    head: usize,
    tail: usize,
    count: u32,
    cqes: usize,
    next: u32,
}

impl WideRing {
    /// Room for `submissions` entries a batch and `completions` completions (rounded up to powers
    /// of two), with SINGLE_ISSUER and DEFER_TASKRUN.
    ///
    /// # Errors
    /// That of `io_uring_setup`: EINVAL on kernels before 6.6 (with [`Completions::Mixed`]: 6.18),
    /// EPERM or ENOSYS where io_uring is forbidden or absent, ENOMEM.
    pub fn new(submissions: u32, completions: u32, kind: Completions) -> io::Result<Self> {
        let wide = match kind {
            Completions::Wide => SETUP_CQE32,
            Completions::Mixed => SETUP_CQE_MIXED,
        };
        let mut params = Params {
            cq_entries: completions.max(submissions),
            flags: SETUP_CQSIZE
                | SETUP_CLAMP
                | SETUP_SUBMIT_ALL
                | SETUP_TASKRUN_FLAG
                | SETUP_SINGLE_ISSUER
                | SETUP_DEFER_TASKRUN
                | SETUP_NO_SQARRAY
                | wide,
            ..Params::default()
        };
        // SAFETY: the kernel reads and fills the structure, which lives until it returns.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, submissions, &raw mut params) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let Params { sq, cq, sq_entries, cq_entries, .. } = params;
        let cqes = cq.cqes as usize;
        let len = cqes + cq_entries as usize * place_words(kind) * 8;
        let len = len.max([sq.head, sq.tail, sq.flags].into_iter().max().unwrap_or(0) as usize + 4);
        // One mapping holds both queues (IORING_FEAT_SINGLE_MMAP, Linux 5.4).
        let queues = Mapping::ring(&fd, OFF_SQ_RING, len)?;
        let entries = Mapping::ring(&fd, OFF_SQES, sq_entries as usize * size_of::<Entry>())?;
        let sq = SqPlaces {
            head: sq.head as usize,
            tail: sq.tail as usize,
            flags: sq.flags as usize,
            count: sq_entries,
            next: 0,
        };
        let cq =
            CqPlaces { head: cq.head as usize, tail: cq.tail as usize, count: cq_entries, cqes, next: 0 };
        let ring = Self { queues, entries, fd: Arc::new(fd), kind, sq, cq, one_thread: PhantomData };
        for offset in [ring.sq.head, ring.sq.tail, ring.sq.flags, ring.cq.head, ring.cq.tail] {
            if ring.queues.find_word(offset).is_none() {
                return Err(io::Error::other("io_uring_setup gave offsets outside of its queues"));
            }
        }
        Ok(ring)
    }

    /// The ring's descriptor. What is registered lives as long as any holder of it.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// How completions are kept.
    pub fn kind(&self) -> Completions {
        self.kind
    }

    /// Completions that fit.
    pub fn completions(&self) -> u32 {
        self.cq.count
    }

    #[inline]
    fn load(&self, offset: usize) -> u32 {
        self.queues.find_word(offset).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Entries that were pushed and not handed over yet.
    #[inline]
    pub fn held(&self) -> u32 {
        self.sq.next.wrapping_sub(self.load(self.sq.head))
    }

    /// Adds an entry to the batch; false when it is full ([`WideRing::enter`] makes room).
    #[inline]
    pub fn push(&mut self, entry: Entry) -> bool {
        if self.held() >= self.sq.count {
            return false;
        }
        let place = (self.sq.next & (self.sq.count - 1)) as usize;
        let at = self.entries.as_ptr().cast::<Entry>().wrapping_add(place);
        // SAFETY: inside the mapped entries; the kernel reads none that the tail has not passed,
        // and this one is free.
        unsafe { at.write(entry) };
        self.sq.next = self.sq.next.wrapping_add(1);
        if let Some(tail) = self.queues.find_word(self.sq.tail) {
            tail.store(self.sq.next, Ordering::Release);
        }
        true
    }

    /// Whether completions are on the kernel's own list since the queue was full. The next
    /// [`WideRing::enter`] brings them as far as there is room.
    #[inline]
    pub fn has_overflowed(&self) -> bool {
        self.load(self.sq.flags) & SQ_CQ_OVERFLOW != 0
    }

    /// One `io_uring_enter`: hands the batch over, runs the kernel's deferred work, and waits for
    /// `want` completions. It waits for at most `timeout` (`None` with `want` above zero: for
    /// ever). A timeout or a signal doesn't count as an error.
    ///
    /// # Errors
    /// EEXIST from another thread; EBUSY and EAGAIN mean: take completions first.
    #[inline]
    pub fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let patience = Patience { timeout, ..Patience::default() };
        // SAFETY: entries name no memory.
        match unsafe { enter(self.fd.as_raw_fd(), self.held(), want, patience) } {
            Ok(_) | Err(libc::ETIME | libc::EINTR) => Ok(()),
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The next completion that is in the queue already; makes no system call.
    #[inline]
    pub fn pop(&mut self) -> Option<WideCqe> {
        let tail = self.load(self.cq.tail);
        let words = self.queues.as_ptr().wrapping_add(self.cq.cqes).cast::<u64>();
        // SAFETY: `read_at` asks for words of places within the queue, which lies inside the
        // mapping. The kernel has written those before the tail, and writes none of them until the
        // head has passed.
        let word = |index: usize| unsafe { words.wrapping_add(index).read() };
        let (cqe, next) = read_at(self.kind, self.cq.next, tail, self.cq.count - 1, word);
        if next != self.cq.next {
            self.cq.next = next;
            if let Some(head) = self.queues.find_word(self.cq.head) {
                head.store(next, Ordering::Release);
            }
        }
        cqe
    }
}

#[cfg(test)]
mod tests;

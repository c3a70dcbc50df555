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
//! and copies them inside `io_uring_enter`. An [`Entry`] names no memory of the process, so pushing
//! one is safe.
//!
//! Source: include/uapi/linux/io_uring.h of Linux 6.18; the numbers are part of the kernel's
//! interface.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::calls::{CqOffsets, Params, SqOffsets, enter, setup};
use super::sqe::Sqe;
pub use super::sqe::{CQE_F_MORE, Entry};
use crate::map::{EntryTable, Mapping};

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

/// `IORING_CQE_F_SKIP`: fills the end of the queue, no completion.
const CQE_F_SKIP: u32 = 1 << 5;
/// `IORING_CQE_F_32`: this completion has 32 bytes.
const CQE_F_32: u32 = 1 << 15;

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
    /// Both queues: words of heads and tails, and completions, of which each word is an entry here.
    queues: EntryTable<u64>,
    entries: EntryTable<Sqe>,
    fd: Arc<OwnedFd>,
    kind: Completions,
    /// Where the words of the submission queue lie, and its tail as far as it is written.
    sq: SqOffsets,
    sq_next: u32,
    /// The same of the completion queue, with its places.
    cq: CqOffsets,
    cq_next: u32,
    cq_places: u32,
    /// Not sent to other threads.
    one_thread: PhantomData<*const ()>,
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
        let flags = SETUP_CQSIZE
            | SETUP_CLAMP
            | SETUP_SUBMIT_ALL
            | SETUP_TASKRUN_FLAG
            | SETUP_SINGLE_ISSUER
            | SETUP_DEFER_TASKRUN
            | SETUP_NO_SQARRAY
            | wide;
        let (fd, params) = setup(submissions, completions.max(submissions), flags)?;
        let Params { sq, cq, sq_entries, cq_entries, .. } = params;
        let (cqes, words) = (cq.cqes as usize, cq_entries.saturating_mul(place_words(kind) as u32));
        let len = cqes + words as usize * size_of::<u64>();
        let len = len.max([sq.head, sq.tail, sq.flags].into_iter().max().unwrap_or(0) as usize + 4);
        // One mapping holds both queues (IORING_FEAT_SINGLE_MMAP, Linux 5.4).
        let queues = Mapping::ring(&fd, OFF_SQ_RING, len)?;
        let entries = Mapping::ring(&fd, OFF_SQES, sq_entries as usize * size_of::<Sqe>())?;
        let has_words = [sq.head, sq.tail, sq.flags, cq.head, cq.tail]
            .into_iter()
            .all(|at| queues.find_word(at as usize).is_some());
        let tables = EntryTable::new(queues, cqes, words).zip(EntryTable::new(entries, 0, sq_entries));
        let (queues, entries) = tables
            .filter(|_| has_words)
            .ok_or_else(|| io::Error::other("io_uring_setup gave offsets outside of its queues"))?;
        let (sq_next, cq_next, one_thread) = (0, 0, PhantomData);
        let fd = Arc::new(fd);
        Ok(Self { queues, entries, fd, kind, sq, sq_next, cq, cq_next, cq_places: cq_entries, one_thread })
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
        self.cq_places
    }

    #[inline]
    fn load(&self, offset: u32) -> u32 {
        self.queues.memory().word(offset as usize).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, offset: u32, value: u32) {
        self.queues.memory().word(offset as usize).store(value, Ordering::Release);
    }

    /// Entries that were pushed and not handed over yet.
    #[inline]
    pub fn held(&self) -> u32 {
        self.sq_next.wrapping_sub(self.load(self.sq.head))
    }

    /// Adds an entry to the batch; false when it is full ([`WideRing::enter`] makes room).
    #[inline]
    pub fn push(&mut self, entry: Entry) -> bool {
        if self.held() >= self.entries.len() {
            return false;
        }
        // The kernel reads no entry that the tail has not passed, and this one is free.
        self.entries.write(self.sq_next, entry.sqe());
        self.sq_next = self.sq_next.wrapping_add(1);
        self.store(self.sq.tail, self.sq_next);
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
        match enter(self.fd.as_fd(), self.held(), want, timeout.into()) {
            Ok(_) | Err(libc::ETIME | libc::EINTR) => Ok(()),
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The next completion that is in the queue already; makes no system call.
    #[inline]
    pub fn pop(&mut self) -> Option<WideCqe> {
        let tail = self.load(self.cq.tail);
        // The kernel has written places before the tail, and writes none of them until the head has
        // passed.
        let word = |index: usize| self.queues.read(index as u32);
        let (cqe, next) = read_at(self.kind, self.cq_next, tail, self.cq_places - 1, word);
        if next != self.cq_next {
            self.cq_next = next;
            self.store(self.cq.head, next);
        }
        cqe
    }
}

#[cfg(test)]
mod tests;

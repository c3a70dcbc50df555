//! A ring for sending: set-up with the best flags that the kernel takes, entries in batches,
//! completions with nothing lost.
//!
//! Memory: the ring never owns what an entry points to. [`SendRing::push`] is unsafe for that
//! reason, and its one caller keeps the memory until the last completion of the entry.

use io_uring::{IoUring, Submitter, squeue, types::BufRingEntry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::calls::enter;
use super::sqe::Entry;
use crate::map::Mapping;
use crate::plain::cast;

pub use super::calls::Patience;

/// Which threads use a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Only the thread that made it: `IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN`
    /// (Linux 6.1), so that completions are handled when that thread asks. Another thread gets
    /// EEXIST.
    One,
    /// One at a time, whichever: `IORING_SETUP_COOP_TASKRUN` (Linux 5.19).
    Any,
}

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// What the entry was pushed with.
    pub user_data: u64,
    /// Bytes, or a negative errno; of a notification the usage flags.
    pub result: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// A ring and what it was set up with.
#[derive(Debug)]
pub struct SendRing {
    ring: RingBox,
    flags: &'static str,
}

struct RingBox(IoUring);

impl std::fmt::Debug for RingBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

impl SendRing {
    /// Sets a ring up: room for `submissions` entries a batch and `completions` completions (both
    /// rounded up to powers of two, `completions` at least `submissions`). The best set of flags
    /// that the kernel takes is used.
    ///
    /// # Errors
    /// That of `io_uring_setup`: EPERM or ENOSYS where io_uring is forbidden or absent, ENOMEM,
    /// EMFILE.
    pub fn new(submissions: u32, completions: u32, threads: Threads) -> io::Result<Self> {
        let base = || {
            let mut builder = IoUring::builder();
            // A child process of the program must not touch the rings.
            builder.dontfork().setup_clamp().setup_cqsize(completions.max(submissions));
            builder
        };
        let (mut best, mut middle) = (base(), base());
        best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        middle.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        let ways = [(best, "SINGLE_ISSUER, DEFER_TASKRUN"), (middle, "COOP_TASKRUN"), (base(), "no flags")];
        let mut last = Err(io::ErrorKind::Unsupported.into());
        for (builder, flags) in ways.into_iter().skip(usize::from(threads == Threads::Any)) {
            last = builder.build(submissions).map(|ring| Self { ring: RingBox(ring), flags });
            if !last.as_ref().is_err_and(|e: &io::Error| e.raw_os_error() == Some(libc::EINVAL)) {
                break;
            }
        }
        last
    }

    /// The set-up flags in use, as words.
    pub fn flags(&self) -> &'static str {
        self.flags
    }

    /// Entries that fit one batch.
    pub fn submissions(&mut self) -> usize {
        self.ring.0.submission().capacity()
    }

    /// Entries pushed and not handed over yet.
    #[inline]
    pub fn held(&mut self) -> usize {
        self.ring.0.submission().len()
    }

    /// Adds an entry to the batch; false when the batch is full ([`SendRing::enter`] makes room).
    ///
    /// # Safety
    /// All memory that the entry names stays valid until its result, with its header, vector and
    /// control data unchanged. The memory to send stays valid until its last completion.
    #[inline]
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.ring.0.submission().push(entry).is_ok() }
    }

    /// As [`SendRing::push`], for an entry that names no memory.
    pub fn push_bare(&mut self, entry: Entry) -> bool {
        // SAFETY: the entry names no memory.
        unsafe { self.push(&cast(*entry.sqe())) }
    }

    /// Whether the kernel has something that only a system call brings into the queue: deferred
    /// work, or completions that didn't fit (`IORING_SQ_TASKRUN`, `IORING_SQ_CQ_OVERFLOW`).
    #[inline]
    pub fn has_deferred(&mut self) -> bool {
        let queue = self.ring.0.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether completions are on the kernel's own list since the queue was full.
    #[inline]
    pub fn has_overflowed(&mut self) -> bool {
        self.ring.0.submission().cq_overflow()
    }

    /// One `io_uring_enter`: hands the batch over, runs deferred work, and waits for `want`
    /// completions as long as `patience` says. Returns the entries handed over. A timeout or a
    /// signal doesn't count as an error.
    ///
    /// # Errors
    /// EEXIST on a ring of another thread ([`Threads::One`]); ENOMEM. EBUSY and EAGAIN mean: take
    /// completions first.
    #[inline]
    pub fn enter(&mut self, want: usize, patience: impl Into<Patience>) -> io::Result<usize> {
        let all = self.held();
        self.enter_with(all, want, patience)
    }

    /// As [`SendRing::enter`], handing over at most `count` entries of the batch.
    ///
    /// # Errors
    /// As [`SendRing::enter`].
    #[inline]
    pub fn enter_with(
        &mut self,
        count: usize,
        want: usize,
        patience: impl Into<Patience>,
    ) -> io::Result<usize> {
        let held = self.held();
        let count = count.min(held) as u32;
        // SAFETY: the ring has its descriptor open.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.0.as_raw_fd()) };
        match enter(ring, count, want as u32, patience.into()) {
            Ok(taken) => Ok(taken),
            Err(libc::ETIME | libc::EINTR) => Ok(held.saturating_sub(self.held())),
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Whether waits heed [`Patience::gather`].
    pub fn has_gathering(&self) -> bool {
        self.ring.0.params().is_feature_min_timeout()
    }

    /// The next completion that is in the queue already; makes no system call.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        self.ring.0.completion().next().map(|c| Cqe {
            user_data: c.user_data(),
            result: c.result(),
            flags: c.flags(),
        })
    }

    /// Takes up to `room.len()` completions that are in the queue already; returns how many.
    #[inline]
    pub fn take(&mut self, room: &mut [Cqe]) -> usize {
        let mut queue = self.ring.0.completion();
        let mut count = 0;
        for place in room {
            let Some(c) = queue.next() else { break };
            *place = Cqe { user_data: c.user_data(), result: c.result(), flags: c.flags() };
            count += 1;
        }
        count
    }

    /// Signals an eventfd when completions are there or can be had (`IORING_REGISTER_EVENTFD`).
    /// With [`Threads::One`] the ring's own descriptor can't be polled: deferred work wakes nobody
    /// who sleeps there.
    ///
    /// # Errors
    /// EEXIST on a ring of another thread; EBUSY when there is one.
    pub fn signal(&self, eventfd: &OwnedFd) -> io::Result<()> {
        self.submitter().register_eventfd(eventfd.as_raw_fd())
    }

    /// Whether completions signal the eventfd of [`SendRing::signal`].
    pub fn signals(&mut self) -> bool {
        !self.ring.0.completion().eventfd_disabled()
    }

    /// Has completions signal the eventfd, or not (`IORING_CQ_EVENTFD_DISABLED`, Linux 5.8). One
    /// that the kernel posts at this moment may still signal it.
    pub fn set_signals(&mut self, on: bool) {
        let queue = self.ring.0.completion();
        match on {
            true => queue.enable_eventfd(),
            false => queue.disable_eventfd(),
        }
    }

    /// Makes a table of `places` registered buffers, all empty (Linux 5.19).
    ///
    /// # Errors
    /// EINVAL on older kernels, EBUSY when there is one.
    pub fn prepare_buffers(&self, places: u32) -> io::Result<()> {
        self.submitter().register_buffers_sparse(places)
    }

    /// Registers `len` bytes at `base` as buffer `place`. The pages are pinned and count against
    /// RLIMIT_MEMLOCK without CAP_IPC_LOCK.
    ///
    /// # Errors
    /// ENOMEM beyond the limit; EFAULT when the range isn't mapped.
    pub fn register_buffer(&self, place: u16, base: *mut u8, len: usize) -> io::Result<()> {
        let iov = [libc::iovec { iov_base: base.cast(), iov_len: len }];
        // SAFETY: the kernel checks the range and pins its pages. They stay its own until the ring
        // is gone, whatever is mapped there by then. It reads and writes them only for an entry;
        // the code that pushes the entry answers for this.
        unsafe { self.submitter().register_buffers_update(u32::from(place), &iov, None) }
    }

    /// Makes a table of `places` registered files, all empty (Linux 5.19).
    ///
    /// # Errors
    /// EMFILE beyond RLIMIT_NOFILE, EINVAL on older kernels.
    pub fn prepare_files(&self, places: u32) -> io::Result<()> {
        self.submitter().register_files_sparse(places)
    }

    /// Puts `fd` into place `place` of the table of files; -1 empties it. The ring holds its own
    /// reference, until the last request on it is done.
    ///
    /// # Errors
    /// EBADF where it is not open, or EINVAL outside the table.
    pub fn register_file(&self, place: u32, fd: RawFd) -> io::Result<()> {
        self.submitter().register_files_update(place, &[fd]).map(drop)
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        self.ring.0.submitter()
    }

    /// Whether receives may fill several provided buffers at once (`IORING_FEAT_RECVSEND_BUNDLE`,
    /// Linux 6.10). False on Linux 6.13 to 6.15, of which some have a bug. A receive that filled a
    /// buffer in part goes on in the next one, and the completion doesn't say so. Linux 6.16 fixes
    /// it ("io_uring/net: only retry recv bundle for a full transfer").
    pub fn has_bundles(&self) -> bool {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        self.ring.0.params().is_feature_recvsend_bundle() && !has_broken_bundles(&release)
    }
}

/// Registers the first `entries` entries of `memory` as the ring of provided buffers `group`.
///
/// # Errors
/// EINVAL before Linux 5.19, or if the number isn't a power of two that fits the memory; ENOMEM
/// beyond the limit of locked memory.
pub(crate) fn register_buffer_ring(
    submitter: &Submitter<'_>,
    memory: &Mapping,
    entries: u16,
    group: u16,
) -> io::Result<()> {
    if usize::from(entries) * size_of::<BufRingEntry>() > memory.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the memory is page-aligned and long enough. The kernel pins its pages, so that even a
    // ring that outlives the mapping writes to nothing else. It uses a buffer that an entry names
    // only once who wrote the entry has said so.
    unsafe { submitter.register_buf_ring_with_flags(memory.as_ptr() as u64, entries, group, 0) }
}

/// Registers the first `len` bytes of `memory` as the only buffer.
///
/// # Errors
/// ENOMEM beyond the limit of locked memory; EBUSY when there are buffers.
pub(crate) fn register_buffer(submitter: &Submitter<'_>, memory: &Mapping, len: usize) -> io::Result<()> {
    let iov = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: len.min(memory.len()) };
    // SAFETY: as in `SendRing::register_buffer`.
    unsafe { submitter.register_buffers(&[iov]) }
}

/// See [`SendRing::has_bundles`].
fn has_broken_bundles(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>());
    matches!((numbers.next(), numbers.next()), (Some(Ok(6)), Some(Ok(13..=15))))
}

#[cfg(test)]
mod tests;

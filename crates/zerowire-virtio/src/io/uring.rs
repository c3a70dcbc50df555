//! The engine on io_uring: a batch is one system call.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, types};
use zerowire::uring::{RWF_NOWAIT, probe};

use super::{Done, MAX_BATCH, Op};

/// The port's file in the ring's file table.
const PORT: types::Fixed = types::Fixed(0);

pub(super) struct Uring {
    ring: IoUring,
    pushed: usize,
    /// Operations that the ring had no room for; none, as long as batches keep to [`MAX_BATCH`].
    refused: Vec<u16>,
    /// The first operation of the batch: alone it goes out as a plain system call, which costs less than a batch of one.
    first: Option<Op>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("pushed", &self.pushed).finish_non_exhaustive()
    }
}

impl Uring {
    pub(super) fn new(fd: RawFd) -> io::Result<Self> {
        let features = probe().map_err(io::Error::other)?;
        let mut builder = IoUring::builder();
        builder.setup_cqsize(2 * MAX_BATCH as u32).dontfork();
        if features.defer_taskrun {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let ring: IoUring = builder.build(MAX_BATCH as u32)?;
        ring.submitter().register_files(&[fd])?;
        // Saves the look-up of the ring's own descriptor in each call; not in all kernels.
        let _ = ring.submitter().register_ring_fd();
        let mut this = Self { ring, pushed: 0, refused: Vec::new(), first: None };
        this.check_nowait()?;
        Ok(this)
    }

    /// A tap of Linux before 6.4 refuses RWF_NOWAIT; then a read on an empty tap would hang the batch.
    fn check_nowait(&mut self) -> io::Result<()> {
        let mut byte = 0u8;
        let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 0 };
        // SAFETY: iov and byte live until run() has returned; a read of no bytes moves none.
        unsafe { self.submit(Op { slot: 0, write: false, iov: &iov, len: 1 }) };
        let mut done = Vec::with_capacity(1);
        self.run(-1, &mut done)?;
        match done.first() {
            Some(d) if d.result == -libc::EOPNOTSUPP => Err(io::Error::other(
                "this kernel's tap refuses reads that do not wait (RWF_NOWAIT, Linux 6.4)",
            )),
            _ => Ok(()),
        }
    }

    /// Whether nothing is queued, as must be between batches: what was queued names memory of the batch.
    pub(super) fn is_idle(&self) -> bool {
        self.pushed == 0 && self.first.is_none()
    }

    /// # Safety
    /// As [`super::PortIo::push`].
    #[inline]
    pub(super) unsafe fn push(&mut self, op: Op) {
        if self.pushed == 0 {
            match self.first.take() {
                None => {
                    self.first = Some(op);
                    return;
                }
                // SAFETY: the caller's promise of the first operation holds until `run`.
                Some(first) => unsafe { self.submit(first) },
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.submit(op) };
    }

    /// # Safety
    /// As [`super::PortIo::push`].
    #[inline]
    unsafe fn submit(&mut self, op: Op) {
        debug_assert!(self.pushed < MAX_BATCH);
        let entry = match (op.write, op.len) {
            (write, 1) => {
                // SAFETY: the caller promises that the array is valid.
                let iov = unsafe { *op.iov };
                let (ptr, len) = (iov.iov_base.cast::<u8>(), iov.iov_len as u32);
                if write {
                    opcode::Write::new(PORT, ptr, len).rw_flags(RWF_NOWAIT).build()
                } else {
                    opcode::Read::new(PORT, ptr, len).rw_flags(RWF_NOWAIT).build()
                }
            }
            (true, _) => opcode::Writev::new(PORT, op.iov, op.len).rw_flags(RWF_NOWAIT).build(),
            (false, _) => opcode::Readv::new(PORT, op.iov, op.len).rw_flags(RWF_NOWAIT).build(),
        };
        let entry = entry.user_data(u64::from(op.slot));
        // SAFETY: the caller promises that what the entry names stays valid until `run` has reaped it.
        match unsafe { self.ring.submission().push(&entry) } {
            Ok(()) => self.pushed += 1,
            Err(_) => self.refused.push(op.slot),
        }
    }

    #[inline]
    pub(super) fn run(&mut self, fd: RawFd, done: &mut Vec<Done>) -> io::Result<u64> {
        if let Some(op) = self.first.take() {
            // SAFETY: the caller of `push` promised that all is valid until this returns.
            done.push(unsafe { super::plain::carry_out(fd, op) });
            return Ok(1);
        }
        done.extend(self.refused.drain(..).map(|slot| Done { slot, result: -libc::EBUSY }));
        let want = std::mem::take(&mut self.pushed);
        let mut calls = 0;
        let mut got = 0;
        while got < want {
            calls += 1;
            match self.ring.submit_and_wait(want - got) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => return Err(e),
            }
            for cqe in self.ring.completion() {
                done.push(Done { slot: cqe.user_data() as u16, result: cqe.result() });
                got += 1;
            }
        }
        Ok(calls)
    }
}

//! The engine on io_uring: a batch is one system call.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, types};
use zerowire::uring::{RWF_NOWAIT, UringFeatures, probe};

use super::{Done, FixedPiece, FixedPieces, MAX_BATCH, Op};
use crate::memory::{GuestMemory, MAX_REGIONS, PinBudget};

/// Registered buffers: each region may need several (a piece is at most 1 GiB).
const BUFFER_SLOTS: usize = 4 * MAX_REGIONS;

/// The port's file in the ring's file table.
const PORT: types::Fixed = types::Fixed(0);

pub(super) struct Uring {
    ring: IoUring,
    features: UringFeatures,
    pushed: usize,
    /// Operations that the ring had no room for; none, as long as batches keep to [`MAX_BATCH`].
    refused: Vec<u16>,
    /// The first operation of the batch: alone it goes out as a plain system call, which costs less than a batch of one.
    first: Option<Op>,
    fixed: FixedPieces,
    /// Guest memory is to be registered.
    pin: bool,
    /// Guest memory is to be registered, and the kernel can do it.
    has_buffers: bool,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring")
            .field("features", &self.features)
            .field("fixed", &self.fixed)
            .finish_non_exhaustive()
    }
}

impl Uring {
    pub(super) fn new(fd: RawFd, pin: bool) -> io::Result<Self> {
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
        let has_buffers = pin
            && features.writev_fixed
            && features.readv_fixed
            && ring.submitter().register_buffers_sparse(BUFFER_SLOTS as u32).is_ok();
        let mut this = Self {
            ring,
            features,
            pushed: 0,
            refused: Vec::new(),
            first: None,
            fixed: FixedPieces::default(),
            pin,
            has_buffers,
        };
        this.check_nowait()?;
        Ok(this)
    }

    /// A tap of Linux before 6.4 refuses RWF_NOWAIT; then a read on an empty tap would hang the batch.
    fn check_nowait(&mut self) -> io::Result<()> {
        let mut byte = 0u8;
        let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 0 };
        // SAFETY: iov and byte live until run() has returned; a read of no bytes moves none.
        unsafe { self.submit(Op { slot: 0, write: false, iov: &iov, len: 1, fixed: None }) };
        let mut done = Vec::with_capacity(1);
        self.run(-1, &mut done)?;
        match done.first() {
            Some(d) if d.result == -libc::EOPNOTSUPP => Err(io::Error::other(
                "this kernel's tap refuses reads that do not wait (RWF_NOWAIT, Linux 6.4)",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn describe(&self) -> String {
        if !self.pin {
            return "io_uring, no memory registered".to_owned();
        }
        if !self.has_buffers {
            return "io_uring without registered memory (WRITEV_FIXED came with Linux 6.15): plain vectored operations"
                .to_owned();
        }
        let all = self.fixed.0.len();
        let registered = self.fixed.0.iter().flatten().count();
        format!("io_uring, {registered} of {all} pieces of guest memory registered")
    }

    pub(super) fn fixed(&self) -> &FixedPieces {
        &self.fixed
    }

    pub(super) fn set_memory(&mut self, memory: &GuestMemory) -> Option<String> {
        if !self.has_buffers {
            return None;
        }
        let mut old: Vec<_> = std::mem::take(&mut self.fixed.0).into_iter().flatten().collect();
        let mut kept: Vec<Option<FixedPiece>> = memory
            .pieces()
            .iter()
            .map(|p| old.iter().position(|f| f.id() == p.id()).map(|i| old.swap_remove(i)))
            .collect();
        let mut problem = None;
        for gone in old {
            if let Err(e) =
                self.update(gone.index, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })
            {
                problem = Some(format!("a piece of memory that is gone could not be unregistered: {e}"));
            }
        }
        for (piece, slot) in memory.pieces().iter().zip(0..kept.len()) {
            if kept[slot].is_some() {
                continue;
            }
            let free = (0..BUFFER_SLOTS as u16).find(|i| !kept.iter().flatten().any(|f| f.index == *i));
            let Some(index) = free else {
                problem = Some(format!("more than {BUFFER_SLOTS} pieces of memory"));
                break;
            };
            match self.register(index, piece) {
                Ok(f) => kept[slot] = Some(f),
                Err(e) => problem = Some(describe_register_error(&e, piece.len())),
            }
        }
        self.fixed = FixedPieces(kept);
        problem
    }

    fn register(&mut self, index: u16, piece: &crate::memory::Piece) -> io::Result<FixedPiece> {
        let pinned = PinBudget::of_process().claim(piece.len() as u64).map_err(io::Error::other)?;
        let reservation = piece.reserve()?;
        self.update(index, reservation.iovec())?;
        // The kernel holds the pages now.
        reservation.release_guest()?;
        Ok(FixedPiece::new(index, piece, reservation, pinned))
    }

    fn update(&mut self, index: u16, iov: libc::iovec) -> io::Result<()> {
        // SAFETY: the kernel takes references to the pages, so that they outlive the mapping; the addresses stay
        // reserved as long as the FixedPiece lives.
        unsafe { self.ring.submitter().register_buffers_update(u32::from(index), &[iov], None) }.map(|_| ())
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
                None if op.fixed.is_none() => {
                    self.first = Some(op);
                    return;
                }
                None => {}
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
        let entry = match (op.write, op.fixed) {
            (true, Some(buffer)) => {
                opcode::WritevFixed::new(PORT, op.iov, op.len, buffer).rw_flags(RWF_NOWAIT).build()
            }
            (false, Some(buffer)) => {
                opcode::ReadvFixed::new(PORT, op.iov, op.len, buffer).rw_flags(RWF_NOWAIT).build()
            }
            (write, None) if op.len == 1 => {
                // SAFETY: the caller promises that the array is valid.
                let iov = unsafe { *op.iov };
                let (ptr, len) = (iov.iov_base.cast::<u8>(), iov.iov_len as u32);
                if write {
                    opcode::Write::new(PORT, ptr, len).rw_flags(RWF_NOWAIT).build()
                } else {
                    opcode::Read::new(PORT, ptr, len).rw_flags(RWF_NOWAIT).build()
                }
            }
            (true, None) => opcode::Writev::new(PORT, op.iov, op.len).rw_flags(RWF_NOWAIT).build(),
            (false, None) => opcode::Readv::new(PORT, op.iov, op.len).rw_flags(RWF_NOWAIT).build(),
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

fn describe_register_error(e: &io::Error, len: usize) -> String {
    match e.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
            let limit = limit.current.map_or("unlimited".to_owned(), |l| format!("{} KiB", l / 1024));
            format!(
                "registering {} KiB of guest memory failed ({e}): the memlock limit is {limit}; raise it (ulimit -l, LimitMEMLOCK=) \
                 or grant CAP_IPC_LOCK; frames go out by plain vectored writes until then",
                len / 1024
            )
        }
        _ => format!(
            "registering {} KiB of guest memory failed: {e}; plain vectored operations serve it",
            len / 1024
        ),
    }
}

//! Batches of writes through io_uring, for the threshold benchmark.
//!
//! The ring is used by one thread. Memory that a request names must stay mapped and unchanged until
//! its completion; [`Ring::submit`] returns only when every request it submitted has completed, so
//! the borrows of its arguments cover that.

use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use io_uring::{IoUring, opcode, types};

use crate::area::Area;

/// Requests of one submission.
pub const BATCH: usize = 32;

/// A write of one frame.
#[derive(Debug, Clone, Copy)]
pub enum Write<'a> {
    /// One piece of the area, offset and length in bytes (`IORING_OP_WRITE`).
    Plain(usize, usize),
    /// Pieces of any memory (`IORING_OP_WRITEV`).
    Vector(&'a [libc::iovec]),
}

/// A ring with one registered file, the target of all writes, and the area that they write from.
pub struct Ring {
    ring: IoUring,
    area: Area,
}

impl Ring {
    /// Makes a ring that writes to `fd`.
    pub fn new(fd: BorrowedFd<'_>, area: Area) -> Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(BATCH as u32)
            .context("can't make an io_uring: it may be forbidden (kernel.io_uring_disabled)")?;
        ring.submitter().register_files(&[fd.as_raw_fd()]).context("can't register the tap with io_uring")?;
        Ok(Self { ring, area })
    }

    /// The area.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// The area. Nothing is in flight between submissions, so it may be written.
    pub fn area_mut(&mut self) -> &mut Area {
        &mut self.area
    }

    /// Submits up to [`BATCH`] writes and waits for all; each must write `len` bytes.
    pub fn submit(&mut self, writes: &[Write<'_>], len: usize) -> Result<()> {
        if writes.len() > BATCH {
            bail!("{} writes in a batch of {BATCH}", writes.len());
        }
        let fd = types::Fixed(0);
        for write in writes {
            let entry = match *write {
                Write::Plain(offset, len) => {
                    let piece = &self.area.bytes()[offset..offset + len];
                    opcode::Write::new(fd, piece.as_ptr(), piece.len() as u32).build()
                }
                Write::Vector(vector) => {
                    opcode::Writev::new(fd, vector.as_ptr(), vector.len() as u32).build()
                }
            };
            // SAFETY: the vectors live as long as `writes`, the area as long as `self`, and this
            // function waits for every completion before it returns; the kernel checks the
            // addresses of the pieces, and only reads them.
            unsafe { self.ring.submission().push(&entry) }.context("the submission queue is full")?;
        }
        let mut seen = 0;
        let mut failed = None;
        while seen < writes.len() {
            match self.ring.submit_and_wait(writes.len() - seen) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("io_uring: submitting writes failed"),
            }
            for completion in self.ring.completion() {
                seen += 1;
                if completion.result() != len as i32 {
                    failed = Some(completion.result());
                }
            }
        }
        match failed {
            None => Ok(()),
            Some(error) if error < 0 => {
                Err(std::io::Error::from_raw_os_error(-error)).context("io_uring: a write to the tap failed")
            }
            Some(short) => bail!("io_uring: the tap took {short} of {len} bytes"),
        }
    }
}

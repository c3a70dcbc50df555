//! UDP through io_uring's SEND_ZC, a batch a submission, from any memory or from registered memory.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use io_uring::{IoUring, cqueue, opcode, types};

use super::super::case::BATCH;
use super::super::lab::TxLab;
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};

/// `IORING_SEND_ZC_REPORT_USAGE` (include/uapi/linux/io_uring.h): the notification tells whether
/// the kernel copied.
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: u32 = 1 << 31;

/// The ring and its socket.
pub struct SendZc<'a> {
    ring: IoUring,
    source: &'a TxSource,
    fixed: bool,
    proof: Proof,
    // Closed after the ring, which has it registered.
    _socket: UdpSocket,
}

impl<'a> SendZc<'a> {
    /// Makes the ring; with `fixed` all of `source` is registered with it.
    pub fn open(lab: &TxLab, source: &'a TxSource, fixed: bool) -> Result<Self> {
        let socket = lab.udp()?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(BATCH as u32)
            .context("can't make an io_uring: it may be forbidden (kernel.io_uring_disabled)")?;
        ring.submitter().register_files(&[socket.as_raw_fd()])?;
        if fixed {
            let area = source.area();
            let memory = libc::iovec { iov_base: area.base().cast(), iov_len: area.len() };
            // SAFETY: the memory outlives this value ('a), which owns the ring, and is never
            // written meanwhile.
            unsafe { ring.submitter().register_buffers(&[memory]) }.with_context(|| {
                let len = area.len();
                format!("can't register {len} bytes: raise RLIMIT_MEMLOCK (ulimit -l) or give CAP_IPC_LOCK")
            })?;
        }
        Ok(Self { ring, source, fixed, proof: Proof::default(), _socket: socket })
    }

    fn push(&mut self, index: usize) -> Result<()> {
        let payload = self.source.payload(index);
        let entry = opcode::SendZc::new(types::Fixed(0), payload.as_ptr(), payload.len() as u32)
            .zc_flags(REPORT_USAGE)
            .buf_index(self.fixed.then_some(0))
            .build();
        // SAFETY: the payload outlives this value, and the ring with it ('a); nobody writes it.
        unsafe { self.ring.submission().push(&entry) }.context("the submission queue is full")
    }

    /// Waits until `lent` sends are done and their memory is back.
    fn take_back(&mut self, lent: usize) -> Result<()> {
        let (mut results, mut notifications) = (lent, lent);
        while results + notifications > 0 {
            // One call submits and waits for all that is missing: the results and, mostly at the
            // same time, the notifications.
            match self.ring.submit_and_wait(results + notifications) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(error).context("io_uring: submitting sends failed");
                }
                _ => {}
            }
            let len = self.source.payload_len();
            for entry in self.ring.completion() {
                if cqueue::notif(entry.flags()) {
                    notifications -= 1;
                    match entry.result() as u32 & COPIED {
                        0 => self.proof.zero_copied_bytes += len as u64,
                        _ => self.proof.kernel_copied_bytes += len as u64,
                    }
                } else {
                    results -= 1;
                    match entry.result() {
                        error if error < 0 => {
                            let error = std::io::Error::from_raw_os_error(-error);
                            return Err(error).context("io_uring: SEND_ZC failed");
                        }
                        sent if sent as usize != len || !cqueue::more(entry.flags()) => {
                            bail!("SEND_ZC took {sent} of {len} bytes, or announced no notification");
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl TxWay for SendZc<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let mut next = self.source.take(count);
        let end = next + count;
        while next < end {
            let batch = BATCH.min(end - next);
            for index in next..next + batch {
                self.push(index)?;
            }
            self.take_back(batch)?;
            next += batch;
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        self.proof
    }
}

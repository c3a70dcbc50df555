//! io_uring as a faster read(): one IORING_OP_READ a connection, each into memory of its own. One
//! system call submits a new read for each one that has completed.
//!
//! Memory: the kernel writes a connection's buffer from the submission of its read until its
//! completion. With IORING_SETUP_DEFER_TASKRUN it does so only while this thread is inside the
//! system call. After the ring is gone it doesn't write at all; the buffers live longer than the
//! ring.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, types};

use super::way::{Goal, Patience, TICK, Tally, TcpWay, ended, touch_all};

/// See the module.
pub(super) struct UringRead {
    // In this order: the ring goes first.
    ring: IoUring,
    sockets: Vec<OwnedFd>,
    buffers: Vec<Vec<u8>>,
    /// Connections without a read on its way.
    idle: Vec<usize>,
}

impl UringRead {
    pub(super) fn new(sockets: Vec<OwnedFd>, read_bytes: usize) -> Result<Self> {
        let entries = u32::try_from(sockets.len().next_power_of_two()).context("too many connections")?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .context("can't make an io_uring: it may be forbidden (kernel.io_uring_disabled)")?;
        for socket in &sockets {
            // A non-blocking file would complete with EAGAIN instead of waiting.
            rustix::io::ioctl_fionbio(socket, false)?;
        }
        let buffers = sockets.iter().map(|_| vec![0; read_bytes]).collect();
        Ok(Self { ring, idle: (0..sockets.len()).collect(), sockets, buffers })
    }

    fn push_idle(&mut self) -> Result<()> {
        while let Some(index) = self.idle.pop() {
            let buffer = &mut self.buffers[index];
            let fd = types::Fd(self.sockets[index].as_raw_fd());
            let entry = opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).build();
            // SAFETY: the buffer is as long as said, isn't looked at until the completion, and
            // outlives the ring.
            unsafe { self.ring.submission().push(&entry.user_data(index as u64)) }
                .context("the submission queue is full")?;
        }
        Ok(())
    }
}

impl TcpWay for UringRead {
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally> {
        let (mut tally, mut patience) = (Tally::default(), Patience::default());
        let tick = types::Timespec::from(TICK);
        let wait = types::SubmitArgs::new().timespec(&tick);
        while tally.bytes < goal.bytes() {
            self.push_idle()?;
            tally.calls += 1;
            match self.ring.submitter().submit_with_args(1, &wait) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => patience.tick(&tally, goal)?,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {}
                Err(e) => return Err(e).context("io_uring_enter() failed"),
            }
            for completion in self.ring.completion() {
                let index = completion.user_data() as usize;
                match completion.result() {
                    0 => return Err(ended(&tally)),
                    n if n > 0 => {
                        tally.bytes += n as u64;
                        tally.pieces += 1;
                        if touch {
                            touch_all(&self.buffers[index][..n as usize]);
                        }
                    }
                    e if matches!(-e, libc::EAGAIN | libc::EINTR) => {}
                    e => return Err(std::io::Error::from_raw_os_error(-e)).context("a READ failed"),
                }
                self.idle.push(index);
            }
        }
        Ok(tally)
    }
}

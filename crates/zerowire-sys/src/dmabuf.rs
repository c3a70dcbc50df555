//! Buffers that a driver has exported (Documentation/driver-api/dma-buf.rst).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `DMA_BUF_IOCTL_SYNC` (include/uapi/linux/dma-buf.h): `_IOW('b', 0, struct dma_buf_sync)`.
const IOCTL_SYNC: libc::Ioctl = 0x4008_6200;
/// `DMA_BUF_SYNC_READ`, with `DMA_BUF_SYNC_START`, which is 0.
const SYNC_START_READ: u64 = 1;

/// Makes what a device has written to a buffer visible to this process (a matter of caches; nothing
/// on most machines).
///
/// # Errors
/// ENOTTY where it is no such buffer; what its driver says.
pub fn begin_read(buffer: impl AsFd) -> io::Result<()> {
    let flags = SYNC_START_READ;
    loop {
        // SAFETY: the kernel reads the 8 bytes of `struct dma_buf_sync`, which live until it
        // returns.
        let r = unsafe { libc::ioctl(buffer.as_fd().as_raw_fd(), IOCTL_SYNC, &raw const flags) };
        match crate::check(r) {
            // Both ask for the call once more (include/uapi/linux/dma-buf.h).
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            done => return done.map(drop),
        }
    }
}

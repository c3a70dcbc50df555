//! Buffers that a driver has exported (Documentation/driver-api/dma-buf.rst).

use std::io;
use std::os::fd::AsFd;

use crate::ioctl::DMA_BUF_IOCTL_SYNC;

/// `DMA_BUF_SYNC_READ`, with `DMA_BUF_SYNC_START`, which is 0.
const SYNC_START_READ: u64 = 1;

/// Makes what a device has written to a buffer visible to this process (a matter of caches; nothing
/// on most machines).
///
/// # Errors
/// ENOTTY: not a DMA buffer. Others come from its driver.
pub fn begin_read(buffer: impl AsFd) -> io::Result<()> {
    loop {
        match DMA_BUF_IOCTL_SYNC.of(&buffer, SYNC_START_READ) {
            // Both ask for the call once more (include/uapi/linux/dma-buf.h).
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            done => return done.map(drop),
        }
    }
}

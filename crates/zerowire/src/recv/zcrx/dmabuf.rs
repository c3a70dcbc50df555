//! A DMA buffer as the area (Documentation/driver-api/dma-buf.rst). Written after the kernel's
//! source; no test of this project has run it with a NIC, since it needs one.

use crate::area::Area;
use crate::recv::RecvError;
use rustix::fs::{SeekFrom, seek};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Memory that a driver has exported: of the `udmabuf` device, a DMA heap, or a GPU whose memory
/// can be mapped. A NIC's queue can place payload in it
/// ([`ZcrxOptions::dmabuf`](super::ZcrxOptions::dmabuf), Linux 6.16).
///
/// **Not tested** with a NIC. The kernel's source says: it works on device queues only, and the
/// kernel takes the buffer as a whole. The kernel can't copy into it. So a connection waits forever
/// for payload which the NIC leaves beside the headers (no header split, small frames with some
/// NICs).
///
/// Others that have the buffer mapped or use it on a device must leave it alone while the receiver
/// and its leases live. Leases are plain slices of its memory.
#[derive(Clone, Debug)]
pub struct Dmabuf {
    pub(super) fd: Arc<OwnedFd>,
    bytes: usize,
}

impl Dmabuf {
    /// Takes the descriptor of a DMA buffer.
    ///
    /// # Errors
    /// ENOTTY: it is of something else. Others: its length can't be read.
    ///
    /// # Safety
    /// Leases of received data are slices of the buffer. Nobody but the NIC writes into it while a
    /// receiver or a lease on it is there: neither another mapping of it, nor another device.
    pub unsafe fn new(fd: OwnedFd) -> io::Result<Self> {
        let bytes = seek(&fd, SeekFrom::End(0))?;
        let buffer = Self {
            fd: Arc::new(fd),
            bytes: usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?,
        };
        buffer.begin_read()?;
        Ok(buffer)
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Maps it.
    pub(super) fn area(&self) -> Result<Area, RecvError> {
        Ok(Area::of_device(self.fd.as_fd(), self.bytes)?)
    }

    /// Makes what the device has written visible to this process (a matter of caches; nothing on
    /// most machines).
    pub(super) fn begin_read(&self) -> io::Result<()> {
        zerowire_sys::dmabuf::begin_read(&*self.fd)
    }
}

impl PartialEq for Dmabuf {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }
}

impl Eq for Dmabuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_refused() {
        let fd = rustix::fs::memfd_create("zerowire", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a plain memory file, which is refused.
        assert_eq!(unsafe { Dmabuf::new(fd) }.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}

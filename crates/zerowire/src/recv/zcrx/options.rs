//! What only zero-copy receive has.

use super::Dmabuf;
use zerowire_wire::setters;

/// When entries of the refill ring are handed over without a device
/// ([`RecvBackend::NoDevice`](crate::recv::RecvBackend)), where the kernel doesn't take them by
/// itself. On a device queue the driver takes them when it needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// When half of the buffers that are not lent wait there: a system call each half of the area.
    #[default]
    Eager,
    /// When the kernel has fewer buffers left than the last turn brought (and a receive that found
    /// none has ended, and is started again). Fewer system calls; the kernel writes all of the area
    /// before it writes a buffer again.
    Lazy,
}

impl Flush {
    /// Whether entries are handed over now. Of the buffers that are not lent (`unlent`), `untaken`
    /// wait in the ring, and the kernel has `free`. `None`: unknown, because others use the area.
    /// `came`: buffers of the last turn that brought any.
    pub(super) fn is_due(self, unlent: u32, untaken: u32, free: Option<u32>, came: u32) -> bool {
        match self {
            Self::Eager => untaken >= unlent.max(1).div_ceil(2),
            Self::Lazy => free.is_some_and(|free| free < came),
        }
    }
}

/// How [`RecvBackend::Queue`](crate::recv::RecvBackend) and
/// [`RecvBackend::NoDevice`](crate::recv::RecvBackend) work; the others have no use for it.
///
/// The area of both has `buffers * buffer_bytes` bytes, which the kernel cuts into buffers of a
/// page, or of [`ZcrxOptions::rx_buf_len`] bytes.
///
/// # Several areas
/// More can be added while the receiver works, from Linux 7.3 on:
/// [`Receiver::add_area`](crate::recv::Receiver::add_area). Older kernels take one area for one
/// registration. There, use a receiver for each area, one a queue or without a device. A thread may
/// have many, and their leases are of one type. The other way round, several receivers may use one
/// area, with all that was added to it: [`Receiver::export`](crate::recv::Receiver::export).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZcrxOptions {
    /// Bytes of a buffer to ask the driver for: a power of two, a page or more (Linux 7.0, some
    /// drivers). Above a page the memory must be contiguous: take
    /// [`Pages::Huge`](crate::area::Pages). `None`: a page.
    pub rx_buf_len: Option<u32>,
    /// When the refill ring is flushed.
    pub flush: Flush,
    /// Completions of 16 bytes where that is enough (`IORING_SETUP_CQE_MIXED`, Linux 6.18): half of
    /// the queue's memory for completions that carry no data.
    pub mixed: bool,
    /// The refill ring is memory of the kernel that is mapped here, and not memory of this process
    /// that the kernel pins and maps. The kernel then gets by with fewer pages of its own, and
    /// nothing of the ring counts as locked memory twice.
    pub kernel_ring: bool,
    /// The area is this DMA buffer as a whole
    /// ([`RecvOptions::buffers`](crate::recv::RecvOptions::buffers), `buffer_bytes` and `pages` are
    /// of no meaning then), on a device queue.
    pub dmabuf: Option<Dmabuf>,
}

impl ZcrxOptions {
    setters! {
        rx_buf_len: Option<u32>,
        flush: Flush,
        mixed: bool,
        kernel_ring: bool,
        dmabuf: Option<Dmabuf>,
    }
}

#[cfg(test)]
mod tests;

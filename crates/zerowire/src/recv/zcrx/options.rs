//! What only zero-copy receive has.

use super::Dmabuf;

/// When entries of the refill ring are handed over without a device ([`Backend::NoDevice`](crate::recv::Backend)), where
/// the kernel doesn't take them by itself. On a device queue the driver takes them when it needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// When half of the buffers that are not lent wait there: a system call each half of the area.
    #[default]
    Eager,
    /// When a receive found no buffer: it has ended then and is started again.
    Lazy,
}

/// How [`Backend::Queue`](crate::recv::Backend) and [`Backend::NoDevice`](crate::recv::Backend) work; the others have no
/// use for it.
///
/// The area of both has `buffers * buffer_bytes` bytes, which the kernel cuts into buffers of a page, or of
/// [`ZcrxOptions::rx_buf_len`] bytes.
///
/// # Several areas
/// More can be added while the receiver works, from Linux 7.3 on: [`Receiver::add_area`](crate::recv::Receiver::add_area).
/// Older kernels take one area for one registration: there, several areas are several receivers, one a queue or without a
/// device; a thread may have many, and their leases are of one type. The other way round, several receivers may use one area,
/// with all that was added to it: [`Receiver::export`](crate::recv::Receiver::export).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZcrxOptions {
    /// Bytes of a buffer that the driver is asked for: a power of two, a page or more (Linux 7.0, some drivers; above a page
    /// the memory must be contiguous: take [`Pages::Huge`](crate::area::Pages)). `None`: a page.
    pub rx_buf_len: Option<u32>,
    /// When the refill ring is flushed.
    pub flush: Flush,
    /// Completions of 16 bytes where that is enough (`IORING_SETUP_CQE_MIXED`, Linux 6.18): half of the queue's memory for
    /// completions that carry no data.
    pub mixed: bool,
    /// The refill ring is memory of the kernel that is mapped here, and not memory of this process that the kernel pins and
    /// maps: the kernel then gets by with fewer pages of its own, and nothing of it counts as locked memory twice.
    pub kernel_ring: bool,
    /// The area is this DMA buffer as a whole ([`Options::buffers`](crate::recv::Options::buffers),
    /// `buffer_bytes` and `pages` are of no meaning then), on a device queue.
    pub dmabuf: Option<Dmabuf>,
}

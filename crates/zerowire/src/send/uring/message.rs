//! A message header with its vector, made once and used again.
//!
//! Memory: a `Message` stays where it is while the kernel may read it, that is until the result of the entry that names
//! its header. The bytes to be sent belong to the payload.

use crate::send::Payload;

/// What one call takes (`UIO_MAXIOV`, include/uapi/linux/uio.h).
const MAX_PIECES: usize = 1024;

/// See the module.
pub(super) struct Message {
    header: libc::msghdr,
    iov: Vec<libc::iovec>,
}

// SAFETY: the pointers inside name the message itself and memory of payloads (Send); only the kernel follows them.
unsafe impl Send for Message {}

impl Message {
    pub(super) fn new() -> Self {
        // SAFETY: integers and pointers; all zeros is a valid message header.
        Self { header: unsafe { std::mem::zeroed() }, iov: Vec::new() }
    }

    /// Takes the addresses of at most `max_bytes` of the payload's bytes behind the first `from`. Returns how many bytes
    /// those are: less than asked for when they are in too many pieces for one call.
    pub(super) fn fill(&mut self, payload: &Payload, from: usize, max_bytes: usize) -> usize {
        payload.iovecs(from, max_bytes, MAX_PIECES, &mut self.iov)
    }

    /// The pieces.
    pub(super) fn pieces(&self) -> &[libc::iovec] {
        &self.iov
    }

    /// The header for the pieces. Valid until the next call on this message.
    pub(super) fn header(&mut self) -> *const libc::msghdr {
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len() as _;
        &raw const self.header
    }
}

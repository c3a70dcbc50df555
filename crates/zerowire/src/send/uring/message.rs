//! A message of a payload's bytes.

use zerowire_sys::socket::{self, MAX_IOV};

use crate::send::Payload;

/// It stays where it is while the kernel may read it, that is until the result of the entry that
/// names its header. The bytes to be sent belong to the payload.
#[derive(Default)]
pub(super) struct SendMessage(socket::Message);

impl SendMessage {
    /// Takes the addresses of at most `max_bytes` of the payload's bytes behind the first `from`.
    /// Returns how many bytes those are: fewer than `max_bytes` when they are in too many pieces
    /// for one call.
    pub(super) fn fill(&mut self, payload: &Payload, from: usize, max_bytes: usize) -> usize {
        payload.iovecs(from, max_bytes, MAX_IOV, &mut self.0.list)
    }

    /// The pieces.
    pub(super) fn pieces(&self) -> &[libc::iovec] {
        &self.0.list
    }

    /// The header for the pieces. Valid until the next call on this message.
    pub(super) fn header(&mut self) -> *const libc::msghdr {
        self.0.header()
    }
}

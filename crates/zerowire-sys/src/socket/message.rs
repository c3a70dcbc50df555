//! A message header with its list, made once and used again.

use std::fmt;

/// Memory: it stays where it is while the kernel may read it: of io_uring until the result of the
/// entry that names its header. The bytes that the list names belong to somebody else.
pub struct Message {
    header: libc::msghdr,
    /// What it names.
    pub list: Vec<libc::iovec>,
}

// SAFETY: the pointers inside name the message itself, and memory that only the kernel follows them
// to.
unsafe impl Send for Message {}

impl Default for Message {
    fn default() -> Self {
        Self { header: super::header(&[]), list: Vec::new() }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({})", self.list.len())
    }
}

impl Message {
    /// The header for the list as it is. Valid until the next change of the value.
    #[inline]
    pub fn header(&mut self) -> *const libc::msghdr {
        self.header.msg_iov = self.list.as_mut_ptr();
        self.header.msg_iovlen = self.list.len() as _;
        &raw const self.header
    }
}

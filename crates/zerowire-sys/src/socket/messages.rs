//! Messages over lists of memory: one whose header the kernel is given, and several in one
//! sendmmsg(2).

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use crate::socket::SEND_FLAGS;
use crate::syscall;

/// Messages to be sent, kept from call to call to save the allocation. The addresses in it mean
/// nothing between two calls.
#[derive(Default)]
pub struct Messages {
    /// The lists of all messages, one behind the other.
    lists: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers are written and used by one user of the value, who answers for them in
// `send`.
unsafe impl Send for Messages {}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Messages({})", self.headers.len())
    }
}

impl Messages {
    /// Forgets all messages.
    #[inline]
    pub fn clear(&mut self) {
        self.lists.clear();
        self.headers.clear();
    }

    /// Adds a message of the bytes that a list names.
    #[inline]
    pub fn push(&mut self, list: impl IntoIterator<Item = libc::iovec>) {
        let before = self.lists.len();
        self.lists.extend(list);
        // SAFETY: integers and pointers that may be null: all zeroes is a valid value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iovlen = (self.lists.len() - before) as _;
        self.headers.push(message);
    }

    /// Messages.
    #[inline]
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Sends them in order, with further `MSG_*` bits `flags`, without waiting. How many the socket
    /// took, or the errno of the first.
    ///
    /// # Safety
    /// What the lists name is readable until the call returns, and as long as the kernel uses it
    /// where `flags` lends it.
    #[inline]
    pub unsafe fn send(&mut self, socket: impl AsFd, flags: i32) -> Result<usize, i32> {
        let mut at = self.lists.as_mut_ptr();
        for m in &mut self.headers {
            m.msg_hdr.msg_iov = at;
            at = at.wrapping_add(m.msg_hdr.msg_iovlen);
        }
        let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
        let (at, len) = (self.headers.as_mut_ptr() as usize, self.headers.len());
        // SAFETY: headers and lists live until the call returns; what the lists name is the
        // caller's promise. The kernel writes the headers only.
        unsafe { syscall::call(libc::SYS_sendmmsg, [fd, at, len, flags, 0, 0]) }
    }
}

/// A message header with its list, made once and used again.
///
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

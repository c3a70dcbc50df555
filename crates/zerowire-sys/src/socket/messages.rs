//! Messages over lists of memory: one, several in one system call, and those that bring control
//! data.
//!
//! A list (`libc::iovec`) names memory by address, which may change while the kernel reads it:
//! guest memory, or pages that are lent. So the functions that take one are unsafe. No call here
//! waits.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use crate::plain::PlainData;
use crate::syscall::{call, checked};

/// Flags of the calls that send: they neither wait nor raise SIGPIPE.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Room for control data. An error with its offender's address takes 64 bytes. Before it come time
/// stamps and packet information, which a program may have switched on.
type ControlRoom = [MaybeUninit<u64>; CONTROL_WORDS];
const CONTROL_WORDS: usize = 40;

/// Sends `len` bytes at `at`, with further `MSG_*` bits `flags`. How many were taken, or the errno.
///
/// # Safety
/// The bytes are readable until the call returns, and as long as the kernel uses them where `flags`
/// lends them.
#[inline]
pub unsafe fn send_range(socket: impl AsFd, at: *const u8, len: usize, flags: i32) -> Result<usize, i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_sendto, [fd, at as usize, len, flags, 0, 0]) }
}

/// Sends bytes, without waiting.
#[inline]
pub(crate) fn send_bytes(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd() as usize;
    let arguments = [fd, bytes.as_ptr() as usize, bytes.len(), libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: the kernel reads bytes that are borrowed until it returns.
    unsafe { checked(libc::SYS_sendto, arguments) }
}

/// As [`send_range`], for the bytes that a list names.
///
/// # Safety
/// As [`send_range`], for each entry. Others may change the bytes meanwhile.
#[inline]
pub unsafe fn send(socket: impl AsFd, list: &[libc::iovec], flags: i32) -> Result<usize, i32> {
    let message = header(list.as_ptr(), list.len());
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
    // SAFETY: the list is borrowed until the call returns, and the kernel does not write it; what
    // it names is the caller's promise.
    unsafe { call(libc::SYS_sendmsg, [fd, &raw const message as usize, flags, 0, 0, 0]) }
}

/// Sends messages of the bytes that a list names, at most `N`; `ends` says where each ends in the
/// list. How many the socket took, or the errno of the first.
///
/// # Safety
/// As [`send`].
#[inline]
pub unsafe fn send_parts<const N: usize>(
    socket: impl AsFd,
    list: &[libc::iovec],
    ends: impl Iterator<Item = usize>,
) -> Result<usize, i32> {
    // SAFETY: integers and pointers that may be null: all zeroes is a valid value.
    let mut headers: [libc::mmsghdr; N] = unsafe { zeroed() };
    let (mut n, mut at) = (0, 0);
    for (entry, end) in headers.iter_mut().zip(ends) {
        let part = list.get(at..end).unwrap_or_default();
        entry.msg_hdr = header(part.as_ptr(), part.len());
        (n, at) = (n + 1, end);
    }
    // SAFETY: as in `send`.
    unsafe { send_all(socket, &mut headers[..n], 0) }
}

/// Sends a message of no bytes, without waiting: what makes the kernel look at a transmit ring.
/// What it returns, or the errno.
#[inline]
pub(crate) fn send_nothing(socket: impl AsFd) -> Result<usize, i32> {
    send_nothing_at(socket, 0, 0)
}

/// The same to an address.
#[inline]
pub(crate) fn send_nothing_to<A: PlainData>(socket: impl AsFd, to: &A) -> Result<usize, i32> {
    send_nothing_at(socket, std::ptr::from_ref(to) as usize, size_of::<A>())
}

#[inline]
fn send_nothing_at(socket: impl AsFd, at: usize, len: usize) -> Result<usize, i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: the kernel reads no memory but an address, which it copies.
    unsafe { call(libc::SYS_sendto, [fd, 0, 0, flags, at, len]) }
}

/// The same by write(2), which waits if the socket blocks.
#[inline]
pub(crate) fn write_nothing(socket: impl AsFd) -> Result<usize, i32> {
    // SAFETY: the kernel is given no memory.
    unsafe { call(libc::SYS_write, [socket.as_fd().as_raw_fd() as usize, 0, 0, 0, 0, 0]) }
}

/// Receives a message of no bytes, without waiting, or says the errno: what makes an AF_XDP socket
/// look at its fill ring.
#[inline]
pub(crate) fn receive_nothing(socket: impl AsFd) -> Result<(), i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: as above.
    unsafe { call(libc::SYS_recvfrom, [fd, 0, 0, flags, 0, 0]) }.map(drop)
}

/// As [`receive_nothing`], by recvmsg(2), in which no address of a sender can be asked for.
///
/// # Errors
/// The errno of recvmsg(2).
#[inline]
pub(crate) fn receive_no_list(socket: impl AsFd) -> Result<(), i32> {
    // SAFETY: the list names no memory.
    unsafe { receive(socket, &[]) }.map(drop)
}

/// Length of the next message, without taking it.
///
/// # Errors
/// Those of recvmsg(2); EAGAIN without a message.
pub fn peek_message(socket: impl AsFd) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the message has no bytes to be written.
    let peeked = unsafe { receive_message(socket, &mut header(std::ptr::null(), 0), flags) };
    peeked.map_err(io::Error::from_raw_os_error)
}

/// What came of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes.
    pub len: usize,
    /// Descriptors were sent along, and were not taken: more bytes may be there behind them.
    pub interrupted: bool,
}

/// Receives into the memory that a list names, or says the errno.
///
/// # Safety
/// Each entry names writable memory until the call returns, that no Rust reference points to;
/// others may change it meanwhile.
#[inline]
pub unsafe fn receive(socket: impl AsFd, list: &[libc::iovec]) -> Result<Received, i32> {
    let mut message = header(list.as_ptr(), list.len());
    // SAFETY: the list is borrowed until the call returns, and the kernel does not write it; what
    // it names is the caller's promise.
    let len = unsafe { receive_message(socket, &mut message, libc::MSG_DONTWAIT) }?;
    Ok(Received { len, interrupted: message.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Receives a message without waiting: its length, were there room for all of it. `visit` gets its
/// control data.
pub(crate) fn receive_with_control(
    socket: impl AsFd,
    bytes: &mut [u8],
    visit: impl FnOnce(ControlMessages<'_>),
) -> io::Result<usize> {
    let list = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control: ControlRoom = [MaybeUninit::uninit(); CONTROL_WORDS];
    let mut message = header(&raw const list, 1);
    set_control(&mut message, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the message names the bytes and the room for control data, which are borrowed until
    // the call returns.
    let len =
        unsafe { receive_message(socket, &mut message, flags) }.map_err(io::Error::from_raw_os_error)?;
    // SAFETY: the kernel has filled this message in.
    visit(unsafe { ControlMessages::of(&message, &control) });
    Ok(len)
}

/// Takes up to `N` messages of a socket's error queue without waiting; one system call. `visit`
/// gets the control data of each. How many there were, or the errno.
#[inline]
pub(super) fn receive_errors<const N: usize>(
    socket: impl AsFd,
    mut visit: impl FnMut(ControlMessages<'_>),
) -> Result<usize, i32> {
    let mut control: [ControlRoom; N] = [[MaybeUninit::uninit(); CONTROL_WORDS]; N];
    // SAFETY: integers and pointers that may be null: all zeroes is a valid value.
    let mut messages: [libc::mmsghdr; N] = unsafe { zeroed() };
    for (message, control) in messages.iter_mut().zip(&mut control) {
        set_control(&mut message.msg_hdr, control);
    }
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let n = match &mut messages[..] {
        // SAFETY: the message has no bytes to be written, and names room for control data that
        // lives until the call returns.
        [one] => unsafe { receive_message(socket, &mut one.msg_hdr, flags) }.map(|_| 1),
        all => {
            let (fd, at) = (socket.as_fd().as_raw_fd() as usize, all.as_mut_ptr() as usize);
            // SAFETY: as above, for each of the messages.
            unsafe { call(libc::SYS_recvmmsg, [fd, at, N, flags as usize, 0, 0]) }
        }
    }?;
    for (message, control) in messages.iter().zip(&control).take(n) {
        // SAFETY: the kernel has filled this message in.
        visit(unsafe { ControlMessages::of(&message.msg_hdr, control) });
    }
    Ok(n)
}

/// One piece of control data (cmsg(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlMessage<'a> {
    /// What of the socket says it (`SOL_…`), and what it is.
    pub(crate) kind: (i32, i32),
    /// What it says.
    pub(crate) data: &'a [u8],
}

/// The pieces, one behind the other, of the control data of a message.
///
/// ```text
///   | length of all three | level | kind | data ... | free | the next one ...
///     size_t                int     int               up to a multiple of size_t
/// ```
#[derive(Clone, Debug)]
pub(crate) struct ControlMessages<'a>(&'a [MaybeUninit<u8>]);

impl<'a> ControlMessages<'a> {
    /// Those of a message.
    ///
    /// # Safety
    /// The kernel has filled in the header, which names this room ([`set_control`]).
    #[inline]
    unsafe fn of(header: &libc::msghdr, control: &'a ControlRoom) -> Self {
        let len = size_of::<ControlRoom>().min(header.msg_controllen as _);
        // SAFETY: bytes of the room.
        Self(unsafe { std::slice::from_raw_parts(control.as_ptr().cast(), len) })
    }

    /// Bytes of a piece.
    #[inline]
    fn written(&self, range: Range<usize>) -> Option<&'a [u8]> {
        let bytes = self.0.get(range)?;
        // SAFETY: the kernel has written all bytes of a piece (net/core/scm.c, `put_cmsg`).
        Some(unsafe { &*(std::ptr::from_ref(bytes) as *const [u8]) })
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    #[inline]
    fn next(&mut self) -> Option<ControlMessage<'a>> {
        const WORD: usize = size_of::<usize>();
        const HEAD: usize = WORD + 8;
        let head = self.written(0..HEAD)?;
        let (len, kind) = (usize::read(head)?, (i32::read(&head[WORD..])?, i32::read(&head[WORD + 4..])?));
        let data = self.written(HEAD..len)?;
        let next = len.checked_next_multiple_of(WORD).and_then(|next| self.0.get(next..));
        self.0 = next.unwrap_or_default();
        Some(ControlMessage { kind, data })
    }
}

/// Headers of messages whose lists are elsewhere, kept from call to call to save the allocation.
/// The addresses in it mean nothing between two calls.
#[derive(Default)]
pub(crate) struct MessageHeaders(Vec<libc::mmsghdr>);

// SAFETY: the addresses are written and used by one user of the value, who answers for them in
// `send`.
unsafe impl Send for MessageHeaders {}

impl fmt::Debug for MessageHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageHeaders({})", self.0.len())
    }
}

impl MessageHeaders {
    /// Forgets all messages.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a message of the list of `len` entries at `at`.
    #[inline]
    pub(crate) fn push(&mut self, at: *const libc::iovec, len: usize) {
        self.0.push(libc::mmsghdr { msg_hdr: header(at, len), msg_len: 0 });
    }

    /// Sends them in order, with further `MSG_*` bits `flags`, without waiting. How many the socket
    /// took, or the errno of the first.
    ///
    /// # Safety
    /// The lists live until the call returns. What they name is readable until then, and as long as
    /// the kernel uses it where `flags` lends it.
    #[inline]
    pub(crate) unsafe fn send(&mut self, socket: impl AsFd, flags: i32) -> Result<usize, i32> {
        // SAFETY: the caller's promise.
        unsafe { send_all(socket, &mut self.0, flags) }
    }

    /// Bytes that were sent of each message that the socket took.
    #[inline]
    pub(crate) fn lens(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|message| message.msg_len)
    }
}

/// Messages to be sent, with their lists, kept from call to call.
#[derive(Default)]
pub struct Messages {
    /// The lists of all messages, one behind the other.
    lists: Vec<libc::iovec>,
    headers: MessageHeaders,
}

// SAFETY: as for the headers.
unsafe impl Send for Messages {}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Messages({})", self.len())
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
        // Where the list lies is known when all are there.
        self.headers.push(std::ptr::null(), self.lists.len() - before);
    }

    /// Messages.
    #[inline]
    pub fn len(&self) -> usize {
        self.headers.0.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.headers.0.is_empty()
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
        for m in &mut self.headers.0 {
            m.msg_hdr.msg_iov = at;
            at = at.wrapping_add(m.msg_hdr.msg_iovlen);
        }
        // SAFETY: the lists live until the call returns; what they name is the caller's promise.
        unsafe { self.headers.send(socket, flags) }
    }

    /// Sends each of these slices as a message, in place of the messages that are there. How many
    /// the socket took, or the errno of the first.
    pub(crate) fn send_slices<'a>(
        &mut self,
        socket: impl AsFd,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, i32> {
        self.clear();
        for slice in slices {
            let (iov_base, iov_len) = (slice.as_ptr().cast_mut().cast(), slice.len());
            self.push([libc::iovec { iov_base, iov_len }]);
        }
        // SAFETY: the lists name slices that are borrowed until this returns. The kernel reads them
        // only.
        let sent = unsafe { self.send(socket, 0) };
        // No address outlives the borrow.
        self.clear();
        sent
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
        Self { header: header(std::ptr::null(), 0), list: Vec::new() }
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

/// The header of a message of a list.
#[inline]
fn header(list: *const libc::iovec, len: usize) -> libc::msghdr {
    // SAFETY: integers and pointers that may be null: all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = list.cast_mut();
    header.msg_iovlen = len as _;
    header
}

/// Names the room for control data in a header.
#[inline]
fn set_control(header: &mut libc::msghdr, control: &mut ControlRoom) {
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<ControlRoom>() as _;
}

/// recvmsg(2). Bytes of the message, or the errno.
///
/// # Safety
/// What the header names, itself or by its list, lives until the call returns, and may be written.
#[inline]
unsafe fn receive_message(socket: impl AsFd, header: &mut libc::msghdr, flags: i32) -> Result<usize, i32> {
    let (fd, at) = (socket.as_fd().as_raw_fd() as usize, std::ptr::from_mut(header) as usize);
    // SAFETY: the header lives until the call returns; the rest is the caller's promise.
    unsafe { call(libc::SYS_recvmsg, [fd, at, flags as usize, 0, 0, 0]) }
}

/// sendmmsg(2), without waiting. How many messages the socket took, or the errno of the first.
///
/// # Safety
/// The lists that the headers name live until the call returns. What they name is readable until
/// then, and as long as the kernel uses it where `flags` lends it.
#[inline]
unsafe fn send_all(socket: impl AsFd, headers: &mut [libc::mmsghdr], flags: i32) -> Result<usize, i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
    let (at, len) = (headers.as_mut_ptr() as usize, headers.len());
    // SAFETY: the caller's promise. The kernel writes the headers only: the lengths of what it
    // sent.
    unsafe { call(libc::SYS_sendmmsg, [fd, at, len, flags, 0, 0]) }
}

#[cfg(test)]
mod tests;

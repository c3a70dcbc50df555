//! Sockets: options, what is charged to them, and messages over lists of memory. No call here
//! waits.
//!
//! A list (`libc::iovec`) names memory by address, which may change while the kernel reads it:
//! guest memory, or pages that are lent. So the functions that take one are unsafe.

pub mod error_queue;
mod messages;
mod peer;
pub mod vsock;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::{check, syscall};

pub use messages::{Message, Messages};
pub use peer::{peer_groups, peer_owner};

/// Entries of a list at most: what a system call takes (`UIO_MAXIOV`, include/uapi/linux/uio.h).
pub const MAX_IOV: usize = 1024;

/// `SO_MEMINFO` and `SO_COOKIE` (include/uapi/asm-generic/socket.h).
const SO_MEMINFO: i32 = 55;
const SO_COOKIE: i32 = 57;
/// `SO_NETNS_COOKIE`, since Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
/// Indices of `SO_MEMINFO` (include/uapi/linux/sock_diag.h).
const SK_MEMINFO_WMEM_ALLOC: usize = 2;
const SK_MEMINFO_SNDBUF: usize = 3;
const SK_MEMINFO_WMEM_QUEUED: usize = 5;
const SK_MEMINFO_OPTMEM: usize = 6;
const SK_MEMINFO_VARS: usize = 9;

/// Flags of the calls that send: they neither wait nor raise SIGPIPE.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Asks for an option whose value is a `T`.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn get<T: Default>(socket: impl AsFd, level: i32, option: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes of the value, which any bytes are valid for.
    check(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// A socket option that is an int.
pub fn get_int(socket: impl AsFd, level: i32, option: i32) -> io::Result<i32> {
    // SAFETY: any bytes are an int.
    unsafe { get(socket, level, option) }
}

/// Sets a socket option that is an int.
pub fn set_int(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the number, which holds no address.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) }).map(drop)
}

/// The number that tells the open socket from all others (SO_COOKIE); it is never used twice.
pub fn cookie(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: any bytes are a number.
    unsafe { get(socket, libc::SOL_SOCKET, SO_COOKIE) }
}

/// Binds a socket to the interface of this number, for good where CAP_NET_RAW is missing.
///
/// # Errors
/// ENODEV: there is no such interface.
pub fn bind_to_interface(socket: impl AsFd, index: u32) -> io::Result<()> {
    let index = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// The number that tells the socket's network namespace from all others.
pub fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: any bytes are a number.
    unsafe { get(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE) }
}

/// The process that made the connection of a unix socket, as a descriptor (SO_PEERPIDFD, Linux
/// 6.5).
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd = get_int(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD)?;
    // SAFETY: a new descriptor that nobody else owns.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The file that a unix socket is bound to, wherever it is by now, as a descriptor of O_PATH
/// (SIOCUNIXFILE, linux/un.h). Needs CAP_NET_ADMIN.
///
/// # Errors
/// Those of ioctl(2).
pub fn bound_file(socket: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: this request takes no argument.
    let fd = check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What is charged to a socket (SO_MEMINFO), bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charges([u32; SK_MEMINFO_VARS]);

impl Charges {
    /// Asks the socket.
    #[inline]
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        // SAFETY: any bytes are numbers.
        unsafe { get(socket, libc::SOL_SOCKET, SO_MEMINFO) }.map(Self)
    }

    /// Memory of what is on its way out.
    #[inline]
    pub fn sending(&self) -> u32 {
        self.0[SK_MEMINFO_WMEM_ALLOC]
    }

    /// The send buffer: what [`Charges::sending`] may be.
    #[inline]
    pub fn send_buffer(&self) -> u32 {
        self.0[SK_MEMINFO_SNDBUF]
    }

    /// Memory of what a stream has queued.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.0[SK_MEMINFO_WMEM_QUEUED]
    }

    /// Memory of options, filters, and notifications that nobody has read.
    #[inline]
    pub fn options(&self) -> u32 {
        self.0[SK_MEMINFO_OPTMEM]
    }
}

/// Connects to AF_UNSPEC, which resets a TCP connection and empties its queue (tcp_disconnect,
/// net/ipv4/tcp.c). The socket stays open.
pub fn disconnect(socket: impl AsFd) -> io::Result<()> {
    let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which lives until the call returns.
    check(unsafe { libc::connect(socket.as_fd().as_raw_fd(), &raw const unspecified, len) }).map(drop)
}

/// Gives the socket a filter (SO_ATTACH_FILTER; Documentation/networking/filter.rst).
///
/// # Errors
/// Those of setsockopt(2): EINVAL for a program that the kernel doesn't take.
pub fn attach_filter(socket: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw const program).cast());
    // SAFETY: the kernel reads the structure and the instructions that it points to, and copies
    // both.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) }).map(drop)
}

/// Bytes that were sent and not taken yet (SIOCOUTQ). For a stream, these are the bytes that the
/// peer has not acknowledged or read; else the memory that messages use.
///
/// # Errors
/// Those of ioctl(2), where the socket does not say.
#[inline]
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    let mut n: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd() as usize;
    let arguments = [fd, libc::TIOCOUTQ as usize, &raw mut n as usize, 0, 0, 0];
    // SAFETY: SIOCOUTQ, which has TIOCOUTQ's number, writes one int.
    unsafe { syscall::checked(libc::SYS_ioctl, arguments) }.map(|_| n.max(0) as usize)
}

/// Length of the next message, without taking it.
///
/// # Errors
/// Those of recvmsg(2); EAGAIN without a message.
pub fn peek_message(socket: impl AsFd) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    let mut message = header(&[]);
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, flags as usize);
    // SAFETY: the message has no bytes to be written, and lives until the call returns.
    unsafe { syscall::checked(libc::SYS_recvmsg, [fd, &raw mut message as usize, flags, 0, 0, 0]) }
}

/// Sends `len` bytes at `at`, with further `MSG_*` bits `flags`. How many were taken, or the errno.
///
/// # Safety
/// The bytes are readable until the call returns, and as long as the kernel uses them where `flags`
/// lends them.
#[inline]
pub unsafe fn send_range(socket: impl AsFd, at: *const u8, len: usize, flags: i32) -> Result<usize, i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
    // SAFETY: the caller's promise.
    unsafe { syscall::call(libc::SYS_sendto, [fd, at as usize, len, flags, 0, 0]) }
}

/// As [`send_range`], for the bytes that a list names.
///
/// # Safety
/// As [`send_range`], for each entry. Others may change the bytes meanwhile.
#[inline]
pub unsafe fn send(socket: impl AsFd, list: &[libc::iovec], flags: i32) -> Result<usize, i32> {
    let message = header(list);
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, (SEND_FLAGS | flags) as usize);
    // SAFETY: the list is borrowed until the call returns, and the kernel does not write it; what
    // it names is the caller's promise.
    unsafe { syscall::call(libc::SYS_sendmsg, [fd, &raw const message as usize, flags, 0, 0, 0]) }
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
    let mut headers: [libc::mmsghdr; N] = unsafe { std::mem::zeroed() };
    let (mut n, mut at) = (0, 0);
    for (entry, end) in headers.iter_mut().zip(ends) {
        entry.msg_hdr = header(list.get(at..end).unwrap_or_default());
        (n, at) = (n + 1, end);
    }
    let (fd, at) = (socket.as_fd().as_raw_fd() as usize, headers.as_mut_ptr() as usize);
    // SAFETY: as in `send`; the kernel writes the lengths of what it sent.
    unsafe { syscall::call(libc::SYS_sendmmsg, [fd, at, n, SEND_FLAGS as usize, 0, 0]) }
}

/// Sends a message of no bytes, without waiting, or says the errno: what makes an AF_XDP socket
/// look at its transmit ring.
#[inline]
pub fn send_nothing(socket: impl AsFd) -> Result<(), i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: the kernel is given no memory.
    unsafe { syscall::call(libc::SYS_sendto, [fd, 0, 0, flags, 0, 0]) }.map(drop)
}

/// The same by write(2), for a socket that does not block.
#[inline]
pub fn write_nothing(socket: impl AsFd) -> Result<(), i32> {
    // SAFETY: as above.
    unsafe { syscall::call(libc::SYS_write, [socket.as_fd().as_raw_fd() as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Receives a message of no bytes, without waiting, or says the errno: what makes an AF_XDP socket
/// look at its fill ring.
#[inline]
pub fn receive_nothing(socket: impl AsFd) -> Result<(), i32> {
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: as above.
    unsafe { syscall::call(libc::SYS_recvfrom, [fd, 0, 0, flags, 0, 0]) }.map(drop)
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
    let mut message = header(list);
    let (fd, flags) = (socket.as_fd().as_raw_fd() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: the list is borrowed until the call returns, and the kernel does not write it; what
    // it names is the caller's promise.
    let len = unsafe { syscall::call(libc::SYS_recvmsg, [fd, &raw mut message as usize, flags, 0, 0, 0]) }?;
    Ok(Received { len, interrupted: message.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// As [`receive_nothing`], by recvmsg(2), in which no address of a sender can be asked for.
///
/// # Errors
/// The errno of recvmsg(2).
#[inline]
pub fn receive_no_list(socket: impl AsFd) -> Result<(), i32> {
    // SAFETY: the list names no memory.
    unsafe { receive(socket, &[]) }.map(drop)
}

/// A message of a list.
#[inline]
fn header(list: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: integers and pointers that may be null: all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_ptr().cast_mut();
    header.msg_iovlen = list.len() as _;
    header
}

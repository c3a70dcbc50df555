//! The system calls of packet sockets (packet(7)) that no safe crate has, each behind a safe function. Nothing here
//! keeps a pointer after it returns.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use zerowire_sys::syscall;

/// Socket options of include/uapi/linux/if_packet.h.
pub(super) const PACKET_VERSION: i32 = 10;
pub(super) const PACKET_TX_RING: i32 = 13;
pub(super) const PACKET_LOSS: i32 = 14;
pub(super) const PACKET_VNET_HDR: i32 = 15;
pub(super) const PACKET_QDISC_BYPASS: i32 = 20;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A packet socket of whole frames that receives nothing (protocol 0).
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option made of 32-bit words that hold no address.
pub(super) fn set_words(socket: BorrowedFd<'_>, level: i32, option: i32, words: &[u32]) -> io::Result<()> {
    let len = size_of_val(words) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `words`; none of the options of this module follows an address.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, words.as_ptr().cast(), len) })
        .map(drop)
}

/// An interface, and a protocol as it stands in a frame.
fn address(index: u32, protocol: [u8; 2]) -> libc::sockaddr_ll {
    // SAFETY: a structure of integers: all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = u16::from_ne_bytes(protocol);
    address.sll_ifindex = index as i32;
    address
}

/// Binds to the interface of this index for sending only (protocol 0).
pub(super) fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = address(index, [0; 2]);
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which lives until it returns.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Tells the kernel to look at the transmit ring, without waiting; `to`: index of the interface that the socket is bound to,
/// and the protocol of all frames there. Returns the bytes of the frames that it took.
pub(super) fn kick(socket: BorrowedFd<'_>, to: Option<(u32, [u8; 2])>) -> io::Result<usize> {
    let to = to.map(|(index, protocol)| address(index, protocol));
    let (at, len) = match &to {
        Some(to) => (std::ptr::from_ref(to), size_of::<libc::sockaddr_ll>() as libc::socklen_t),
        None => (std::ptr::null(), 0),
    };
    // SAFETY: the frames are in the ring; the address is none, or lives until the call returns.
    unsafe {
        let flags = libc::MSG_DONTWAIT as usize;
        syscall::checked(libc::SYS_sendto, [fd(socket), 0, 0, flags, at as usize, len as usize])
    }
}

/// Sends each of `frames` as a datagram in one sendmmsg(2), without waiting. Returns how many the kernel took.
/// `messages` is scratch space that is kept to save its allocation.
pub(super) fn send_many<'a>(
    socket: BorrowedFd<'_>,
    frames: impl Iterator<Item = &'a [u8]>,
    scratch: &mut Scratch,
) -> io::Result<usize> {
    scratch.vectors.clear();
    scratch.messages.clear();
    scratch
        .vectors
        .extend(frames.map(|f| libc::iovec { iov_base: f.as_ptr().cast_mut().cast(), iov_len: f.len() }));
    for vector in &mut scratch.vectors {
        // SAFETY: a structure of integers and pointers that may be null: all zeroes is a valid value.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
        scratch.messages.push(message);
    }
    // SAFETY: the messages point at the vectors, which point at the frames that are borrowed until this returns. The
    // kernel reads the frames and writes the messages only.
    let sent = unsafe {
        let (at, len) = (scratch.messages.as_mut_ptr() as usize, scratch.messages.len());
        syscall::checked(libc::SYS_sendmmsg, [fd(socket), at, len, libc::MSG_DONTWAIT as usize, 0, 0])
    };
    // No pointer outlives the borrow.
    scratch.vectors.clear();
    scratch.messages.clear();
    sent
}

/// Arrays of [`send_many`]; empty between calls.
#[derive(Default)]
pub(super) struct Scratch {
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: between calls both arrays are empty: there is no pointer in them that another thread could follow.
unsafe impl Send for Scratch {}

/// Sends one frame, without waiting.
pub(super) fn send(socket: BorrowedFd<'_>, frame: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `frame` until it returns.
    unsafe {
        let (at, flags) = (frame.as_ptr() as usize, libc::MSG_DONTWAIT as usize);
        syscall::checked(libc::SYS_sendto, [fd(socket), at, frame.len(), flags, 0, 0])
    }
}

fn fd(socket: BorrowedFd<'_>) -> usize {
    socket.as_raw_fd() as usize
}

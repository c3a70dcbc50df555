//! The system calls and the shared memory that the bare loops need, behind safe functions.
//!
//! All `unsafe` of the bare loops lives here and in [`super::uring`]. Memory that the kernel shares
//! is only touched through [`Mapping`]: its control words as atomics, its frames as bytes while the
//! kernel doesn't have them.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::MapFlags;
use zerowire_sys::map::{self, READ_WRITE};

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (include/uapi/linux/errqueue.h).
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Memory shared with the kernel: a ring of a socket, or anonymous memory that is lent to one.
/// Page-aligned.
#[derive(Debug)]
pub struct Mapping(map::Mapping);

impl Mapping {
    /// Maps `len` bytes of what `fd` offers at `offset`, and populates it.
    pub fn of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Ok(Self(map::Mapping::shared_with(fd, offset, len, READ_WRITE, MapFlags::POPULATE)?))
    }

    /// Maps `len` bytes of zeroes, populated.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Ok(Self(map::Mapping::private_with(len, MapFlags::POPULATE)?))
    }

    /// Its address, to tell the kernel.
    pub fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The 32-bit word at byte `at`.
    ///
    /// # Panics
    /// When it is not aligned or not inside: the caller computes places from the ring's layout.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        self.0.word(at)
    }

    /// The 64-bit word at byte `at`; see [`Self::word`].
    #[inline]
    pub fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len(), "word {at} of {}", self.len());
        // SAFETY: inside and aligned (asserted; mappings begin on a page). Control words are only
        // accessed as atomics, by us and by the kernel.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    /// `len` bytes at `at`, to be filled while the kernel doesn't have them.
    #[inline]
    pub fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len() && len <= self.len() - at, "bytes {at} + {len} of {}", self.len());
        // SAFETY: inside (asserted). The kernel writes control words only, which no frame covers;
        // the mutable borrow keeps other references of this process out.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(at), len) }
    }
}

fn check(result: isize) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// setsockopt(2) with a structure given as its bytes.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which the kernel copies.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    check(result as isize).map(drop)
}

/// getsockopt(2) into the bytes of a structure; the number of bytes that the kernel wrote.
pub fn get_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the length.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut len) };
    check(result as isize).map(|_| len as usize)
}

/// bind(2) with a socket address given as its bytes.
pub fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `address`, which the kernel copies.
    let result =
        unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t) };
    check(result as isize).map(drop)
}

/// The message array of sendmmsg(2), one piece a message.
pub struct Batch {
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

impl Batch {
    /// For up to `most` messages.
    pub fn new(most: usize) -> Self {
        // SAFETY: iovec and mmsghdr are C structures of integers and pointers: all zeroes (null) is
        // valid.
        let (piece, message) = unsafe { (zeroed(), zeroed()) };
        Self { pieces: vec![piece; most], messages: vec![message; most] }
    }

    /// Sends frames in one system call, at most as many as it has room for; how many the kernel
    /// took.
    pub fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for (frame, (piece, message)) in frames.zip(self.pieces.iter_mut().zip(&mut self.messages)) {
            *piece = libc::iovec { iov_base: frame.as_ptr() as *mut _, iov_len: frame.len() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` messages point at pieces, which point at frames borrowed for
        // this call; sendmmsg reads them and writes `msg_len` only.
        let sent =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), self.messages.as_mut_ptr(), count as libc::c_uint, 0) };
        check(sent as isize)
    }
}

/// A range of sends that the kernel gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// The first send, counted from 0.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// Whether the kernel copied them after all.
    pub copied: bool,
}

/// Reads one notification of `MSG_ZEROCOPY` from the error queue; `None` when there is none now.
pub fn notification(fd: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // Room for a cmsghdr, a sock_extended_err and the address behind it; aligned as a cmsghdr.
    let mut control = [0u64; 16];
    // SAFETY: msghdr is a C structure of integers and pointers: all zeroes (null) is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<[u64; 16]>();
    // SAFETY: the kernel writes at most `msg_controllen` bytes to `control`; the message has no
    // data buffer.
    let result =
        unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        other => other?,
    };
    // struct cmsghdr is a length (8 bytes), a level and a type; then struct sock_extended_err:
    // errno, origin, type, code, pad, info, data.
    let words = control.map(u64::to_ne_bytes);
    let (error, range) = (words[2], words[3]);
    let half = |bytes: [u8; 8], at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    if message.msg_controllen < 32 || error[4] != ORIGIN_ZEROCOPY {
        let number = half(error, 0) as i32;
        return Err(io::Error::from_raw_os_error(number));
    }
    Ok(Some(Notification { first: half(range, 0), last: half(range, 4), copied: error[6] == CODE_COPIED }))
}

//! Reads a socket's error queue: notifications of lent memory, and errors of other origins
//! (Documentation/networking/msg_zerocopy.rst, include/uapi/linux/errqueue.h).
//!
//! The kernel allocates a notification's memory at the send, so a full error queue loses none. It
//! limits how many may be out (net.core.optmem_max, ENOBUFS at the send).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::syscall;

/// `SO_EE_ORIGIN_TIMESTAMPING` (include/uapi/linux/errqueue.h).
const SO_EE_ORIGIN_TIMESTAMPING: u8 = 4;
/// `SO_EE_ORIGIN_ZEROCOPY` (include/uapi/linux/errqueue.h).
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED` (include/uapi/linux/errqueue.h).
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
/// `SOL_VSOCK` (include/linux/socket.h).
const SOL_VSOCK: i32 = 287;
/// `VSOCK_RECVERR` (include/uapi/linux/vm_sockets.h).
const VSOCK_RECVERR: i32 = 1;
/// Messages read with one system call. Notifications coalesce in the queue, so it is seldom long.
pub const BATCH: usize = 8;
/// Room for control messages. The error with its offender's address takes 64 bytes. Before it come
/// time stamps and packet information, which a program may have switched on.
const CONTROL_WORDS: usize = 40;

/// What one message of the error queue says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The kernel gives ids `lo` to `hi` back.
    Back {
        /// The first.
        lo: u32,
        /// The last.
        hi: u32,
        /// The kernel has copied something of them.
        copied: bool,
    },
    /// An error: ICMP, or of this host.
    Error {
        /// Its number.
        errno: i32,
    },
}

type Control = [MaybeUninit<u64>; CONTROL_WORDS];

/// Reads up to `N` messages without waiting; one system call. Returns how many there were: fewer
/// than `N` means that the queue is empty.
#[inline]
pub fn read<const N: usize>(fd: BorrowedFd<'_>, mut visit: impl FnMut(Note)) -> io::Result<usize> {
    let mut control: [Control; N] = [[MaybeUninit::uninit(); CONTROL_WORDS]; N];
    // SAFETY: all zeroes is a valid mmsghdr: null pointers with zero lengths.
    let mut messages: [libc::mmsghdr; N] = unsafe { std::mem::zeroed() };
    for (m, c) in messages.iter_mut().zip(&mut control) {
        m.msg_hdr.msg_control = c.as_mut_ptr().cast();
        m.msg_hdr.msg_controllen = size_of::<Control>();
    }
    let flags = (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as usize;
    let fd = fd.as_raw_fd() as usize;
    let n = loop {
        let read = if N == 1 {
            let at = &raw mut messages[0].msg_hdr as usize;
            // SAFETY: the header points to a control buffer of the length it says, alive for the
            // call.
            unsafe { syscall::call(libc::SYS_recvmsg, [fd, at, flags, 0, 0, 0]) }.map(|_| 1)
        } else {
            let at = messages.as_mut_ptr() as usize;
            // SAFETY: as above, for each of the headers.
            unsafe { syscall::call(libc::SYS_recvmmsg, [fd, at, N, flags, 0, 0]) }
        };
        match read {
            Ok(n) => break n,
            Err(libc::EAGAIN) => return Ok(0),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
    };
    for m in messages.iter().take(n) {
        parse(&m.msg_hdr, &mut visit);
    }
    Ok(n)
}

#[inline]
fn parse(header: &libc::msghdr, visit: &mut impl FnMut(Note)) {
    // SAFETY: the kernel has filled the control buffer that the header points to, up to
    // msg_controllen, and the buffer is alive.
    let mut c = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !c.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers that lie wholly in the buffer; u64s
        // align it.
        let head = unsafe { &*c };
        let is_error = matches!(
            (head.cmsg_level, head.cmsg_type),
            (libc::SOL_IP, libc::IP_RECVERR)
                | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                | (SOL_VSOCK, VSOCK_RECVERR)
        );
        let need = size_of::<libc::sock_extended_err>();
        // SAFETY: CMSG_LEN only computes.
        if is_error && head.cmsg_len >= unsafe { libc::CMSG_LEN(need as u32) } as usize {
            // SAFETY: the message holds a whole sock_extended_err by the check above;
            // read_unaligned needs no alignment.
            let e: libc::sock_extended_err = unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(c).cast()) };
            note(&e).into_iter().for_each(&mut *visit);
        }
        // SAFETY: c is a header of this message.
        c = unsafe { libc::CMSG_NXTHDR(header, c) };
    }
}

/// `None`: a time stamp of a sent packet, which a program requested with SO_TIMESTAMPING. It
/// doesn't count as an error, and is lost: the queue gives each message once.
#[inline]
fn note(e: &libc::sock_extended_err) -> Option<Note> {
    if e.ee_origin == SO_EE_ORIGIN_TIMESTAMPING {
        return None;
    }
    Some(if e.ee_origin == SO_EE_ORIGIN_ZEROCOPY && e.ee_errno == 0 {
        Note::Back { lo: e.ee_info, hi: e.ee_data, copied: e.ee_code & SO_EE_CODE_ZEROCOPY_COPIED != 0 }
    } else {
        Note::Error { errno: e.ee_errno as i32 }
    })
}

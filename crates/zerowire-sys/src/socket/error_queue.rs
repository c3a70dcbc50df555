//! Reads a socket's error queue: notifications of lent memory, and errors of other origins
//! (Documentation/networking/msg_zerocopy.rst, include/uapi/linux/errqueue.h).
//!
//! The kernel allocates a notification's memory at the send, so a full error queue loses none. It
//! limits how many may be out (net.core.optmem_max, ENOBUFS at the send).

use std::io;
use std::os::fd::BorrowedFd;

use super::messages::{ControlMessages, receive_errors};
use crate::plain::PlainData;

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

/// Reads up to `N` messages without waiting; one system call. Returns how many there were: fewer
/// than `N` means that the queue is empty.
#[inline]
pub fn read<const N: usize>(fd: BorrowedFd<'_>, mut visit: impl FnMut(Note)) -> io::Result<usize> {
    loop {
        match receive_errors::<N>(fd, |control| notes(control).for_each(&mut visit)) {
            Ok(n) => return Ok(n),
            Err(libc::EAGAIN) => return Ok(0),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[inline]
fn notes(control: ControlMessages<'_>) -> impl Iterator<Item = Note> {
    let errors = control.filter(|message| {
        matches!(
            message.kind,
            (libc::SOL_IP, libc::IP_RECVERR)
                | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                | (SOL_VSOCK, VSOCK_RECVERR)
        )
    });
    errors.filter_map(|message| libc::sock_extended_err::read(message.data)).filter_map(|e| note(&e))
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

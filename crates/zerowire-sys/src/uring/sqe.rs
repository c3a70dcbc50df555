//! Submission entries, field by field: those of the send operations, and those that name no memory.
//!
//! The `io-uring` crate builds SENDMSG_ZC without a registered buffer only, so zerowire fills the
//! 64 bytes of `struct io_uring_sqe` (include/uapi/linux/io_uring.h) itself. An entry of the send
//! operations holds addresses; whoever pushes it answers for the memory behind them until the
//! completions have come. An [`Entry`] can be pushed by safe code.

use io_uring::{opcode, squeue};
use std::os::fd::RawFd;

use crate::plain::{cast, plain};

/// `IORING_RECVSEND_FIXED_BUF` (Linux 6.0; on SENDMSG_ZC Linux 6.15): the memory lies in registered
/// buffer `buf_index`.
pub const RECVSEND_FIXED_BUF: u16 = 1 << 2;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2): the notification says whether the kernel copied.
pub const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`: bit of a notification's result, "copied, at least in part".
pub const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;
/// `IORING_CQE_F_MORE`: another completion of the same entry follows (of a send: the notification).
pub const CQE_F_MORE: u32 = 1 << 1;
/// `IORING_CQE_F_NOTIF`: this completion is the notification.
pub const CQE_F_NOTIF: u32 = 1 << 3;
/// `IOSQE_FIXED_FILE`: `fd` is a place in the table of registered files.
const SQE_FIXED_FILE: u8 = 1;

/// `IORING_OP_ACCEPT` and `IORING_ACCEPT_MULTISHOT` (Linux 5.19).
const OP_ACCEPT: u8 = 13;
const ACCEPT_MULTISHOT: u16 = 1;
const OP_POLL_ADD: u8 = 6;
const OP_ASYNC_CANCEL: u8 = 14;
const OP_RECV_ZC: u8 = 58;
const RECV_MULTISHOT: u16 = 1 << 1;
const ASYNC_CANCEL_ALL: u32 = 1;
const ASYNC_CANCEL_ANY: u32 = 1 << 2;

plain! {
    /// `struct io_uring_sqe`.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Sqe {
        opcode: u8,
        flags: u8,
        ioprio: u16,
        fd: i32,
        addr2: u64,
        addr: u64,
        len: u32,
        /// `MSG_*` bits, or flags of another operation.
        op_flags: u32,
        user_data: u64,
        buf_index: u16,
        personality: u16,
        zcrx_id: u32,
        addr3: u64,
        pad: u64,
    }
}

const _: () = assert!(size_of::<Sqe>() == 64 && align_of::<Sqe>() == align_of::<squeue::Entry>());
const _: () = assert!(std::mem::offset_of!(Sqe, user_data) == 32);
const _: () = assert!(std::mem::offset_of!(Sqe, buf_index) == 40);
const _: () = assert!(std::mem::offset_of!(Sqe, zcrx_id) == 44);

/// An entry that names no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(Sqe);

impl Entry {
    /// RECV_ZC, multishot (it must be): payload of TCP socket `fd` goes to the area of `zcrx_id`;
    /// ends after `bytes` bytes (0: never).
    #[inline]
    pub fn recv_zc(fd: RawFd, zcrx_id: u32, bytes: u32, user_data: u64) -> Self {
        let (opcode, ioprio) = (OP_RECV_ZC, RECV_MULTISHOT);
        Self(Sqe { opcode, ioprio, fd, zcrx_id, len: bytes, user_data, ..Sqe::default() })
    }

    /// Cancels the request with the user data `target`.
    pub fn cancel(target: u64, user_data: u64) -> Self {
        Self(Sqe { opcode: OP_ASYNC_CANCEL, fd: -1, addr: target, user_data, ..Sqe::default() })
    }

    /// Cancels every request of the ring.
    pub fn cancel_all(user_data: u64) -> Self {
        let op_flags = ASYNC_CANCEL_ALL | ASYNC_CANCEL_ANY;
        Self(Sqe { opcode: OP_ASYNC_CANCEL, fd: -1, op_flags, user_data, ..Sqe::default() })
    }

    /// Accepts one connection of the listening socket `fd`, or all that come (`many`); closed on
    /// exec.
    pub fn accept(fd: RawFd, many: bool, user_data: u64) -> Self {
        let (opcode, ioprio) = (OP_ACCEPT, if many { ACCEPT_MULTISHOT } else { 0 });
        Self(Sqe { opcode, ioprio, fd, op_flags: libc::SOCK_CLOEXEC as u32, user_data, ..Sqe::default() })
    }

    /// One completion when `fd` is readable.
    pub fn readable(fd: RawFd, user_data: u64) -> Self {
        // The halves of the mask are swapped on big-endian machines.
        let mask = u32::from(libc::POLLIN as u16);
        let op_flags = if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask };
        Self(Sqe { opcode: OP_POLL_ADD, fd, op_flags, user_data, ..Sqe::default() })
    }

    /// SENDMSG_ZC of a message that is nowhere, which the kernel refuses.
    pub(super) fn sendmsg_of_nothing(fd: RawFd, loan: Loan, user_data: u64) -> Self {
        let mut sqe = Sqe { opcode: opcode::SendMsgZc::CODE, fd, len: 1, user_data, ..Sqe::default() };
        loan.apply(&mut sqe);
        Self(sqe)
    }

    /// Its bytes.
    #[inline]
    pub(super) fn sqe(&self) -> &Sqe {
        &self.0
    }
}

/// A socket as an entry names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A descriptor of the process.
    Fd(RawFd),
    /// A place in the ring's table of registered files.
    Registered(u32),
}

impl Target {
    #[inline]
    fn apply(self, sqe: &mut Sqe) {
        match self {
            Self::Fd(fd) => sqe.fd = fd,
            Self::Registered(place) => {
                sqe.fd = place as i32;
                sqe.flags |= SQE_FIXED_FILE;
            }
        }
    }
}

/// How a send goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loan {
    /// SEND or SENDMSG: the kernel copies, one completion.
    Copy,
    /// SEND_ZC or SENDMSG_ZC on memory that the kernel looks up page by page.
    Lend {
        /// Ask for the copied flag in the notification.
        report: bool,
    },
    /// The same on a registered buffer.
    LendRegistered {
        /// Ask for the copied flag in the notification.
        report: bool,
        /// The buffer's place in the ring's table.
        buffer: u16,
    },
}

impl Loan {
    #[inline]
    fn apply(self, sqe: &mut Sqe) {
        let report = |on: bool| if on { SEND_ZC_REPORT_USAGE } else { 0 };
        match self {
            Self::Copy => {}
            Self::Lend { report: on } => sqe.ioprio = report(on),
            Self::LendRegistered { report: on, buffer } => {
                sqe.ioprio = report(on) | RECVSEND_FIXED_BUF;
                sqe.buf_index = buffer;
            }
        }
    }
}

/// SEND or SEND_ZC of one range: `len` bytes at `addr`, with the `MSG_*` bits `flags`.
#[inline]
pub fn send(to: Target, loan: Loan, addr: *const u8, len: u32, flags: i32, user_data: u64) -> squeue::Entry {
    let opcode = if loan == Loan::Copy { opcode::Send::CODE } else { opcode::SendZc::CODE };
    let mut sqe = Sqe { opcode, addr: addr as u64, len, op_flags: flags as u32, user_data, ..Sqe::default() };
    to.apply(&mut sqe);
    loan.apply(&mut sqe);
    cast(sqe)
}

/// SENDMSG or SENDMSG_ZC of a message header; the header, its vector and its control data must stay
/// until the result.
#[inline]
pub fn sendmsg(
    to: Target,
    loan: Loan,
    message: *const libc::msghdr,
    flags: i32,
    user_data: u64,
) -> squeue::Entry {
    let opcode = if loan == Loan::Copy { opcode::SendMsg::CODE } else { opcode::SendMsgZc::CODE };
    let mut sqe =
        Sqe { opcode, addr: message as u64, len: 1, op_flags: flags as u32, user_data, ..Sqe::default() };
    to.apply(&mut sqe);
    loan.apply(&mut sqe);
    cast(sqe)
}

#[cfg(test)]
mod tests;

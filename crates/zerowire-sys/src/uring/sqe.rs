//! Submission entries for the send operations, field by field.
//!
//! The `io-uring` crate builds SENDMSG_ZC without a registered buffer only, so zerowire fills the
//! 64 bytes of `struct io_uring_sqe` (include/uapi/linux/io_uring.h) itself. An entry holds
//! addresses; whoever pushes it answers for the memory behind them until the completions have come.

use io_uring::{opcode, squeue};
use std::os::fd::RawFd;

/// `IORING_RECVSEND_FIXED_BUF` (Linux 6.0; on SENDMSG_ZC Linux 6.15): the memory lies in registered
/// buffer `buf_index`.
pub const RECVSEND_FIXED_BUF: u16 = 1 << 2;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2): the notification says whether the kernel copied.
pub const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`: bit of a notification's result, "copied, at least in part".
pub const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;
/// `IORING_CQE_F_MORE`: another completion of the same entry follows (here: the notification).
pub const CQE_F_MORE: u32 = 1 << 1;
/// `IORING_CQE_F_NOTIF`: this completion is the notification.
pub const CQE_F_NOTIF: u32 = 1 << 3;
/// `IOSQE_FIXED_FILE`: `fd` is a place in the table of registered files.
const SQE_FIXED_FILE: u8 = 1;

/// `struct io_uring_sqe` as the send operations use it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    addr2: u64,
    addr: u64,
    len: u32,
    msg_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    addr_len: u32,
    addr3: u64,
    pad: u64,
}

const _: () = assert!(size_of::<Sqe>() == 64 && size_of::<squeue::Entry>() == 64);
const _: () = assert!(align_of::<Sqe>() == align_of::<squeue::Entry>());
const _: () =
    assert!(std::mem::offset_of!(Sqe, user_data) == 32 && std::mem::offset_of!(Sqe, buf_index) == 40);

impl Sqe {
    #[inline]
    fn entry(self) -> squeue::Entry {
        // SAFETY: both are 64 bytes of integers with the same alignment (checked above). Every bit
        // pattern of `struct io_uring_sqe` is a valid value: the kernel checks the fields.
        unsafe { std::mem::transmute::<Self, squeue::Entry>(self) }
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
    let mut sqe =
        Sqe { opcode, addr: addr as u64, len, msg_flags: flags as u32, user_data, ..Sqe::default() };
    to.apply(&mut sqe);
    loan.apply(&mut sqe);
    sqe.entry()
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
        Sqe { opcode, addr: message as u64, len: 1, msg_flags: flags as u32, user_data, ..Sqe::default() };
    to.apply(&mut sqe);
    loan.apply(&mut sqe);
    sqe.entry()
}

#[cfg(test)]
mod tests;

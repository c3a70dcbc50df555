//! Entries of a batch, and what goes wrong in the middle of one.

use super::core::Core;
use super::message::Message;
use crate::send::Way;
use io_uring::squeue;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use zerowire_sys::uring::sqe::{self, Loan};

/// Times that a datagram is sent again whose successors are out. The first may be told the ICMP error that the one sent
/// again before it caused.
const MEND_TRIES: usize = 2;

/// Where entries go.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) socket: &'a OwnedFd,
    pub(super) channel: u32,
}

/// Sends again, at once, what failed in the middle of a batch without links. What had no room is left for later, without the
/// ring ([`Stragglers`]), and what fails for good to [`Book::take_batch`].
///
/// [`Book::take_batch`]: super::book::Book::take_batch
/// [`Stragglers`]: super::straggle::Stragglers
pub(super) fn mend(c: &mut Core, to: Lane<'_>, messages: &mut [Message], way: Way) -> io::Result<()> {
    let mut from = 0;
    while let Some((at, mut errno)) = c.book.hole(from) {
        from = at + 1;
        for _ in 0..MEND_TRIES {
            if errno == libc::EAGAIN {
                break;
            }
            // A limit of locked memory lets copies through.
            let is_limit = matches!(errno, libc::ENOBUFS | libc::ENOMEM);
            let way = if is_limit { Way::Copy } else { way };
            let built = entry(c, to.socket.as_raw_fd(), &mut messages[at], way, false);
            // SAFETY: as for the batch, of which it becomes a part.
            unsafe { c.push(to.channel, built) }?;
            let settled = c.settle();
            c.book.stand_in(at);
            settled?;
            match c.book.hole(at) {
                Some((again, failed)) if again == at => errno = failed,
                _ => break,
            }
        }
    }
    Ok(())
}

/// The entry of one message.
pub(super) fn entry(
    core: &Core,
    socket: RawFd,
    message: &mut Message,
    way: Way,
    link: bool,
) -> squeue::Entry {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let one = match message.pieces() {
        [piece] => Some((piece.iov_base.cast_const().cast::<u8>(), piece.iov_len as u32)),
        _ => None,
    };
    let report = core.facts.features.report_usage;
    let loan = match way {
        Way::Copy => Loan::Copy,
        Way::Lend if one.is_some() || core.facts.features.registered_vectors => core
            .areas
            .place_of(message.pieces())
            .map_or(Loan::Lend { report }, |buffer| Loan::LendRegistered { report, buffer }),
        Way::Lend => Loan::Lend { report },
    };
    let target = core.target(socket);
    let entry = match one {
        Some((addr, len)) => sqe::send(target, loan, addr, len, FLAGS, 0),
        None => sqe::sendmsg(target, loan, message.header(), FLAGS, 0),
    };
    if link { entry.flags(squeue::Flags::IO_LINK) } else { entry }
}

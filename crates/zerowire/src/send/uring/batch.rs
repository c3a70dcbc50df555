//! Entries of a batch, and what goes wrong in the middle of one.

use super::core::EngineState;
use crate::send::backend::{Accepted, LENT_CALL_BYTES};
use crate::send::{Payload, SendWay};
use io_uring::squeue;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use zerowire_sys::socket::{MAX_IOV, Message};
use zerowire_sys::uring::sqe::{self, Loan};

/// An entry's length and result are 31 bits; a whole number of pages of any size.
const MAX_CALL_BYTES: usize = 1 << 30;
/// How often to send a datagram again whose successors are out. The first time may get the ICMP
/// error that the one sent again before it caused.
const MEND_TRIES: usize = 2;

/// Where entries go.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) socket: &'a OwnedFd,
    pub(super) channel: u32,
}

/// What goes out in one call.
pub(super) struct EntryBatch<'a> {
    pub(super) payloads: &'a [Payload],
    /// Bytes of the first that are out already.
    pub(super) from: usize,
    pub(super) way: SendWay,
    /// Linked: one that fails cancels those behind it.
    pub(super) is_chain: bool,
    /// Of a stream, which may take a part.
    pub(super) is_stream: bool,
}

impl EntryBatch<'_> {
    /// Bytes of one entry at most.
    fn max(&self) -> usize {
        match self.way {
            SendWay::Lend if self.is_stream => LENT_CALL_BYTES,
            _ => MAX_CALL_BYTES,
        }
    }
}

/// Hands a batch over, and appends what was taken to `sent`. The caller keeps the payloads until
/// the ids are back.
pub(super) fn submit(
    c: &mut EngineState,
    to: Lane<'_>,
    batch: EntryBatch<'_>,
    sent: &mut Vec<Accepted>,
) -> io::Result<()> {
    c.begin(batch.is_chain)?;
    if batch.way == SendWay::Lend {
        c.arm_watch();
    }
    let mut messages = std::mem::take(&mut c.messages);
    messages.resize_with(messages.len().max(batch.payloads.len()), Message::default);
    let (count, pushed) = push(c, to, &batch, &mut messages);
    let mut result = pushed;
    if count > 0 {
        let before = sent.len();
        let settled = c.settle().and_then(|()| mend(c, to, &mut messages, batch.way));
        let taken = c.book.take_batch(sent);
        if settled.is_err() {
            // What is in doubt counts as taken wholly.
            let taken = sent[before..].iter_mut().zip(&messages).filter(|(s, _)| !s.is_lost());
            for (s, m) in taken {
                s.bytes = s.bytes.min(m.list.iter().map(|p| p.iov_len).sum());
            }
            // The kernel may still read headers and vectors.
            std::mem::forget(std::mem::take(&mut messages));
        }
        c.disarm_watch();
        result = settled.and(taken).and(result);
    }
    c.messages = messages;
    result
}

/// Makes and pushes the entries: how many, and what stopped it.
fn push(
    c: &mut EngineState,
    to: Lane<'_>,
    batch: &EntryBatch<'_>,
    messages: &mut [Message],
) -> (usize, io::Result<()>) {
    let mut count = 0;
    for (payload, message) in batch.payloads.iter().zip(messages) {
        let total = payload.iovecs(batch.from, batch.max(), MAX_IOV, &mut message.list);
        if !batch.is_stream && total < payload.len() - batch.from {
            return (count, Err(io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let link = batch.is_chain && count + 1 < batch.payloads.len();
        let way = if total == 0 { SendWay::Copy } else { batch.way };
        let built = entry(c, to.socket.as_raw_fd(), message, way, link);
        // SAFETY: the messages live until `settle` returned, and are leaked if it failed; the
        // caller keeps the payloads until the ids are back.
        if let Err(e) = unsafe { push_entry(c, to.channel, built) } {
            return (count, Err(e));
        }
        count += 1;
    }
    (count, Ok(()))
}

/// Adds an entry to the batch, which has room for it, and fills in its user data.
///
/// # Safety
/// As [`SendRing::push`](zerowire_sys::uring::ring::SendRing::push). Headers and vectors stay until
/// [`EngineState::settle`] returned, and for good if it failed. The memory to send stays until the
/// channel has the notice of its id.
unsafe fn push_entry(c: &mut EngineState, channel: u32, entry: squeue::Entry) -> io::Result<()> {
    let (ring, book) = c.ring_and_book()?;
    let entry = entry.user_data(book.token().into());
    // SAFETY: passed on to the caller.
    if !unsafe { ring.push(&entry) } {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    book.pushed(channel);
    Ok(())
}

/// Sends again, at once, what failed in the middle of a batch without links. What had no room is
/// left for later, without the ring ([`Stragglers`]), and what fails for good to
/// [`Book::take_batch`].
///
/// [`Book::take_batch`]: super::book::Book::take_batch
/// [`Stragglers`]: super::straggle::Stragglers
fn mend(c: &mut EngineState, to: Lane<'_>, messages: &mut [Message], way: SendWay) -> io::Result<()> {
    let mut from = 0;
    while let Some((at, mut errno)) = c.book.hole(from) {
        from = at + 1;
        for _ in 0..MEND_TRIES {
            if errno == libc::EAGAIN {
                break;
            }
            // A limit of locked memory lets copies through.
            let is_limit = matches!(errno, libc::ENOBUFS | libc::ENOMEM);
            let way = if is_limit { SendWay::Copy } else { way };
            let built = entry(c, to.socket.as_raw_fd(), &mut messages[at], way, false);
            // SAFETY: as for the batch, of which it becomes a part.
            unsafe { push_entry(c, to.channel, built) }?;
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
fn entry(
    core: &EngineState,
    socket: RawFd,
    message: &mut Message,
    way: SendWay,
    link: bool,
) -> squeue::Entry {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let one = match message.list.as_slice() {
        [piece] => Some((piece.iov_base.cast_const().cast::<u8>(), piece.iov_len as u32)),
        _ => None,
    };
    let report = core.facts.features.report_usage;
    let loan = match way {
        SendWay::Copy => Loan::Copy,
        SendWay::Lend if one.is_some() || core.facts.features.registered_vectors => core
            .areas
            .place_of(&message.list)
            .map_or(Loan::Lend { report }, |buffer| Loan::LendRegistered { report, buffer }),
        SendWay::Lend => Loan::Lend { report },
    };
    let target = core.target(socket);
    let entry = match one {
        Some((addr, len)) => sqe::send(target, loan, addr, len, FLAGS, 0),
        None => sqe::sendmsg(target, loan, message.header(), FLAGS, 0),
    };
    if link { entry.flags(squeue::Flags::IO_LINK) } else { entry }
}

//! What the front (limits, tickets, ledger, choice) needs of a way to send. A back end moves bytes
//! and reads notifications; it decides nothing.

use super::kind::SocketFamily;
use super::socket::SocketBackend;
#[cfg(feature = "uring")]
use super::uring::backend::UringBackend;
use super::{Payload, SendError, SendWay, Window};
use crate::ledger::CopyReason;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// A stream takes at most this much lent memory in one call. More would gain nothing.
/// RLIMIT_MEMLOCK (8 MiB for most users) is charged for the whole call, also for what the socket's
/// buffer then doesn't take. Pages of registered areas are not charged.
pub(crate) const LENT_CALL_BYTES: usize = 1 << 20;

/// Why a socket takes no lent memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoLoan {
    /// What the ledger says of the bytes that are copied instead.
    pub reason: CopyReason,
    /// For people.
    pub why: String,
}

impl NoLoan {
    pub(crate) fn asked() -> Self {
        Self { reason: CopyReason::Asked, why: "copying was asked for".to_owned() }
    }

    pub(crate) fn unsupported(why: impl Into<String>) -> Self {
        Self { reason: CopyReason::Unsupported, why: why.into() }
    }

    pub(crate) fn unix() -> Self {
        Self::unsupported("unix sockets can't take lent memory")
    }

    /// The call that was to lend was refused, and copied then.
    pub(crate) fn refused(socket: SocketFamily) -> Self {
        Self::unsupported(format!("{socket} refuses lent memory (EOPNOTSUPP)"))
    }
}

/// What one submission did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Bytes that the kernel took. On datagram sockets all of the payload.
    pub bytes: usize,
    /// The id under which the notification will come; `None`: the bytes were copied, and nothing
    /// follows. Ids of one back end follow each other (with wrap-around).
    pub id: Option<u32>,
    /// The error number with which the kernel refused it when it had taken those behind it. It was
    /// sent again, unless it [is lost](Accepted::is_lost).
    pub refused: Option<i32>,
}

impl Accepted {
    /// A datagram of a batch that the kernel refused, for good, after it had taken those behind it.
    /// It counts as sent and lost on its way.
    pub(crate) const fn lost(errno: i32) -> Self {
        Self { bytes: usize::MAX, id: None, refused: Some(errno) }
    }

    /// See [`Accepted::lost`].
    pub(crate) const fn is_lost(&self) -> bool {
        self.bytes == usize::MAX
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}

/// The back ends: ways to send over one connected socket. They never block but in `wait`. An enum
/// rather than a trait object, so that the copying path is one direct call.
///
/// When `submit` returns an id, the kernel reads the payload's memory until the window hears that
/// the id is back, or that all are (`all_back`). The caller keeps the payload that long. Moving the
/// `Payload` value does not move its bytes.
pub(crate) enum AnyBackend {
    Socket(SocketBackend),
    #[cfg(feature = "uring")]
    Uring(UringBackend),
    /// The sender has ended.
    Gone,
}

macro_rules! each {
    ($self:ident, $b:ident => $e:expr, $gone:expr) => {
        match $self {
            AnyBackend::Socket($b) => $e,
            #[cfg(feature = "uring")]
            AnyBackend::Uring($b) => $e,
            AnyBackend::Gone => $gone,
        }
    };
}

impl AnyBackend {
    /// The id of the first payload that is lent.
    pub(super) fn next_id(&self) -> u32 {
        match self {
            Self::Socket(b) => b.next_id(),
            _ => 0,
        }
    }

    /// What the kernel still holds of senders that ended before on this socket: payloads, and their
    /// bytes.
    pub(super) fn elders_hold(&self) -> (usize, usize) {
        match self {
            Self::Socket(b) => b.elders_hold(),
            _ => (0, 0),
        }
    }

    /// Ends it, and gives the socket back. The kernel holds nothing any more.
    pub(super) fn into_socket(self) -> Option<OwnedFd> {
        each!(self, b => Some(b.into_socket()), None)
    }

    /// Sends what lies behind the first `from` bytes of `payload`, or a part of it on streams. The
    /// payload is not empty when `way` is `Lend`.
    ///
    /// Errors: EAGAIN: no room. EMSGSIZE: too many pieces to lend in one datagram, or too long.
    /// ENOBUFS while lending: a limit of locked memory or of notifications. EBADFD: a ring that
    /// failed and was closed. Others are the socket's. After an error the kernel is taken to hold
    /// nothing (fragments that it queued before are copies, and longer datagrams are not lent; see
    /// `fragmented`). If it was lending that failed, `reap` must be called before the next lending.
    ///
    /// A copying call may return an id, too. Then the kernel may not have read all bytes yet: keep
    /// the payload as if it were lent.
    #[inline]
    pub(super) fn submit(&mut self, payload: &Payload, from: usize, way: SendWay) -> io::Result<Accepted> {
        each!(self, b => b.submit(payload, from, way), Err(gone()))
    }

    /// Sends datagrams, with as few system calls as it can. It appends what was taken to `sent`,
    /// which is always the first part of `payloads`. It stops at the first that is not taken, with
    /// its error where the kernel gave one. If it was lending and fewer were taken than given
    /// `reap` must be called before the next lending.
    pub(super) fn submit_many(
        &mut self,
        payloads: &[Payload],
        way: SendWay,
        sent: &mut Vec<Accepted>,
    ) -> io::Result<()> {
        each!(self, b => b.submit_many(payloads, way, sent), Err(gone()))
    }

    /// Reads the notifications that are there and tells the window. Never waits.
    pub(super) fn reap(&mut self, window: &mut Window) -> Result<(), SendError> {
        each!(self, b => b.reap(window), Ok(()))
    }

    /// Whether `reap` must be called although nothing of this sender is lent: a program waits for
    /// what several senders share.
    pub(super) fn is_watched(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Gone => false,
            #[cfg(feature = "uring")]
            Self::Uring(b) => b.is_watched(),
        }
    }

    /// Waits until a notification may be there, or (`room`) until the socket takes bytes; at most
    /// `timeout`.
    pub(super) fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        each!(self, b => b.wait(room, timeout), Err(gone()))
    }

    /// Looks whether the kernel holds nothing although notifications are missing, and then tells
    /// the window.
    pub(super) fn recover(&mut self, window: &mut Window) -> io::Result<()> {
        each!(self, b => b.recover(window), Ok(()))
    }

    /// Makes the kernel let go soon: resets a stream's connection. What is queued in an interface
    /// comes back later.
    pub(super) fn abort(&mut self) {
        each!(self, b => b.abort(), ())
    }

    /// System calls made that moved payloads, since the last call of this.
    #[inline]
    pub(super) fn take_calls(&mut self) -> u64 {
        each!(self, b => b.take_calls(), 0)
    }

    /// Whether it can lend at all, or why not. Called once, again when something that should be
    /// lent was copied, and after an error of `reap`.
    pub(super) fn lends(&self) -> Result<(), NoLoan> {
        each!(self, b => b.lends(), Err(NoLoan::unsupported("the sender has ended")))
    }

    /// Whether several calls may lend before a notification is read. False only while a socket's
    /// numbers are unknown. Then read notifications before each call that lends, and don't lend
    /// batches.
    #[inline]
    pub(super) fn lends_freely(&self) -> bool {
        each!(self, b => b.lends_freely(), true)
    }

    /// Why the last call copied what it was to lend.
    pub(super) fn copied_because(&self) -> CopyReason {
        each!(self, b => b.copied_because(), CopyReason::Unsupported)
    }

    /// The socket, for polling.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        // Nobody can ask a sender that has ended; polling this does nothing.
        each!(self, b => b.socket(), rustix::fs::CWD)
    }

    /// What runs, for people: "send, MSG_ZEROCOPY over tcp".
    pub(super) fn describe(&self) -> String {
        each!(self, b => b.describe(), "ended".to_owned())
    }
}

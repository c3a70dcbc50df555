//! Why something was not sent.

use super::{Payload, Ticket};
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Why something was not sent, or not waited for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket's buffer or a limit of the sender is full. Try again when the socket is writable
    /// if the sender [wants room](super::Sender::wants_room), else after notifications, which
    /// [`poll`](super::Sender::poll) reads.
    #[error("no room: {outstanding} payloads ({outstanding_bytes} bytes) are lent or wait to be sent")]
    WouldBlock {
        /// Payloads that are not back.
        outstanding: usize,
        /// Their bytes.
        outstanding_bytes: usize,
    },
    /// Nothing changed for as long as the caller was ready to wait.
    #[error(
        "timed out after {waited:?}: {outstanding} payloads ({outstanding_bytes} bytes) are not back; the receiver may be stalled, or the link slow"
    )]
    TimedOut {
        /// The time waited.
        waited: Duration,
        /// Payloads that are not back.
        outstanding: usize,
        /// Their bytes.
        outstanding_bytes: usize,
    },
    /// No buffer of the area became free, and this sender has lent none.
    #[error(
        "no buffer of the area became free in {waited:?}, and this sender has lent none: drop leases that the program holds, poll the other senders of the area, or make it larger"
    )]
    NoFreeBuffer {
        /// The time waited.
        waited: Duration,
    },
    /// A datagram is longer than the socket can send (EMSGSIZE).
    #[error(
        "a datagram of {len} bytes is too long for this socket (UDP: at most 65507 bytes on IPv4, and the path's MTU where fragments are forbidden; a unix socket: less than SO_SNDBUF, by default net.core.wmem_default): send shorter payloads, or, over UDP, where each may be several datagrams, set segment_bytes"
    )]
    TooLong {
        /// Length of the payload in bytes.
        len: usize,
    },
    /// The datagrams that payloads are cut into are longer than the path takes in one packet
    /// (EMSGSIZE, before Linux 6.14 EINVAL, with `segment_bytes`).
    #[error(
        "segment_bytes {segment_bytes} is more than the path takes in one packet{}, and the kernel cuts no fragments: set less, or send each datagram as a payload of its own without segment_bytes",
        longest.map_or(String::new(), |n| format!(" ({n} bytes, by its MTU)"))
    )]
    SegmentTooLong {
        /// [`SendOptions::segment_bytes`](super::SendOptions::segment_bytes).
        segment_bytes: u16,
        /// [`longest_segment`](super::longest_segment), where that is the reason.
        longest: Option<u16>,
    },
    /// The kernel can't cut payloads on this path (EIO with `segment_bytes`): IPsec, or an
    /// interface that computes no checksums before Linux 6.11.
    #[error(
        "the kernel can't cut a payload into datagrams on this path (EIO, with segment_bytes {segment_bytes}; IPsec, or an interface that computes no checksums before Linux 6.11): send each datagram as a payload of its own without segment_bytes"
    )]
    SegmentsRefused {
        /// [`SendOptions::segment_bytes`](super::SendOptions::segment_bytes).
        segment_bytes: u16,
    },
    /// A payload is cut into more datagrams than one call takes (EINVAL, with `segment_bytes`).
    #[error(
        "a payload of {len} bytes is {segments} datagrams of {segment_bytes} bytes (segment_bytes), more than this kernel takes in one call (all take 64): send shorter payloads, or longer datagrams"
    )]
    TooManySegments {
        /// Length of the payload in bytes.
        len: usize,
        /// Datagrams that it would be cut into.
        segments: usize,
        /// [`SendOptions::segment_bytes`](super::SendOptions::segment_bytes).
        segment_bytes: u16,
    },
    /// The kernel refuses to take lent memory although nothing of this sender is lent (ENOBUFS).
    #[error(
        "the kernel refused to take {len} bytes of lent memory while nothing of this socket is lent (ENOBUFS): RLIMIT_MEMLOCK is {memlock} and counts all sockets of this user, net.core.optmem_max is {optmem} bytes a socket; raise the limit (ulimit -l, LimitMEMLOCK=, or CAP_IPC_LOCK), lend less at a time, or use the modes copy or auto"
    )]
    Locked {
        /// Bytes to lend in one call.
        len: usize,
        /// RLIMIT_MEMLOCK in bytes, or "unlimited".
        memlock: String,
        /// net.core.optmem_max in bytes, or "unknown".
        optmem: String,
    },
    /// An interface's queue is full and dropped the datagram (ENOBUFS, which the kernel tells where
    /// IP_RECVERR is set).
    #[error(
        "an interface's queue is full and dropped this datagram of {len} bytes (ENOBUFS): send again later, or slower, or make the queue longer"
    )]
    QueueFull {
        /// Length of the payload in bytes.
        len: usize,
    },
    /// [`SendMode::ZeroCopy`](super::SendMode::ZeroCopy) on a socket on which another sender lends.
    #[error(
        "another sender of this process lends on the same socket (a duplicate of its descriptor): end that one first, take its socket by into_socket, or use the modes copy or auto"
    )]
    AlreadyLent,
    /// The peer closed or reset the connection (EPIPE, ECONNRESET), or the connection was given up
    /// (ETIMEDOUT).
    #[error(
        "the connection is gone ({0}): what was lent comes back, what was on its way may not have arrived"
    )]
    Disconnected(io::Error),
    /// Nobody listens at the peer's address (ECONNREFUSED, from an ICMP answer to an earlier
    /// datagram).
    #[error(
        "nobody listens at the peer's address (ECONNREFUSED, about an earlier datagram): what this call was to send was not sent"
    )]
    NoListener,
    /// The socket is not connected: a sender has one peer.
    #[error("the socket is not connected: connect it before it is given to a sender")]
    NotConnected,
    /// `segment_bytes` on a socket that is not UDP, or 0.
    #[error("segment_bytes {0} needs a UDP socket and at least 1 byte: leave it unset")]
    Segments(u16),
    /// A limit of 0.
    #[error("max_lent is 0: at least one payload must be allowed to be lent, or use the mode copy")]
    NoWindow,
    /// io_uring was asked for and can't be used.
    #[error("io_uring can't be used: {0}")]
    Uring(String),
    /// A ticket that this sender has not given out.
    #[error("ticket {0} was not given out by this sender")]
    UnknownTicket(Ticket),
    /// Notifications that this sender did not cause: somebody else lends memory on the same socket.
    #[error(
        "notifications {lo} to {hi} are of no payload of this sender: another handle of this socket lends memory, which makes the kernel's numbers useless; give the sender a socket of its own. This one copies from now on"
    )]
    Foreign {
        /// First id.
        lo: u32,
        /// Last id.
        hi: u32,
    },
    /// A system call failed.
    #[error("{call} failed: {cause}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
}

impl SendError {
    /// For `map_err`.
    pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { call, cause }
    }

    /// The errno behind it, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::WouldBlock { .. } => Some(libc::EAGAIN),
            Self::TimedOut { .. } | Self::NoFreeBuffer { .. } => Some(libc::ETIMEDOUT),
            Self::TooLong { .. } | Self::SegmentTooLong { .. } => Some(libc::EMSGSIZE),
            Self::SegmentsRefused { .. } => Some(libc::EIO),
            Self::Locked { .. } | Self::QueueFull { .. } => Some(libc::ENOBUFS),
            Self::AlreadyLent => Some(libc::EBUSY),
            Self::NoListener => Some(libc::ECONNREFUSED),
            Self::NotConnected => Some(libc::ENOTCONN),
            Self::TooManySegments { .. } | Self::Segments(_) | Self::NoWindow | Self::UnknownTicket(_) => {
                Some(libc::EINVAL)
            }
            Self::Uring(_) => Some(libc::EOPNOTSUPP),
            Self::Foreign { .. } => Some(libc::EPROTO),
            Self::Disconnected(cause) | Self::System { cause, .. } => cause.raw_os_error(),
        }
    }

    /// Whether trying again later can help without anything else being done.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::WouldBlock { .. })
    }
}

impl From<crate::socket_error::SocketError<Self>> for SendError {
    fn from(refused: crate::socket_error::SocketError<Self>) -> Self {
        refused.error
    }
}

/// A sender that is not at its end yet, and why.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Unfinished {
    /// The sender, as it was.
    pub sender: Box<super::Sender>,
    /// Why.
    pub error: SendError,
}

/// For who gives the sender up: it is aborted.
impl From<Unfinished> for SendError {
    fn from(unfinished: Unfinished) -> Self {
        unfinished.error
    }
}

/// A payload that was not taken, and why.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Refused {
    /// The payload, as it was given.
    pub payload: Payload,
    /// Why.
    pub error: SendError,
}

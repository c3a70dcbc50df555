//! Why receiving failed.

use super::{ConnectionId, ListenerId};
use crate::area::AreaError;
use std::io;
use thiserror::Error;
use zerowire_sys::uring::UringProbeError;

/// Why a receiver could not be made or asked. What happens to one connection is an arrival
/// ([`What`](super::What)), not an error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The area could not be made.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// The length of a buffer is out of range.
    #[error("a receive buffer of {0} bytes is out of range: give a multiple of 64 from 64 bytes to 1 GiB")]
    BufferBytes(usize),
    /// The number of buffers is out of range.
    #[error("{0} receive buffers are out of range: give 2 to 32768")]
    Buffers(usize),
    /// The back end that was asked for is not in this version.
    #[error("the receive path {0} is not available in this version: use auto, multishot or plain")]
    NotAvailable(&'static str),
    /// The receive path was left out of this build of the library.
    #[error("the receive path {path} is not in this build of zerowire: build it with the feature {feature}")]
    NotBuilt {
        /// The receive path.
        path: &'static str,
        /// The feature of the crate that has it.
        feature: &'static str,
    },
    /// io_uring is refused or absent.
    #[error("{0}; the receive path plain needs no io_uring")]
    Uring(UringProbeError),
    /// io_uring is there but lacks what the path needs.
    #[error("io_uring here has no {what}: boot {since} or newer; the receive path plain needs no io_uring")]
    TooOld {
        /// What is missing.
        what: &'static str,
        /// The first kernel that has it.
        since: &'static str,
    },
    /// The ring's queues are charged to the user's locked memory, and the limit is reached.
    #[error(
        "io_uring's queues ({completions} completions) go beyond RLIMIT_MEMLOCK, which is {limit} bytes and counts all that this user has locked: raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of a container, or CAP_IPC_LOCK), or use the receive path plain"
    )]
    Memlock {
        /// Completions asked for.
        completions: u32,
        /// The limit in bytes, or "unlimited".
        limit: String,
    },
    /// The area is too short for zero-copy receive, or its buffers have no length that the kernel
    /// takes.
    #[error(
        "an area of {bytes} bytes in buffers of {chunk} can't be registered for zero-copy receive: rx_buf_len must be a power of two from {page} (a page) on, and the area (buffers * buffer_bytes) must have two such buffers or more"
    )]
    ZeroCopyArea {
        /// Bytes of the area.
        bytes: usize,
        /// Bytes of a buffer.
        chunk: usize,
        /// Bytes of a page.
        page: usize,
    },
    /// The kernel refused to register for zero-copy receive; the message says why and what to do.
    #[error("{message}")]
    ZeroCopy {
        /// What was wrong, and what to do.
        message: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// A DMA buffer can't be the area without a device.
    #[error(
        "a DMA buffer can only be the area of a NIC's queue: name a queue, or take memory of the process for the area"
    )]
    DmabufNeedsQueue,
    /// Only zero-copy receive has an area that several receivers can use.
    #[error(
        "this receiver's area can't be used by others: only those of zero-copy receive can (a queue, or without a device)"
    )]
    NotShareable,
    /// Only zero-copy receive takes areas beside the first one.
    #[error(
        "this receiver has one area: only those of zero-copy receive (a queue, or without a device) take more; give it more buffers when it is made"
    )]
    OneArea,
    /// Zero-copy receive is for TCP.
    #[error("zero-copy receive takes TCP sockets only: use the receive path multishot or plain for this one")]
    NotTcp,
    /// Not a socket, or one that nothing can be received on.
    #[error(
        "this descriptor is no socket to receive from ({0}): give a connected stream or a bound datagram socket"
    )]
    NotASocket(io::Error),
    /// Too many connections.
    #[error(
        "the receiver has {0} connections, which is its limit: remove one, or set max_connections higher"
    )]
    TooManyConnections(usize),
    /// No such connection.
    #[error("connection {0} is not in this receiver: it was removed, or belongs to another one")]
    Unknown(ConnectionId),
    /// A socket that listens was given as a connection.
    #[error("this socket listens, so nothing can be received on it: give it to listen")]
    Listening,
    /// Not a socket that listens.
    #[error(
        "this descriptor is no listening socket: call listen(2) first, or add a connected socket with add"
    )]
    NotListening,
    /// No such listening socket.
    #[error("listener {0} is not in this receiver: it was taken back, or belongs to another one")]
    UnknownListener(ListenerId),
    /// Accepting failed for good, since the socket was shut down for example. The connections are
    /// unaffected.
    #[error("accepting on listener {listener} failed: {cause}; take the socket back with unlisten")]
    Accept {
        /// Which one.
        listener: ListenerId,
        /// The system's answer.
        cause: io::Error,
    },
    /// Used from a thread that didn't make it.
    #[error(
        "this receiver belongs to the thread that made it (IORING_SETUP_SINGLE_ISSUER): make one receiver a thread"
    )]
    WrongThread,
    /// A system call failed.
    #[error("{call} failed: {cause}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
}

impl From<UringProbeError> for RecvError {
    fn from(error: UringProbeError) -> Self {
        Self::Uring(error)
    }
}

impl From<crate::socket_error::SocketError<Self>> for RecvError {
    fn from(refused: crate::socket_error::SocketError<Self>) -> Self {
        refused.error
    }
}

impl RecvError {
    /// For `map_err`.
    pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { call, cause }
    }

    /// What came of a call of `io_uring_enter`.
    pub(super) fn entered(result: io::Result<usize>) -> Result<(), Self> {
        match result {
            Ok(_) => Ok(()),
            Err(cause) => match cause.raw_os_error() {
                // Completions must be read first.
                Some(libc::EBUSY | libc::EAGAIN) => Ok(()),
                Some(libc::EEXIST) => Err(Self::WrongThread),
                _ => Err(Self::System { call: "io_uring_enter", cause }),
            },
        }
    }

    /// Whether there was no memory, descriptor or place for the moment.
    pub(super) fn is_want(&self) -> bool {
        matches!(self, Self::System { .. })
            && matches!(self.errno(), Some(libc::ENOSPC | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
    }

    /// The errno behind it, or the one that says the same. `None`: the system gave none.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NotASocket(cause)
            | Self::Accept { cause, .. }
            | Self::System { cause, .. }
            | Self::ZeroCopy { cause, .. } => cause.raw_os_error(),
            Self::Area(error) => error.errno(),
            Self::Uring(UringProbeError::Other(cause)) => cause.raw_os_error(),
            Self::Uring(UringProbeError::Refused(_)) => Some(libc::EPERM),
            Self::Memlock { .. } => Some(libc::ENOMEM),
            Self::WrongThread => Some(libc::EEXIST),
            Self::Unknown(_) | Self::UnknownListener(_) => Some(libc::ENOENT),
            Self::NotTcp => Some(libc::EPROTONOSUPPORT),
            Self::ZeroCopyArea { .. }
            | Self::DmabufNeedsQueue
            | Self::BufferBytes(_)
            | Self::Buffers(_)
            | Self::Listening
            | Self::NotListening => Some(libc::EINVAL),
            Self::Uring(UringProbeError::Missing)
            | Self::NotAvailable(_)
            | Self::NotBuilt { .. }
            | Self::NotShareable
            | Self::OneArea
            | Self::TooOld { .. } => Some(libc::EOPNOTSUPP),
            Self::TooManyConnections(_) => Some(libc::EMFILE),
        }
    }
}

//! What can be wrong with a message or a socket.

use std::io;

use crate::{MAX_BODY, MAX_FDS, Request};

/// An error of the wire protocol. After any but [`WireError::WouldBlock`] and
/// [`WireError::Refused`] the stream's position is unknown or the peer has
/// broken the protocol: close the connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes of a reserved flag or version are wrong.
    #[error(
        "{}: header flags {flags:#x} give protocol version {}, which must be 1",
        Request::describe(*request),
        flags & 3
    )]
    BadVersion {
        /// Request number in the header.
        request: u32,
        /// Flags of the header.
        flags: u32,
    },
    /// The payload has another size than the request's.
    #[error("{}: payload of {got} bytes, it must have {rule}", Request::describe(*request))]
    BadSize {
        /// Request number.
        request: u32,
        /// Bytes that came.
        got: usize,
        /// What the protocol says.
        rule: &'static str,
    },
    /// A payload field is out of its range.
    #[error("{}: {field} is {value:#x}, it must be {rule}", Request::describe(*request))]
    BadValue {
        /// Request number.
        request: u32,
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What the protocol says.
        rule: &'static str,
    },
    /// Another number of file descriptors than the request's came along.
    #[error("{}: {got} file descriptors came along, it must be {rule}", Request::describe(*request))]
    BadFdCount {
        /// Request number.
        request: u32,
        /// Descriptors that came.
        got: usize,
        /// What the protocol says.
        rule: &'static str,
    },
    /// The peer closed the socket in the middle of a message.
    #[error("the peer closed the socket after {got} of {wanted} bytes of a message")]
    CutOff {
        /// Bytes that came, header included.
        got: usize,
        /// Bytes of the message as far as known, header included.
        wanted: usize,
    },
    /// The socket failed.
    #[error("vhost-user socket: {0}; the connection is lost")]
    Io(io::Error),
    /// The kernel lets this user send no further descriptor (ETOOMANYREFS).
    #[error(
        "too many descriptors of this user wait in sockets until somebody receives them: raise the limit of open files \
         ('ulimit -n', or LimitNOFILE= in a unit); the connection is lost"
    )]
    Crowded,
    /// The peer refused a request (REPLY_ACK with a value other than 0).
    #[error("{}: the peer refused it with code {code}", Request::describe(*request))]
    Refused {
        /// Request number.
        request: u32,
        /// The peer's code, not 0.
        code: u64,
    },
    /// A reply to another request, or a message that isn't a reply, came.
    #[error(
        "a reply to {} was awaited, but {} with flags {flags:#x} came",
        Request::describe(*wanted),
        Request::describe(*got)
    )]
    UnexpectedReply {
        /// Request number that was sent.
        wanted: u32,
        /// Request number that came.
        got: u32,
        /// Its flags.
        flags: u32,
    },
    /// The header announces a longer payload than [`MAX_BODY`].
    #[error(
        "{}: the header announces a payload of {got} bytes, at most {MAX_BODY} are accepted",
        Request::describe(*request)
    )]
    TooLong {
        /// Request number.
        request: u32,
        /// Size in the header.
        got: u64,
    },
    /// More descriptors than [`MAX_FDS`] came with a message; all are closed.
    #[error("more than {MAX_FDS} file descriptors came with one message; all were closed")]
    TooManyFds,
    /// The request's number is not in the protocol.
    #[error("request number {request} is unknown; numbers 1 to 44 are defined")]
    UnknownRequest {
        /// The number.
        request: u32,
    },
    /// A non-blocking socket has nothing more to read now, or a time limit
    /// of the socket ran out. What came so far is kept: call again.
    #[error("no whole message is there yet; wait until the socket is readable and call again")]
    WouldBlock,
    /// The peer does not take what is sent to it.
    #[error("the peer did not read {left} bytes of a message within {seconds} s")]
    Stalled {
        /// Bytes not sent.
        left: usize,
        /// How long the sender waited.
        seconds: u64,
    },
}

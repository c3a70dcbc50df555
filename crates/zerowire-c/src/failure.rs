//! A failure on its way to C: the number, and the words.

use std::io;

use zerowire::area::AreaError;
use zerowire::packet::OpenError;
use zerowire::recv::RecvError;
use zerowire::recv::vsock::Error;
use zerowire::send::SendError;
use zerowire::send::frame::FrameError;
use zerowire::xdp::XdpError;

/// A failure on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
}

/// -EINVAL: an argument that can't be served. The text has its value, and what to give instead.
pub(crate) fn wrong<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(libc::EINVAL, text))
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::new(e.errno(), e.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        let known = if e.kind() == io::ErrorKind::WouldBlock { libc::EAGAIN } else { libc::EIO };
        let errno = inner.map(Error::errno).or_else(|| e.raw_os_error()).unwrap_or(known);
        Self::new(errno, e.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(e: OpenError) -> Self {
        use OpenError as E;
        let errno = match &e {
            E::NotPermitted { .. } => libc::EPERM,
            E::NoInterface { .. } => libc::ENODEV,
            E::NoMemory { .. } => libc::ENOMEM,
            E::NoRing { .. } => libc::EOPNOTSUPP,
            E::Option { cause, .. } | E::System { cause, .. } => number(cause),
            // Values out of bounds.
            _ => libc::EINVAL,
        };
        Self::new(errno, e.to_string())
    }
}

impl From<XdpError> for Failure {
    fn from(e: XdpError) -> Self {
        use XdpError as E;
        let errno = match &e {
            E::Value { .. } | E::NoQueue { .. } => libc::EINVAL,
            E::NotPermitted => libc::EPERM,
            E::Unsupported => libc::EAFNOSUPPORT,
            E::Memlock { .. } => libc::ENOBUFS,
            E::NoMemory { .. } | E::NoHugePages { .. } => libc::ENOMEM,
            E::NoInterface { .. } => libc::ENODEV,
            E::Down { .. } => libc::ENETDOWN,
            E::NoZeroCopy { .. } => libc::EOPNOTSUPP,
            E::Busy { .. } => libc::EBUSY,
            E::System { cause, .. } => number(cause),
            _ => libc::EIO,
        };
        Self::new(errno, e.to_string())
    }
}

impl From<FrameError> for Failure {
    fn from(e: FrameError) -> Self {
        use FrameError as E;
        let errno = match &e {
            E::Gone { .. } => libc::ENODEV,
            E::Down { .. } => libc::ENETDOWN,
            E::LongerThanMtu { .. } | E::TooLong { .. } => libc::EMSGSIZE,
            E::TooShort { .. } | E::BadOffload { .. } | E::Slot { .. } => libc::EINVAL,
            E::Stuck { .. } => libc::ETIMEDOUT,
            E::Refused { cause, .. } | E::System { cause, .. } => number(cause),
            _ => libc::EIO,
        };
        Self::new(errno, e.to_string())
    }
}

/// Errors that know their number.
macro_rules! numbered {
    ($($error:ty),*) => { $(
        impl From<$error> for Failure {
            fn from(e: $error) -> Self {
                Self::new(e.errno().unwrap_or(libc::EIO), e.to_string())
            }
        }
    )* };
}
numbered!(AreaError, RecvError, SendError);

/// The number of an error of the system, if it has one.
fn number(cause: &io::Error) -> i32 {
    cause.raw_os_error().unwrap_or(libc::EIO)
}

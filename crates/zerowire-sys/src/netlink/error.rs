//! What can go wrong with a question. The text of each error is the message that the user reads.

use std::io;

use crate::netdevice;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// A name that no interface can have.
    #[error("interface {interface:?}: a name has {}", netdevice::NAME_RULE)]
    Name {
        /// The name.
        interface: String,
    },
    /// The kernel has no such family (ENOENT to CTRL_CMD_GETFAMILY).
    #[error("this kernel has no netlink family {family:?}: boot Linux {since} or newer")]
    NoFamily {
        /// Name of the family.
        family: &'static str,
        /// The version that brought it.
        since: &'static str,
    },
    /// The kernel refused the question, or the socket failed.
    #[error("{what}: {cause}")]
    System {
        /// The question.
        what: &'static str,
        /// The error.
        cause: io::Error,
    },
    /// The answer breaks the format: an attribute is longer than the rest of its message, or has a
    /// wrong length.
    #[error("{what}: the kernel's answer can't be read ({why})")]
    Malformed {
        /// The question.
        what: &'static str,
        /// Which rule is broken.
        why: &'static str,
    },
}

impl NetlinkError {
    /// The error number, where the kernel gave one: ENODEV (no such interface), EOPNOTSUPP (its
    /// driver doesn't tell), EINVAL (no such queue), ENOENT (the interface is down, or no such
    /// family).
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { cause, .. } => cause.raw_os_error(),
            Self::NoFamily { .. } => Some(libc::ENOENT),
            Self::Name { .. } => Some(libc::ENODEV),
            Self::Malformed { .. } => None,
        }
    }

    pub(super) fn system(what: &'static str, cause: impl Into<io::Error>) -> Self {
        Self::System { what, cause: cause.into() }
    }
}

/// A rule of the format that an answer breaks; the question is added where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl Malformed {
    pub(super) fn of(self, what: &'static str) -> NetlinkError {
        NetlinkError::Malformed { what, why: self.0 }
    }
}

//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// An error of a mapped connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Mapped while it is mapped.
    #[error("the connection is mapped already: call unmap() first")]
    AlreadyMapped,
    /// What the daemon sent in the handshake can't be right.
    #[error("the answer on {} is broken: {what}; are the program and zerowire vsock of one version?", .path.display())]
    BrokenHandshake {
        /// The socket.
        path: PathBuf,
        /// Which value, and what was due.
        what: String,
    },
    /// What the daemon wrote into a window's headers can't be right. The window was not given out;
    /// the connection can't go on and should be dropped.
    #[error("window {window} is broken: {what}; close the connection and look at the log of zerowire vsock")]
    BrokenWindow {
        /// Its number in the ring.
        window: u32,
        /// Which value, and what was due.
        what: String,
    },
    /// The data ended before the guest said that it ends: it reset the connection, broke a rule, or
    /// its VM is gone. Or what was left had no free window for 30 s.
    #[error(
        "the data from port {port} is cut short: the guest reset the connection or is gone, or no window came free for 30 s; \
         what came before it is whole"
    )]
    CutShort {
        /// The guest's port.
        port: u32,
    },
    /// The daemon closed the connection without marking its end: it ended, or the VM's front end
    /// was disconnected.
    #[error("zerowire vsock closed the connection on {} before its end was marked: it ended, or the VM did", .path.display())]
    Disconnected {
        /// The socket.
        path: PathBuf,
    },
    /// The next window of the ring is still held by a lease.
    #[error(
        "window {window} is the next one and still held: drop its lease, or connect with more than {windows} windows"
    )]
    Held {
        /// Its number in the ring.
        window: u32,
        /// Windows of the ring.
        windows: u32,
    },
    /// `dequeue` after a `read` that took a part of a window.
    #[error("{left} bytes of a window are left by a read: read them before the next dequeue")]
    HalfRead {
        /// Bytes left.
        left: u64,
    },
    /// The options are not possible, or beyond what the daemon allows.
    #[error("options refused: {what}")]
    InvalidOptions {
        /// Which value, and its limits.
        what: String,
    },
    /// No answer to the request.
    #[error("no answer on {} within {seconds} s: is zerowire vsock stopped, or its thread busy?", .path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Nothing listens on the socket, or it does not exist.
    #[error("no zerowire vsock at {} ({errno}): is it running with --uds and the same path, without the suffix?", .path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        errno: Errno,
    },
    /// Dequeued, waited for or armed while it is not mapped.
    #[error("the connection is not mapped: call map() first")]
    NotMapped,
    /// The daemon does not serve this user, or the socket's permissions keep it out.
    #[error("not permitted on {}: {what}", .path.display())]
    NotPermitted {
        /// The socket.
        path: PathBuf,
        /// What the daemon or the system says, and what to do.
        what: String,
    },
    /// The path can't be a unix socket's.
    #[error("{} can't be a socket's path ({errno}): it may have 107 bytes at most", .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system says.
        errno: Errno,
    },
    /// Another program listens on the port.
    #[error("port {port} is taken: another program listens there by {}", .path.display())]
    PortTaken {
        /// The host's port.
        port: u32,
        /// The socket.
        path: PathBuf,
    },
    /// The guest refused, or nobody listens there.
    #[error("the guest refused the connection to port {port} ({what}): does a program listen there?")]
    Refused {
        /// The guest's port.
        port: u32,
        /// What the daemon says.
        what: String,
    },
    /// The daemon refused for another reason.
    #[error("zerowire vsock refused ({}): {what}", Errno::from_raw_os_error(*.errno))]
    Status {
        /// The error number.
        errno: i32,
        /// What the daemon says.
        what: String,
    },
    /// A system call failed.
    #[error("{call}: {errno}{}", hint(*.errno))]
    System {
        /// Which one, and on what.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// The guest did not answer.
    #[error("the guest did not answer on port {port} ({what}): does it run, with the vsock driver loaded?")]
    TimedOut {
        /// The guest's port.
        port: u32,
        /// What the daemon says.
        what: String,
    },
    /// The daemon speaks another version.
    #[error("zerowire vsock at {} speaks version {theirs} of the mapping, this program {ours}: update the older one", .path.display())]
    Version {
        /// The socket.
        path: PathBuf,
        /// The daemon's version.
        theirs: u16,
        /// This library's version.
        ours: u16,
    },
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM => ": out of memory, or more mappings than sysctl vm.max_map_count",
        Errno::MFILE => ": too many open files, a connection takes 6; raise 'ulimit -n'",
        Errno::NFILE => ": too many open files in the system; raise sysctl fs.file-max",
        _ => "",
    }
}

impl Error {
    /// The nearest error number, for interfaces that have nothing else.
    pub fn errno(&self) -> i32 {
        match self {
            Self::AlreadyMapped => libc::EBUSY,
            Self::BrokenHandshake { .. } | Self::BrokenWindow { .. } => libc::EPROTO,
            Self::CutShort { .. } | Self::Disconnected { .. } => libc::ECONNRESET,
            Self::Held { .. } => libc::ENOBUFS,
            Self::HalfRead { .. } => libc::EBUSY,
            Self::InvalidOptions { .. } => libc::EINVAL,
            Self::NoAnswer { .. } | Self::TimedOut { .. } => libc::ETIMEDOUT,
            Self::NoDaemon { errno, .. } | Self::Path { errno, .. } | Self::System { errno, .. } => {
                errno.raw_os_error()
            }
            Self::NotMapped => libc::EFAULT,
            Self::NotPermitted { .. } => libc::EPERM,
            Self::PortTaken { .. } => libc::EADDRINUSE,
            Self::Refused { .. } => libc::ECONNREFUSED,
            Self::Status { errno, .. } => *errno,
            Self::Version { .. } => libc::EPROTONOSUPPORT,
        }
    }
}

/// Makes the error of a failed system call.
pub(super) fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        io::Error::new(io::Error::from_raw_os_error(e.errno()).kind(), e)
    }
}

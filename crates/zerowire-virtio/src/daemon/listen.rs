//! The socket on which front ends connect.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Where a VM's front end is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Listen on a socket of this path.
    Path(PathBuf),
    /// A descriptor that was inherited: a listening socket, or one that is connected already.
    Fd(RawFd),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(p) => write!(f, "{}", p.display()),
            Self::Fd(n) => write!(f, "descriptor {n}"),
        }
    }
}

/// Why a socket can't be had. The text is what the user reads.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("socket path {0} is in use by a running process: stop that one or give another path")]
    InUse(PathBuf),
    /// There is a file that is no socket.
    #[error("socket path {0} exists and is not a socket: remove it or give another path")]
    NotASocket(PathBuf),
    /// Longer than a unix socket's address takes.
    #[error("socket path {0} is longer than the 107 bytes of a unix socket's address: give a shorter one")]
    TooLong(PathBuf),
    /// Binding failed.
    #[error("can't listen on {path}: {source}; the directory must exist and be writable")]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The descriptor is no unix stream socket.
    #[error("descriptor {fd} is not a unix stream socket: {source}")]
    BadFd {
        /// Its number.
        fd: RawFd,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A listening socket, removed on drop if it was made here; or one connection.
#[derive(Debug)]
pub(super) enum Listener {
    Listening { socket: UnixListener, remove: Option<PathBuf> },
    Connected(Option<UnixStream>),
}

impl Listener {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, ListenError> {
        match endpoint {
            Endpoint::Path(path) => Self::bind(path),
            Endpoint::Fd(fd) => Self::inherit(*fd),
        }
    }

    fn bind(path: &Path) -> Result<Self, ListenError> {
        if path.as_os_str().len() > 107 {
            return Err(ListenError::TooLong(path.to_owned()));
        }
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                return Err(ListenError::NotASocket(path.to_owned()));
            }
            // A socket that nobody listens on was left behind by a process that was killed.
            match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = std::fs::remove_file(path);
                }
                // Also another user's socket: alive, as far as can be told.
                _ => return Err(ListenError::InUse(path.to_owned())),
            }
        }
        let bind = |source| ListenError::Bind { path: path.to_owned(), source };
        let socket = UnixListener::bind(path).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        Ok(Self::Listening { socket, remove: Some(path.to_owned()) })
    }

    fn inherit(fd: RawFd) -> Result<Self, ListenError> {
        let bad = |source: io::Error| ListenError::BadFd { fd, source };
        if fd < 0 {
            return Err(bad(io::Error::from_raw_os_error(libc::EBADF)));
        }
        // SAFETY: only asks; a number that is no descriptor gives EBADF.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(bad(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open and the user handed it to this process for this purpose.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let domain = rustix::net::sockopt::socket_domain(&owned).map_err(|e| bad(e.into()))?;
        let kind = rustix::net::sockopt::socket_type(&owned).map_err(|e| bad(e.into()))?;
        if (domain, kind) != (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM) {
            return Err(bad(io::Error::from_raw_os_error(libc::EPROTOTYPE)));
        }
        let listening = rustix::net::sockopt::socket_acceptconn(&owned).map_err(|e| bad(e.into()))?;
        rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC).map_err(|e| bad(e.into()))?;
        if listening {
            let socket = UnixListener::from(owned);
            socket.set_nonblocking(true).map_err(bad)?;
            return Ok(Self::Listening { socket, remove: None });
        }
        Ok(Self::Connected(Some(UnixStream::from(owned))))
    }

    /// The descriptor to wait on for a connection; None where one is there already or none will come.
    pub(super) fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match self {
            Self::Listening { socket, .. } => Some(socket.as_fd()),
            Self::Connected(_) => None,
        }
    }

    /// The next connection if there is one.
    pub(super) fn accept(&mut self) -> io::Result<Option<UnixStream>> {
        match self {
            Self::Listening { socket, .. } => match socket.accept() {
                Ok((s, _)) => Ok(Some(s)),
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) =>
                {
                    Ok(None)
                }
                Err(e) => Err(e),
            },
            Self::Connected(s) => Ok(s.take()),
        }
    }

    /// Whether a connection may come after this one.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self, Self::Listening { .. })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Listening { remove: Some(path), .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

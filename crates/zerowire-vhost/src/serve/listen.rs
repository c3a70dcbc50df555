//! The socket on which front ends connect.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;
use zerowire_sys::socket::refuse_descriptors;

use super::access::{SocketAccess, bound_file};
use super::refusal::{RefusalKind, ServerRefusal};
use super::refuser;
use super::socket_file::{self, SocketFile};
use crate::files;

/// Where a VM's front end is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Listen on a socket of this path.
    Path(PathBuf),
    /// A descriptor that was inherited, or that [`Self::of`] has given up: a listening socket, or
    /// one that is connected already.
    Fd(RawFd),
}

impl Endpoint {
    /// A unix stream socket that this program has opened. It stays open until a server starts with
    /// it, which owns it then.
    pub fn of(socket: impl Into<OwnedFd>) -> Self {
        Self::Fd(zerowire_sys::fd::give_up(socket.into()))
    }

    /// Where it is. A descriptor's name is known as soon as a server has taken it, if it has one.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Fd(number) => refuser::path(*number),
        }
    }
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
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum ListenError {
    /// Another process listens there.
    #[error("socket path {0} is in use by a running process: stop that one or give another path")]
    InUse(PathBuf),
    /// It can't be told whether another process listens there.
    #[error(
        "socket path {path} exists, and may be in use: it can't be tried: {cause}; remove it if nobody listens there, or give \
         another path"
    )]
    Untold { path: PathBuf, cause: io::Error },
    /// A file is there, and it is not a socket.
    #[error("socket path {0} exists and is not a socket: remove it or give another path")]
    NotASocket(PathBuf),
    /// Nothing is given. The kernel would choose a name (unix(7), autobind).
    #[error("the path of a socket is empty: give one")]
    Empty,
    /// Longer than a unix socket's address takes.
    #[error("socket path {0} is longer than the 107 bytes of a unix socket's address: give a shorter one")]
    TooLong(PathBuf),
    /// Binding failed.
    #[error("can't listen on {path}: {cause}; the directory must exist and be writable")]
    Bind { path: PathBuf, cause: io::Error },
    /// Its file can't be given away; `what` is the owner, the group or the mode.
    #[error(
        "socket path {path}: can't give it {what}: {cause}; another owner needs root (CAP_CHOWN), and so does a group that \
         this process is not in"
    )]
    Access { path: PathBuf, what: String, cause: io::Error },
    /// Another file took its place before it could be given away.
    #[error(
        "socket path {0} was replaced by another file just after it was made: give a path in a folder that nobody but this \
         user can write"
    )]
    Replaced(PathBuf),
    /// The descriptor is not a unix stream socket.
    #[error(
        "descriptor {fd} is not a unix stream socket: {cause}; give the number of one that this process was started with, \
         listening or connected"
    )]
    BadFd { fd: RawFd, cause: io::Error },
    /// The descriptor is standard input, output or error.
    #[error(
        "descriptor {0} is one of the standard ones (0 to 2), which stay as they are: start this process with the socket at a \
         number from 3 on (in a shell: 3<&{0})"
    )]
    StandardFd(RawFd),
    /// The descriptor is closed on exec, and was not given up.
    #[error(
        "descriptor {0} was not handed over, or it is taken already: give the number of a socket that this process was started \
         with; a program that opens the socket itself hands it over by Endpoint::of"
    )]
    OwnFd(RawFd),
    /// The process whose socket it is refuses, or does not answer.
    #[error("the socket can't be opened or closed: {0}")]
    Keeper(String),
}

impl ListenError {
    /// The path that can't be had.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Empty => Some(Path::new("")),
            Self::InUse(path) | Self::NotASocket(path) | Self::TooLong(path) | Self::Replaced(path) => {
                Some(path)
            }
            Self::Untold { path, .. } | Self::Bind { path, .. } | Self::Access { path, .. } => Some(path),
            Self::BadFd { .. } | Self::StandardFd(_) | Self::OwnFd(_) | Self::Keeper(_) => None,
        }
    }
}

impl ServerRefusal for ListenError {
    fn kind(&self) -> RefusalKind {
        match self {
            // No socket can be had there, whatever the system has.
            Self::Empty | Self::TooLong(_) | Self::BadFd { .. } | Self::StandardFd(_) | Self::OwnFd(_) => {
                RefusalKind::Unsupported
            }
            Self::InUse(_)
            | Self::Untold { .. }
            | Self::NotASocket(_)
            | Self::Bind { .. }
            | Self::Access { .. }
            | Self::Replaced(_)
            | Self::Keeper(_) => RefusalKind::Unavailable,
        }
    }
}

/// Connections that wait for `accept` at most; the kernel's own bound is
/// /proc/sys/net/core/somaxconn.
const BACKLOG: i32 = 1024;

/// A socket that listens.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub socket: OwnedFd,
    /// Its file.
    pub file: SocketFile,
}

/// A socket of `kind` that listens on `path`, non-blocking and closed on exec, with these rights.
/// Its clients can't send descriptors: closing one of them can take as long as its sender wants,
/// such as that of a TCP socket with SO_LINGER.
pub fn bind_unix(path: &Path, kind: SocketType, access: &SocketAccess) -> Result<Bound, ListenError> {
    bind(path, kind, access, false)
}

/// The same for front ends, which send descriptors.
fn bind_vhost_user(path: &Path, access: &SocketAccess) -> Result<Bound, ListenError> {
    bind(path, SocketType::STREAM, access, true)
}

fn bind(
    path: &Path,
    kind: SocketType,
    access: &SocketAccess,
    takes_descriptors: bool,
) -> Result<Bound, ListenError> {
    let failed = |e: Errno| ListenError::Bind { path: path.to_owned(), cause: e.into() };
    match path.as_os_str().len() {
        0 => return Err(ListenError::Empty),
        1..=107 => {}
        _ => return Err(ListenError::TooLong(path.to_owned())),
    }
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed);
    if let Ok(found) = socket_file::open(path) {
        let stat = rustix::fs::fstat(&found).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        // A socket that nobody listens on was left behind by a process that was killed.
        match rustix::net::connect(socket()?, &address) {
            Err(Errno::CONNREFUSED) => {
                let _ = socket_file::remove(path, &found);
            }
            // Also one of another kind or one whose queue is full.
            Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) => return Err(ListenError::InUse(path.to_owned())),
            // Such as another user's.
            Err(e) => return Err(ListenError::Untold { path: path.to_owned(), cause: e.into() }),
        }
    }
    let socket = socket()?;
    let refuses = |socket| if takes_descriptors { Ok(()) } else { refuse_descriptors(socket) };
    let prepared = access.prepare(&socket).and_then(|()| refuses(&socket));
    prepared.map_err(|cause| ListenError::Bind { path: path.to_owned(), cause })?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    let file = SocketFile::new(path, bound_file(&socket, path)?);
    access.grant(file.file(), path)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    Ok(Bound { socket, file })
}

/// The process that has opened a listening socket for this one, which opens no path.
pub trait SocketKeeper: Debug + Send + Sync {
    /// Has it refuse connections.
    ///
    /// # Errors
    /// What the user reads.
    fn refuse(&self) -> Result<(), String>;

    /// Has it listen again. Returns the socket.
    ///
    /// # Errors
    /// What the user reads.
    fn listen(&self) -> Result<OwnedFd, String>;
}

/// Who has opened a listening socket.
#[derive(Debug)]
pub enum SocketOpener {
    /// This process, which has made the socket's file.
    Own(SocketFile),
    /// Who has handed it over with this number, and has it as well.
    Giver(RawFd),
    /// Another process has it open.
    Keeper {
        /// That process.
        keeper: Arc<dyn SocketKeeper>,
        /// False: it has said that connections are refused.
        listens: bool,
    },
}

/// A listening socket, removed on drop if it was made here; or one connection.
#[derive(Debug)]
pub enum Listener {
    /// Without a socket nobody listens: who connects is refused. The file stays, so that the path
    /// is not another's, and says whose it is.
    Listening {
        /// None: it is a copy, and stays as it is. A file that was made here is removed before the
        /// socket closes: nobody finds it without a listener.
        opener: Option<SocketOpener>,
        /// None while connections are refused.
        socket: Option<UnixListener>,
    },
    /// A connection that was inherited; None once it was taken.
    Connected(Option<UnixStream>),
}

impl Listener {
    /// `access` is for a socket that is made here.
    pub fn new(endpoint: &Endpoint, access: &SocketAccess) -> Result<Self, ListenError> {
        match endpoint {
            Endpoint::Path(path) => match refuser::take_at(path) {
                Some((fd, socket)) => Self::again(fd, socket),
                None => {
                    let Bound { socket, file } = bind_vhost_user(path, access)?;
                    let opener = Some(SocketOpener::Own(file));
                    Ok(Self::Listening { opener, socket: Some(socket.into()) })
                }
            },
            Endpoint::Fd(fd) => Self::inherit(*fd),
        }
    }

    /// On the socket of a VM that has left, which was handed over with this number.
    fn again(fd: RawFd, socket: io::Result<UnixListener>) -> Result<Self, ListenError> {
        let socket = socket.map_err(|cause| ListenError::BadFd { fd, cause })?;
        Ok(Self::Listening { opener: Some(SocketOpener::Giver(fd)), socket: Some(socket) })
    }

    /// Takes a descriptor that this process was started with, or that [`Endpoint::of`] has given
    /// up. Call it before anything else is opened. A number that the user got wrong then isn't
    /// open, and can't be a descriptor of this process's own. Later it takes one whose VM has left
    /// ([`FrontEndRefusal`](super::FrontEndRefusal)).
    ///
    /// # Errors
    /// It is standard input, output or error, no unix stream socket, or not handed over.
    pub fn inherit(fd: RawFd) -> Result<Self, ListenError> {
        if zerowire_sys::fd::is_standard(fd) {
            return Err(ListenError::StandardFd(fd));
        }
        if let Some(socket) = refuser::take(fd) {
            return Self::again(fd, socket);
        }
        let bad = |cause: io::Error| ListenError::BadFd { fd, cause };
        let is_socket = || {
            // What is of another kind stays as it is.
            let asked = zerowire_sys::fd::duplicate(fd)?;
            let domain = rustix::net::sockopt::socket_domain(&asked)?;
            let kind = rustix::net::sockopt::socket_type(&asked)?;
            Ok((domain, kind) == (AddressFamily::UNIX, SocketType::STREAM))
        };
        if !is_socket().map_err(|e: Errno| bad(e.into()))? {
            return Err(bad(Errno::PROTOTYPE.into()));
        }
        let socket = zerowire_sys::fd::take(fd).map_err(|e| match e {
            Errno::BUSY => ListenError::OwnFd(fd),
            e => bad(e.into()),
        })?;
        let listener = Self::of(socket).map_err(bad)?.opened_by(SocketOpener::Giver(fd));
        if let Self::Listening { socket: Some(socket), .. } = &listener {
            refuser::enter(fd, socket);
        }
        Ok(listener)
    }

    /// A unix stream socket that another process has opened: one that listens, or a connection.
    ///
    /// # Errors
    /// It can't be asked which of the two it is.
    pub fn of(socket: OwnedFd) -> io::Result<Self> {
        if rustix::net::sockopt::socket_acceptconn(&socket)? {
            let socket = UnixListener::from(socket);
            socket.set_nonblocking(true)?;
            return Ok(Self::Listening { socket: Some(socket), opener: None });
        }
        Ok(Self::Connected(Some(UnixStream::from(socket))))
    }

    /// The same of a socket whose process can refuse connections, and listen again.
    ///
    /// # Errors
    /// Those of [`Self::of`].
    pub fn kept(socket: OwnedFd, keeper: Arc<dyn SocketKeeper>) -> io::Result<Self> {
        Ok(Self::of(socket)?.opened_by(SocketOpener::Keeper { keeper, listens: true }))
    }

    fn opened_by(mut self, who: SocketOpener) -> Self {
        if let Self::Listening { opener, .. } = &mut self {
            *opener = Some(who);
        }
        self
    }

    /// The socket, until it is closed or its connection taken.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Listening { socket, .. } => socket.as_ref().map(AsFd::as_fd),
            Self::Connected(stream) => stream.as_ref().map(AsFd::as_fd),
        }
    }

    /// The descriptor to wait on for a connection; None where one is there already or none will
    /// come.
    pub fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match self {
            Self::Listening { socket, .. } => socket.as_ref().map(AsFd::as_fd),
            Self::Connected(_) => None,
        }
    }

    /// The next connection if there is one. Nobody listens any more where another process has had
    /// its copy [refuse](Self::refuse).
    pub fn accept(&mut self) -> io::Result<Option<UnixStream>> {
        let listening = match self {
            Self::Listening { socket, .. } => socket,
            Self::Connected(stream) => return Ok(stream.take()),
        };
        match listening.as_ref().map(accept_now).transpose() {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                // Who waits on it would be woken for ever.
                listening.take_if(|socket| is_shut(socket));
                Ok(None)
            }
            accepted => accepted,
        }
    }

    /// Whether a connection may come after this one.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Listening { .. })
    }

    /// Refuses connections from now on; those that wait to be accepted end. For a socket that can
    /// be opened anew.
    ///
    /// # Errors
    /// Its keeper does not refuse them: try again. They wait, and none is accepted.
    pub fn shut(&mut self) -> Result<(), ListenError> {
        let Self::Listening { opener: Some(SocketOpener::Own(_) | SocketOpener::Keeper { .. }), .. } = self
        else {
            return Ok(());
        };
        self.close();
        if let Self::Listening { opener: Some(SocketOpener::Keeper { keeper, listens }), .. } = self
            && *listens
        {
            keeper.refuse().map_err(ListenError::Keeper)?;
            *listens = false;
        }
        Ok(())
    }

    /// Refuses connections from now on, whoever has a copy of the socket; those that wait to be
    /// accepted end. A copy itself refuses none.
    pub fn refuse(&mut self) {
        let Self::Listening { socket: Some(socket), opener } = self else { return };
        match opener {
            Some(SocketOpener::Own(_)) => {
                // On a unix socket this fails of none that listens.
                let _ = rustix::net::shutdown(&*socket, Shutdown::Read);
                // Those that wait may have sent what takes long to close.
                match socket.try_clone() {
                    Ok(copy) => files::close_listener(copy.into()),
                    Err(_) => while socket.accept().is_ok() {},
                }
            }
            Some(SocketOpener::Giver(number)) => {
                refuser::refuse(*number, socket.try_clone());
                // Another VM may have it from now on.
                *opener = None;
            }
            Some(SocketOpener::Keeper { .. }) | None => {}
        }
    }

    /// Refuses connections as far as the socket is not a copy, and takes none any more. The file
    /// stays until this value is dropped.
    pub(super) fn close(&mut self) {
        self.refuse();
        if let Self::Listening { socket, .. } = self {
            *socket = None;
        }
    }

    /// Listens again after [`Self::shut`], on a socket with the owner, group and mode that the one
    /// before has by now.
    ///
    /// # Errors
    /// Nobody can open the path, or the keeper does not answer: try again.
    pub fn reopen(&mut self) -> Result<(), ListenError> {
        let Self::Listening { socket: socket @ None, opener: Some(opener) } = self else { return Ok(()) };
        let opened = match opener {
            SocketOpener::Keeper { keeper, listens } => {
                // Also if its answer does not come.
                *listens = true;
                keeper.listen().map_err(ListenError::Keeper)?
            }
            SocketOpener::Own(before) => {
                let path = before.path();
                let access = SocketAccess::of(before.file())
                    .map_err(|cause| ListenError::Bind { path: path.to_owned(), cause })?;
                let Bound { socket, file } = bind_vhost_user(path, &access)?;
                *before = file;
                socket
            }
            SocketOpener::Giver(_) => return Ok(()),
        };
        *socket = Some(opened.into());
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Self::Listening { opener, socket } = self else { return };
        if let Some(SocketOpener::Giver(_)) = opener {
            self.refuse();
        } else if let Some(SocketOpener::Own(file)) = opener.take() {
            drop(file);
            socket.take().map(OwnedFd::from).into_iter().for_each(files::close_listener);
        }
    }
}

/// The next connection, without waiting. Who has handed the socket over has its flags as well, and
/// may have had it block since.
pub(super) fn accept_now(socket: &UnixListener) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    Ok(socket.accept()?.0)
}

/// Whether a socket takes no connection any more.
fn is_shut(socket: &UnixListener) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::RDHUP)
}

#[cfg(test)]
mod tests;

//! The unix socket on which a program is managed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{SocketFlags, SocketType};

use super::access::SocketAccess;
use super::listen::{Bound, ListenError, bind_unix};
use super::socket_file::SocketFile;

/// A socket that listens. Its file is removed when this value is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    // Removed before the socket closes: nobody finds it without a listener.
    file: SocketFile,
    socket: OwnedFd,
}

impl ControlSocket {
    /// Listens on `path`, non-blocking and closed on exec, with these rights. A socket that nobody
    /// listens on is replaced.
    ///
    /// # Errors
    /// [`ListenError`], whose text is what the user reads.
    pub fn bind(path: &Path, access: &SocketAccess) -> Result<Self, ListenError> {
        let Bound { socket, file } = bind_unix(path, SocketType::STREAM, access)?;
        Ok(Self { file, socket })
    }

    /// The next connection, closed on exec. Fails with EAGAIN if there is none.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)?)
    }

    /// User and group of the socket's file now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn owner(&self) -> io::Result<(u32, u32)> {
        let stat = rustix::fs::fstat(self.file.file())?;
        Ok((stat.st_uid, stat.st_gid))
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! Who may connect to a socket that this process makes: its owner, its group and its mode.
//!
//! The folder of a socket may belong to somebody else, who can put another file in the socket's
//! place at any time. So nothing is changed by path. The kernel makes the file with at most the
//! mode that the user gave. What is still missing is set on the socket's own file. Nobody can
//! connect meanwhile: the socket does not listen yet.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode};
use rustix::process::{Gid, Uid};

use super::listen::ListenError;
use super::socket_file;

/// Owner, group and mode of a socket's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// User id. None: the user of this process.
    pub owner: Option<u32>,
    /// Group id. None: the group of this process, or that of a folder with the setgid bit.
    pub group: Option<u32>,
    /// Permission bits, at most 0o777. None: 0600, or 0660 where a group is given.
    pub mode: Option<u32>,
}

impl SocketAccess {
    /// What the file has now.
    pub(super) fn of(file: &OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { owner: Some(stat.st_uid), group: Some(stat.st_gid), mode: Some(stat.st_mode & 0o777) })
    }

    /// The mode that the file gets, whatever the umask.
    pub fn mode(&self) -> u32 {
        self.mode.unwrap_or(if self.group.is_some() { 0o660 } else { 0o600 })
    }

    /// To be called before the socket is bound: its file is made with this mode less the umask.
    pub(super) fn prepare(&self, socket: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::fchmod(socket, Mode::from_raw_mode(self.mode()))?)
    }

    /// To be called when the socket of this `file` is bound to `path` and does not listen yet.
    pub(super) fn grant(&self, file: &OwnedFd, path: &Path) -> Result<(), ListenError> {
        let denied =
            |what: String, cause: io::Error| ListenError::Access { path: path.to_owned(), what, cause };
        let mode = self.mode();
        let now = rustix::fs::fstat(file).map_err(|e| denied(format!("mode {mode:#06o}"), e.into()))?;
        if now.st_mode & 0o7777 != mode {
            // fchmod does not take a descriptor of O_PATH; this name is that descriptor's file
            // itself.
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmod(name, Mode::from_raw_mode(mode))
                .map_err(|e| denied(format!("mode {mode:#06o}"), e.into()))?;
        }
        let chown = |owner, group| rustix::fs::chownat(file, c"", owner, group, AtFlags::EMPTY_PATH);
        if let Some(group) = self.group.filter(|g| *g != now.st_gid) {
            chown(None, Some(Gid::from_raw(group)))
                .map_err(|e| denied(format!("group {group}"), e.into()))?;
        }
        if let Some(owner) = self.owner.filter(|o| *o != now.st_uid) {
            chown(Some(Uid::from_raw(owner)), None)
                .map_err(|e| denied(format!("owner {owner}"), e.into()))?;
        }
        Ok(())
    }
}

/// The file that the socket is bound to.
pub(super) fn bound_file(socket: &OwnedFd, path: &Path) -> Result<OwnedFd, ListenError> {
    zerowire_sys::socket::bound_file(socket).or_else(|_| file_at(path))
}

/// The file at `path` if it can only be a socket of this user that was made in that folder. Such a
/// socket has one name, and whoever can put it there can make it anyway.
fn file_at(path: &Path) -> Result<OwnedFd, ListenError> {
    let replaced = || ListenError::Replaced(path.to_owned());
    let file = socket_file::open(path).map_err(|_| replaced())?;
    let stat = rustix::fs::fstat(&file).map_err(|_| replaced())?;
    let is_socket = stat.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    if is_socket && stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw() {
        return Ok(file);
    }
    Err(replaced())
}

#[cfg(test)]
mod tests;

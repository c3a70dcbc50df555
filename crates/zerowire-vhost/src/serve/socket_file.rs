//! The file of a socket, which goes with the socket.
//!
//! Somebody may have removed the file and put another one at its path: a program that took the
//! place of this one has its own socket there. So only the file that was made here is removed. It
//! is kept open (O_PATH), so that no other file gets its inode number meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// A socket's file. It is removed when this value is dropped, unless another file is at its path.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Open to look at only (O_PATH).
    file: OwnedFd,
}

impl SocketFile {
    pub(super) fn new(path: &Path, file: OwnedFd) -> Self {
        Self { path: path.to_owned(), file }
    }

    /// Where it was made.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file, open to look at only.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = remove(&self.path, &self.file);
    }
}

/// The file at `path` itself, also where it is a link, open to look at only.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Removes `path` if it is this file's.
pub(super) fn remove(path: &Path, file: &OwnedFd) -> io::Result<()> {
    let (there, ours) = (rustix::fs::lstat(path)?, rustix::fs::fstat(file)?);
    if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) {
        rustix::fs::unlink(path)?;
    }
    Ok(())
}

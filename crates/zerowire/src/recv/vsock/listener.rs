//! Connections that the guest makes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::connection::MappedConnection;
use super::error::Error;
use super::handshake::{self, ANSWER_TIME};
use super::options::{MappedKind, MappedOptions};
use zerowire_wire::mapped::{MapOp, MapRequest};

/// Listens on a port of the host (CID 2) for connections of the guest. Dropping it ends the
/// listening; connections stay.
#[derive(Debug)]
pub struct MappedListener {
    socket: OwnedFd,
    path: PathBuf,
    port: u32,
    kind: MappedKind,
}

impl MappedListener {
    /// Listens. `path` is the daemon's `UDS.map`; `options` are those of each connection.
    ///
    /// # Errors
    /// [`Error::PortTaken`]; otherwise those of [`connect`](super::connect) about the daemon and
    /// the options.
    pub fn bind(path: &Path, port: u32, options: &MappedOptions) -> Result<Self, Error> {
        let request =
            MapRequest { op: MapOp::Listen, port, kind: options.kind.number(), options: options.map };
        let socket = handshake::ask(path, &request)?;
        let Some(answer) = handshake::answer(&socket, path, Some(ANSWER_TIME))? else {
            return Err(Error::NoAnswer { path: path.to_owned(), seconds: ANSWER_TIME.as_secs() });
        };
        handshake::accepted(answer.reply, path, port)?;
        Ok(Self { socket, path: path.to_owned(), port, kind: options.kind })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// [`Error::Disconnected`]: the daemon is gone. [`Error::Status`]: it refuses, or has no room.
    /// [`Error::BrokenHandshake`], [`Error::System`].
    pub fn accept(&self) -> Result<MappedConnection, Error> {
        loop {
            if let Some(connection) = self.accept_within(None)? {
                return Ok(connection);
            }
        }
    }

    /// The next connection, if there is one already.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn try_accept(&self) -> Result<Option<MappedConnection>, Error> {
        self.accept_within(Some(Duration::ZERO))
    }

    /// The next connection, or None if `timeout` passes without one; None waits without a limit.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Option<MappedConnection>, Error> {
        let Some(mut answer) = handshake::answer(&self.socket, &self.path, timeout)? else { return Ok(None) };
        answer.reply = handshake::accepted(answer.reply, &self.path, self.port)?;
        let parts = handshake::parts(answer, &self.socket, &self.path)?;
        MappedConnection::new(parts, &self.path, self.kind).map(Some)
    }

    /// The host's port.
    pub fn port(&self) -> u32 {
        self.port
    }
}

impl AsFd for MappedListener {
    /// Readable when a connection waits, or when the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

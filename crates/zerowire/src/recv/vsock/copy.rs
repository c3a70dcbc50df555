//! The connection without a mapping: a unix socket, as docs/vsock.md has it. For comparison, and
//! for programs that want both by one interface.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType};

use super::error::{Error, system};
use super::handshake::{self, ANSWER_TIME};
use super::options::MappedKind;
use super::wait::poll_for;
use super::write::shutdown;

/// Bytes of the daemon's answer at most: `OK`, a port, a newline.
const LINE: usize = 32;

/// A connection whose payload is copied by the kernel.
#[derive(Debug)]
pub struct CopyConnection {
    socket: OwnedFd,
    host_port: u32,
}

/// Connects to a port of the guest. `path` is the daemon's `UDS` for a stream, `UDS.seqpacket` for
/// messages.
///
/// # Errors
/// [`Error::NoDaemon`], [`Error::NotPermitted`], [`Error::Path`]: this user finds no such
/// socket. [`Error::Refused`]: nobody listens in the guest. [`Error::NoAnswer`] after 10 s,
/// [`Error::BrokenHandshake`], [`Error::System`].
pub fn connect_copy(path: &Path, port: u32, kind: MappedKind) -> Result<CopyConnection, Error> {
    let socket_kind = match kind {
        MappedKind::Stream => SocketType::STREAM,
        MappedKind::SeqPacket => SocketType::SEQPACKET,
    };
    let socket = handshake::socket(path, socket_kind)?;
    // A socket that was closed already says so to the read.
    let _ = rustix::net::send(&socket, format!("CONNECT {port}\n").as_bytes(), SendFlags::NOSIGNAL);
    let line = read_line(&socket, path, port, kind)?;
    let host_port = line.strip_prefix("OK ").and_then(|n| n.trim_end().parse().ok()).ok_or_else(|| {
        Error::BrokenHandshake {
            path: path.to_owned(),
            what: format!("{line:?}, where OK and a port are due"),
        }
    })?;
    Ok(CopyConnection { socket, host_port })
}

/// The answer, and not a byte of what is behind it.
fn read_line(socket: &OwnedFd, path: &Path, port: u32, kind: MappedKind) -> Result<String, Error> {
    let deadline = Instant::now() + ANSWER_TIME;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && line.len() < LINE {
        if !poll_for(&mut [PollFd::new(socket, PollFlags::IN)], Some(deadline))? {
            return Err(handshake::no_answer(path));
        }
        let mut buffer = [0; LINE];
        let want = if kind == MappedKind::Stream { 1 } else { LINE };
        match rustix::net::recv(socket, &mut buffer[..want], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                let what = "zerowire vsock closed the socket without an answer".to_owned();
                return Err(Error::Refused { port, what });
            }
            Ok((n, _)) => line.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System { call: "recv (the answer)", errno }),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

impl CopyConnection {
    /// The port that this program has at the guest's side.
    pub fn host_port(&self) -> u32 {
        self.host_port
    }

    /// Ends one direction, as with any socket.
    ///
    /// # Errors
    /// What shutdown(2) says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        shutdown(&self.socket, how)
    }

    /// Whether reads and writes return [`std::io::ErrorKind::WouldBlock`] in place of waiting.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_nonblocking(&self, on: bool) -> Result<(), Error> {
        rustix::io::ioctl_fionbio(&self.socket, on).map_err(system("FIONBIO (the socket)"))
    }
}

impl Read for &CopyConnection {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.socket, to, RecvFlags::empty())?.0)
    }
}

impl Write for &CopyConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

by_reference!(CopyConnection);

impl AsFd for CopyConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<CopyConnection> for OwnedFd {
    fn from(connection: CopyConnection) -> OwnedFd {
        connection.socket
    }
}

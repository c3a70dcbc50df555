//! The host's ends: unix sockets of `zerowire vsock`.
//!
//! A program connects to the VM's socket (for messages: with `.seqpacket` behind its
//! name), writes `CONNECT PORT` and a line feed, and reads a line `OK HOSTPORT`. What a
//! guest opens to CID 2 arrives at a socket `PATH_PORT`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen,
    recv, send, socket_with,
};

use super::{PATIENCE, VsockKind, limit};

/// Connections that wait to be accepted. Beyond that the kernel answers that the back end must try
/// again.
const BACKLOG: i32 = 2048;

/// No answer to CONNECT is longer: `OK `, ten digits, a line feed.
const ANSWER_BYTES: usize = 14;

/// The socket that a host program connects to.
pub fn connect_path(uds: &Path, kind: VsockKind) -> PathBuf {
    match kind {
        VsockKind::Stream => uds.to_owned(),
        VsockKind::Seqpacket => with_suffix(uds, ".seqpacket"),
    }
}

/// Connects to a port of the guest; returns the connection and the host's port.
///
/// # Errors
/// The back end does not listen, or refuses: nobody listens in the guest.
pub fn connect_to(uds: &Path, port: u32, kind: VsockKind) -> Result<(OwnedFd, u32)> {
    connect_by(uds, &format!("CONNECT {port}\n"), kind)
}

/// As [`connect_to`], by a line of the caller's.
///
/// # Errors
/// As there.
pub fn connect_by(uds: &Path, line: &str, kind: VsockKind) -> Result<(OwnedFd, u32)> {
    let socket = open(uds, kind)?;
    send(&socket, line.as_bytes(), SendFlags::NOSIGNAL).context("send the CONNECT line")?;
    let asked = line.escape_debug();
    let answer = read_answer(&socket, kind).with_context(|| format!("the answer to '{asked}'"))?;
    let host_port = answer.strip_prefix("OK ").and_then(|rest| rest.strip_suffix('\n')?.parse().ok());
    let host_port =
        host_port.with_context(|| format!("the answer to '{asked}' is '{}'", answer.escape_debug()))?;
    Ok((socket, host_port))
}

/// Connects to the back end, without a word yet.
///
/// # Errors
/// The back end does not listen.
pub fn open(uds: &Path, kind: VsockKind) -> Result<OwnedFd> {
    let path = connect_path(uds, kind);
    let socket = new_socket(kind)?;
    connect(&socket, &SocketAddrUnix::new(&path)?)
        .with_context(|| format!("connect to {}", path.display()))?;
    limit(&socket)?;
    Ok(socket)
}

/// A line, read byte by byte so that nothing behind it is lost; a message as it is.
fn read_answer(socket: &OwnedFd, kind: VsockKind) -> Result<String> {
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        let mut buffer = [0; ANSWER_BYTES];
        let room = if kind == VsockKind::Stream { 1 } else { ANSWER_BYTES };
        let (_, length) = recv(socket, &mut buffer[..room], RecvFlags::empty()).context("receive")?;
        if length == 0 {
            bail!("the connection ended: the guest's port is refused");
        }
        answer.extend_from_slice(&buffer[..length]);
        if answer.len() > ANSWER_BYTES {
            bail!("too long: '{}'", answer.escape_ascii());
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A socket at which a guest's connections to one port arrive. Its file is removed on
/// drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens for connections to a port.
    ///
    /// # Errors
    /// The socket can't be made.
    pub fn new(uds: &Path, port: u32, kind: VsockKind) -> Result<Self> {
        let path = with_suffix(uds, &format!("_{port}"));
        let socket = new_socket(kind)?;
        bind(&socket, &SocketAddrUnix::new(&path)?).with_context(|| format!("bind {}", path.display()))?;
        let listener = Self { socket, path };
        listen(&listener.socket, BACKLOG)
            .with_context(|| format!("listen on {}", listener.path.display()))?;
        Ok(listener)
    }

    /// Takes the next connection.
    ///
    /// # Errors
    /// None comes in time.
    pub fn accept(&self) -> Result<OwnedFd> {
        let time = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut wanted = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        if poll(&mut wanted, Some(&time))? == 0 {
            bail!("no connection to {} for {PATIENCE:?}", self.path.display());
        }
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC).context("accept")?;
        limit(&socket)?;
        Ok(socket)
    }

    /// Takes `count` connections.
    ///
    /// # Errors
    /// As [`Listener::accept`]; the message says how many came.
    pub fn accept_all(&self, count: usize) -> Result<Vec<OwnedFd>> {
        let mut sockets = Vec::with_capacity(count);
        while sockets.len() < count {
            let number = sockets.len();
            sockets.push(self.accept().with_context(|| format!("{number} of {count} connections came"))?);
        }
        Ok(sockets)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The folder goes later anyway.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn new_socket(kind: VsockKind) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind.socket_type(), SocketFlags::CLOEXEC, None)
        .with_context(|| format!("a unix {} socket", kind.word()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

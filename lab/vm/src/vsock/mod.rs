//! Programs that talk over virtio-vsock: what they do, and their sockets in the guest and on the
//! host.
//!
//! The guest has AF_VSOCK sockets, the host has unix sockets (`zerowire vsock` stands between
//! them). What a program does with a connection, a *job*, is the same code at both ends. Nothing in
//! [`job`] knows which kind of socket it has.
//!
//! ```text
//!  guest: zw-vsock (job) ── AF_VSOCK ── zerowire vsock ── AF_UNIX ── test program (job)
//! ```

pub mod guest;
pub mod host;
pub mod job;
pub mod lend;
pub mod pattern;
pub mod pci;
pub mod remote;
pub mod rx;
pub mod zerocopy;

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::SocketType;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For one read, write or connect. A connection on which nothing moves for this long hangs:
/// emulated guests are slow, but not that slow.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Open files that this program may need: two thousand connections and its own.
const DESCRIPTORS: u64 = 4096;

/// The two kinds of connections of virtio-vsock (virtio 1.3, section 5.10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VsockKind {
    /// Bytes in order.
    Stream,
    /// Messages in order, each whole.
    Seqpacket,
}

impl VsockKind {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Stream, Self::Seqpacket];

    /// The socket type, for both address families.
    pub fn socket_type(self) -> SocketType {
        match self {
            Self::Stream => SocketType::STREAM,
            Self::Seqpacket => SocketType::SEQPACKET,
        }
    }

    /// The word for it in the command line of `zw-vsock`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Seqpacket => "seqpacket",
        }
    }
}

/// Makes reads and writes of a socket fail after [`PATIENCE`].
///
/// # Errors
/// The system call fails.
pub fn limit(socket: impl AsFd) -> Result<()> {
    for way in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, way, Some(PATIENCE)).context("set a socket's time limit")?;
    }
    Ok(())
}

/// Allows this process the descriptors of many connections; the default is 1024.
///
/// # Errors
/// The system's limit is lower and this program may not raise it.
pub fn allow_descriptors() -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: current.map(|current| current.max(DESCRIPTORS)),
        maximum: maximum.map(|maximum| maximum.max(DESCRIPTORS)),
    };
    setrlimit(Resource::Nofile, wanted)
        .with_context(|| format!("{DESCRIPTORS} open files are needed: raise the limit (ulimit -n)"))
}

//! The host's program: plain read() and write() on a unix socket, on a thread of its own. A socket
//! of messages is read and written by the same calls, a message each.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zerowire_guest::vsock::StreamSum;

use super::case::SocketKind;
use crate::cpu::{Placement, own_sleeps, thread_time};
use crate::guest::STALL_LIMIT;

/// What a program did.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// CPU time of its loop.
    pub cpu: Duration,
    /// When it was done.
    pub end: Instant,
    /// Sum of the bytes, if it was asked for; else 0.
    pub sum: u64,
    /// How often it waited in a call.
    pub sleeps: u64,
}

/// The CPU of the host's program. The choice decides much: waking a thread of another CPU costs
/// more than copying 64 KiB on many machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum HostCpu {
    /// The guest's: what the back end wakes is on another CPU, and pushes the guest aside.
    Guest,
    /// The back end's: they take turns. The floor is at its lowest here, and steady.
    #[default]
    Backend,
    /// Any: the scheduler chooses, for the floor as well.
    Any,
}

impl HostCpu {
    /// Puts the calling thread there.
    pub fn pin(self, placement: &Placement) -> Result<()> {
        match self {
            Self::Guest => placement.pin_driver(),
            Self::Backend => placement.pin_worker(),
            Self::Any => placement.unpin(),
        }
        .context("a thread can't be moved to its CPU")
    }
}

/// Runs `program`, the host's, on a thread of its own while `guest` runs here.
///
/// # Errors
/// Those of both: that of the guest says what the program did.
pub fn beside<W: fmt::Debug + Send, T>(
    program: impl FnOnce() -> Result<W> + Send,
    guest: impl FnOnce() -> Result<T>,
) -> Result<(W, T)> {
    let (outcome, work) = std::thread::scope(|scope| {
        let program = scope.spawn(program);
        let outcome = guest();
        (outcome, program.join())
    });
    let work = work.map_err(|_| anyhow!("the host's program panicked"))?;
    let outcome = outcome.with_context(|| format!("host's program: {work:?}"))?;
    Ok((work.context("the host's program")?, outcome))
}

/// Where one call's bytes are, in a working set that is walked again and again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Walk {
    at: usize,
    /// Whether no stretch is cut short at the end of the set.
    whole: bool,
}

impl Walk {
    /// From the start of the set on; stretches of messages are whole ones.
    pub fn of(socket: SocketKind) -> Self {
        Self { at: 0, whole: socket == SocketKind::Seqpacket }
    }

    /// The next stretch of at most `len` bytes in a set of `total`, one that does not wrap.
    pub fn next(&mut self, len: usize, total: usize) -> std::ops::Range<usize> {
        if self.at == total || self.whole && self.at + len > total {
            self.at = 0;
        }
        let end = total.min(self.at + len);
        self.at..end
    }

    /// The first `count` bytes of the last stretch were used.
    pub fn advance(&mut self, count: usize) {
        self.at += count;
    }
}

/// A socket whose calls fail after [`STALL_LIMIT`] instead of waiting forever.
pub fn patient(stream: &UnixStream) -> Result<()> {
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.set_write_timeout(Some(STALL_LIMIT))?;
    Ok(())
}

/// The sum of `bytes` bytes, `buffer` again and again.
pub fn sum_of(buffer: &[u8], bytes: u64) -> u64 {
    let mut sum = StreamSum::default();
    let mut left = bytes;
    while left > 0 {
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        sum.update(&buffer[..count]);
        left -= count as u64;
    }
    sum.value()
}

/// Writes `bytes` bytes of `memory`, at most `write_len` in a call. With `copy` each goes through a
/// private buffer first.
pub fn source(
    mut stream: &UnixStream,
    memory: &[u8],
    walk: &mut Walk,
    (write_len, bytes): (usize, usize),
    copy: bool,
    check: bool,
) -> Result<Work> {
    let mut buffer = vec![0u8; if copy { write_len } else { 0 }];
    let mut sum = StreamSum::default();
    let mut left = bytes;
    let sleeps = own_sleeps();
    let cpu = thread_time();
    while left > 0 {
        let range = walk.next(write_len.min(left), memory.len());
        let mut part = &memory[range];
        if copy {
            buffer[..part.len()].copy_from_slice(part);
            part = &buffer[..part.len()];
        }
        if check {
            sum.update(part);
        }
        stream.write_all(part).map_err(|error| stalled(error, "write", bytes - left, bytes))?;
        walk.advance(part.len());
        left -= part.len();
    }
    let (cpu, end) = (thread_time() - cpu, Instant::now());
    Ok(Work { cpu, end, sum: sum.value(), sleeps: own_sleeps() - sleeps })
}

/// Reads exactly `bytes` bytes into `memory`, at most `read_len` in a call. With `copy` each goes
/// through a private buffer first.
pub fn sink(
    mut stream: &UnixStream,
    memory: &mut [u8],
    walk: &mut Walk,
    (read_len, bytes): (usize, usize),
    copy: bool,
    check: bool,
) -> Result<Work> {
    let mut buffer = vec![0u8; if copy { read_len } else { 0 }];
    let mut sum = StreamSum::default();
    let mut left = bytes;
    let sleeps = own_sleeps();
    let cpu = thread_time();
    while left > 0 {
        let range = walk.next(read_len.min(left), memory.len());
        let part = &mut memory[range];
        let target = if copy { &mut buffer[..part.len()] } else { &mut *part };
        let count = match stream.read(target) {
            Ok(0) => bail!("the stream ended after {} of {bytes} bytes", bytes - left),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(stalled(error, "read", bytes - left, bytes)),
        };
        if walk.whole && count != part.len() {
            bail!("a message of {count} bytes came where one of {} was sent", part.len());
        }
        if copy {
            part[..count].copy_from_slice(&buffer[..count]);
        }
        if check {
            sum.update(&part[..count]);
        }
        walk.advance(count);
        left -= count;
    }
    let (cpu, end) = (thread_time() - cpu, Instant::now());
    Ok(Work { cpu, end, sum: sum.value(), sleeps: own_sleeps() - sleeps })
}

fn stalled(error: std::io::Error, what: &str, done: usize, bytes: usize) -> anyhow::Error {
    let text = format!("{what} after {done} of {bytes} bytes");
    match error.kind() {
        ErrorKind::WouldBlock => anyhow!(error).context(format!("{text}, nothing moved for {STALL_LIMIT:?}")),
        _ => anyhow!(error).context(text),
    }
}

/// Path of the socket where a host program listens for a VM's connections to `port`.
pub fn port_path(host_end: &Path, port: u32) -> PathBuf {
    PathBuf::from(format!("{}_{port}", host_end.display()))
}

/// A pair of connected sockets that take writes of `len` bytes.
pub fn pair(socket: SocketKind, len: usize) -> Result<(UnixStream, UnixStream)> {
    let (a, b) = match socket {
        SocketKind::Stream => UnixStream::pair()?,
        SocketKind::Seqpacket => {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
            (a.into(), b.into())
        }
    };
    for end in [&a, &b] {
        patient(end)?;
        make_room(end, socket, len)?;
    }
    Ok((a, b))
}

/// Makes `stream` take messages of `len` bytes.
pub fn make_room(stream: &UnixStream, socket: SocketKind, len: usize) -> Result<()> {
    // The kernel wants 32 bytes more than the message has (net/unix/af_unix.c, unix_dgram_sendmsg).
    let need = len + 64;
    if socket == SocketKind::Stream || socket_send_buffer_size(stream)? >= need {
        return Ok(());
    }
    // The kernel doubles the size that it gets (net/core/sock.c).
    set_socket_send_buffer_size(stream, need.div_ceil(2))?;
    let room = socket_send_buffer_size(stream)?;
    if room < need {
        bail!(
            "messages of {len} bytes: a unix socket takes {room} here; choose shorter ones (--writes), or 'sysctl -w \
             net.core.wmem_max={}'",
            need.div_ceil(2)
        );
    }
    Ok(())
}

/// Listens at `path`, whose old socket goes.
pub fn listen(path: &Path, socket: SocketKind) -> Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = match socket {
        SocketKind::Stream => UnixListener::bind(path),
        SocketKind::Seqpacket => open_seqpacket().and_then(|fd| {
            rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
            rustix::net::listen(&fd, 128)?;
            Ok(fd.into())
        }),
    };
    listener.with_context(|| format!("can't listen at {}", path.display()))
}

fn open_seqpacket() -> std::io::Result<std::os::fd::OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// Begins a connection to `port` of the VM behind `host_end`. The guest must accept it before
/// [`read_ok`].
pub fn connect(host_end: &Path, port: u32, socket: SocketKind) -> Result<UnixStream> {
    let stream = match socket {
        SocketKind::Stream => UnixStream::connect(host_end),
        SocketKind::Seqpacket => open_seqpacket().and_then(|fd| {
            let path = format!("{}.seqpacket", host_end.display());
            rustix::net::connect(&fd, &SocketAddrUnix::new(path.as_str())?)?;
            Ok(fd.into())
        }),
    };
    let mut stream =
        stream.with_context(|| format!("the host's end {} takes no connection", host_end.display()))?;
    patient(&stream)?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    Ok(stream)
}

/// Reads the back end's answer to `CONNECT`, and nothing behind it.
pub fn read_ok(mut stream: &UnixStream, socket: SocketKind) -> Result<()> {
    // Of a stream what follows is payload already; a message is the answer and nothing else.
    let mut room = vec![0; if socket == SocketKind::Stream { 1 } else { 64 }];
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && line.len() < 32 {
        match stream.read(&mut room).context("no answer to CONNECT")? {
            0 => bail!("no answer to CONNECT: the socket was closed"),
            count => line.extend_from_slice(&room[..count]),
        }
    }
    if !line.starts_with(b"OK ") {
        bail!("the answer to CONNECT is {:?}", String::from_utf8_lossy(&line));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! What programs do with a connected socket, of any address family.
//!
//! Every job compares each byte that it receives with the [`Pattern`] that its peer sends. So no
//! job trusts a count or a checksum of the other end's.

use std::fmt;
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown, recv, recvmsg, send, shutdown,
};

use super::pattern::Pattern;

/// Length of the buffers that jobs read into; no message is longer.
pub const BUFFER_BYTES: usize = 256 << 10;

/// What [`answer_token`] and its kin exchange, bytes.
pub const TOKEN_BYTES: usize = 16;

/// One record ends with each so-manyeth message when records are marked.
const RECORD_MESSAGES: usize = 3;

/// A transfer in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Names the pattern.
    pub seed: u64,
    /// How much is sent.
    pub bytes: u64,
    /// How much at a time. On a SEQPACKET socket these are messages.
    pub write_bytes: usize,
}

impl Load {
    /// The transfer that goes back on the same connection, with a pattern of its own.
    pub fn reply(self, bytes: u64) -> Self {
        Self { seed: self.seed.wrapping_add(1 << 32), bytes, ..self }
    }
}

/// As a job of `zw-vsock` takes it: SEED WRITE BYTES.
impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.seed, self.write_bytes, self.bytes)
    }
}

/// Sends a load.
///
/// # Errors
/// The socket fails; the message says after how many bytes.
pub fn send_load(socket: impl AsFd, load: Load) -> Result<()> {
    send_by(load, |bytes| send_all(&socket, bytes))
}

/// Sends a load by `send`, a write at a time.
///
/// # Errors
/// As [`send_load`].
pub fn send_by(load: Load, mut send: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let pattern = Pattern::new(load.seed);
    let mut buffer = vec![0; load.write_bytes.max(1)];
    let mut sent = 0;
    while sent < load.bytes {
        let length = (load.bytes - sent).min(buffer.len() as u64) as usize;
        pattern.fill(sent, &mut buffer[..length]);
        send(&buffer[..length]).with_context(|| format!("after {sent} of {} bytes", load.bytes))?;
        sent += length as u64;
    }
    Ok(())
}

/// Receives a load, no byte more.
///
/// # Errors
/// The socket fails or ends early, or a byte is wrong; the message says which.
pub fn receive_load(socket: impl AsFd, load: Load) -> Result<()> {
    let pattern = Pattern::new(load.seed);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut received = 0;
    while received < load.bytes {
        let room = (load.bytes - received).min(buffer.len() as u64) as usize;
        let length = receive(&socket, &mut buffer[..room])
            .with_context(|| format!("after {received} of {} bytes", load.bytes))?;
        ensure!(length > 0, "the connection ended after {received} of {} bytes", load.bytes);
        if let Some(place) = pattern.first_difference(received, &buffer[..length]) {
            bail!("byte {place} of {} is wrong (a read of {length} bytes at {received})", load.bytes);
        }
        received += length as u64;
    }
    Ok(())
}

/// Waits for the end of the peer's data.
///
/// # Errors
/// More data comes, or the socket fails (a reset doesn't count as an end).
pub fn receive_end(socket: impl AsFd) -> Result<()> {
    let mut buffer = [0; 1];
    let length = receive(socket, &mut buffer).context("at the end of the data")?;
    ensure!(length == 0, "more data came than was to be sent");
    Ok(())
}

/// Sends a load, ends its own data, and waits until the peer has it all.
///
/// # Errors
/// As [`send_load`] and [`receive_end`].
pub fn send_whole(socket: impl AsFd, load: Load) -> Result<()> {
    send_load(&socket, load)?;
    end_data(&socket)?;
    receive_end(socket)
}

/// Receives a load and the end behind it.
///
/// # Errors
/// As [`receive_load`] and [`receive_end`].
pub fn receive_whole(socket: impl AsFd, load: Load) -> Result<()> {
    receive_load(&socket, load)?;
    receive_end(socket)
}

/// Sends a load to an [`echo`] and checks what comes back, at the same time.
///
/// # Errors
/// As [`send_load`] and [`receive_load`].
pub fn exchange(socket: impl AsFd, load: Load) -> Result<()> {
    let socket = socket.as_fd();
    both(|| send_load(socket, load), || receive_load(socket, load))
}

/// Sends everything back until the peer's data ends; a message as one message. Returns
/// the number of bytes.
///
/// # Errors
/// The socket fails.
pub fn echo(socket: impl AsFd) -> Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut echoed = 0;
    loop {
        let length = receive(&socket, &mut buffer).with_context(|| format!("after {echoed} echoed bytes"))?;
        if length == 0 {
            return Ok(echoed);
        }
        send_all(&socket, &buffer[..length]).with_context(|| format!("after {echoed} echoed bytes"))?;
        echoed += length as u64;
    }
}

/// Sends a load, ends its own data, and only then reads the reply to its end.
///
/// # Errors
/// As [`send_load`], [`receive_load`] and [`receive_end`].
pub fn request(socket: impl AsFd, load: Load, reply_bytes: u64) -> Result<()> {
    send_load(&socket, load).context("request")?;
    end_data(&socket)?;
    receive_load(&socket, load.reply(reply_bytes)).context("reply")?;
    receive_end(&socket)
}

/// The other end of [`request`]: replies when the request has ended.
///
/// # Errors
/// As [`request`].
pub fn reply(socket: impl AsFd, load: Load, reply_bytes: u64) -> Result<()> {
    receive_load(&socket, load).context("request")?;
    receive_end(&socket).context("request")?;
    send_load(socket, load.reply(reply_bytes)).context("reply")
}

/// Sends messages of these lengths to an [`echo`] on a SEQPACKET socket and checks that
/// each comes back whole.
///
/// # Errors
/// A message is not what was sent; the message says which one.
pub fn exchange_messages(socket: impl AsFd, seed: u64, lengths: &[usize]) -> Result<()> {
    let socket = socket.as_fd();
    both(|| send_messages(socket, seed, lengths, false), || receive_messages(socket, seed, lengths, false))
}

/// Sends messages of these lengths; with `records`, each third one ends a record
/// (MSG_EOR).
///
/// # Errors
/// The socket fails or takes a message in part.
pub fn send_messages(socket: impl AsFd, seed: u64, lengths: &[usize], records: bool) -> Result<()> {
    for (number, &length) in lengths.iter().enumerate() {
        let bytes = Pattern::new(seed.wrapping_add(number as u64)).bytes(0, length);
        let end = if records && ends_record(number) { SendFlags::EOR } else { SendFlags::empty() };
        let sent = again(|| send(&socket, &bytes, end | SendFlags::NOSIGNAL))
            .with_context(|| format!("send message {number} of {length} bytes"))?;
        ensure!(sent == length, "of message {number} only {sent} of {length} bytes were taken");
    }
    Ok(())
}

/// Receives what [`send_messages`] sends.
///
/// # Errors
/// A message has another length, other bytes or, with `records`, another end.
pub fn receive_messages(socket: impl AsFd, seed: u64, lengths: &[usize], records: bool) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for (number, &length) in lengths.iter().enumerate() {
        let (received, flags) =
            receive_flags(&socket, &mut buffer).with_context(|| format!("receive message {number}"))?;
        ensure!(received == length, "message {number} has {received} bytes, not {length}");
        ensure!(!flags.contains(ReturnFlags::TRUNC), "message {number} is longer than {length} bytes");
        if let Some(place) =
            Pattern::new(seed.wrapping_add(number as u64)).first_difference(0, &buffer[..length])
        {
            bail!("byte {place} of message {number} ({length} bytes) is wrong");
        }
        let ends = flags.contains(ReturnFlags::EOR);
        ensure!(
            !records || ends == ends_record(number),
            "message {number} should {}end its record",
            if ends { "not " } else { "" }
        );
    }
    Ok(())
}

/// Sends a token on each connection, then reads each one's answer: all are under way at
/// once.
///
/// # Errors
/// A socket fails or the answer is another connection's; the message says which.
pub fn ask_tokens<S: AsFd>(sockets: &[S], seed: u64) -> Result<()> {
    for (number, socket) in sockets.iter().enumerate() {
        let token = Pattern::new(seed.wrapping_add(number as u64)).bytes(0, TOKEN_BYTES);
        send_all(socket, &token).with_context(|| format!("token of connection {number}"))?;
    }
    for (number, socket) in sockets.iter().enumerate() {
        let load = Load {
            seed: seed.wrapping_add(number as u64),
            bytes: TOKEN_BYTES as u64,
            write_bytes: TOKEN_BYTES,
        };
        receive_load(socket, load).with_context(|| format!("answer of connection {number}"))?;
    }
    Ok(())
}

/// Sends a token back.
///
/// # Errors
/// The socket fails or ends before a whole token came.
pub fn answer_token(socket: impl AsFd) -> Result<()> {
    let mut token = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < TOKEN_BYTES {
        let length = receive(&socket, &mut token[filled..])?;
        ensure!(length > 0, "the connection ended within a token");
        filled += length;
    }
    send_all(socket, &token)
}

/// Waits until the connection has ended, by a reset or without one.
///
/// # Errors
/// Data comes, or it stays open.
pub fn wait_gone(socket: impl AsFd) -> Result<()> {
    match again(|| recv(&socket, &mut [0; 1], RecvFlags::empty())) {
        Ok((_, 0)) => Ok(()),
        Ok(_) => bail!("data came"),
        Err(error) => match error.downcast_ref::<Errno>() {
            // Linux says ENOTCONN where a reset came before the read.
            Some(&Errno::CONNRESET | &Errno::PIPE | &Errno::NOTCONN) => Ok(()),
            _ => Err(error.context("not a connection's end")),
        },
    }
}

/// Sends until the peer has said that it receives no more; returns the number of bytes.
///
/// # Errors
/// The socket fails in another way.
pub fn send_until_refused(socket: impl AsFd) -> Result<u64> {
    let buffer = [1; 4096];
    let mut sent = 0;
    loop {
        match again(|| send(&socket, &buffer, SendFlags::NOSIGNAL)) {
            Ok(n) => sent += n as u64,
            Err(error) if error.downcast_ref::<Errno>() == Some(&Errno::PIPE) => return Ok(sent),
            Err(error) => return Err(error).with_context(|| format!("after {sent} bytes")),
        }
    }
}

/// Says that nothing more is received here.
///
/// # Errors
/// The system call fails.
pub fn end_receiving(socket: impl AsFd) -> Result<()> {
    shutdown(socket, Shutdown::Read).context("shutdown of the receiving half")
}

/// Says that no more data will come from here (half-close).
///
/// # Errors
/// The system call fails.
pub fn end_data(socket: impl AsFd) -> Result<()> {
    shutdown(socket, Shutdown::Write).context("shutdown of the sending half")
}

/// Reads once; 0 is the end of the peer's data.
fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    let (_, length) = again(|| recv(&socket, &mut *buffer, RecvFlags::empty())).context("receive")?;
    Ok(length)
}

/// Reads once and returns the flags of the message as well.
fn receive_flags(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, ReturnFlags)> {
    let message = again(|| {
        let mut parts = [std::io::IoSliceMut::new(buffer)];
        recvmsg(&socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())
    })?;
    Ok((message.bytes, message.flags))
}

/// Writes everything. A SEQPACKET socket takes a message whole or not at all.
fn send_all(socket: impl AsFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let sent = again(|| send(&socket, bytes, SendFlags::NOSIGNAL)).context("send")?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => bail!("nothing moved for {:?}", super::PATIENCE),
            other => return Ok(other?),
        }
    }
}

/// Runs both at once; the first one's error counts first.
fn both(one: impl FnOnce() -> Result<()> + Send, other: impl FnOnce() -> Result<()>) -> Result<()> {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().unwrap_or_else(|_| bail!("the sending thread panicked"));
        match (one, other) {
            (Ok(()), other) => other,
            (Err(one), Ok(())) => Err(one),
            (Err(one), Err(other)) => Err(one.context(format!("and while receiving: {other:#}"))),
        }
    })
}

fn ends_record(number: usize) -> bool {
    number % RECORD_MESSAGES == RECORD_MESSAGES - 1
}

#[cfg(test)]
mod tests;

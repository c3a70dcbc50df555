//! The copying receive: recv() into one buffer, poll() when there is nothing.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::options::{ClientOptions, ReceiveMode};
use super::output::ClientOutput;
use super::tally::Tally;

/// Sleeps until there is something to read, or the end.
pub fn wait_readable(socket: BorrowedFd<'_>) -> Result<()> {
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("poll"),
        }
    }
}

/// Receives until the end. One dequeue fills the buffer as far as there is something, at least with
/// as many bytes as the low-water mark has: AF_VSOCK's poll() knows that mark, that of a unix
/// socket does not.
pub fn receive(socket: &impl AsFd, options: &ClientOptions) -> Result<ClientOutput> {
    let socket = socket.as_fd();
    let mut buffer = vec![0; options.buffer_bytes()];
    let least = options.lowat() as usize;
    wait_readable(socket)?;
    let mut tally = Tally::begin(options)?;
    let mut ended = false;
    while !ended {
        let mut have = 0;
        let mut begin = Instant::now();
        while have < least {
            match recv(socket, &mut buffer[have..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    ended = true;
                    break;
                }
                Ok((count, _)) => have += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    tally.dequeue += begin.elapsed();
                    wait_readable(socket)?;
                    tally.wake_ups += 1;
                    begin = Instant::now();
                }
                Err(errno) => {
                    return Err(errno)
                        .with_context(|| format!("recv after {} bytes", tally.bytes + have as u64));
                }
            }
        }
        let dequeued = Instant::now();
        tally.dequeue += dequeued - begin;
        if have > 0 {
            tally.dequeues += 1;
            tally.look(&buffer[..have]);
            tally.touch += dequeued.elapsed();
        }
    }
    Ok(tally.end(ReceiveMode::Copy, 0, options.buffer_bytes())?)
}

#[cfg(test)]
mod tests;

//! Connections over the loopback interface, and the thread that sends on them.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::way::Goal;
use crate::cpu::Placement;

/// Bytes of a write, as of iperf3.
const CHUNK: usize = 128 << 10;
/// A sender that can send nowhere looks so often whether the receiver has given up.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The sending ends.
#[derive(Debug)]
pub struct Senders {
    streams: Vec<TcpStream>,
    block: Vec<u8>,
}

/// Makes `count` connections; the receiving ends come second.
pub fn connect(count: usize) -> Result<(Senders, Vec<OwnedFd>)> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("can't listen on the loopback interface")?;
    let address = listener.local_addr()?;
    let (mut streams, mut sockets) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let stream = TcpStream::connect(address).context("can't connect over the loopback interface")?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
        sockets.push(listener.accept()?.0.into());
    }
    let block = (0..CHUNK).map(|i| (i % 251) as u8).collect();
    Ok((Senders { streams, block }, sockets))
}

impl Senders {
    /// The bytes of a run of about `bytes`: the same on each connection.
    pub fn whole(&self, bytes: u64) -> u64 {
        let count = self.streams.len() as u64;
        bytes.div_ceil(count) * count
    }

    /// Sends `bytes` ([`Senders::whole`]) on all connections in turn, a write each, until all is
    /// sent or `goal` is 0: the receiver has given up. Runs on the driver's CPU.
    pub fn send(&mut self, bytes: u64, goal: &Goal, placement: &Placement) -> Result<()> {
        placement.pin_driver()?;
        let each = bytes / self.streams.len().max(1) as u64;
        let mut left: Vec<u64> = vec![each; self.streams.len()];
        let mut open = left.len();
        while open > 0 && goal.bytes() > 0 {
            let mut moved = false;
            for (stream, left) in self.streams.iter_mut().zip(&mut left).filter(|(_, left)| **left > 0) {
                let len = usize::try_from(*left).unwrap_or(CHUNK).min(CHUNK);
                match stream.write(&self.block[..len]) {
                    Ok(n) => {
                        *left -= n as u64;
                        moved = true;
                        open -= usize::from(*left == 0);
                    }
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(e) => return Err(e).context("sending failed"),
                }
            }
            if !moved {
                let open = self.streams.iter().zip(&left).filter(|(_, left)| **left > 0);
                let mut fds: Vec<_> = open.map(|(stream, _)| PollFd::new(stream, PollFlags::OUT)).collect();
                let _ = poll(&mut fds, Some(&TICK));
            }
        }
        Ok(())
    }
}

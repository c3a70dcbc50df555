//! Ways of receiving, and what one run of one of them did.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use zerowire::recv::ZeroCopied;

use super::options::TcpRxOptions;
use super::{bare, library, uring_read};
use crate::words::by_words;

/// How often a way that waits looks whether its goal has changed, or its patience is over.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Ticks without a byte after which a run is given up.
const MOST_TICKS: u32 = 100;

/// A way of receiving, by name. Its text is the one of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WayName {
    /// recv() in a loop, one connection: the floor
    Recv,
    /// select() and read(): what iperf does
    Select,
    /// epoll_wait() and read()
    Epoll,
    /// io_uring, a READ a connection
    UringRead,
    /// library: epoll and recvmsg into leased buffers
    Plain,
    /// library: io_uring multishot receive into leased buffers
    Multishot,
    /// library: io_uring zero-copy interface in copy mode (ZCRX_REG_NODEV)
    Nodev,
    /// library: io_uring zero-copy receive, placed by the NIC
    Queue,
}

by_words!(WayName);

impl WayName {
    /// Whether it can serve that number of connections.
    pub fn serves(self, connections: usize) -> bool {
        self != Self::Recv || connections == 1
    }
}

/// How many bytes there are to receive; an external client tells when it has sent them.
#[derive(Debug)]
pub struct Goal(AtomicU64);

impl Goal {
    /// A goal of this many bytes.
    pub fn of(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Not known yet.
    pub fn open() -> Self {
        Self::of(u64::MAX)
    }

    /// It is known now.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// So far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What one run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Payload received.
    pub bytes: u64,
    /// Of this, bytes that the NIC placed.
    pub zero_copied: u64,
    /// Whether that figure is exact.
    pub zero_copied_is: ZeroCopied,
    /// System calls of the receiving thread.
    pub calls: u64,
    /// Reads that gave data, completions, or leases.
    pub pieces: u64,
}

/// One way on its connections.
pub trait TcpWay {
    /// Receives until the goal is reached; looks at every byte if `touch`. The figures are of this
    /// call alone.
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally>;

    /// What runs, where it says more than the name.
    fn path(&self) -> String {
        String::new()
    }
}

/// Opens a way on connected sockets, which it owns.
pub fn open(name: WayName, sockets: Vec<OwnedFd>, options: &TcpRxOptions) -> Result<Box<dyn TcpWay>> {
    Ok(match name {
        WayName::Recv => Box::new(bare::Recv::new(sockets, options.read_bytes)?),
        WayName::Select => Box::new(bare::Select::new(sockets, options.read_bytes)?),
        WayName::Epoll => Box::new(bare::Epoll::new(sockets, options.read_bytes)?),
        WayName::UringRead => Box::new(uring_read::UringRead::new(sockets, options.read_bytes)?),
        library => Box::new(library::Library::new(library, sockets, options)?),
    })
}

/// Gives a run up that gets nothing for long.
#[derive(Debug, Default)]
pub(super) struct Patience {
    ticks: u32,
    seen: u64,
}

impl Patience {
    /// A tick passed; `tally` has the bytes until now.
    pub(super) fn tick(&mut self, tally: &Tally, goal: &Goal) -> Result<()> {
        self.ticks = if tally.bytes == self.seen { self.ticks + 1 } else { 0 };
        self.seen = tally.bytes;
        if self.ticks >= MOST_TICKS {
            let seconds = (TICK * MOST_TICKS).as_secs();
            match goal.bytes() {
                u64::MAX => bail!("{} bytes came, and then nothing for {seconds} s", tally.bytes),
                all => bail!("{} of {all} bytes came, and then nothing for {seconds} s", tally.bytes),
            }
        }
        Ok(())
    }
}

/// Looks at every byte, as a program that uses the data does. Not elided: the result is opaque to
/// the compiler.
pub(super) fn touch_all(bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    let sum = rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
    std::hint::black_box(sum);
}

/// An end of the stream in the middle of a run.
pub(super) fn ended(tally: &Tally) -> anyhow::Error {
    anyhow::Error::from(io::Error::from(io::ErrorKind::UnexpectedEof))
        .context(format!("the sender closed a connection after {} bytes of all", tally.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_and_bytes_renew_it() {
        let (goal, mut patience) = (Goal::of(10), Patience::default());
        let mut tally = Tally::default();
        for _ in 0..MOST_TICKS - 1 {
            patience.tick(&tally, &goal).unwrap();
        }
        tally.bytes = 3;
        patience.tick(&tally, &goal).unwrap();
        let error = (0..MOST_TICKS).find_map(|_| patience.tick(&tally, &goal).err()).unwrap().to_string();
        assert!(error.contains("3 of 10 bytes"), "{error}");
    }
}

//! What is measured: a direction, a length of writes, a credit, a working set.

use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use zerowire_guest::vsock::SocketType;

use crate::amount::amount;
use crate::case::{Direction, WorkingSet};
use crate::table::bytes;
use crate::words::wrong;

/// Bytes of a receive buffer of a Linux guest, give or take, header included
/// (include/linux/virtio_vsock.h, `VIRTIO_VSOCK_DEFAULT_RX_BUF_SIZE`).
pub const RX_BUFFER: u32 = 4096;

/// Entries of each queue: what QEMU gives.
pub const QUEUE_SIZE: u16 = 128;

/// Credit of a connection where no case says another: what a back end gives by default.
pub const CREDIT: u32 = 256 << 10;

/// Bytes of a write where no case says others.
pub const WRITE_LEN: usize = 64 << 10;

/// The longest write that can be asked for.
const LONGEST_WRITE: usize = 4 << 20;

/// Messages of a sample at most: short ones cost by their number. Of a quick one and of a warm-up a
/// quarter.
const MESSAGES: usize = 64 << 10;

/// The type of the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SocketKind {
    /// SOCK_STREAM: bytes without bounds.
    #[default]
    Stream,
    /// SOCK_SEQPACKET: each write is a message, each read takes one.
    Seqpacket,
}

impl SocketKind {
    /// The guest's type.
    pub fn guest(self) -> SocketType {
        match self {
            Self::Stream => SocketType::Stream,
            Self::Seqpacket => SocketType::SeqPacket,
        }
    }

    /// Lengths of writes to measure. No message may be longer than a connection's credit.
    pub fn writes(self) -> Vec<usize> {
        match self {
            Self::Stream => vec![4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10],
            Self::Seqpacket => vec![64, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
        }
    }

    /// What a write is called.
    fn unit(self) -> &'static str {
        match self {
            Self::Stream => "writes",
            Self::Seqpacket => "messages",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VsockCase {
    /// Which way: transmit is guest to host.
    pub direction: Direction,
    /// Bytes of each write of the sending program, and of the buffer that the receiving one reads
    /// into.
    pub write_len: usize,
    /// Bytes that the receiving side of a connection gives to the sending one: the back end to the
    /// guest, the guest to the back end.
    pub credit: u32,
    /// How much memory the payload takes on the guest's side.
    pub working_set: WorkingSet,
    /// The type of the sockets.
    pub socket: SocketKind,
}

impl VsockCase {
    /// All combinations. Refuses lengths that can't be.
    pub fn all(
        socket: SocketKind,
        directions: &[Direction],
        writes: &[usize],
        credits: &[u32],
        working_sets: &[WorkingSet],
    ) -> Result<Vec<Self>> {
        if let Some(len) = writes.iter().find(|len| !(1..=LONGEST_WRITE).contains(*len)) {
            wrong!("a write of {len} bytes: choose 1 to {LONGEST_WRITE}");
        }
        if let Some(credit) = credits.iter().find(|credit| !(4096..=16 << 20).contains(*credit)) {
            wrong!("a credit of {credit} bytes: choose 4096 to 16777216");
        }
        if socket == SocketKind::Seqpacket
            && let Some(credit) = credits.iter().min()
            && let Some(len) = writes.iter().find(|len| **len > *credit as usize)
        {
            wrong!(
                "messages of {len} bytes: longer than the credit of {credit}; choose shorter ones (--writes) or more credit \
                 (--credit)"
            );
        }
        let mut cases = Vec::new();
        for &direction in directions {
            for &credit in credits {
                for &working_set in working_sets {
                    for &write_len in writes {
                        cases.push(Self { direction, write_len, credit, working_set, socket });
                    }
                }
            }
        }
        Ok(cases)
    }

    /// Bytes of memory that the payload on the guest's side walks through, on the floor's measured
    /// side as well. A write is never longer than it. Hot receive buffers are as many as the queue
    /// holds: with fewer the queue would run empty.
    pub fn set_bytes(&self) -> usize {
        let least = match self.direction {
            Direction::Transmit => self.write_len,
            Direction::Receive => self.write_len.max(usize::from(QUEUE_SIZE) * RX_BUFFER as usize),
        };
        self.working_set.bytes().max(least)
    }

    /// Bytes of one sample, whole writes: 10 to 100 ms of CPU time.
    pub fn sample_bytes(&self, quick: bool) -> usize {
        let bytes = amount(if self.write_len < 16 << 10 { 48 << 20 } else { 96 << 20 });
        if quick { self.whole_writes(bytes / 3, MESSAGES / 4) } else { self.whole_writes(bytes, MESSAGES) }
    }

    /// Bytes that warm caches and queues before anything counts, whole writes. Their content is
    /// checked.
    pub fn warm_up_bytes(&self) -> usize {
        self.whole_writes(amount(8 << 20), MESSAGES / 4)
    }

    fn whole_writes(&self, bytes: usize, messages: usize) -> usize {
        let writes = (bytes / self.write_len).max(1);
        let most = if self.socket == SocketKind::Seqpacket { amount(messages) } else { usize::MAX };
        writes.min(most) * self.write_len
    }
}

impl fmt::Display for VsockCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = self.direction.arrow();
        write!(
            f,
            "{way}, {} {}, {} credit, {}",
            bytes(self.write_len),
            self.socket.unit(),
            bytes(self.credit as usize),
            self.working_set
        )
    }
}

#[cfg(test)]
mod tests;

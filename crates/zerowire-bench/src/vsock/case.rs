//! What is measured: a direction, a length of writes, a credit, a working set.

use std::fmt;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::case::{Direction, WorkingSet};
use crate::table::bytes;

/// Bytes of a receive buffer of a Linux guest, give or take, header included
/// (include/linux/virtio_vsock.h, `VIRTIO_VSOCK_DEFAULT_RX_BUF_SIZE`).
pub const RX_BUFFER: u32 = 4096;

/// Entries of each queue: what QEMU gives.
pub const QUEUE_SIZE: u16 = 128;

/// The longest write that can be asked for.
const LONGEST_WRITE: usize = 4 << 20;

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VsockCase {
    /// Which way: transmit is guest to host.
    pub direction: Direction,
    /// Bytes of each write of the sending program, and of the buffer that the receiving one reads into.
    pub write_len: usize,
    /// Bytes that the receiving side of a connection gives to the sending one: the back end to the
    /// guest, the guest to the back end.
    pub credit: u32,
    /// How much memory the payload takes on the guest's side.
    pub working_set: WorkingSet,
}

impl VsockCase {
    /// All combinations. Refuses lengths that can't be.
    pub fn all(
        directions: &[Direction],
        writes: &[usize],
        credits: &[u32],
        working_sets: &[WorkingSet],
    ) -> Result<Vec<Self>> {
        if let Some(len) = writes.iter().find(|len| !(1..=LONGEST_WRITE).contains(*len)) {
            bail!("a write of {len} bytes: choose 1 to {LONGEST_WRITE}");
        }
        if let Some(credit) = credits.iter().find(|credit| !(4096..=16 << 20).contains(*credit)) {
            bail!("a credit of {credit} bytes: choose 4096 to 16777216");
        }
        let mut cases = Vec::new();
        for &direction in directions {
            for &credit in credits {
                for &working_set in working_sets {
                    for &write_len in writes {
                        cases.push(Self { direction, write_len, credit, working_set });
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
        let bytes = if self.write_len < 16 << 10 { 48 << 20 } else { 96 << 20 };
        self.whole_writes(if quick { bytes / 3 } else { bytes })
    }

    /// Bytes that warm caches and queues before anything counts, whole writes. Their content is
    /// checked.
    pub fn warm_up_bytes(&self) -> usize {
        self.whole_writes(8 << 20)
    }

    fn whole_writes(&self, bytes: usize) -> usize {
        (bytes / self.write_len).max(1) * self.write_len
    }
}

impl fmt::Display for VsockCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.direction {
            Direction::Transmit => "guest -> host",
            Direction::Receive => "host -> guest",
        };
        write!(
            f,
            "{way}, {} writes, {} credit, {}",
            bytes(self.write_len),
            bytes(self.credit as usize),
            self.working_set
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_multiply_out_and_lengths_are_checked() {
        let all = |writes: &[usize], credits: &[u32]| {
            VsockCase::all(&Direction::ALL, writes, credits, &WorkingSet::ALL)
        };
        let cases = all(&[4096, 65_536], &[65_536, 262_144]).unwrap();
        assert_eq!(cases.len(), 16);
        assert_eq!(cases[0].to_string(), "guest -> host, 4 KiB writes, 64 KiB credit, hot");
        assert!(all(&[0], &[65_536]).unwrap_err().to_string().contains("0 bytes"));
        assert!(all(&[4096], &[100]).unwrap_err().to_string().contains("100"));
    }

    #[test]
    fn samples_are_whole_writes_and_fit_the_set() {
        for direction in Direction::ALL {
            for write_len in [1, 4096, 5000, 512 << 10, 4 << 20] {
                let case = VsockCase { direction, write_len, credit: 65_536, working_set: WorkingSet::Hot };
                for bytes in [case.sample_bytes(true), case.sample_bytes(false), case.warm_up_bytes()] {
                    assert!(bytes > 0 && bytes.is_multiple_of(write_len));
                }
                assert!(case.set_bytes() >= write_len);
            }
        }
    }
}

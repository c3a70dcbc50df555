//! What a caller can choose.

use std::path::PathBuf;

use super::case::{RX_BUFFER, SocketKind};
use super::host::HostCpu;
use crate::case::{Direction, WorkingSet};
use crate::experiment::Files;
use crate::programs::NamedProgram;

/// Options of [`crate::run_vsock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VsockBenchOptions {
    /// Less of everything: under a minute instead of some minutes. Of `writes` only the first, one
    /// in the middle and the last are taken.
    pub quick: bool,
    /// Rounds of each case; `None`: 9, or 3 when quick.
    pub rounds: Option<usize>,
    /// The type of the sockets. Round trips, guest to guest, many and idle connections, and
    /// attacks, are measured of streams only.
    pub socket: SocketKind,
    /// Lengths of writes in bytes, of messages where there are messages.
    pub writes: Vec<usize>,
    /// Which ways.
    pub directions: Vec<Direction>,
    /// Credits of a connection in bytes, for back end and guest.
    pub credits: Vec<u32>,
    /// Which working sets.
    pub working_sets: Vec<WorkingSet>,
    /// The two ends of a connection.
    pub ends: EndOptions,
    /// Numbers of idle connections whose memory is measured; empty leaves the part out.
    pub idle_connections: Vec<usize>,
    /// Whether to measure round trips, guest to guest, many connections with a stalled one, and
    /// attacks.
    pub extras: bool,
    /// The program whose `vsock` command is measured; `None` measures the floor alone.
    pub program: Option<PathBuf>,
    /// Programs that are measured in turns in its place; the others are set beside the first one.
    pub programs: Vec<NamedProgram>,
    /// Further variants of the back end: each the arguments behind `vsock`, separated by blanks.
    pub variants: Vec<String>,
    /// Where the report goes besides the text.
    pub files: Files,
}

/// How the guest and the host's program are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndOptions {
    /// Bytes of the guest's receive buffers, header included.
    pub rx_buffer: u32,
    /// Where the host's program runs.
    pub host_cpu: HostCpu,
    /// Whether to measure a guest that sleeps as well as one that polls.
    pub sleeping_guest: bool,
}

impl Default for EndOptions {
    fn default() -> Self {
        Self { rx_buffer: RX_BUFFER, host_cpu: HostCpu::default(), sleeping_guest: true }
    }
}

impl Default for VsockBenchOptions {
    fn default() -> Self {
        Self {
            quick: false,
            rounds: None,
            socket: SocketKind::default(),
            writes: SocketKind::default().writes(),
            directions: Direction::ALL.to_vec(),
            credits: vec![64 << 10, 256 << 10],
            working_sets: WorkingSet::ALL.to_vec(),
            ends: EndOptions::default(),
            idle_connections: vec![1, 100, 1000],
            extras: true,
            program: None,
            programs: Vec::new(),
            variants: Vec::new(),
            files: Files::default(),
        }
    }
}

impl VsockBenchOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 })
    }

    /// Lengths of writes, thinned out when quick.
    pub fn write_lens(&self) -> Vec<usize> {
        let all = &self.writes;
        if !self.quick || all.len() <= 3 {
            return all.clone();
        }
        vec![all[0], all[(all.len() - 1) / 2], all[all.len() - 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_fewer_rounds_and_writes() {
        let full = VsockBenchOptions::default();
        let quick = VsockBenchOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds());
        assert_eq!(quick.write_lens(), [4096, 65_536, 524_288]);
        assert_eq!(full.write_lens().len(), 6);
    }
}

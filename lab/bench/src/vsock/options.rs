//! What a caller can choose: the arguments of `zerowire-bench vsock`.

use std::path::PathBuf;

use clap::Args;

use super::case::{RX_BUFFER, SocketKind};
use super::host::HostCpu;
use crate::case::{Direction, WorkingSet};
use crate::experiment::Files;
use crate::programs::{NamedProgram, percent};
use crate::words::defaults;

/// Options of [`crate::run_vsock`].
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Measures CPU seconds a GB (10^9 bytes) of all threads of the back end and of the host's program, driven by a guest without a \
VM; variants are interleaved, every byte is accounted for, the content of the first ones is checked. hot is a working set of \
256 KiB (512 KiB where the guest receives), cold one of 64 MiB. Needs no privileges and makes no network device. Takes some \
minutes; with --quick less than one.\n\
\n\
With --type seqpacket (SOCK_SEQPACKET) the floors are pairs of unix sockets of that type, and the tables also have messages a \
second and the back end's system calls a message, its waits left out; round trips, guest to guest, many and idle connections are \
measured with --type stream only.")]
pub struct VsockBenchOptions {
    /// Fewer rounds, fewer lengths.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each case [default: 9, with --quick 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Sockets of the guest and of the host's program: stream, or seqpacket, where each write is a
    /// message.
    #[arg(long = "type", default_value = "stream", hide_possible_values = true, value_name = "TYPE")]
    pub socket: SocketKind,
    /// Bytes of each write, up to 4194304, or of each message, up to the credit and to what a unix
    /// socket takes [default: 4096,16384,65536,131072,262144,524288; with --type seqpacket
    /// 64,1024,4096,16384,65536].
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…")]
    pub writes: Vec<usize>,
    /// tx (guest to host), rx, or both.
    #[arg(
        long = "direction",
        value_delimiter = ',',
        default_value = "tx,rx",
        hide_possible_values = true,
        value_name = "WAY,…"
    )]
    pub directions: Vec<Direction>,
    /// Credit of a connection, for the back end (--buffer) and for the guest.
    #[arg(long = "credit", value_delimiter = ',', value_name = "BYTES,…", default_values_t = [64 << 10, 256 << 10])]
    pub credits: Vec<u32>,
    /// hot, cold or both.
    #[arg(
        long = "working-set",
        value_delimiter = ',',
        default_value = "hot,cold",
        hide_possible_values = true,
        value_name = "SET,…"
    )]
    pub working_sets: Vec<WorkingSet>,
    /// The two ends of a connection.
    #[command(flatten)]
    pub ends: EndOptions,
    /// Numbers of idle connections whose memory is measured, each up to 8192; 0 leaves the part
    /// out.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 100, 1000])]
    pub idle: Vec<usize>,
    /// Leave out round trips, guest to guest, many connections, and attacks.
    #[arg(long)]
    pub no_extras: bool,
    /// What is measured beside the floor.
    #[command(flatten)]
    pub which: VsockVariants,
    /// The program whose `vsock` is measured where none is named; `None` measures the floor alone.
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

/// What is measured beside the floor.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct VsockVariants {
    /// Measure these programs in turns in place of the one beside this: --program before=PATH
    /// --program after=PATH. Each is set beside the first (/before). Options behind PATH go to that
    /// program alone: 'on=PATH --sandbox on'. Only streams, or messages, of one connection.
    #[arg(long = "program", value_name = "NAME=PATH", conflicts_with = "floor_only")]
    pub programs: Vec<NamedProgram>,
    /// With --program: end with status 1 if a further program takes more than PERCENT more CPU time
    /// than the first one in a case. The lower quartile of the ratios (/before) counts.
    #[arg(long, value_name = "PERCENT", requires = "programs", value_parser = percent)]
    pub gate: Option<f64>,
    /// A further variant of the back end, as arguments of 'zerowire vsock'. Repeat for more.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub with: Vec<String>,
    /// Measure the floor alone.
    #[arg(long)]
    pub floor_only: bool,
}

/// How the guest and the host's program are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct EndOptions {
    /// Bytes of the guest's receive buffers, header included, 128 to 65536.
    #[arg(long, default_value_t = RX_BUFFER, value_name = "BYTES")]
    pub rx_buffer: u32,
    /// CPU of the host's program: backend (the back end's), guest (the guest's), or any.
    #[arg(long, default_value = "backend", hide_possible_values = true, value_name = "CPU")]
    pub host_cpu: HostCpu,
    /// Leave out the guest that sleeps until an interrupt.
    #[arg(long)]
    pub no_sleeping_guest: bool,
}

impl Default for VsockBenchOptions {
    fn default() -> Self {
        defaults()
    }
}

impl VsockBenchOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 })
    }

    /// Lengths of writes, thinned out when quick.
    pub fn write_lens(&self) -> Vec<usize> {
        let usual = self.socket.writes();
        let all = if self.writes.is_empty() { &usual } else { &self.writes };
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

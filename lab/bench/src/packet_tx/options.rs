//! What a caller can choose: the arguments of `zerowire-bench packet-tx`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::case::{Column, PAYLOADS, SinkKind, TxCase};
use crate::case::WorkingSet;
use crate::experiment::Files;
use crate::words::{defaults, verify_rounds};

/// Options of [`super::run_packet_tx`].
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "\
Rows are payload lengths, columns ways of sending; each column is measured as a loop of bare system calls and through the library. \
Whole frames: send, sendmmsg, ring, ring-copied, xdp. UDP: udp, zc, zc-batched, send-zc, send-zc-fixed, auto.\n\
\n\
The ifb sink takes lent memory as it is and drops every frame. The veth sink is the negative control: a UDP socket reads \
everything, and the kernel copies lent memory for it. hot is a working set of 256 KiB, cold one of 64 MiB; columns are interleaved \
round by round, every frame or byte is accounted for. Needs root. Makes namespaces and devices of its own and touches no other. Takes some minutes; with --quick about one. See \
docs/packet-tx.md.")]
pub struct PacketTxOptions {
    /// Fewer rounds, a quarter of the sends.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each row [default: 9, with --quick 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Payload lengths, 1 to 65000 bytes. Frames longer than an MTU of 1500 carry a virtio-net
    /// header, to be cut.
    #[arg(long, value_delimiter = ',', default_values_t = PAYLOADS, value_name = "BYTES,…")]
    pub sizes: Vec<usize>,
    /// ifb, veth or both.
    #[arg(
        long = "sink",
        value_delimiter = ',',
        default_value = "ifb,veth",
        hide_possible_values = true,
        value_name = "SINK,…"
    )]
    pub sinks: Vec<SinkKind>,
    /// hot, cold or both.
    #[arg(
        long = "working-set",
        value_delimiter = ',',
        default_value = "hot,cold",
        hide_possible_values = true,
        value_name = "SET,…"
    )]
    pub working_sets: Vec<WorkingSet>,
    /// Which columns.
    #[arg(long, value_delimiter = ',', default_values_t = Column::value_variants().to_vec(),
        hide_possible_values = true, value_name = "COLUMN,…")]
    pub columns: Vec<Column>,
    /// Measure the bare system calls alone.
    #[arg(long)]
    pub floor_only: bool,
    /// Sends of each side when auto is compared with copying and lending; 0 leaves that out
    /// [default: 100000, with --quick 20000].
    #[arg(long, value_name = "N")]
    pub auto_sends: Option<usize>,
    /// Beside the table.
    #[command(flatten)]
    pub more: MoreParts,
    /// Where the report goes besides the text.
    #[command(flatten)]
    pub files: Files,
}

/// What is measured beside the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct MoreParts {
    /// Find the share of CPU time in copy routines, with perf.
    #[arg(long)]
    pub cycles: bool,
    /// Compare 'zerowire replay' with tcpreplay, 64 and 1400 bytes a frame.
    #[arg(long)]
    pub replay: bool,
    /// The program whose `replay` is run.
    #[arg(skip)]
    pub program: Option<PathBuf>,
}

impl Default for PacketTxOptions {
    fn default() -> Self {
        defaults()
    }
}

impl PacketTxOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 })
    }

    /// Sends of each side of the comparison of Auto; 0: it is left out.
    pub fn auto_sends(&self) -> usize {
        match self.columns.contains(&Column::Auto) && !self.floor_only {
            true => self.auto_sends.unwrap_or(if self.quick { 20_000 } else { 100_000 }),
            false => 0,
        }
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        verify_rounds(self.rounds())?;
        TxCase::all(&self.sinks, &self.working_sets, &self.sizes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_less_and_impossible_options_are_named() {
        let full = PacketTxOptions::default();
        full.verify().unwrap();
        let quick = PacketTxOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds() && quick.auto_sends() < full.auto_sends());
        assert_eq!(full.auto_sends(), 100_000);
        let without = PacketTxOptions { columns: vec![Column::Udp], ..full.clone() };
        assert_eq!(without.auto_sends(), 0);
        let refused = |options: PacketTxOptions| options.verify().unwrap_err().to_string();
        assert!(refused(PacketTxOptions { rounds: Some(0), ..full.clone() }).contains("at least 1"));
        assert!(refused(PacketTxOptions { sizes: vec![70_000], ..full }).contains("70000"));
    }
}

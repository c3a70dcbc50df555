//! `zerowire-bench packet-tx`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use zerowire_bench::packet_tx::case::PAYLOADS;
use zerowire_bench::packet_tx::{Column, PacketTxOptions, SinkKind, run_packet_tx};

use super::{parse, working_sets};

#[derive(Args, Debug)]
#[command(after_help = "\
Rows are payload lengths, columns ways of sending; each column is measured as a loop of bare system calls and through the library. \
Whole frames: send, sendmmsg, ring, ring-copied, xdp. UDP: udp, zc, zc-batched, send-zc, send-zc-fixed, auto.\n\
\n\
The ifb sink takes lent memory as it is and drops every frame. The veth sink is the negative control: a UDP socket reads \
everything, and the kernel copies lent memory for it. hot is a working set of 256 KiB, cold one of 64 MiB; columns are interleaved \
round by round, every frame or byte is accounted for. Needs root. Makes namespaces and devices of its own and touches no other. Takes some minutes; with --quick about one. See \
docs/packet-tx.md.")]
pub struct PacketTxArgs {
    /// Fewer rounds, a quarter of the sends.
    #[arg(long)]
    quick: bool,
    /// Rounds of each row [default: 9, with --quick 3].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Payload lengths, 1 to 65000 bytes. Frames longer than an MTU of 1500 carry a virtio-net
    /// header, to be cut.
    #[arg(long, value_delimiter = ',', default_values_t = PAYLOADS, value_name = "BYTES,…")]
    sizes: Vec<usize>,
    /// ifb, veth or both.
    #[arg(long, value_delimiter = ',', value_name = "SINK,…", default_values_t = SinkKind::ALL.map(|sink| sink.to_string()))]
    sink: Vec<String>,
    /// hot, cold or both.
    #[arg(long, value_delimiter = ',', value_name = "SET,…", default_values_t = ["hot".to_owned(), "cold".to_owned()])]
    working_set: Vec<String>,
    /// Which columns.
    #[arg(long, value_delimiter = ',', value_name = "COLUMN,…", default_values_t = Column::ALL.map(|column| column.to_string()))]
    columns: Vec<String>,
    /// Measure the bare system calls alone.
    #[arg(long)]
    floor_only: bool,
    /// Sends of each side when auto is compared with copying and lending; 0 leaves that out
    /// [default: 100000, with --quick 20000].
    #[arg(long, value_name = "N")]
    auto_sends: Option<usize>,
    /// Find the share of CPU time in copy routines, with perf.
    #[arg(long)]
    cycles: bool,
    /// Compare 'zerowire replay' with tcpreplay, 64 and 1400 bytes a frame.
    #[arg(long)]
    replay: bool,
    #[command(flatten)]
    files: super::FilesArgs,
}

/// Runs the command.
pub fn run(args: PacketTxArgs) -> Result<ExitCode> {
    let program = if args.replay { super::measured_program(false)? } else { None };
    let options = PacketTxOptions {
        quick: args.quick,
        rounds: args.rounds,
        sizes: args.sizes,
        sinks: parse::<SinkKind>(&args.sink)?,
        working_sets: working_sets(&args.working_set)?,
        columns: parse::<Column>(&args.columns)?,
        floor_only: args.floor_only,
        auto_sends: args.auto_sends,
        cycles: args.cycles,
        replay: args.replay,
        program,
        files: args.files.into(),
    };
    let report = run_packet_tx(&options, &mut *super::output(&options.files.json))?;
    Ok(super::status(&report.failures(), &[]))
}

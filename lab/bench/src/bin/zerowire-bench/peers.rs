//! `zerowire-bench peers`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use zerowire_bench::experiment::Files;
use zerowire_bench::peers::{ComparedPart, NamedPeer, PeersOptions, run_peers};

#[derive(Args, Debug)]
#[command(after_help = "\
net: 'zerowire net' and dpdk-testpmd (vhost-user to a tap), driven by a guest without a VM. udp: the same device and passt, from \
a guest to a socket. vsock: 'zerowire vsock' and \
vhost-device-vsock. replay: 'zerowire replay' and tcpreplay, one capture to an ifb device. tcp: 'zerowire send' and 'recv', and \
iperf3, over a veth pair.\n\
\n\
CPU time is that of all threads of a program. Programs take turns in each round; a ratio is that of one round, the other program's \
figure divided by ours. Every frame and byte is accounted for. A program that is not installed is named with its package. Needs \
root, and makes namespaces and devices of its own; vsock alone needs no privilege. Takes about 9 minutes; with --quick less than one. \
See docs/peers.md.")]
pub struct PeersArgs {
    /// Fewer rounds, less in each, hot working sets only.
    #[arg(long)]
    quick: bool,
    /// Rounds of each row [default: 15, with --quick 3].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Which parts: net, udp, vsock, replay, tcp.
    #[arg(long, value_delimiter = ',', value_name = "PART,…", default_values_t = ComparedPart::ALL)]
    parts: Vec<ComparedPart>,
    /// Another file than the one in PATH for dpdk-testpmd, passt, vhost-device-vsock, tcpreplay or
    /// iperf3. Repeat for more.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<NamedPeer>,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(args: PeersArgs) -> Result<ExitCode> {
    let program = super::measured_program(false)?.context("no program zerowire")?;
    let options = PeersOptions {
        quick: args.quick,
        rounds: args.rounds,
        parts: args.parts,
        peers: args.peers,
        files: args.files,
        ..PeersOptions::new(program)
    };
    let report = run_peers(&options, &mut *super::output(&options.files.json))?;
    Ok(super::status(&report.failures(), &[]))
}

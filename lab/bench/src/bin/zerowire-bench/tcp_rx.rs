//! `zerowire-bench tcp-rx`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use zerowire_bench::WrongArguments;
use zerowire_bench::tcp_rx::options::CONNECTIONS;
use zerowire_bench::tcp_rx::{Client, TcpRxOptions, WayName, run_tcp_rx};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClientArg {
    /// A thread of this process, over the loopback interface of a namespace of its own.
    Own,
    /// iperf3 clients that send TCP here, one test after the other.
    External,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Ways: recv (one connection only: the floor), select (select and read, what iperf does), epoll (epoll and read), uring-read \
(io_uring, a READ a connection); of the library: plain, multishot, nodev (the zero-copy interface \
in copy mode), queue (placed by the NIC). A way that this kernel doesn't have is named with the reason.\n\
\n\
CPU time is that of the receiving thread; memory traffic is measured where the machine has hardware counters. Ways are \
interleaved round by round, every byte is accounted for. With its own sender it needs root, or 'unshare -Urn zerowire-bench \
tcp-rx', and makes a network namespace of its own. With --client external it listens at -p, and each test of iperf3 is one run of one \
way: it says how many are needed. Bytes reach a NIC's queue only so. Limits: 480 connections, 128 with iperf3; TCP towards this \
side only (no -u, -R, --bidir).\n\
\n\
Examples:\n  zerowire-bench tcp-rx --quick\n  zerowire-bench tcp-rx --connections 256 --ways epoll,multishot --touch\n  \
zerowire-bench tcp-rx --client external -p 5201 -i eth1 -q 20")]
pub struct TcpRxArgs {
    /// Fewer rounds, an eighth of the bytes.
    #[arg(long)]
    quick: bool,
    /// Rounds of each case [default: 9; with --quick or --client external 3].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Megabytes (of 1000000 bytes) of a run, of all connections together [default: 512, with
    /// --quick 64].
    #[arg(long, value_name = "N", conflicts_with = "port")]
    megabytes: Option<u64>,
    /// Numbers of connections, 1 to 480 each [default: 1,16,256].
    #[arg(long, value_delimiter = ',', value_name = "N,…", conflicts_with = "port")]
    connections: Vec<usize>,
    /// Which ways [default: all, queue only with -i and -q].
    #[arg(long, value_delimiter = ',', value_name = "WAY,…")]
    ways: Vec<String>,
    /// Bytes of a read() or recv() of the ways without the library (iperf3 takes 131072).
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    read: usize,
    /// Look at every byte, as a program that uses the data does.
    #[arg(long)]
    touch: bool,
    /// Network interface of the way queue; with -q.
    #[arg(short, long, value_name = "IF", requires = "queue")]
    interface: Option<String>,
    /// Its receive queue.
    #[arg(short, long, value_name = "QUEUE", requires = "interface")]
    queue: Option<u32>,
    /// Where the bytes come from.
    #[arg(long, value_enum, default_value = "own")]
    client: ClientArg,
    /// With --client external: TCP port to listen at [default: 5201].
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// With --client external: address to listen at.
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    bind: String,
    #[command(flatten)]
    files: super::FilesArgs,
}

/// Runs the command.
pub fn run(args: TcpRxArgs) -> Result<ExitCode> {
    let client = match (args.client, args.port) {
        (ClientArg::Own, None) => Client::Own,
        (ClientArg::Own, Some(port)) => {
            let text = format!("-p {port} is for --client external: the own sender needs no port");
            return Err(WrongArguments(text).into());
        }
        (ClientArg::External, port) => Client::External { bind: args.bind, port: port.unwrap_or(5201) },
    };
    let connections = if args.connections.is_empty() { CONNECTIONS.to_vec() } else { args.connections };
    let ways = super::parse::<WayName>(&args.ways)?;
    let options = TcpRxOptions {
        quick: args.quick,
        rounds: args.rounds,
        megabytes: args.megabytes,
        connections,
        ways: Some(ways).filter(|w| !w.is_empty()),
        read_bytes: args.read,
        touch: args.touch,
        queue: args.interface.zip(args.queue),
        client,
        files: args.files.into(),
    };
    let report = run_tcp_rx(&options, &mut *super::output(&options.files.json))?;
    Ok(super::status(&report.failures(), &[]))
}

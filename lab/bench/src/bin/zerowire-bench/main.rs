//! The program `zerowire-bench`: measures this machine, each path against the bare system calls.
// They panic where nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[cfg(test)]
mod manual;
mod render;
mod vsock_rx;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
use zerowire_bench::ab::{AbOptions, run_ab};
use zerowire_bench::amount;
use zerowire_bench::experiment::beyond_gate;
use zerowire_bench::packet_tx::{PacketTxOptions, run_packet_tx};
use zerowire_bench::peers::find::in_path;
use zerowire_bench::peers::{PeersOptions, run_peers};
use zerowire_bench::ports::run_ports;
use zerowire_bench::table::fit_tables;
use zerowire_bench::tcp_rx::{TcpRxOptions, run_tcp_rx};
use zerowire_bench::{NetOptions, PortKind, VsockBenchOptions, held, run_net, run_vsock};
use zerowire_cli::columns::{Fitting, width};
use zerowire_cli::{logging, outcome, tips};

/// Measure this machine: each path of zerowire against the bare system calls.
#[derive(Parser)]
#[command(name = "zerowire-bench", version, about, max_term_width = 110)]
#[command(
    after_help = "The program that is measured is the 'zerowire' beside this one, else the one in PATH."
)]
struct BenchCli {
    #[command(subcommand)]
    what: What,
    /// What to log to standard error: error, warn, info, debug or trace.
    #[arg(long, global = true, default_value = "info", value_name = "LEVEL", hide_possible_values = true,
        value_parser = logging::LEVELS)]
    log: String,
}

#[derive(Subcommand, Debug)]
enum What {
    /// The net device against a bare loop of write() or read() on the same tap, or its AF_XDP and
    /// packet ports against bare loops over a veth pair, in a network namespace of its own.
    Net(Box<NetOptions>),
    /// The vsock device against the same bytes through a pair of unix sockets, in the same write
    /// lengths.
    Vsock(Box<VsockBenchOptions>),
    /// How fast a program receives by vsock: by copying, in mapped windows, sleeping and polling;
    /// in a guest as well.
    VsockRx(Box<vsock_rx::VsockRxArgs>),
    /// Sending to a network device, copying and lending: packet sockets, rings, AF_XDP, UDP with
    /// MSG_ZEROCOPY and io_uring.
    PacketTx(Box<PacketTxOptions>),
    /// Receiving TCP: select and read as iperf does, epoll, io_uring, and the library's ways, on 1
    /// to 256 connections.
    TcpRx(Box<TcpRxOptions>),
    /// zerowire beside other programs that do the same work: dpdk-testpmd, passt,
    /// vhost-device-vsock, tcpreplay, iperf3.
    Peers(Box<PeersOptions>),
    /// Two builds of this program in turns: what a change of the library costs.
    Ab(Box<AbOptions>),
    /// Write the tables and charts of the measurement pages from their JSON.
    Render(render::RenderArgs),
}

fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    let cli =
        BenchCli::try_parse_from(&line).unwrap_or_else(|e| tips::mend(e, &BenchCli::command(), &line).exit());
    if let Err(e) = logging::init(&cli.log, None) {
        logging::say(&format!("zerowire-bench: {e}"));
        return ExitCode::from(2);
    }
    match cli.what {
        What::Net(_) | What::Vsock(_) | What::PacketTx(_) | What::Peers(_) => amount::warn_if_slow(true),
        What::VsockRx(_) | What::TcpRx(_) => amount::warn_if_slow(false),
        // The builds of ab are others.
        What::Ab(_) | What::Render(_) => {}
    }
    let result =
        held::end_on_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]).and_then(|()| match cli.what {
            What::Net(args) => net(*args),
            What::Vsock(args) => vsock(*args),
            What::VsockRx(args) => vsock_rx::run(*args),
            What::PacketTx(args) => packet_tx(*args),
            What::TcpRx(args) => tcp_rx(&args),
            What::Peers(args) => peers(*args),
            What::Ab(args) => ab(&args),
            What::Render(args) => render::run(&args),
        });
    outcome::status("zerowire-bench", result)
}

fn net(mut options: NetOptions) -> Result<ExitCode> {
    options.program = measured_program(options.which.floor_only || !options.which.programs.is_empty())?;
    let out = &mut *output(&options.files.json);
    let (failures, cases) = if options.port == [PortKind::Tap] {
        let report = run_net(&options, out)?;
        (report.failures(), report.cases)
    } else {
        let report = run_ports(&options, out)?;
        (report.failures(), report.cases)
    };
    let beyond = options.which.gate.map_or(Vec::new(), |percent| beyond_gate(&cases, percent));
    Ok(status(&failures, &beyond))
}

fn vsock(mut options: VsockBenchOptions) -> Result<ExitCode> {
    options.program = measured_program(options.which.floor_only || !options.which.programs.is_empty())?;
    let report = run_vsock(&options, &mut *output(&options.files.json))?;
    let beyond = options.which.gate.map_or(Vec::new(), |percent| beyond_gate(&report.cases, percent));
    Ok(status(&report.failures(), &beyond))
}

fn packet_tx(mut options: PacketTxOptions) -> Result<ExitCode> {
    options.more.program = measured_program(!options.more.replay)?;
    let report = run_packet_tx(&options, &mut *output(&options.files.json))?;
    Ok(status(&report.failures(), &[]))
}

fn tcp_rx(options: &TcpRxOptions) -> Result<ExitCode> {
    let report = run_tcp_rx(options, &mut *output(&options.files.json))?;
    Ok(status(&report.failures(), &[]))
}

fn peers(mut options: PeersOptions) -> Result<ExitCode> {
    options.program = measured_program(false)?.context("no program zerowire")?;
    let report = run_peers(&options, &mut *output(&options.files.json))?;
    Ok(status(&report.failures(), &[]))
}

fn ab(options: &AbOptions) -> Result<ExitCode> {
    let report = run_ab(options, &mut *output(&options.json))?;
    Ok(status(&[], &options.gate.map_or(Vec::new(), |percent| report.beyond_gate(percent))))
}

/// The report names what failed and why; who reads only the exit code shall know as well. What is
/// beyond the gate is named here.
fn status(failures: &[String], beyond: &[String]) -> ExitCode {
    for line in beyond {
        logging::say(&format!("beyond the gate: {line}"));
    }
    if failures.is_empty() && beyond.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Standard output for people: lines and tables that fit it. JSON in their place stays as it is.
fn output(json: &Option<PathBuf>) -> Box<dyn Write> {
    let stdout = std::io::stdout();
    if json.as_deref() == Some(Path::new("-")) {
        return Box::new(stdout);
    }
    let columns = width(&stdout);
    fit_tables(columns);
    Box::new(Fitting::new(stdout, columns))
}

/// `zerowire` beside this program, else the one in PATH; nothing where the floor alone is wanted.
fn measured_program(floor_only: bool) -> Result<Option<PathBuf>> {
    if floor_only {
        return Ok(None);
    }
    let beside = own_path()?.with_file_name("zerowire");
    if beside.is_file() {
        return Ok(Some(beside));
    }
    in_path("zerowire").map(Some).with_context(|| {
        format!(
            "nothing to measure: no program {}, and no zerowire in PATH; 'make build' builds it",
            beside.display()
        )
    })
}

/// This program's file.
fn own_path() -> Result<PathBuf> {
    std::env::current_exe().context("this program's own path")
}

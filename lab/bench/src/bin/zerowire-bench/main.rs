//! The program `zerowire-bench`: measures this machine, each path against the bare system calls.

mod ab;
mod packet_tx;
mod tcp_rx;
mod vsock_rx;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Parser, Subcommand};
use zerowire_bench::case::{Direction, WorkingSet};
use zerowire_bench::experiment::Files;
use zerowire_bench::experiment::floored::beyond_gate;
use zerowire_bench::ports::{PortKind, PortOptions, run_ports};
use zerowire_bench::table::fit_tables;
use zerowire_bench::vsock::{EndOptions, SocketKind};
use zerowire_bench::{NetOptions, VsockBenchOptions, WrongArguments, held, run_net, run_vsock};
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
    Net(Box<NetBenchArgs>),
    /// The vsock device against the same bytes through a pair of unix sockets, in the same write
    /// lengths.
    Vsock(Box<VsockBenchArgs>),
    /// How fast a program receives by vsock: by copying, in mapped windows, sleeping and polling;
    /// in a guest as well.
    VsockRx(Box<vsock_rx::VsockRxArgs>),
    /// Sending to a network device, copying and lending: packet sockets, rings, AF_XDP, UDP with
    /// MSG_ZEROCOPY and io_uring.
    PacketTx(Box<packet_tx::PacketTxArgs>),
    /// Receiving TCP: select and read as iperf does, epoll, io_uring, and the library's ways, on 1
    /// to 256 connections.
    TcpRx(Box<tcp_rx::TcpRxArgs>),
    /// Two builds of this program in turns: what a change of the library costs.
    Ab(Box<ab::AbArgs>),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Measures CPU nanoseconds a frame of all threads of the back end, driven by a guest without a VM; variants are \
interleaved, every frame is accounted for. hot is a working set of 256 KiB, cold one of 64 MiB. Needs root, or \
'unshare -Urn zerowire-bench net'. Takes some minutes; with --quick less than one.\n\
\n\
--port xdp and --port packet measure those ports over veth pairs instead, at lengths up to 1514, beside the bare AF_XDP loop, \
the tap port and its floor and a plain packet socket, then bandwidth and CPU load of a stream of the longest frames both ways; \
--vms, --idle-vms, --fragment-len, --bare-calls, --without and --program are for --port tap alone. They need root. See docs/xdp.md.")]
struct NetBenchArgs {
    /// tap, or xdp, packet or both: the tap's port stands beside them.
    #[arg(long, value_delimiter = ',', default_value = "tap", value_name = "PORT,…")]
    port: Vec<String>,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Rounds of each case: 25, of other ports than a tap 15, and 5 with --quick; three times as
    /// many, shorter ones of frames beyond 9014 bytes.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Frame lengths, bytes from the Ethernet header on, 60 to 65549; above 9014 they are TCP
    /// frames to be segmented [default: 64,1500,9000,60000; over a veth pair 64,1500].
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…")]
    sizes: Vec<usize>,
    /// tx (guest to tap), rx, or both.
    #[arg(long, value_delimiter = ',', value_name = "WAY,…", default_values_t = ["tx".to_owned(), "rx".to_owned()])]
    direction: Vec<String>,
    /// hot, cold or both.
    #[arg(long, value_delimiter = ',', value_name = "SET,…", default_values_t = ["hot".to_owned(), "cold".to_owned()])]
    working_set: Vec<String>,
    /// Numbers of VMs in the scaling table, each 1 to 64; 0 leaves the table out [default: 1 to
    /// 12]. Taps only.
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    vms: Vec<usize>,
    /// VMs of the process that is watched while they do nothing, 1 to 256 [default: 12]. Taps only.
    #[arg(long, value_name = "N")]
    idle_vms: Option<usize>,
    /// Bytes of the pieces in which the guest sends large frames [default: 32768]. Taps only.
    #[arg(long, value_name = "BYTES")]
    fragment_len: Option<usize>,
    /// Measure also a bare loop of the copies and system calls that the device makes for a frame,
    /// and set the device beside it. Taps only.
    #[arg(long)]
    bare_calls: bool,
    #[command(flatten)]
    which: NetVariantArgs,
    #[command(flatten)]
    files: FilesArgs,
}

// What is measured beside the floor.
#[derive(Args, Debug)]
struct NetVariantArgs {
    /// Measure these programs in turns in place of the one beside this: --program before=PATH
    /// --program after=PATH. Each is set beside the first (/before). Without --path copy, many VMs
    /// and idle ones. Taps only.
    #[arg(long = "program", value_name = "NAME=PATH", conflicts_with = "floor_only")]
    programs: Vec<String>,
    /// With --program: end with status 1 if a further program takes more than PERCENT more CPU time
    /// than the first one in a case. The lower quartile of the ratios (/before) counts.
    #[arg(long, value_name = "PERCENT", requires = "programs")]
    gate: Option<f64>,
    /// A further variant of the back end, as arguments of 'zerowire net': --with '--gather-max 0'.
    /// Repeat for more.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    with: Vec<String>,
    /// A further variant whose guest leaves out a feature: --without IN_ORDER. Repeat for more.
    /// Taps only.
    #[arg(long, value_name = "FEATURE")]
    without: Vec<String>,
    /// Measure the floor alone, or with --bare-calls both bare loops.
    #[arg(long)]
    floor_only: bool,
}

// Where the result goes besides standard output.
#[derive(Args, Debug)]
struct FilesArgs {
    /// Write the result as JSON; - is standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write charts (SVG) into this folder.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

impl From<FilesArgs> for Files {
    fn from(FilesArgs { json, svg }: FilesArgs) -> Self {
        Self { json, svg }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Measures CPU seconds a GB (10^9 bytes) of all threads of the back end and of the host's program, driven by a guest without a \
VM; variants are interleaved, every byte is accounted for, the content of the first ones is checked. hot is a working set of \
256 KiB (512 KiB where the guest receives), cold one of 64 MiB. Needs no privileges and makes no network device. Takes some \
minutes; with --quick less than one.\n\
\n\
With --type seqpacket (SOCK_SEQPACKET) the floors are pairs of unix sockets of that type, and the tables also have messages a \
second and the back end's system calls a message, its waits left out; round trips, guest to guest, many and idle connections are \
measured with --type stream only.")]
struct VsockBenchArgs {
    /// Fewer rounds, fewer lengths.
    #[arg(long)]
    quick: bool,
    /// Rounds of each case [default: 9, with --quick 3].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Sockets of the guest and of the host's program: stream, or seqpacket, where each write is a
    /// message.
    #[arg(long = "type", default_value = "stream", value_name = "TYPE")]
    socket: String,
    /// Bytes of each write, up to 4194304, or of each message, up to the credit and to what a unix
    /// socket takes [default: 4096,16384,65536,131072,262144,524288; with --type seqpacket
    /// 64,1024,4096,16384,65536].
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…")]
    writes: Vec<usize>,
    /// tx (guest to host), rx, or both.
    #[arg(long, value_delimiter = ',', value_name = "WAY,…", default_values_t = ["tx".to_owned(), "rx".to_owned()])]
    direction: Vec<String>,
    /// Credit of a connection, for the back end (--buffer) and for the guest.
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_values_t = [64 << 10, 256 << 10])]
    credit: Vec<u32>,
    /// hot, cold or both.
    #[arg(long, value_delimiter = ',', value_name = "SET,…", default_values_t = ["hot".to_owned(), "cold".to_owned()])]
    working_set: Vec<String>,
    #[command(flatten)]
    guest: GuestArgs,
    /// Numbers of idle connections whose memory is measured, each up to 8192; 0 leaves the part
    /// out.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 100, 1000])]
    idle: Vec<usize>,
    /// Leave out round trips, guest to guest, many connections, and attacks.
    #[arg(long)]
    no_extras: bool,
    /// Measure these programs in turns in place of the one beside this: --program before=PATH
    /// --program after=PATH. Each is set beside the first (/before). Only streams, or messages, of
    /// one connection.
    #[arg(long = "program", value_name = "NAME=PATH", conflicts_with = "floor_only")]
    programs: Vec<String>,
    /// With --program: end with status 1 if a further program takes more than PERCENT more CPU time
    /// than the first one in a case. The lower quartile of the ratios (/before) counts.
    #[arg(long, value_name = "PERCENT", requires = "programs")]
    gate: Option<f64>,
    /// A further variant of the back end, as arguments of 'zerowire vsock'. Repeat for more.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    with: Vec<String>,
    /// Measure the floor alone.
    #[arg(long)]
    floor_only: bool,
    #[command(flatten)]
    files: FilesArgs,
}

// The other side of a connection.
#[derive(Args, Debug)]
struct GuestArgs {
    /// Bytes of the guest's receive buffers, header included, 128 to 65536.
    #[arg(long, default_value_t = 4096, value_name = "BYTES")]
    rx_buffer: u32,
    /// CPU of the host's program: backend (the back end's), guest (the guest's), or any.
    #[arg(long, default_value = "backend", value_name = "CPU")]
    host_cpu: String,
    /// Leave out the guest that sleeps until an interrupt.
    #[arg(long)]
    no_sleeping_guest: bool,
}

fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    let cli =
        BenchCli::try_parse_from(&line).unwrap_or_else(|e| tips::mend(e, &BenchCli::command(), &line).exit());
    if let Err(e) = logging::init(&cli.log) {
        eprintln!("zerowire-bench: {e}");
        return ExitCode::from(2);
    }
    let result =
        held::end_on_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]).and_then(|()| match cli.what {
            What::Net(args) => net(*args),
            What::Vsock(args) => vsock(*args),
            What::VsockRx(args) => vsock_rx::run(*args),
            What::PacketTx(args) => packet_tx::run(*args),
            What::TcpRx(args) => tcp_rx::run(*args),
            What::Ab(args) => ab::run(*args),
        });
    outcome::status("zerowire-bench", result)
}

fn vsock(args: VsockBenchArgs) -> Result<ExitCode> {
    let socket: SocketKind = args.socket.parse().map_err(WrongArguments)?;
    let gate = percent(args.gate)?;
    let options = VsockBenchOptions {
        quick: args.quick,
        rounds: args.rounds,
        socket,
        writes: if args.writes.is_empty() { socket.writes() } else { args.writes },
        directions: parse::<Direction>(&args.direction)?,
        credits: args.credit,
        working_sets: working_sets(&args.working_set)?,
        ends: EndOptions {
            rx_buffer: args.guest.rx_buffer,
            host_cpu: args.guest.host_cpu.parse().map_err(WrongArguments)?,
            sleeping_guest: !args.guest.no_sleeping_guest,
        },
        idle_connections: args.idle.into_iter().filter(|n| *n > 0).collect(),
        extras: !args.no_extras,
        program: measured_program(args.floor_only || !args.programs.is_empty())?,
        programs: parse(&args.programs)?,
        variants: args.with,
        files: args.files.into(),
    };
    let report = run_vsock(&options, &mut *output(&options.files.json))?;
    let beyond = gate.map_or(Vec::new(), |percent| beyond_gate(&report.cases, percent));
    Ok(status(&report.failures(), &beyond))
}

/// The percent of --gate, if there is one.
fn percent(gate: Option<f64>) -> Result<Option<f64>, WrongArguments> {
    match gate {
        Some(gate) if !(0.0..=1000.0).contains(&gate) => {
            Err(WrongArguments(format!("--gate {gate}: choose 0 to 1000 percent")))
        }
        gate => Ok(gate),
    }
}

/// The report names what failed and why; who reads only the exit code shall know as well. What is
/// beyond the gate is named here.
fn status(failures: &[String], beyond: &[String]) -> ExitCode {
    for line in beyond {
        eprintln!("beyond the gate: {line}");
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("zerowire")).find(|file| file.is_file());
    found.map(Some).with_context(|| {
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

fn net(args: NetBenchArgs) -> Result<ExitCode> {
    if args.port != ["tap"] {
        return ports(args);
    }
    let mut out = output(&args.files.json);
    let gate = percent(args.which.gate)?;
    let program = measured_program(args.which.floor_only || !args.which.programs.is_empty())?;
    let options = NetOptions {
        quick: args.quick,
        rounds: args.rounds,
        sizes: if args.sizes.is_empty() { NetOptions::default().sizes } else { args.sizes },
        directions: parse::<Direction>(&args.direction)?,
        working_sets: working_sets(&args.working_set)?,
        fragment_len: args.fragment_len.unwrap_or(32 << 10),
        vms: match args.vms.is_empty() {
            true => (1..=12).collect(),
            false => args.vms.into_iter().filter(|n| *n > 0).collect(),
        },
        idle_vms: args.idle_vms.unwrap_or(NetOptions::default().idle_vms),
        bare_calls: args.bare_calls,
        program,
        programs: parse(&args.which.programs)?,
        variants: args.which.with,
        without: args.which.without,
        files: args.files.into(),
    };
    let report = run_net(&options, &mut *out)?;
    let beyond = gate.map_or(Vec::new(), |percent| beyond_gate(&report.cases, percent));
    Ok(status(&report.failures(), &beyond))
}

fn ports(args: NetBenchArgs) -> Result<ExitCode> {
    let for_taps = [
        (!args.vms.is_empty(), "--vms"),
        (args.idle_vms.is_some(), "--idle-vms"),
        (args.fragment_len.is_some(), "--fragment-len"),
        (args.bare_calls, "--bare-calls"),
        (!args.which.without.is_empty(), "--without"),
        (!args.which.programs.is_empty(), "--program"),
    ];
    if let Some((_, name)) = for_taps.into_iter().find(|(given, _)| *given) {
        let port = args.port.join(",");
        return Err(WrongArguments(format!("{name} is for taps: leave it out, or --port {port}")).into());
    }
    let options = PortOptions {
        ports: parse::<PortKind>(&args.port)?,
        quick: args.quick,
        rounds: args.rounds,
        sizes: if args.sizes.is_empty() { PortOptions::default().sizes } else { args.sizes },
        directions: parse::<Direction>(&args.direction)?,
        working_sets: working_sets(&args.working_set)?,
        program: measured_program(args.which.floor_only)?,
        variants: args.which.with,
        files: args.files.into(),
    };
    let report = run_ports(&options, &mut *output(&options.files.json))?;
    Ok(status(&report.failures(), &[]))
}

fn parse<T: std::str::FromStr<Err = String>>(words: &[String]) -> Result<Vec<T>, WrongArguments> {
    words.iter().map(|w| w.parse().map_err(WrongArguments)).collect()
}

fn working_sets(words: &[String]) -> Result<Vec<WorkingSet>, WrongArguments> {
    words
        .iter()
        .map(|w| match w.as_str() {
            "hot" => Ok(WorkingSet::Hot),
            "cold" => Ok(WorkingSet::Cold),
            other => Err(WrongArguments(format!("working set '{other}': choose hot or cold"))),
        })
        .collect()
}

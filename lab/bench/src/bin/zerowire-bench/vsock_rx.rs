//! `zerowire-bench vsock-rx`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgGroup, Args};
use serde::Serialize;
use zerowire_bench::WrongArguments;
use zerowire_bench::case::Direction;
use zerowire_bench::experiment::{Files, write_json};
use zerowire_bench::vsock_rx::options::{PORT, TX_BUFFER};
use zerowire_bench::vsock_rx::{
    ClientOptions, ReceiveMode, RxPlace, ServerOptions, TableOptions, run_client, run_server, run_table,
};

use super::{measured_program, own_path, parse, working_sets};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("role").required(true).args(["server", "cid", "table"]))]
#[command(after_help = "\
A server (-s) sends -m megabytes to the client (-c CID) that connects, and closes. On the host both take --uds, the host's end of \
'zerowire vsock'; in a guest they use AF_VSOCK. Guest to host:\n\
\n\
  guest$ zerowire-bench vsock-rx -s -m 64\n\
  host$  zerowire-bench vsock-rx -c 3 --uds /run/vm.vsock -z y -b 16 -r 65536\n\
\n\
Host to guest:\n\
\n\
  host$  zerowire-bench vsock-rx -s -m 64 --uds /run/vm.vsock\n\
  guest$ zerowire-bench vsock-rx -c 2 -z n -b 16 -r 65536\n\
\n\
The server prints the seconds of its send loop; the client those of its receive loop, those in dequeue calls, its wake-ups, and \
the nanoseconds of a dequeue on average. The client looks at each cache line once. --table runs all of it with a guest without a \
VM, beside floors, and prints tables; it needs no privileges. See docs/vsock-rx.md.")]
pub struct VsockRxArgs {
    /// Client: the server's CID. On the host that of the guest behind --uds, in a guest 2 for the
    /// host.
    #[arg(short = 'c', long, value_name = "CID")]
    cid: Option<u32>,
    /// Server.
    #[arg(short = 's', long)]
    server: bool,
    /// Run the whole experiment and print tables.
    #[arg(long)]
    table: bool,
    /// Megabytes (2^20 bytes) that the server sends, or each run of the table [default: 2048, table
    /// with --quick: 64].
    #[arg(short = 'm', long, value_name = "MEGABYTES")]
    megabytes: Option<u64>,
    /// Pages (4096 bytes) of the client's buffer or of a window, or of the server's buffer
    /// [default: 1; server: 4096].
    #[arg(short = 'b', long, value_name = "PAGES", conflicts_with = "table")]
    pages: Option<u32>,
    #[command(flatten)]
    reads: ReadArgs,
    /// The server's port.
    #[arg(short = 'p', long, default_value_t = PORT, value_name = "PORT", conflicts_with = "table")]
    port: u32,
    #[command(flatten)]
    place: PlaceArgs,
    /// Table: CPU of the host's program: backend (the back end's; a polling one gets the guest's),
    /// guest (the guest's), or any.
    #[arg(long, default_value = "backend", value_name = "CPU", conflicts_with_all = ["server", "cid"])]
    host_cpu: String,
    /// Client, table: windows in the ring, 2 to 64 [default: as many as have 1 MiB, at least 4].
    #[arg(long, default_value_t = 0, value_name = "N", hide_default_value = true)]
    windows: u32,
    /// Client: copy what was dequeued once more before looking at it (a negative control).
    #[arg(long, conflicts_with = "table")]
    copy_out: bool,
    /// Sum the bytes up and print the sum; the figures include it. The table compares the bytes
    /// before its rounds by itself.
    #[arg(long, conflicts_with = "table")]
    check: bool,
    /// Write the result as JSON; - is standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    of_table: OnlyTableArgs,
}

// Where the other side is.
#[derive(Args, Debug)]
struct PlaceArgs {
    /// On the host: the host's end of 'zerowire vsock' (its --uds).
    #[arg(long, value_name = "PATH", conflicts_with = "table")]
    uds: Option<PathBuf>,
    /// In a guest, for -z y and u: the PCI address of a vsock device that no kernel driver has
    /// [default: the only one].
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["table", "uds"])]
    device: Option<String>,
}

// How a client reads.
#[derive(Args, Debug)]
struct ReadArgs {
    /// Client: bytes that make a dequeue worth while (SO_RCVLOWAT).
    #[arg(short = 'r', long, default_value_t = 1, value_name = "BYTES", conflicts_with = "table")]
    rcvlowat: u32,
    /// Client: credit of the connection, the bytes that the server may send ahead [default: the
    /// other side's].
    #[arg(short = 'v', long, value_name = "BYTES")]
    credit: Option<u32>,
    /// Client: n (copy), y (mapped; sleeps), u (mapped; polls), d (as y, payload stays in the
    /// guest's memory).
    #[arg(short = 'z', long, default_value = "n", value_name = "MODE", conflicts_with = "table")]
    mode: String,
}

// What the table alone has.
#[derive(Args, Debug)]
struct OnlyTableArgs {
    /// Table: fewer rounds, sizes and bytes.
    #[arg(long, conflicts_with_all = ["server", "cid"])]
    quick: bool,
    /// Table: rounds of each case [default: 5, with --quick 3].
    #[arg(long, value_name = "N", conflicts_with_all = ["server", "cid"])]
    rounds: Option<usize>,
    /// Table: bytes of a dequeue, multiples of 4096 up to 4194304.
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", conflicts_with_all = ["server", "cid"],
        default_values_t = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10])]
    sizes: Vec<usize>,
    /// Table: tx (guest to host), rx, or both.
    #[arg(long, value_delimiter = ',', value_name = "WAY,…", conflicts_with_all = ["server", "cid"], default_values_t = ["tx".to_owned(), "rx".to_owned()])]
    direction: Vec<String>,
    /// Table: hot, cold or both.
    #[arg(long, value_delimiter = ',', value_name = "SET,…", conflicts_with_all = ["server", "cid"], default_values_t = ["hot".to_owned(), "cold".to_owned()])]
    working_set: Vec<String>,
    /// Table: modes, as letters of -z.
    #[arg(long, value_delimiter = ',', value_name = "MODE,…", conflicts_with_all = ["server", "cid"], default_values_t = ["n", "y", "u", "d"].map(str::to_owned))]
    modes: Vec<String>,
    /// Table: measure the floors alone.
    #[arg(long, conflicts_with_all = ["server", "cid"])]
    floor_only: bool,
    /// Table: write charts (SVG) into this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["server", "cid"])]
    svg: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: VsockRxArgs) -> Result<ExitCode> {
    if args.table {
        return table(args);
    }
    let place = match (&args.place.uds, &args.place.device) {
        (Some(path), _) => RxPlace::Host(path.clone()),
        (None, Some(address)) => RxPlace::Device(address.clone()),
        (None, None) => RxPlace::Kernel,
    };
    if args.server {
        let options = ServerOptions {
            place,
            port: args.port,
            bytes: args.megabytes.unwrap_or(2048).saturating_mul(1 << 20),
            tx_buffer: args.pages.map_or(TX_BUFFER, |pages| pages as usize * 4096),
            check: args.check,
        };
        return print(&run_server(&options)?, args.json.as_deref());
    }
    let options = ClientOptions {
        place,
        cid: args.cid.unwrap_or_default(),
        port: args.port,
        mode: args.reads.mode.parse().map_err(WrongArguments)?,
        pages: args.pages.unwrap_or(1),
        lowat: args.reads.rcvlowat,
        credit: args.reads.credit.unwrap_or(0),
        windows: args.windows,
        copy_out: args.copy_out,
        check: args.check,
    };
    print(&run_client(&options)?, args.json.as_deref())
}

/// Prints the text, or writes the JSON.
fn print(output: &(impl Serialize + std::fmt::Display), json: Option<&Path>) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match json {
        Some(path) if path.as_os_str() == "-" => {
            writeln!(out, "{}", serde_json::to_string(output)?)?;
        }
        json => {
            write!(out, "{output}")?;
            if let Some(path) = json {
                write_json(output, path)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(args: VsockRxArgs) -> Result<ExitCode> {
    let defaults = TableOptions::default();
    let options = TableOptions {
        quick: args.of_table.quick,
        rounds: args.of_table.rounds,
        megabytes: args.megabytes,
        sizes: args.of_table.sizes,
        directions: parse::<Direction>(&args.of_table.direction)?,
        working_sets: working_sets(&args.of_table.working_set)?,
        modes: parse::<ReceiveMode>(&args.of_table.modes)?,
        credit: args.reads.credit.unwrap_or(defaults.credit),
        windows: args.windows,
        host_cpu: args.host_cpu.parse().map_err(WrongArguments)?,
        program: measured_program(args.of_table.floor_only)?,
        tool: own_path()?,
        // Standard output again, for it is a file's path here.
        files: Files {
            json: args.json.map(|path| if path.as_os_str() == "-" { "/dev/stdout".into() } else { path }),
            svg: args.of_table.svg,
        },
    };
    let report = run_table(&options, &mut *super::output(&options.files.json))?;
    Ok(super::status(&report.failures(), &[]))
}

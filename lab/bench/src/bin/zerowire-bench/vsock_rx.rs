//! `zerowire-bench vsock-rx`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgGroup, Args};
use serde::Serialize;
use zerowire_bench::experiment::write_json;
use zerowire_bench::vsock_rx::options::{PORT, TX_BUFFER};
use zerowire_bench::vsock_rx::{
    ClientOptions, ReceiveMode, RxPlace, ServerOptions, TableOptions, run_client, run_server, run_table,
};

use super::{measured_program, own_path};

/// What the table alone has.
const TABLE_ONLY: [&str; 9] =
    ["quick", "rounds", "sizes", "directions", "working_sets", "modes", "host_cpu", "floor_only", "svg"];

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("role").required(true).args(["server", "cid", "table"]))]
#[command(group = ArgGroup::new("table_only").args(TABLE_ONLY).multiple(true).conflicts_with_all(["server", "cid"]))]
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
    /// Client: copy what was dequeued once more before looking at it (a negative control).
    #[arg(long, conflicts_with = "table")]
    copy_out: bool,
    /// Sum the bytes up and print the sum; the figures include it. The table compares the bytes
    /// before its rounds by itself.
    #[arg(long, conflicts_with = "table")]
    check: bool,
    #[command(flatten)]
    options: TableOptions,
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
    /// Client: n (copy), y (mapped; sleeps), u (mapped; polls), d (as y, payload stays in the
    /// guest's memory).
    #[arg(
        short = 'z',
        long,
        default_value = "n",
        hide_possible_values = true,
        value_name = "MODE",
        conflicts_with = "table"
    )]
    mode: ReceiveMode,
}

/// Runs the command.
pub fn run(args: VsockRxArgs) -> Result<ExitCode> {
    if args.table {
        return table(args.options);
    }
    let TableOptions { megabytes, credit, windows, files, .. } = args.options;
    let json = files.json.as_deref();
    let place = match (&args.place.uds, &args.place.device) {
        (Some(path), _) => RxPlace::Host(path.clone()),
        (None, Some(address)) => RxPlace::Device(address.clone()),
        (None, None) => RxPlace::Kernel,
    };
    if args.server {
        let options = ServerOptions {
            place,
            port: args.port,
            bytes: megabytes.unwrap_or(2048).saturating_mul(1 << 20),
            tx_buffer: args.pages.map_or(TX_BUFFER, |pages| pages as usize * 4096),
            check: args.check,
        };
        return print(&run_server(&options)?, json);
    }
    let options = ClientOptions {
        place,
        cid: args.cid.unwrap_or_default(),
        port: args.port,
        mode: args.reads.mode,
        pages: args.pages.unwrap_or(1),
        lowat: args.reads.rcvlowat,
        credit: credit.unwrap_or(0),
        windows,
        copy_out: args.copy_out,
        check: args.check,
    };
    print(&run_client(&options)?, json)
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

fn table(mut options: TableOptions) -> Result<ExitCode> {
    options.program = measured_program(options.floor_only)?;
    options.tool = own_path()?;
    let report = run_table(&options, &mut *super::output(&options.files.json))?;
    Ok(super::status(&report.failures(), &[]))
}

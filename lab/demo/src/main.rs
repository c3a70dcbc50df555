//! `zerowire-demo`: the devices at work, for a guest under QEMU or, with `--soft`, for one without
//! a VM.

mod next;
mod soft;
mod story;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use zerowire_cli::outcome;

/// Show a stock Debian guest under QEMU: ping, metadata, TCP both ways on a tap, streams both ways
/// by vsock, and the ledgers.
#[derive(Parser)]
#[command(name = "zerowire-demo", version, about, max_term_width = 110)]
struct DemoCli {
    /// Take a guest without a VM: no QEMU, no download, no root.
    #[arg(long)]
    soft: bool,
    /// Show nothing, and write a guest to start by hand: FOLDER/vmlinuz and FOLDER/initrd.
    #[arg(long, value_name = "FOLDER", conflicts_with = "soft")]
    guest: Option<PathBuf>,
    #[command(flatten)]
    args: soft::SoftArgs,
}

fn main() -> ExitCode {
    let cli = DemoCli::parse();
    let result = match &cli.guest {
        Some(folder) => vm::write_guest(folder),
        None if cli.soft => soft::run(&cli.args),
        None => vm::run(),
    };
    outcome::status("zerowire-demo", result)
}

//! The program `zerowire`.
// They panic where nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod access;
mod configure;
mod control;
mod ctl;
mod doctor;
mod file;
#[cfg(test)]
mod manual;
mod net;
mod pcap;
mod printer;
mod progress;
mod recv;
mod reload;
mod replay;
mod rights;
mod sandbox;
mod send;
mod service;
mod serving;
mod spec;
mod stop;
mod table;
mod top;
mod vsock;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use zerowire_cli::logging::LogFormat;
use zerowire_cli::{logging, outcome, signals, tips};

use rights::GivenUp;

/// Zero-copy networking in user space: devices for virtual machines, and the tools to measure them.
#[derive(Parser)]
#[command(name = "zerowire", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What to log to standard error: error, warn, info, debug or trace.
    #[arg(long, global = true, default_value = "info", value_name = "LEVEL", hide_possible_values = true,
        value_parser = logging::LEVELS)]
    log: String,
    /// How the log is written: text, json (an object a line) or journal (each line behind its
    /// priority). Default: journal if standard error goes to systemd's journal, else text.
    #[arg(long, global = true, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

#[derive(Subcommand)]
enum Command {
    /// A virtio-net device for a VM, served over vhost-user: the guest's frames to a tap or an
    /// interface, and back.
    Net(Box<net::NetArgs>),
    /// A virtio-vsock device for a VM, served over vhost-user: streams and messages between guests,
    /// and between a guest and the host's programs by unix sockets.
    Vsock(Box<vsock::VsockArgs>),
    /// Manage a running 'zerowire net' or 'zerowire vsock' with --control PATH: add, change, remove
    /// and drain VMs, read statistics.
    Ctl(ctl::CtlArgs),
    /// What the VMs of a running 'zerowire net' or 'zerowire vsock' with --control PATH move, as a
    /// live view: rates, the share that is not copied, and why the rest is.
    Top(top::TopArgs),
    /// A file or standard input to any receiver, lent to the kernel where that costs less CPU.
    Send(send::SendArgs),
    /// TCP connections of any senders, received in place: by a NIC's queue without a copy, by
    /// io_uring or by plain calls.
    Recv(Box<recv::RecvArgs>),
    /// What this kernel, user and network namespace can do for each path, and how to get the
    /// missing part.
    Doctor(doctor::DoctorArgs),
    /// Send the frames of a capture (pcap, pcapng) on an interface, at the recorded or another
    /// speed.
    Replay(Box<replay::ReplayArgs>),
}

fn main() -> ExitCode {
    // Where a file has no room the commands say so, and VMs are served on.
    signals::outlive_file_size_limit();
    if let Some(code) = net::confined_child().or_else(vsock::confined_child).or_else(sandbox::trial) {
        return code;
    }
    let line = arguments();
    let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| tips::mend(e, &Cli::command(), &line).exit());
    let kept = match &cli.command {
        Command::Net(args) => Some(args.rights()),
        Command::Vsock(_) => Some(rights::OF_ANY_VM),
        _ => None,
    };
    let given_up = kept.map(GivenUp::all_but);
    let log = if given_up.is_some() {
        logging::serve(&cli.log, cli.log_format).map(Some)
    } else {
        logging::init(&cli.log, cli.log_format).map(|()| None)
    };
    let log = match log {
        Ok(log) => log,
        Err(e) => {
            logging::say(&format!("zerowire: {e}"));
            return ExitCode::from(2);
        }
    };
    if let Some(given_up) = given_up {
        given_up.log();
    }
    let result = match cli.command {
        Command::Net(args) => net::run(*args, &cli.log),
        Command::Vsock(args) => vsock::run(*args, &cli.log),
        Command::Ctl(args) => ctl::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Recv(args) => recv::run(&args),
        Command::Doctor(args) => doctor::run(args),
        Command::Replay(args) => replay::run(*args),
    };
    // Its last lines come before the error.
    drop(log);
    outcome::status("zerowire", result)
}

/// Under the names `zerowire-net` and `zerowire-vsock` (as the installed vhost-user JSON files
/// start it) the program is `zerowire net` and `zerowire vsock`. With `--print-capabilities` all
/// their other arguments don't matter (QEMU docs/interop/vhost-user.rst, "Backend program
/// conventions").
fn arguments() -> Vec<std::ffi::OsString> {
    let mut args: Vec<_> = std::env::args_os().collect();
    let name =
        args.first().and_then(|a| std::path::Path::new(a).file_name()?.to_str().map(ToOwned::to_owned));
    if let Some(command @ ("net" | "vsock")) = name.as_deref().and_then(|n| n.strip_prefix("zerowire-")) {
        // Its help speaks of `zerowire net`.
        args[0] = "zerowire".into();
        args.insert(1, command.into());
    }
    let is_back_end = args.get(1).is_some_and(|command| command == "net" || command == "vsock");
    if is_back_end && args[2..].iter().any(|a| a == "--print-capabilities") {
        args.truncate(2);
        args.push("--print-capabilities".into());
    }
    args
}

//! `zerowire doctor`.

mod queue;
mod render;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::configure::{Setup, say};
use crate::signals::{self, Signals};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use zerowire_cli::columns::width;
use zerowire_probe::{CheckOutcome, DoctorReport, Job, MAX_VMS, Options, Verdict};
use zerowire_vhost::serve;

// The probe does not depend on what serves VMs.
const _: () = assert!(MAX_VMS == serve::MAX_VMS as u64);

/// Which path to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PathArg {
    /// Frames between a VM and the network.
    Net,
    /// Programs that send.
    Send,
    /// Programs that receive.
    Recv,
    /// Streams and messages of VMs, with each other and with programs.
    Vsock,
    /// Everything.
    #[default]
    All,
}

impl PathArg {
    fn job(self) -> Option<Job> {
        match self {
            Self::Net => Some(Job::Net),
            Self::Send => Some(Job::Send),
            Self::Recv => Some(Job::Recv),
            Self::Vsock => Some(Job::Vsock),
            Self::All => None,
        }
    }
}

/// Arguments of `zerowire doctor`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// Only the checks of one path.
    #[arg(long, value_name = "PATH", default_value = "all")]
    path: PathArg,
    /// Only what zero-copy receive needs of this network interface: its driver, header split, RSS,
    /// steering, queues.
    #[arg(short, long, value_name = "IF", conflicts_with = "path")]
    interface: Option<String>,
    /// Go through the checks for this receive queue, one by one; without it, all queues in short.
    #[arg(short, long, value_name = "Q", requires = "interface")]
    queue: Option<u32>,
    /// Turn header split on, and RSS off this queue, look, and set both back when a signal comes.
    #[arg(long, requires = "queue")]
    configure: bool,
    /// Print the report as JSON, one document.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Each check tries the thing itself, as this user, in this network namespace: it opens the device, makes a tap that is \
never set up, registers memory. Nothing stays behind, no setting is changed, no frame is sent. Run it the way zerowire \
net or zerowire vsock will run: under the same user, in the same container, unit or namespace.

With --interface it reads the interface's settings by netlink and says what is missing before io_uring can receive into a \
queue of it without a copy, with the ethtool commands for that. It runs none of them, and registers no queue. With --configure \
it makes the changes of header split and RSS itself (CAP_NET_ADMIN), reports, waits for SIGINT, SIGTERM, SIGHUP or SIGQUIT, and sets them back; \
flow steering stays a command to be given. SIGKILL leaves the settings: the commands that set them back are printed first.

Exit code: 0; 1 if a command that was asked about can't run at all (zerowire net, zerowire vsock), or with --interface if the \
queue can't be registered, or with --configure if nothing could be set; 2 for wrong arguments.

Examples:
  zerowire doctor --path net         what a VM's network device would run on
  zerowire doctor -i eth1            the queues of eth1 in short
  zerowire doctor -i eth1 -q 7       whether queue 7 can receive without a copy, and what is missing
  zerowire doctor -i eth1 -q 7 --configure    the same with header split on, until Ctrl-C
  zerowire doctor -i eth1 -q 7 --json | jq '.checks[] | select(.outcome != \"ok\")'";

/// Runs the command.
pub fn run(args: DoctorArgs) -> Result<ExitCode> {
    if let Some(interface) = &args.interface {
        // Before anything is changed: a signal from now on ends it with the settings set back.
        let signals = match args.configure {
            true => Some(Signals::block(&signals::ending()).context("signals can't be blocked")?),
            false => None,
        };
        let setup = Setup::default();
        let _guard = setup.guard();
        if let Some(queue) = args.queue.filter(|_| args.configure) {
            setup.apply(interface, queue, false)?;
        }
        let report = zerowire_probe::queue::run(interface, args.queue);
        print(&report, args.json, |style| queue::report(&report, style))?;
        if let Some(signals) = signals {
            say(format_args!("{interface}: set up until SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGQUIT comes"));
            while signals.wait(None)?.is_none() {}
            setup.restore()?;
        }
        let is_possible = report.verdict.outcome != CheckOutcome::Missing;
        return Ok(if is_possible { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let report = zerowire_probe::run(&Options::for_job(args.path.job()));
    print(&report, args.json, |style| render::report(&report, style))?;
    Ok(exit_code(&report))
}

fn print(report: &impl Serialize, json: bool, text: impl FnOnce(&render::Style) -> String) -> Result<()> {
    let text = if json {
        serde_json::to_string_pretty(report).context("the report can't be written as JSON")? + "\n"
    } else {
        text(&style())
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads it (head, a pager) has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("the report can't be written to standard output"),
    }
}

/// A command that can't run is an error.
fn exit_code(report: &DoctorReport) -> ExitCode {
    let can_run = |v: &Verdict| v.outcome != CheckOutcome::Missing;
    if report.verdicts.iter().all(can_run) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn style() -> render::Style {
    let stdout = io::stdout();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    render::Style { width: width(&stdout), colour: stdout.is_terminal() && !no_colour && !dumb }
}

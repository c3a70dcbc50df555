//! `zerowire doctor`.

mod render;
mod wrap;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use zerowire::probe::{self, Job, Options, Outcome, Report};

/// Which path to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PathArg {
    /// Frames between a VM and the network.
    Net,
    /// Programs that send.
    Send,
    /// Programs that receive.
    Recv,
    /// Streams between VMs and programs.
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
    /// Print the report as JSON, one document.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Each check tries the thing itself, as this user, in this network namespace: it opens the device, makes a tap that is \
never set up, registers memory. Nothing stays behind, no setting is changed, no frame is sent. Run it the way zerowire \
net will run: under the same user, in the same container, unit or namespace.

Exit code: 0; 1 if zerowire net can't run at all (with --path net or all); 2 for wrong arguments.";

/// Width of a report that goes to no terminal, columns.
const PLAIN_WIDTH: usize = 100;
/// A report is no wider than this: long lines read badly.
const MAX_WIDTH: usize = 110;

/// Runs the command.
pub fn run(args: DoctorArgs) -> Result<ExitCode> {
    let report = probe::run(&Options::for_job(args.path.job()));
    let text = if args.json {
        serde_json::to_string_pretty(&report).context("the report can't be written as JSON")? + "\n"
    } else {
        render::report(&report, &style())
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads it (head, a pager) has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("the report can't be written to standard output")?,
    }
    Ok(exit_code(&report))
}

/// The net path is the one whose absence is an error: the others are not asked for by name yet.
fn exit_code(report: &Report) -> ExitCode {
    match report.verdict(Job::Net) {
        Some(v) if v.outcome == Outcome::Missing => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn style() -> render::Style {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return render::Style { width: PLAIN_WIDTH, colour: false };
    }
    // A terminal may say that it has no columns: then nothing is known.
    let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    render::Style {
        width: if width == 0 { PLAIN_WIDTH } else { width.min(MAX_WIDTH) },
        colour: !no_colour && !dumb,
    }
}

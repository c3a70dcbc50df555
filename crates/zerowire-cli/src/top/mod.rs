//! `zerowire top`: rates of the VMs of a running `zerowire net` or `zerowire vsock` with `--control
//! PATH`.
//!
//! ```text
//! GET /stats, /vms ──▶ sample ──▶ rates ──▶ state ◀── keys ◀── terminal
//!                                            └──▶ view ──▶ canvas ──▶ screen
//! ```
//!
//! Everything from `rates` to `canvas` is plain code. `live` has the threads and `screen` the
//! terminal. `--once` and `--json` take two samples and draw nothing.

mod canvas;
mod detail;
mod figures;
mod keys;
mod live;
mod rates;
mod report;
mod sample;
mod screen;
mod state;
mod view;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::ctl::client::Client;
use rates::rates;
use sample::fetch;
use state::{SortKey, Sorting};

/// Arguments of `zerowire top`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct TopArgs {
    /// Control socket of the server.
    #[arg(long, value_name = "PATH", default_value = "/run/zerowire/control.sock")]
    control: PathBuf,
    /// Seconds between two samples, 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Sort VMs by name, transmit, receive, dropped or zero-copied.
    #[arg(long, value_name = "KEY", default_value = "name", hide_possible_values = true)]
    sort: SortKey,
    /// Print one table of the rates in one interval, and end. Without a terminal as standard input
    /// and output this is what it does in any case.
    #[arg(long)]
    once: bool,
    /// Print one line of JSON after each interval, until interrupted; with --once, one line.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Columns: name and state of the VM; frames and gigabits a second from the guest (tx) and to it (rx), frames dropped a \
second; the share of bytes that were not copied in user space, and the reason for which most were. Of a vsock device \
frames are packets with payload.

State: connected, waiting (for a front end), draining, opening or leaving; link down, no carrier or gone of the port's \
interface; no answer if the VM's process or its control thread does not answer: the figures may be older then.

Keys: up, down, page up, page down, home and end select a VM, enter shows its figures by direction and reason, esc goes \
back. p holds the picture. n, t, r, d and z sort by name, transmit, receive, dropped and zero copy; the same key again \
reverses. q or Ctrl-C ends.

Exit status: 0 ended by the user, 1 the server or the terminal can't be reached, 2 wrong arguments.

Examples:
  zerowire net --control /run/zerowire/control.sock --config /etc/zerowire.toml &
  zerowire top
  zerowire top --once --sort transmit --interval 5";

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give seconds, 0.1 to 3600".to_owned())
}

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<ExitCode> {
    let sorting = Sorting { key: args.sort, is_reversed: false };
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if args.json || args.once || !is_terminal {
        print(args, sorting)?;
    } else {
        live::run(&args.control, args.interval, sorting)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(args: &TopArgs, sorting: Sorting) -> Result<()> {
    let client = Client::new(&args.control);
    let mut before = fetch(&client)?;
    loop {
        std::thread::sleep(args.interval);
        let now = fetch(&client)?;
        let rates = rates(Some(&before), &now);
        let text =
            if args.json { report::json_line(&rates, sorting) } else { view::plain(&sorting.sorted(&rates)) };
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.context("can't write to standard output")?;
        if args.once || !args.json {
            return Ok(());
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_bounds() {
        assert_eq!(interval("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(interval("3600"), Ok(Duration::from_secs(3600)));
        for bad in ["", "0", "0.09", "3601", "-1", "NaN", "inf", "1s"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}

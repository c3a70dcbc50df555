//! `zerowire-bench ab`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use zerowire_bench::ab::{AbOptions, run_ab};

#[derive(Args, Debug)]
#[command(after_help = "\
For benchmarks whose library is linked into this program: packet-tx, tcp-rx. Each round runs OLD and NEW in turns, with one round \
each, and divides the CPU figures of NEW by those of OLD. 'net' and 'vsock' compare builds of 'zerowire' by --program.\n\
\n\
Example:\n  zerowire-bench ab /tmp/before /tmp/after -- packet-tx --quick --sizes 1000 --columns zc")]
pub struct AbArgs {
    /// The build of zerowire-bench that the other one is compared with, or an old 'zerowire' that
    /// has 'bench'.
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The other build.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// What both run: a command of zerowire-bench and its arguments, without --rounds and --json.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// How often both run.
    #[arg(long, default_value_t = 9, value_name = "N")]
    rounds: usize,
    /// End with status 1 if NEW takes more than PERCENT more CPU time than OLD in a line. The lower
    /// quartile of the ratios counts.
    #[arg(long, value_name = "PERCENT")]
    gate: Option<f64>,
    /// Write the result as JSON; - is standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: AbArgs) -> Result<ExitCode> {
    let gate = super::percent(args.gate)?;
    let options = AbOptions {
        old: args.old,
        new: args.new,
        rounds: args.rounds,
        command: args.command,
        json: args.json,
    };
    let report = run_ab(&options, &mut *super::output(&options.json))?;
    let beyond = gate.map_or(Vec::new(), |percent| report.beyond_gate(percent));
    Ok(super::status(&[], &beyond))
}

//! Tests of `zerowire net` and `zerowire vsock` with stock Linux guests.
//!
//! ```text
//! zerowire-vmtest [--list] [--jobs N] [FILTER…]
//! ```
//! A test runs if its name, `what/kernel/qemu`, contains at least one of the filters;
//! without filters all run. The last line is `vm-tests: N passed, N failed, N skipped`.

mod checks;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use zerowire_vmtest::{interrupt, lab::Lab, netns, runner, vsock};

/// Two guests keep two CPUs busy; a third one works while another waits. The fourth one waits most
/// of the time.
const JOBS: usize = 4;

const USAGE: &str = "usage: zerowire-vmtest [--list] [--jobs N] [FILTER...]";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("zerowire-vmtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let mut jobs = JOBS;
    let mut list = false;
    let mut filters = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => list = true,
            "--jobs" => {
                let value = arguments.next().with_context(|| format!("--jobs needs a number; {USAGE}"))?;
                jobs = value.parse().with_context(|| format!("--jobs '{value}' is no number"))?;
            }
            "-h" | "--help" => {
                println!(
                    "{USAGE}\nRuns the tests whose name (what/kernel/qemu) contains at least one FILTER; without one all run."
                );
                return Ok(true);
            }
            other if other.starts_with('-') => bail!("unknown option '{other}'; {USAGE}"),
            _ => filters.push(argument),
        }
    }
    let mut tests = checks::all();
    tests.retain(|test| {
        let name = test.full_name();
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
    });
    if list {
        for test in &tests {
            println!("{}", test.full_name());
        }
        return Ok(true);
    }
    if tests.is_empty() {
        bail!("no test's name contains {filters:?}; --list shows them");
    }
    vsock::allow_descriptors()?;
    netns::remove_leftovers()?;
    let lab = Lab::open()?;
    // Socket names are limited to 107 bytes: a short name below the temporary folder.
    let folder = tempfile::Builder::new().prefix("zw-").tempdir().context("create a folder")?;
    interrupt::remove_on_signal(folder.path().to_owned())?;
    let summary = runner::run(&lab, tests, jobs, folder.path());
    summary.print();
    Ok(summary.is_success())
}

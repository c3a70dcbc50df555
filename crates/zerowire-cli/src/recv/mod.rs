//! `zerowire recv`: TCP connections, received in place.

mod args;
mod bind;
mod output;
mod report;
mod session;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use zerowire::recv::{Receiver, RecvError};
use zerowire_cli::{WrongArguments, logging};
use zerowire_sys::fd::is_open;

use self::output::Outputs;
use self::report::Report;
use self::session::Session;
use crate::configure::{Setup, say};
use crate::outcome::{self, JsonOutput, Outcome};
use crate::progress::TransferProgress;
use crate::serving;
use crate::signals;
use crate::stop::TransferStop;
use crate::table::process_cpu;

pub use self::args::RecvArgs;

/// Descriptors that the receiver, the result and a name's look-up take.
const OWN_DESCRIPTORS: usize = 8;
/// Descriptors are counted up to this number: the kernel gives the lowest free one.
const MOST_OPEN: usize = 1024;

/// Runs the command.
pub fn run(args: &RecvArgs) -> Result<ExitCode> {
    let mut plan = args.plan().map_err(WrongArguments::because)?;
    // First, so that peers may connect while a pipe waits for a reader, and a port that is taken
    // leaves no empty file.
    let socket = bind::listen(&args.bind, args.port)?;
    let address = bind::address(&socket)?;
    // A pipe that nobody reads is waited for: until the signals are blocked one ends the program.
    let json = JsonOutput::open(args.json.as_deref(), args.to.as_deref().as_slice())?;
    // Before any thread is started.
    let setup = Setup::default();
    let stop = TransferStop::start(&signals::ending(), |_| (), restoring(setup.clone()))?;
    // What is missing all the same shows when accepting.
    let descriptors = serving::raise_descriptor_limit();
    let mut waits = None;
    if args.to.is_some() && plan.told.connections != Some(1) {
        let most = descriptors.map_or(usize::MAX, connections_with_files);
        plan.options.max_connections = plan.options.max_connections.min(most);
        waits = plan.told.connections.filter(|all| *all > most).map(|all| (most, all));
    }
    // Before the receiver, which goes first: what a registered queue needs can't be changed.
    let _guard = setup.guard();
    args.configure(&setup)?;
    let mut receiver = match Receiver::new(plan.options.clone()) {
        Ok(receiver) => receiver,
        Err(e) => {
            let is_out_of_range = is_out_of_range(&e);
            let e = anyhow::Error::new(e).context(format!("can't receive by the mode '{}'", plan.mode));
            return Err(if is_out_of_range { WrongArguments::because(e) } else { e });
        }
    };
    // Late: opening cuts off what the files hold, and a failure before it leaves them as they are.
    let outputs = Outputs::open(args.to.as_deref(), plan.told.connections, &stop)?;
    let listener = receiver.listen(socket).with_context(|| format!("can't accept on {address}"))?;
    if !args.quiet {
        let commands = args.steering(address.port());
        commands.iter().for_each(|command| logging::say(&format!("to be given by hand: {command}")));
    }
    let mut progress = TransferProgress::new(plan.told.bytes, args.quiet);
    progress.say(&format!("listening on {address}: {}", receiver.path()));
    if let Some((most, all)) = waits {
        progress.say(&format!(
            "{most} of {all} connections at a time, further ones wait until others have ended: each with its file takes \
             two descriptors, raise their limit (ulimit -n)"
        ));
    }

    let cpu = process_cpu();
    let mut session = Session::new(plan.told, outputs, listener);
    let failure = session.run(&mut receiver, &stop, &mut progress, Instant::now()).err();
    progress.finish();
    let cpu_seconds = (process_cpu() - cpu).as_secs_f64();

    let signal = stop.signal();
    let failure = failure.or_else(|| session.failed_connections());
    let outcome = match (&failure, signal) {
        (_, Some(_)) => Outcome::Interrupted,
        (Some(_), None) => Outcome::Failed,
        (None, None) => Outcome::Complete,
    };
    let error = failure.as_ref().filter(|_| signal.is_none()).map(|e| format!("{e:#}"));
    let report = Report::new(address, plan.mode, &receiver, session, (outcome, error), cpu_seconds);
    drop(receiver);
    let restored = setup.restore();
    let written = report.write(&json, args.quiet, args.to_stdout());
    outcome::also(outcome::ended(failure, signal, written), restored)
}

/// How many connections at a time a limit of descriptors allows where each has a socket and a file.
fn connections_with_files(limit: u64) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let open = (0..limit.min(MOST_OPEN) as i32).filter(|number| is_open(*number)).count();
    (limit.saturating_sub(open + OWN_DESCRIPTORS) / 2).max(1)
}

/// Sets back what `setup` holds before a second signal ends the process.
fn restoring(setup: Setup) -> impl FnOnce() {
    move || {
        // The receiver may still have the queue: then the error names what to do.
        if let Err(e) = setup.restore() {
            say(format_args!("zerowire: error: {e:#}"));
        }
    }
}

/// Whether an argument is out of range that only the library knows.
fn is_out_of_range(e: &RecvError) -> bool {
    matches!(e, RecvError::BufferBytes(_) | RecvError::Buffers(_) | RecvError::ZeroCopyArea { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_sets_back() {
        let (setup, count) = Setup::counting();
        restoring(setup)();
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

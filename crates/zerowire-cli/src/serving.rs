//! What the commands that serve VMs have in common: signals while they run, how statistics go out,
//! descriptors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use zerowire_cli::WrongArguments;
use zerowire_cli::columns::{fit, width};
use zerowire_vhost::serve::{RefusalKind, ServerRefusal, VmFleet};

use crate::service::{Notifier, Watched};
use crate::signals::Signals;

/// How often a program that ends with its connections looks whether they are there.
const TICK: Duration = Duration::from_millis(200);

/// What a signal asks a running program for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// SIGUSR1.
    Statistics,
    /// SIGHUP.
    Reload,
}

/// Blocks the signals that [`until_stopped`] waits for. Call this before threads are started.
pub fn block_signals() -> Result<Signals> {
    Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1])
        .context("signals can't be blocked")
}

/// Hands requests to `answer` until SIGTERM or SIGINT comes, and tells the service manager how the
/// server fares. A program that is not `lasting` (a connection was handed over to it, and there
/// will be no other) also ends when the server is not alive any more.
pub fn until_stopped(
    signals: &Signals,
    lasting: bool,
    server: &dyn Watched,
    mut answer: impl FnMut(SignalAction),
) -> Result<()> {
    let mut manager = Notifier::from_environment();
    let patience = (!lasting).then_some(TICK).into_iter().chain(manager.patience()).min();
    manager.ready(server);
    loop {
        match signals.wait(patience).context("waiting for signals failed")? {
            Some(libc::SIGUSR1) => answer(SignalAction::Statistics),
            Some(libc::SIGHUP) => {
                manager.reloading();
                answer(SignalAction::Reload);
                manager.ready(server);
            }
            Some(_) => break,
            None if !lasting && !server.is_alive() => break,
            None => {}
        }
        manager.turn(server);
    }
    manager.stopping();
    Ok(())
}

impl<F: VmFleet + ?Sized> Watched for Arc<F> {
    fn is_alive(&self) -> bool {
        (**self).is_alive()
    }

    fn connected(&self) -> (usize, usize) {
        let vms = self.vms();
        (vms.iter().filter(|vm| vm.connected).count(), vms.len())
    }

    fn ask(&self) {
        (**self).ask();
    }

    fn silent(&self) -> Vec<String> {
        (**self).silent()
    }
}

/// Why the VMs of this file, or of the command line, can't be served.
pub fn refused(config: &Option<PathBuf>, e: &impl ServerRefusal) -> anyhow::Error {
    let text = match config {
        Some(file) => format!("{}: {e}", file.display()),
        None => e.to_string(),
    };
    match e.kind() {
        // The configuration alone says so, whatever the system has.
        RefusalKind::Unknown | RefusalKind::Malformed | RefusalKind::Conflict | RefusalKind::Unsupported => {
            WrongArguments(text).into()
        }
        RefusalKind::Unavailable | RefusalKind::Passing => anyhow!(text),
    }
}

/// Statistics as they are printed: one line of JSON, or as `table` words them.
pub fn wording<S: Serialize>(stats: &S, json: bool, table: fn(&S) -> String) -> Result<String> {
    Ok(if json {
        format!("{}\n", serde_json::to_string(stats)?)
    } else {
        fit(&table(stats), width(&std::io::stdout()))
    })
}

/// Raises the soft limit of open files (often 1024) to the hard one and returns that; None stands
/// for no limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // To raise the soft limit up to the hard one is always allowed.
    let _ = setrlimit(Resource::Nofile, limit);
    limit.maximum
}

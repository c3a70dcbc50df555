//! `--configure`: an interface's settings changed for as long as the command runs.

mod interface;
mod restore;

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use zerowire_cli::lock;
use zerowire_probe::queue;

use interface::Configured;

type Restore = Box<dyn FnOnce() -> Result<()> + Send>;

/// The settings to restore. The end of the command does it, or the thread that takes a second
/// signal, whichever comes first.
#[derive(Clone, Default)]
pub struct Setup(Arc<Mutex<Option<Restore>>>);

impl Setup {
    /// Sets an interface up for zero-copy receive into `queue`, and says on standard error what it
    /// changed. It does so with `quiet`, too: nothing else names the commands that help after
    /// SIGKILL.
    pub fn apply(&self, interface: &str, queue: u32, quiet: bool) -> Result<()> {
        let configured = Configured::apply(interface, queue)
            .with_context(|| format!("--configure changed nothing on {interface}"))?;
        for change in &configured.changes {
            say(format_args!("{interface}: {} (set back at the end; by hand: {})", change.what, change.back));
        }
        if !quiet && configured.changes.is_empty() {
            say(format_args!("{interface}: nothing had to be changed"));
        }
        for note in configured.notes.iter().filter(|_| !quiet) {
            say(format_args!("{interface}: {note}"));
        }
        self.keep(Box::new(move || {
            configured.restore().context("--configure could not set everything back")
        }));
        Ok(())
    }

    fn keep(&self, restore: Restore) {
        *lock(&self.0) = Some(restore);
    }

    /// Sets it back, once. A second caller waits until it is done. The receiver that has the queue
    /// should be gone.
    pub fn restore(&self) -> Result<()> {
        let mut restore = lock(&self.0);
        restore.take().map_or(Ok(()), |restore| restore())
    }

    /// Sets it back when it is dropped, for all ways out of a function.
    pub fn guard(&self) -> Guard {
        Guard(self.clone())
    }
}

/// See [`Setup::guard`].
pub struct Guard(Setup);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(e) = self.0.restore() {
            say(format_args!("zerowire: error: {e:#}"));
        }
    }
}

/// A line on standard error; the terminal may be gone.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The commands that steer the flows of `port` to the queue, as far as they were not given yet:
/// netlink has none for it.
pub fn steering(interface: &str, queue: u32, port: u16) -> Vec<String> {
    let report = queue::run(interface, Some(queue));
    let missing = report.commands.into_iter().filter(|c| !c.done && c.command.contains("PORT"));
    missing.map(|c| c.command.replace("PORT", &port.to_string())).collect()
}

#[cfg(test)]
impl Setup {
    /// Counts how often it is set back, in place of an interface.
    pub fn counting() -> (Self, Arc<std::sync::atomic::AtomicU32>) {
        let (setup, count) = (Self::default(), Arc::<std::sync::atomic::AtomicU32>::default());
        let counted = count.clone();
        setup.keep(Box::new(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(())
        }));
        (setup, count)
    }
}

#[cfg(test)]
mod tests;

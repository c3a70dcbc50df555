//! Network namespaces. Each test gets its own, so addresses and taps of tests that run at once do
//! not meet, and nothing touches the machine's own network.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use zerowire_testkit::net::lab::{Offload, try_set_offload};

use crate::command;

/// Names are `zwt-PID-NUMBER`: the process id tells whose a left one is.
const PREFIX: &str = "zwt";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace with its loopback up. Removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes one.
    ///
    /// # Errors
    /// `ip netns` fails, for instance for lack of rights.
    pub fn new() -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let netns = Self { name };
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name for `ip -n` and `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` for devices in the namespace; returns what it prints.
    ///
    /// # Errors
    /// `ip` fails; the message holds its words.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// A command that will run in the namespace, with the same process id.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// As `ethtool -K NAME tx off`: what goes out through the interface has whole checksums and is
    /// not longer than the MTU.
    ///
    /// # Errors
    /// The interface doesn't exist, or it can't do that.
    pub fn finish_checksums(&self, name: &str) -> Result<()> {
        self.inside(|| {
            let set = try_set_offload(name, Offload::TransmitChecksum, false);
            set.with_context(|| format!("ethtool -K {name} tx off"))
        })
    }

    /// Runs `work` on a thread in the namespace. Sockets that it makes stay inside.
    ///
    /// # Errors
    /// The namespace can't be entered, or as `work`.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = Path::new("/run/netns").join(&self.name);
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .with_context(|| format!("enter network namespace {}", self.name))?;
                work()
            });
            thread.join().map_err(|_| anyhow!("the thread in network namespace {} panicked", self.name))?
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            eprintln!("can't remove network namespace {}: {error:#}", self.name);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<String> {
    command::output(Command::new("ip").args(arguments), command::SHORT)
}

/// Removes the namespaces of this process whose owners could not, because it is about
/// to end.
///
/// # Errors
/// `ip` fails.
pub fn remove_own() -> Result<()> {
    let own = format!("{PREFIX}-{}-", std::process::id());
    for line in ip(&["netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.starts_with(&own) {
            ip(&["netns", "del", name])?;
        }
    }
    Ok(())
}

/// Removes namespaces of test runs that were killed before they could.
///
/// # Errors
/// `ip` fails.
pub fn remove_leftovers() -> Result<()> {
    for line in ip(&["netns", "list"])?.lines() {
        // A line is the name, and an id in brackets for some.
        let name = line.split_whitespace().next().unwrap_or_default();
        let mut fields = name.split('-');
        let ours = fields.next() == Some(PREFIX);
        let owner = fields.next().and_then(|pid| pid.parse::<u32>().ok());
        if let (true, Some(pid)) = (ours, owner)
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            ip(&["netns", "del", name]).with_context(|| format!("left by process {pid}"))?;
        }
    }
    Ok(())
}

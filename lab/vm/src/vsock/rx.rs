//! `zerowire-bench vsock-rx` in the guest and on the host: the same file, a static program.
//!
//! ```text
//!  guest: zerowire-bench vsock-rx ── AF_VSOCK, or a device by uio ── zerowire vsock ── --uds ─┐
//!  host:                                                        zerowire-bench vsock-rx ──────┘
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use zerowire_testkit::process::is_listening;

use super::PATIENCE;
use crate::command::{self, Running, wait_for};
use crate::guest::Guest;

/// For a whole transfer of some MiB; an emulated CPU needs a second.
const TRANSFER: Duration = PATIENCE.saturating_mul(2);

/// What clients say whose server does not listen yet, a copying one and one with windows.
const NO_SERVER: [&str; 2] = ["no connection to port", "no mapped connection to port"];

/// Files of servers in guests; a number is used once.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What a server or a client says at its end.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Said {
    /// Bytes sent or received.
    pub bytes: u64,
    /// The sum over them (`--check`).
    pub sum: String,
    /// Client: how it received.
    #[serde(default)]
    pub mode: String,
    /// Client: how often it took something.
    #[serde(default)]
    pub dequeues: u64,
    /// Client: windows in the ring, 0 without.
    #[serde(default)]
    pub windows: u32,
    /// Client: bytes that were read where the sender, or in a guest the device, had them.
    #[serde(default)]
    pub direct_bytes: u64,
}

impl Said {
    fn read(text: &str) -> Result<Self> {
        let line = text.lines().find(|line| line.starts_with('{'));
        let line = line.with_context(|| format!("no JSON in '{text}'"))?;
        serde_json::from_str(line).with_context(|| format!("what it says: {line}"))
    }
}

fn line(arguments: &str) -> String {
    format!("zerowire-bench vsock-rx {arguments} --check --json -")
}

/// A server that runs beside others in the guest.
#[derive(Debug)]
#[must_use]
pub struct GuestServer {
    line: String,
    file: String,
}

impl GuestServer {
    /// Starts it. It listens some time later.
    ///
    /// # Errors
    /// The guest does not answer.
    pub fn start(guest: &mut Guest, megabytes: u32) -> Result<Self> {
        let line = line(&format!("-s -m {megabytes}"));
        let file = format!("/tmp/rx{}", NEXT.fetch_add(1, Ordering::Relaxed));
        guest.sh(&format!("({line}; echo @exit $?) >{file} 2>&1 &"))?;
        Ok(Self { line, file })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It fails; the message holds its own.
    pub fn finish(self, guest: &mut Guest) -> Result<Said> {
        let Self { line, file } = self;
        let wait = format!("until grep -qs '^@exit' {file}; do usleep 20000; done; cat {file}");
        let text = guest.run(&wait, TRANSFER).with_context(|| line.clone())?.text;
        ensure!(text.ends_with("@exit 0"), "in the guest: `{line}`: {text}");
        Said::read(&text)
    }

    /// What it has said up to now, for the report of a failure.
    pub fn said(&self, guest: &mut Guest) -> String {
        guest.sh(&format!("cat {}", self.file)).unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Runs a client in the guest.
///
/// # Errors
/// It fails; the message holds its own.
pub fn guest_client(guest: &mut Guest, arguments: &str) -> Result<Said> {
    let line = line(arguments);
    Said::read(&guest.sh_within(&format!("{line} 2>&1"), TRANSFER)?)
}

/// Runs a client on the host, again until its server listens.
///
/// # Errors
/// It fails for another reason, or nobody listens in time.
pub fn host_client(program: &Path, uds: &Path, arguments: &str) -> Result<Said> {
    let mut last = None;
    let said = wait_for("the guest's server to listen", PATIENCE, || {
        let mut command = command(program, uds, arguments);
        match command::output(&mut command, TRANSFER) {
            Ok(text) => Said::read(&text).map(Some),
            Err(error) if NO_SERVER.iter().any(|words| format!("{error:#}").contains(words)) => {
                last = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    });
    said.with_context(|| last.map(|error| format!("{error:#}")).unwrap_or_default())
}

/// A server on the host. Killed on drop.
#[derive(Debug)]
pub struct HostServer {
    process: Running,
    log: PathBuf,
}

impl HostServer {
    /// Starts it and waits until it listens on `port`. Its output goes to a file in `dir`.
    ///
    /// # Errors
    /// It ends before that.
    pub fn start(program: &Path, uds: &Path, megabytes: u32, port: u32, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("server{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command = command(program, uds, &format!("-s -m {megabytes} -p {port}"));
        let process = Running::start_logged(&mut command, &log)?;
        let mut server = Self { process, log };
        let mut socket = uds.as_os_str().to_owned();
        socket.push(format!("_{port}"));
        wait_for("the host's server to listen", PATIENCE, || {
            if let Some(status) = server.process.ended()? {
                bail!("it ended with {status}: {}", server.said());
            }
            Ok(is_listening(&server.process.pid().to_string(), Path::new(&socket))?.then_some(()))
        })?;
        Ok(server)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It fails; the message holds its own.
    pub fn finish(mut self) -> Result<Said> {
        let status = self.process.wait(TRANSFER).with_context(|| self.said())?;
        ensure!(status.success(), "the host's server ended with {status}: {}", self.said());
        Said::read(&self.said())
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn command(program: &Path, uds: &Path, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["vsock-rx", "--check", "--json", "-", "--uds"]).arg(uds);
    command.args(arguments.split_whitespace());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_found_among_other_lines() {
        let text = "a warning\n{\"bytes\":4096,\"send_seconds\":0.1,\"sum\":\"0f\"}\n@exit 0";
        let said = Said::read(text).unwrap();
        assert_eq!((said.bytes, said.sum.as_str(), said.windows), (4096, "0f", 0));
        let error = Said::read("no connection\n@exit 1").unwrap_err().to_string();
        assert!(error.contains("no connection"), "{error}");
    }
}

//! `zw-vsock`, the guest's program, run from here; and other programs there that end with a line
//! `ok …` or `failed: …`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::PATIENCE;
use crate::guest::Guest;

/// For a whole job: each of its steps has [`PATIENCE`].
const JOB: Duration = PATIENCE.saturating_mul(4);

/// Files of jobs in guests; a number is used once.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Runs a job to its end; returns what it says behind `ok`.
///
/// # Errors
/// The job fails; the message holds its own.
pub fn run(guest: &mut Guest, line: &str) -> Result<String> {
    let command = format!("zw-vsock {line}");
    let output = guest.run(&command, JOB)?;
    verdict(&command, &output.text)
}

/// A job that runs beside others in the guest.
#[derive(Debug)]
#[must_use]
pub struct Background {
    command: String,
    file: String,
    pid: u32,
}

impl Background {
    /// Starts a job.
    ///
    /// # Errors
    /// The guest does not answer.
    pub fn start(guest: &mut Guest, line: &str) -> Result<Self> {
        Self::start_command(guest, &format!("zw-vsock {line}"))
    }

    /// Starts another program; the command line is a whole one.
    ///
    /// # Errors
    /// As [`Background::start`].
    pub fn start_command(guest: &mut Guest, command: &str) -> Result<Self> {
        let file = format!("/tmp/job{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let pid = guest.sh(&format!("{command} >{file} 2>&1 & echo $!"))?;
        let pid = pid.parse().with_context(|| format!("the process id of `{command}` is '{pid}'"))?;
        Ok(Self { command: command.to_owned(), file, pid })
    }

    /// Starts a job and waits until it listens.
    ///
    /// # Errors
    /// It ends before that.
    pub fn listen(guest: &mut Guest, line: &str) -> Result<Self> {
        let job = Self::start(guest, line)?;
        job.wait_for(guest, "listening")?;
        Ok(job)
    }

    /// Waits until it says a word on a line of its own.
    ///
    /// # Errors
    /// It ends without.
    pub fn wait_for(&self, guest: &mut Guest, word: &str) -> Result<()> {
        let said = self.wait(guest, word)?;
        if said.lines().any(|line| line == word) {
            return Ok(());
        }
        verdict(&self.command, &said)?;
        bail!("in the guest: `{}` never said '{word}': {said}", self.command);
    }

    /// Its process id in the guest.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal, by name (`STOP`).
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, guest: &mut Guest, signal: &str) -> Result<()> {
        guest.sh(&format!("kill -{signal} {}", self.pid))?;
        Ok(())
    }

    /// Waits for its end; returns what it says behind `ok`.
    ///
    /// # Errors
    /// As [`run`].
    pub fn finish(self, guest: &mut Guest) -> Result<String> {
        let said = self.wait(guest, "(ok|failed:) ")?;
        verdict(&self.command, &said)
    }

    /// Waits for a line of these words, or for the last one; returns all lines.
    fn wait(&self, guest: &mut Guest, words: &str) -> Result<String> {
        let Self { command, file, .. } = self;
        let wait =
            format!("until grep -qsE '^({words}|ok |failed: )' {file}; do usleep 20000; done; cat {file}");
        Ok(guest.run(&wait, JOB).with_context(|| format!("`{command}`"))?.text)
    }
}

fn verdict(command: &str, said: &str) -> Result<String> {
    let last = said.lines().next_back().unwrap_or_default();
    match last.strip_prefix("ok") {
        Some(text) => Ok(text.trim().to_owned()),
        None => bail!("in the guest: `{command}`: {said}"),
    }
}

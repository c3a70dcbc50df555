//! Programs on the host: run with a time limit, or kept and killed on drop.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use zerowire_testkit::process::kill_with_thread;

/// Limit for commands that answer at once (`ip`, `ldd`, `--version`). Generous,
/// because two guests may be busy beside them.
pub const SHORT: Duration = Duration::from_secs(20);

/// How often a wait looks again.
pub const POLL: Duration = Duration::from_millis(10);

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// It can't be started, fails, or does not end within `limit` (then it is killed);
/// the message holds what it wrote.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let name = describe(command);
    let (out, err) = (capture()?, capture()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    // One that answers at once need not die with its parent. To see to that the parent forks, which
    // copies all of its page tables.
    if limit > SHORT {
        kill_with_thread(command);
    }
    let child = command.spawn().with_context(|| format!("can't start `{name}`"))?;
    let mut running = Running { child, name: name.clone() };
    let status = running.wait(limit).with_context(|| format!("`{name}`"));
    let (out, err) = (read_back(out)?, read_back(err)?);
    match status {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => bail!("`{name}`: {status}\n{err}{out}"),
        Err(error) => Err(error.context(format!("{err}{out}"))),
    }
}

/// The command as one would type it, for messages.
pub fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn capture() -> Result<File> {
    tempfile::tempfile().context("create a temporary file")
}

fn read_back(mut file: File) -> Result<String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A child process that is killed and reaped on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts a command; its streams are the caller's choice.
    ///
    /// # Errors
    /// The program can't be started; the message names it.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = describe(command);
        let child = kill_with_thread(command).spawn().with_context(|| format!("can't start `{name}`"))?;
        Ok(Self { child, name })
    }

    /// Starts a command with both output streams going to a file.
    ///
    /// # Errors
    /// The file can't be created or the program not started.
    pub fn start_logged(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Self::start(command)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if it has ended, without waiting.
    ///
    /// # Errors
    /// The system call fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal. If the process has ended already, this does nothing and succeeds.
    ///
    /// # Errors
    /// The system call fails for another reason.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), signal)
                .with_context(|| format!("signal {signal:?} to `{}`", self.name))?;
        }
        Ok(())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It still runs after `limit`; it is left running (until the drop).
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("`{}` still runs after {limit:?}", self.name);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills (SIGKILL) and reaps it.
    pub fn kill(&mut self) {
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Calls `check` until it returns a value.
///
/// # Errors
/// `check` fails, or returned nothing for `limit`; the message says what was awaited.
pub fn wait_for<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = check()? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("waited {limit:?} in vain for {what}");
        }
        std::thread::sleep(POLL);
    }
}

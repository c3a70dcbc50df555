//! The device: this program once more, as `zerowire net`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::Value;

use super::TAP;

/// For an answer to a signal.
const ANSWER: Duration = Duration::from_secs(10);

/// The child process. It is killed, and its folder removed, on drop.
#[derive(Debug)]
pub(super) struct Backend {
    child: Child,
    statistics: Receiver<Value>,
    socket: PathBuf,
    command_line: String,
    // Last, so that it goes when the child is gone.
    _dir: tempfile::TempDir,
}

impl Backend {
    /// Starts the child with this metadata document; it may not listen yet.
    pub(super) fn start(metadata: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("zerowire-demo-").tempdir().context("create a folder")?;
        let socket = dir.path().join("net.sock");
        let file = dir.path().join("metadata.json");
        std::fs::write(&file, metadata).with_context(|| format!("write {}", file.display()))?;
        let program = std::env::current_exe().context("find this program's own path")?;
        let mut command = Command::new(program);
        command.args(["net", "--socket"]).arg(&socket).args(["--port", &format!("tap:{TAP}")]);
        command.arg("--metadata").arg(&file).args(["--json", "--log", "warn"]);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let command_line = format!("zerowire {}", words.join(" "));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: the closure runs between fork and exec and makes one system call
        // (prctl); it allocates nothing and takes no lock.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let mut child = command.spawn().with_context(|| format!("cannot start `{command_line}`"))?;
        let output = child.stdout.take().context("the child has no standard output")?;
        let (sender, statistics) = channel();
        std::thread::Builder::new().name("statistics".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(value) = serde_json::from_str(&line) else { continue };
                if sender.send(value).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { child, statistics, socket, command_line, _dir: dir })
    }

    /// Where the guest connects.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// How it was started.
    pub(super) fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Adds to an error that the child has ended, if it has.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        match self.child.try_wait() {
            Ok(Some(status)) => anyhow!("zerowire net ended with {status}; its message is above"),
            _ => error,
        }
    }

    /// Asks for the statistics (SIGUSR1).
    pub(super) fn statistics(&mut self) -> Result<Value> {
        self.signal(Signal::USR1)?;
        self.statistics.recv_timeout(ANSWER).context("zerowire net printed no statistics after SIGUSR1")
    }

    /// Ends it (SIGTERM); returns the last statistics.
    pub(super) fn stop(mut self) -> Result<Value> {
        self.signal(Signal::TERM)?;
        let last = self.statistics.recv_timeout(ANSWER).context("no statistics after SIGTERM")?;
        let status = self.child.wait().context("wait for zerowire net")?;
        if !status.success() {
            bail!("zerowire net ended with {status}");
        }
        Ok(last)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("zerowire net ended with {status}; its message is above");
        }
        kill_process(Pid::from_child(&self.child), signal).context("signal zerowire net")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

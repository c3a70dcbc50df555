//! The devices: processes of `zerowire net` and `zerowire vsock`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zerowire_testkit::process::kill_with_thread;

use super::{CID, TAP};

/// For an answer to a signal.
const ANSWER: Duration = Duration::from_secs(10);

/// Name of the host's end in the folder.
const UDS: &str = "vsock";

/// The child process. It is killed, and its folder removed, on drop.
#[derive(Debug)]
pub(super) struct SoftBackend {
    name: &'static str,
    child: Child,
    statistics: Receiver<Value>,
    socket: PathBuf,
    command_line: String,
    // Last, so that it goes when the child is gone.
    dir: tempfile::TempDir,
}

impl SoftBackend {
    /// Starts `zerowire net` with this metadata document; it may not listen yet.
    pub(super) fn net(metadata: &str) -> Result<Self> {
        Self::start("net", |dir, command| {
            let file = dir.join("metadata.json");
            std::fs::write(&file, metadata).with_context(|| format!("write {}", file.display()))?;
            command.args(["--port", &format!("tap:{TAP}"), "--metadata"]).arg(&file);
            Ok(())
        })
    }

    /// Starts `zerowire vsock`; it may not listen yet.
    pub(super) fn vsock() -> Result<Self> {
        Self::start("vsock", |dir, command| {
            command.args(["--cid", &CID.to_string(), "--uds"]).arg(dir.join(UDS));
            Ok(())
        })
    }

    /// `arguments` adds to the command line; its folder vanishes with the child.
    fn start(name: &'static str, arguments: impl FnOnce(&Path, &mut Command) -> Result<()>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("zerowire-demo-").tempdir().context("create a folder")?;
        let socket = dir.path().join(format!("{name}.sock"));
        let mut command = Command::new(zerowire_vmtest::backend::program()?);
        command.args([name, "--socket"]).arg(&socket);
        arguments(dir.path(), &mut command)?;
        command.args(["--json", "--log", "warn"]);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let command_line = format!("zerowire {}", words.join(" "));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        kill_with_thread(&mut command);
        let mut child = command.spawn().with_context(|| format!("can't start `{command_line}`"))?;
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
        Ok(Self { name, child, statistics, socket, command_line, dir })
    }

    /// Where the guest connects.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The host's end of `zerowire vsock`.
    pub(super) fn uds(&self) -> PathBuf {
        self.dir.path().join(UDS)
    }

    /// How it was started.
    pub(super) fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Adds to an error that the child has ended, if it has.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        match self.child.try_wait() {
            Ok(Some(status)) => anyhow!("zerowire {} ended with {status}; its message is above", self.name),
            _ => error,
        }
    }

    /// Asks for the statistics (SIGUSR1).
    pub(super) fn statistics(&mut self) -> Result<Value> {
        self.signal(Signal::USR1)?;
        let name = self.name;
        let answer = self.statistics.recv_timeout(ANSWER);
        answer.with_context(|| format!("zerowire {name} printed no statistics after SIGUSR1"))
    }

    /// Ends it (SIGTERM); returns the last statistics.
    pub(super) fn stop(mut self) -> Result<Value> {
        self.signal(Signal::TERM)?;
        let last = self.statistics.recv_timeout(ANSWER).context("no statistics after SIGTERM")?;
        let status = self.child.wait().with_context(|| format!("wait for zerowire {}", self.name))?;
        if !status.success() {
            bail!("zerowire {} ended with {status}", self.name);
        }
        Ok(last)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("zerowire {} ended with {status}; its message is above", self.name);
        }
        let name = self.name;
        kill_process(Pid::from_child(&self.child), signal).with_context(|| format!("signal zerowire {name}"))
    }
}

impl Drop for SoftBackend {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

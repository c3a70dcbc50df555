//! The devices: processes of `zerowire net` and `zerowire vsock`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result};
use serde_json::Value;
use tempfile::TempDir;
use zerowire_vmtest::backend::{BackendProcess, program};

use super::{CID, TAP};

/// Name of the host's end in the folder.
const UDS: &str = "vsock";

/// A running device. It is killed, and its folder removed, on drop.
#[derive(Debug)]
pub(super) struct SoftBackend {
    process: BackendProcess,
    command_line: String,
    // Last, so that it goes when the process is gone.
    dir: TempDir,
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

    /// `arguments` adds to the command line; its folder vanishes with the process.
    fn start(name: &str, arguments: impl FnOnce(&Path, &mut Command) -> Result<()>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("zerowire-demo-").tempdir().context("create a folder")?;
        let socket = dir.path().join(format!("{name}.sock"));
        let mut command = Command::new(program()?);
        command.args([name, "--socket"]).arg(&socket);
        arguments(dir.path(), &mut command)?;
        command.args(["--json", "--log", "warn"]);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        let command_line = format!("zerowire {}", words.join(" "));
        let process = BackendProcess::spawn(&mut command, &socket, dir.path(), name)?;
        Ok(Self { process, command_line, dir })
    }

    /// Where the guest connects.
    pub(super) fn socket(&self) -> &Path {
        self.process.socket()
    }

    /// The host's end of `zerowire vsock`.
    pub(super) fn uds(&self) -> PathBuf {
        self.dir.path().join(UDS)
    }

    /// How it was started.
    pub(super) fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Adds to an error that the process has ended, if it has.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        self.process.check_alive().err().unwrap_or(error)
    }

    /// Asks for the statistics (SIGUSR1).
    pub(super) fn statistics(&mut self) -> Result<Value> {
        self.process.statistics()
    }

    /// Ends it (SIGTERM); returns the last statistics.
    pub(super) fn stop(mut self) -> Result<Value> {
        self.process.stop()?.context("no statistics after SIGTERM")
    }
}

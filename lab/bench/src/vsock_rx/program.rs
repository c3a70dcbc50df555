//! The program that receives or sends: this tool as a process of its own.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::guest::STALL_LIMIT;
use crate::held::Held;

/// A running `zerowire-bench vsock-rx`. Dropping it ends the process.
#[derive(Debug)]
pub struct Program {
    child: Child,
    held: Held,
}

impl Program {
    /// Starts `tool vsock-rx` with these arguments and `--json`. It inherits the CPU of the calling
    /// thread.
    pub fn start(tool: &Path, args: &[String]) -> Result<Self> {
        let mut command = Command::new(tool);
        command.args(["--log", "warn", "vsock-rx", "--json", "-"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let held = Held::nothing();
        let child = held.spawn(&mut command).with_context(|| format!("can't start {}", tool.display()))?;
        Ok(Self { child, held })
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.held.try_wait(&mut self.child)?.is_some())
    }

    /// Waits for its end and reads what it printed.
    pub fn output<T: DeserializeOwned>(&mut self) -> Result<T> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.held.try_wait(&mut self.child)? {
                break status;
            }
            if begin.elapsed() > STALL_LIMIT {
                bail!("the program does not end within {STALL_LIMIT:?} of the last byte");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = read(self.child.stdout.take());
        if !status.success() {
            bail!("the program failed ({status}): {}", self.words());
        }
        serde_json::from_str(&text).with_context(|| format!("the program printed {text:?}"))
    }

    /// What it wrote to standard error, if it has ended.
    pub fn words(&mut self) -> String {
        match self.held.try_wait(&mut self.child) {
            Ok(Some(_)) => read(self.child.stderr.take()).trim().to_owned(),
            _ => "it runs".to_owned(),
        }
    }
}

fn read(from: Option<impl Read>) -> String {
    let mut text = String::new();
    // Bytes that aren't text are left out.
    let _ = from.map(|mut from| from.read_to_string(&mut text));
    text
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended gives an error here, which is as good.
        let _ = self.child.kill();
        while let Ok(None) = self.held.try_wait(&mut self.child) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

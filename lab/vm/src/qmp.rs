//! A client of QEMU's machine protocol (QEMU `docs/interop/qmp-spec`).
//!
//! One JSON object a line. Answers carry the id of their command; events come at
//! any time and are kept until somebody waits for them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Commands answer at once, but a busy emulated CPU can hold QEMU's main lock.
const ANSWER: Duration = Duration::from_secs(20);

/// A connection that is ready for commands.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    messages: Receiver<Value>,
    events: VecDeque<Value>,
    next: u64,
}

impl Qmp {
    /// Takes over a connected socket and enters command mode. What QEMU says also
    /// goes to the file `log`.
    ///
    /// # Errors
    /// QEMU does not greet, or the log can't be created.
    pub fn new(stream: UnixStream, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let (sender, messages) = channel();
        let reader = stream.try_clone()?;
        std::thread::Builder::new().name("qmp".into()).spawn(move || collect(reader, file, &sender))?;
        let mut qmp = Self { stream, messages, events: VecDeque::new(), next: 1 };
        let greeting = qmp.message(Instant::now() + ANSWER).context("QEMU's greeting")?;
        if greeting.get("QMP").is_none() {
            bail!("QEMU's greeting is {greeting}");
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns what QEMU returns for it.
    ///
    /// # Errors
    /// QEMU reports an error (its text is in the message), is gone or does not answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes()).with_context(|| format!("send {command} to QEMU"))?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let mut message =
                self.message(deadline).with_context(|| format!("QEMU's answer to {command}"))?;
            if message.get("event").is_some() {
                self.events.push_back(message);
            } else if message["id"] == json!(id) {
                if let Some(error) = message.get("error") {
                    let reason = error["desc"].as_str().unwrap_or("no reason");
                    bail!("QEMU refuses {}: {reason}", line.trim_end());
                }
                return Ok(message["return"].take());
            }
        }
    }

    /// Waits for an event that `wanted` accepts and returns it; earlier ones count.
    /// Events that are passed over are kept.
    ///
    /// # Errors
    /// None came within `limit`.
    pub fn wait_event(
        &mut self,
        name: &str,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let matches = |event: &Value| event["event"] == name && wanted(&event["data"]);
        if let Some(place) = self.events.iter().position(matches) {
            return Ok(self.events.remove(place).unwrap_or_default());
        }
        let deadline = Instant::now() + limit;
        loop {
            let message = self.message(deadline).with_context(|| format!("event {name} from QEMU"))?;
            if matches(&message) {
                return Ok(message);
            }
            self.events.push_back(message);
        }
    }

    fn message(&self, deadline: Instant) -> Result<Value> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.messages.recv_timeout(left).map_err(|error| match error {
            std::sync::mpsc::RecvTimeoutError::Timeout => anyhow::anyhow!("nothing came in time"),
            std::sync::mpsc::RecvTimeoutError::Disconnected => anyhow::anyhow!("QEMU is gone"),
        })
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the reader thread; it may have ended already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn collect(stream: UnixStream, mut log: File, sender: &Sender<Value>) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        // The log is only read after a failure; a full disk must not cause one.
        let _ = writeln!(log, "{line}");
        let Ok(message) = serde_json::from_str(&line) else { continue };
        if sender.send(message).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

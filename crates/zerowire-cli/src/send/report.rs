//! What was sent, and how.

use anyhow::Result;
use serde::Serialize;
use zerowire::ledger::Totals;
use zerowire::send::{Choice, SendWay};

use super::datagrams::Datagrams;
use super::{Left, ModeArg};
use crate::outcome::{self, Destination, JsonOutput, Outcome};
use zerowire_cli::bar::bytes_text;

/// The result of one transfer.
#[derive(Serialize)]
pub struct SendSummary {
    /// The peer.
    pub to: String,
    /// What was asked for.
    pub mode: ModeArg,
    /// What ran, and why.
    pub path: String,
    /// Over UDP: how long they are, and who cuts them.
    pub datagrams: Option<Datagrams>,
    /// How it ended.
    pub outcome: Outcome,
    /// What failed.
    pub error: Option<String>,
    /// Bytes that the sender took.
    pub bytes: u64,
    /// From the first byte to the last notification.
    pub seconds: f64,
    /// CPU time of the process in that time.
    pub cpu_seconds: f64,
    /// What each class of lengths was served by, and why.
    pub choices: Vec<Choice>,
    /// Bytes copied or not, and why.
    pub ledger: Totals,
    /// What was not back at the end.
    pub left: Left,
    /// Bytes that the peer sent, and that were dropped.
    pub replied_bytes: u64,
}

impl SendSummary {
    /// JSON to a file or to standard output, else the summary for people.
    pub fn write(&self, json: &JsonOutput, quiet: bool) -> Result<()> {
        outcome::write(self, Destination { json, quiet, stdout_taken: false }, Self::text)
    }

    fn text(&self) -> String {
        let verb = match self.outcome {
            Outcome::Complete => "sent",
            Outcome::Failed => "failed after",
            Outcome::Interrupted => "interrupted after",
        };
        let seconds = self.seconds.max(1e-9);
        let mut text = format!(
            "{verb} {} in {:.3} s, {:.3} Gb/s; CPU {:.3} s",
            bytes_text(self.bytes),
            self.seconds,
            self.bytes as f64 * 8e-9 / seconds,
            self.cpu_seconds
        );
        if self.bytes >= 1_000_000 {
            text += &format!(", {:.3} s a gigabyte", self.cpu_seconds * 1e9 / self.bytes as f64);
        }
        text.push('\n');
        let ledger = &self.ledger;
        let reasons: Vec<_> =
            ledger.copied_bytes.iter().map(|(why, n)| format!("{why} {}", bytes_text(*n))).collect();
        text += &format!(
            "  zero-copied {}, copied {}{}; {} payloads, {} system calls\n",
            bytes_text(ledger.zero_copied_bytes),
            bytes_text(ledger.copied_total()),
            if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) },
            ledger.frames,
            ledger.system_calls
        );
        text += &format!("  path: {}\n", self.path);
        if let Some(datagrams) = &self.datagrams {
            text += &format!("  {datagrams}\n");
        }
        for choice in self.choices.iter().filter(|c| c.way == SendWay::Lend || c.sends > 1) {
            text += &format!("  {choice}\n");
        }
        if self.replied_bytes > 0 {
            text += &format!("  the peer sent {}, which were dropped\n", bytes_text(self.replied_bytes));
        }
        if self.left.payloads > 0 {
            text += &format!(
                "  {} payloads ({}) were not acknowledged\n",
                self.left.payloads,
                bytes_text(self.left.bytes as u64)
            );
        }
        text
    }
}

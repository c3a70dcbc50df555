//! What was received, and how.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use zerowire::ledger::Totals;
use zerowire::recv::{Events, Receiver, ZeroCopied};

use super::session::{Connection, ConnectionState, Counts, Session};
use crate::outcome::{self, Destination, JsonOutput, Outcome};
use zerowire_cli::bar::bytes_text;

/// Connections that the summary names.
const NAMED: usize = 8;

/// Bytes, by who placed them.
#[derive(Serialize)]
pub struct ReceivedBytes {
    /// Bytes that the kernel copied into the area, as far as is known.
    pub copied_bytes: u64,
    /// The others: bytes that the NIC placed there.
    pub zero_copied_bytes: u64,
    /// How reliable this figure is.
    pub zero_copied_is: ZeroCopied,
    /// Both.
    pub bytes: u64,
}

/// The result.
#[derive(Serialize)]
pub struct Report {
    /// Where it listened.
    pub listen: SocketAddr,
    /// What was asked for.
    pub mode: &'static str,
    /// What ran, and why.
    pub path: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What failed.
    pub error: Option<String>,
    /// What was received; its keys stand beside the others.
    #[serde(flatten)]
    pub received: ReceivedBytes,
    /// From the first connection to the last byte or end.
    pub nanoseconds: u64,
    /// 10⁹ bits in a second of the time above.
    pub gigabits_per_second: f64,
    /// CPU time of the process.
    pub cpu_seconds: f64,
    /// Connections in numbers.
    pub connections: Counts,
    /// Connections one by one, at most 1000 of them.
    pub list: Vec<Connection>,
    /// Bytes copied or not, and why.
    pub ledger: Totals,
    /// What happened besides.
    pub events: Events,
}

impl Report {
    /// Puts it together.
    pub fn new(
        listen: SocketAddr,
        mode: &'static str,
        receiver: &Receiver,
        session: Session,
        (outcome, error): (Outcome, Option<String>),
        cpu_seconds: f64,
    ) -> Self {
        let ledger = receiver.counters().snapshot();
        let took = session.span.map_or(Duration::ZERO, |(first, last)| last - first);
        let bytes = ledger.bytes;
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Self {
            listen,
            mode,
            path: receiver.path(),
            outcome,
            error,
            received: ReceivedBytes {
                copied_bytes: ledger.copied_total(),
                zero_copied_bytes: ledger.zero_copied_bytes,
                zero_copied_is: receiver.zero_copied(),
                bytes,
            },
            nanoseconds,
            gigabits_per_second: bytes as f64 * 8.0 / (nanoseconds.max(1) as f64),
            cpu_seconds,
            connections: session.counts,
            list: session.connections(),
            ledger,
            events: receiver.events(),
        }
    }

    /// JSON to a file or to standard output, else the summary for people: to standard error where
    /// received bytes went to standard output.
    pub fn write(&self, json: &JsonOutput, quiet: bool, stdout_taken: bool) -> Result<()> {
        outcome::write(self, Destination { json, quiet, stdout_taken }, Self::text)
    }

    fn text(&self) -> String {
        let ReceivedBytes { copied_bytes, zero_copied_bytes, zero_copied_is, bytes } = self.received;
        let [copied, zero_copied] = told(zero_copied_is, copied_bytes, zero_copied_bytes);
        let mut text = format!(
            "  copy bytes: {copied}\n    ZC bytes: {zero_copied}\n Total bytes: {bytes}, nsec: {}\n        Rate: {:.2} Gb/s\n",
            self.nanoseconds, self.gigabits_per_second
        );
        // Writing to a String doesn't fail.
        let _ = write!(text, "         CPU: {:.3} s", self.cpu_seconds);
        if bytes >= 1_000_000 {
            let _ = write!(text, ", {:.3} s a gigabyte", self.cpu_seconds * 1e9 / bytes as f64);
        }
        let _ = writeln!(text, ", {} system calls", self.events.system_calls);
        let reasons: Vec<_> = self.ledger.copied_bytes.iter().map(|(why, n)| format!("{why} {n}")).collect();
        if !reasons.is_empty() {
            let _ = writeln!(text, "  why copied: {}", reasons.join(", "));
        }
        let Counts { accepted, ended, failed } = self.connections;
        let open = accepted - ended - failed;
        let _ = writeln!(text, " connections: {accepted}, {ended} ended, {failed} failed, {open} open");
        for c in self.list.iter().filter(|c| c.state == ConnectionState::Failed).take(NAMED) {
            let peer = c.peer.map_or("unknown".to_owned(), |p| p.to_string());
            let why = c.error.as_deref().unwrap_or_default();
            let _ = writeln!(text, "              {peer}: {why}, after {}", bytes_text(c.bytes));
        }
        let happened = self.happened();
        if !happened.is_empty() {
            let _ = writeln!(text, "      events: {}", happened.join(", "));
        }
        let _ = writeln!(text, "        path: {}", self.path);
        text
    }

    /// What happened that is worth a word.
    fn happened(&self) -> Vec<String> {
        let e = &self.events;
        [
            (e.out_of_buffers, "receives found no buffer"),
            (e.paused, "pauses of a connection that held its share"),
            (e.copied, "arrivals copied by the kernel"),
            (e.overflows, "completion-queue overflows"),
        ]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect()
    }
}

/// Copied and zero-copied bytes as text, with what is unknown.
fn told(is: ZeroCopied, copied: u64, zero_copied: u64) -> [String; 2] {
    match is {
        ZeroCopied::Exact => [copied.to_string(), zero_copied.to_string()],
        ZeroCopied::AtMost => [
            format!("at least {copied}"),
            format!(
                "at most {zero_copied} (the kernel doesn't count what it copies from beside the headers)"
            ),
        ],
        ZeroCopied::Unknown => [
            format!("can't be told, at least {copied}"),
            format!("can't be told, at most {zero_copied} (Linux 7.2 is the first to count what it copies)"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_told_is_no_bare_number() {
        assert_eq!(told(ZeroCopied::Exact, 1, 2), ["1", "2"]);
        for (is, word) in
            [(ZeroCopied::AtMost, "at most 2"), (ZeroCopied::Unknown, "can't be told, at most 2")]
        {
            let [copied, zero_copied] = told(is, 1, 2);
            assert!(
                copied.ends_with("at least 1") && zero_copied.starts_with(word),
                "{copied}, {zero_copied}"
            );
        }
        let json =
            [ZeroCopied::Exact, ZeroCopied::AtMost, ZeroCopied::Unknown].map(|is| serde_json::json!(is));
        assert_eq!(json, ["exact", "at_most", "unknown"]);
    }
}

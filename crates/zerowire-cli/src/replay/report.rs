//! The summary, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use zerowire::ledger::Totals;
use zerowire_cli::bar::bytes_text;

use super::engine::{ReplayEnd, ReplayOutcome};
use super::interface::Counted;
use super::load::Known;
use super::policy::Skipped;
use crate::table::{cpu_line, process_cpu, reasons};

/// Where the frames lay while they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameSource {
    /// In the port's own memory, for all passes.
    Resident,
    /// In memory, copied into the port's in each pass.
    Memory,
    /// In the file, read in each pass.
    File,
    /// In a pipe, read once.
    Pipe,
}

impl FrameSource {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident: loaded once into the port's memory, sent from there",
            Self::Memory => "in memory: copied into the port's memory in each pass",
            Self::File => "streamed: longer than --max-memory, read again in each pass",
            Self::Pipe => "streamed: from a pipe, longer than --max-memory, sent while it is read",
        }
    }
}

/// What was replayed, and how.
#[derive(Debug, Serialize)]
pub struct ReplaySetting {
    /// File name.
    pub capture: String,
    /// Interface.
    pub interface: String,
    /// What ran.
    pub path: String,
    /// Where the frames lay.
    pub source: FrameSource,
    /// How fast they were to go.
    pub pace: String,
}

/// What became of frames.
#[derive(Debug, Serialize)]
pub struct FrameCounts {
    /// Frames sent.
    pub frames: u64,
    /// Bytes of them, without virtio-net headers.
    pub bytes: u64,
    /// Frames given to the port.
    pub frames_handed_over: u64,
    /// Those of them that never came back, or were taken back unsent after an error.
    pub frames_not_back: u64,
    /// Frames that the kernel refused; the first one ends the replay.
    pub frames_refused: u64,
}

/// What a pass leaves out or changes.
#[derive(Debug, Serialize)]
pub struct EachPass {
    /// Frames of a pass that go out segmented.
    pub segmented_a_pass: u64,
    /// Packets left out in each pass, by reason.
    pub skipped: Skipped,
    /// What is missing at the capture's end.
    pub truncated: Option<String>,
}

/// How fast it went.
#[derive(Debug, Serialize)]
pub struct Speed {
    /// From the first frame to the last one's return, seconds.
    pub seconds: f64,
    /// Frames a second.
    pub frames_per_second: f64,
    /// 10⁶ bits a second.
    pub megabits_per_second: f64,
    /// How late the latest frame was handed over, microseconds; 0 at top speed.
    pub latest_microseconds: f64,
}

/// What was done, for people and programs. In JSON the keys of all groups stand side by side.
/// Counts are of frames that the port took back from the kernel, unless they say otherwise.
#[derive(Debug, Serialize)]
pub struct ReplaySummary {
    /// What was replayed.
    #[serde(flatten)]
    pub setting: ReplaySetting,
    /// Why it ended: done, limit, duration, SIGINT, SIGTERM, error.
    pub ended: String,
    /// The error.
    pub error: Option<String>,
    /// Packets in the capture (up to where it was read).
    pub packets: u64,
    /// Frames of each pass; None where the capture is longer than what was read.
    pub frames_a_pass: Option<u64>,
    /// Passes that were completed.
    pub passes: u64,
    /// What became of them.
    #[serde(flatten)]
    pub sent: FrameCounts,
    /// What each pass left out.
    #[serde(flatten)]
    pub pass: EachPass,
    /// How fast it went.
    #[serde(flatten)]
    pub speed: Speed,
    /// What the interface counted meanwhile, frames of other programs included.
    pub interface_counted: Option<Counted>,
    /// CPU time of this process, seconds, reading the capture included.
    pub cpu_seconds: f64,
    /// The ledger.
    pub ledger: Totals,
}

impl ReplaySummary {
    /// Puts it together. `all_known` says whether `known` is all of the capture, and `counted` is
    /// what the interface has counted meanwhile.
    pub fn new(
        setting: ReplaySetting,
        known: Known,
        all_known: bool,
        outcome: &ReplayOutcome,
        totals: Totals,
        counted: Option<Counted>,
    ) -> Self {
        let seconds = outcome.took.as_secs_f64();
        // All that was handed over was sent, or refused, or is not back.
        let refused = totals.dropped_total();
        let rate = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        Self {
            setting,
            ended: ended(outcome.end),
            error: outcome.error.as_ref().map(|e| format!("{e:#}")),
            packets: known.packets,
            frames_a_pass: all_known.then_some(known.frames),
            passes: outcome.passes,
            sent: FrameCounts {
                frames: totals.frames,
                bytes: totals.bytes,
                frames_handed_over: outcome.pushed,
                frames_not_back: outcome.pushed.saturating_sub(totals.frames + refused),
                frames_refused: refused,
            },
            pass: EachPass {
                segmented_a_pass: known.offloaded,
                skipped: known.skipped,
                truncated: known.truncated,
            },
            speed: Speed {
                seconds,
                frames_per_second: rate(totals.frames as f64),
                megabits_per_second: rate(totals.bytes as f64 * 8e-6),
                latest_microseconds: outcome.latest as f64 / 1e3,
            },
            interface_counted: counted,
            cpu_seconds: process_cpu().as_secs_f64(),
            ledger: totals,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} frames, {} bytes ({}) in {:.3} s: {:.0} frames/s, {:.2} Mbit/s",
            self.sent.frames,
            self.sent.bytes,
            bytes_text(self.sent.bytes),
            self.speed.seconds,
            self.speed.frames_per_second,
            self.speed.megabits_per_second
        );
        let of = self.frames_a_pass.map_or_else(String::new, |n| format!(" of {n} frames"));
        let _ = writeln!(out, "  ended: {}; {} passes{of} completed", self.ended, self.passes);
        let _ = writeln!(out, "  path: {}; {}", self.setting.path, self.setting.source.name());
        let _ = match self.speed.latest_microseconds {
            0.0 => writeln!(out, "  pace: {}", self.setting.pace),
            n => writeln!(out, "  pace: {}, the latest frame {n:.0} µs late", self.setting.pace),
        };
        let skipped: Vec<_> = self.pass.skipped.iter().map(|(k, n)| format!("{n} {k}")).collect();
        if !skipped.is_empty() {
            let _ = writeln!(out, "  left out in each pass: {}", skipped.join(", "));
        }
        if self.pass.segmented_a_pass > 0 {
            let _ = writeln!(out, "  segmented in each pass: {}", self.pass.segmented_a_pass);
        }
        if let Some(why) = &self.pass.truncated {
            let _ = writeln!(out, "  {why}");
        }
        if self.sent.frames_not_back + self.sent.frames_refused > 0 {
            let (not_back, refused) = (self.sent.frames_not_back, self.sent.frames_refused);
            let _ = writeln!(out, "  {not_back} frames handed over and not back, {refused} refused");
        }
        if let Some(c) = self.interface_counted {
            let (name, sent, dropped) = (&self.setting.interface, c.tx_packets, c.tx_dropped);
            let _ = writeln!(out, "  {name} counted meanwhile: {sent} sent, {dropped} dropped");
        }
        let l = &self.ledger;
        let _ = writeln!(
            out,
            "  ledger: {} bytes zero-copied, {} copied: {}; {} system calls",
            l.zero_copied_bytes,
            l.copied_total(),
            reasons(l),
            l.system_calls
        );
        out + "  " + &cpu_line(self.cpu_seconds, self.speed.seconds, self.sent.bytes)
    }
}

fn ended(end: ReplayEnd) -> String {
    match end {
        ReplayEnd::Done => "done".to_owned(),
        ReplayEnd::Limit => "limit".to_owned(),
        ReplayEnd::Duration => "duration".to_owned(),
        ReplayEnd::Signal(n) if i32::from(n) == libc::SIGINT => "SIGINT".to_owned(),
        ReplayEnd::Signal(n) if i32::from(n) == libc::SIGTERM => "SIGTERM".to_owned(),
        ReplayEnd::Signal(n) => format!("signal {n}"),
        ReplayEnd::Failed => "error".to_owned(),
    }
}

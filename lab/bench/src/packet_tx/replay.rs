//! `zerowire replay` beside tcpreplay: packets a second from a capture, on the ifb sink.
//!
//! Both get the same capture, the same number of passes, and the order to go as fast as they can.
//! tcpreplay keeps its default way of sending. The time is that of the whole process, start and
//! reading of the capture included. The number of packets is large enough that this is little. The
//! device's counter gives the frames that came.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::frame::{HEAD_LEN, Head};
use super::lab::{INTERFACE, TxLab};
use crate::held::Held;
use crate::interleave::interleave;
use crate::progress::ProgressLine;
use crate::stats::Summary;
use crate::table::{Table, figure};

/// Frame lengths in bytes, Ethernet header included.
pub(crate) const FRAMES: [usize; 2] = [64, 1400];
/// Packets in the capture.
pub(crate) const PACKETS: usize = 1000;

/// The comparison.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// Packets of each run.
    pub packets: usize,
    /// One entry a frame length.
    pub rows: Vec<ReplayRow>,
    /// Why tcpreplay has no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
}

/// The figures of one frame length.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayRow {
    /// Bytes of a frame, Ethernet header included.
    pub frame_bytes: usize,
    /// Thousands of packets a second of `zerowire replay --topspeed`.
    pub zerowire: Option<Summary>,
    /// Thousands of packets a second of tcpreplay.
    pub tcpreplay: Option<Summary>,
    /// The one divided by the other, round by round.
    pub ratio: Option<Summary>,
    /// What failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// Measures both in the namespace of the calling thread.
pub fn measure(program: &Path, lab: &TxLab, rounds: usize, quick: bool) -> Result<ReplayReport> {
    let passes = if quick { 200 } else { 2000 };
    let mut tools: Vec<&OsStr> = vec![program.as_os_str()];
    let not_measured = match present("tcpreplay") {
        true => {
            tools.push(OsStr::new("tcpreplay"));
            None
        }
        false => Some("tcpreplay: not measured: install tcpreplay".to_owned()),
    };
    let held = Held::temporary(&format!("zerowire-replay-bench-{}", std::process::id()))?;
    let mut progress = ProgressLine::new("replay", FRAMES.len() * (rounds + 1));
    let mut rows = Vec::new();
    for frame_bytes in FRAMES {
        let capture = held.folder().join(format!("{frame_bytes}.pcap"));
        std::fs::write(&capture, pcap(lab, frame_bytes))
            .with_context(|| format!("can't write {}", capture.display()))?;
        let what = format!("{frame_bytes} B");
        let runs = interleave(tools.len(), rounds, what, &mut progress, |index, _| {
            let arguments = arguments(index == 0, &capture, passes);
            play(tools[index], &arguments, lab, PACKETS * passes)
        });
        let rate = |index: usize| runs.get(index).map(|runs| runs.samples.as_slice()).unwrap_or_default();
        let failures = runs.iter().zip(&tools).filter_map(|(runs, tool)| {
            Some(format!("{}: {:#}", Path::new(tool).display(), runs.failed.as_ref()?))
        });
        rows.push(ReplayRow {
            frame_bytes,
            zerowire: Summary::of(rate(0).iter().copied()),
            tcpreplay: Summary::of(rate(1).iter().copied()),
            ratio: Summary::ratio(rate(0), rate(1)),
            failures: failures.collect(),
        });
    }
    progress.finish();
    Ok(ReplayReport { packets: PACKETS * passes, rows, not_measured })
}

fn present(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok()
}

/// Arguments of either program.
pub(crate) fn arguments(own: bool, capture: &Path, passes: usize) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    if own {
        arguments.extend(["replay", "--quiet"].map(OsString::from));
    }
    arguments.extend(["--topspeed", "--intf1", INTERFACE].map(OsString::from));
    arguments.push(format!("--loop={passes}").into());
    arguments.push(capture.into());
    arguments
}

/// Runs one of them to its end: thousands of packets a second.
fn play(program: &OsStr, arguments: &[OsString], lab: &TxLab, packets: usize) -> Result<f64> {
    let before = lab.arrived()?;
    let begin = Instant::now();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let seconds = begin.elapsed().as_secs_f64();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("it ended with {}: {}", output.status, complaint.trim().lines().last().unwrap_or_default());
    }
    let arrived = lab.arrived()? - before;
    if arrived != packets as u64 {
        bail!("{packets} packets were to be sent and {arrived} arrived");
    }
    Ok(packets as f64 * 1e-3 / seconds)
}

/// A capture (pcap, version 2.4, microseconds, link type Ethernet) of [`PACKETS`] frames with the
/// same time.
pub(crate) fn pcap(lab: &TxLab, frame_bytes: usize) -> Vec<u8> {
    let mut file = Vec::with_capacity(24 + PACKETS * (16 + frame_bytes));
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2u16, 4].map(u16::to_le_bytes).concat());
    // Time zone, accuracy, longest packet, link type.
    file.extend([0u32, 0, 1 << 16, 1].map(u32::to_le_bytes).concat());
    let head = Head::new(lab, frame_bytes - HEAD_LEN, false);
    for number in 0..PACKETS {
        file.extend([1u32, 0, frame_bytes as u32, frame_bytes as u32].map(u32::to_le_bytes).concat());
        let at = file.len();
        file.resize(at + frame_bytes, number as u8);
        head.write(&mut file[at..]);
    }
    file
}

/// The comparison as text.
pub fn text(report: &ReplayReport) -> String {
    let mut table =
        Table::new(["frame", "zerowire replay --topspeed", "tcpreplay --topspeed", "ratio", "quartiles"]);
    let cell = |summary: &Option<Summary>| summary.map_or("-".to_owned(), |summary| figure(summary.median));
    for row in &report.rows {
        let spread = row.ratio.map_or("-".to_owned(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3));
        table.row([
            format!("{} B", row.frame_bytes),
            cell(&row.zerowire),
            cell(&row.tcpreplay),
            cell(&row.ratio),
            spread,
        ]);
    }
    let mut out = format!(
        "Thousands of packets a second from a capture, on the ifb sink, {} packets a run (to reach: 2 times):\n{}",
        report.packets,
        table.render()
    );
    for note in report.not_measured.iter().chain(report.rows.iter().flat_map(|row| &row.failures)) {
        out.push_str(&format!("{note}.\n"));
    }
    out
}

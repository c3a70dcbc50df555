//! The report as text.

use super::compare::{Comparison, RAW};
use super::report::PortReport;
use crate::case::Direction;
use crate::report::zero_copied;
use crate::table::{Table, bytes, figure};

pub(super) fn text(report: &PortReport) -> String {
    let mut out = format!("{}\n", report.machine);
    if !report.separate_cpus {
        out.push_str("One CPU only: driver and back end took turns; rates mean little.\n");
    }
    for note in &report.notes {
        out.push_str(&format!("Note: {note}.\n"));
    }
    out.push_str(&saturation(report));
    for failure in report.failures() {
        out.push_str(&format!("FAILED: {failure}\n"));
    }
    out.push_str(&bandwidth(report));
    if !report.idle.is_empty() {
        out.push('\n');
    }
    for idle in &report.idle {
        out.push_str(&idle.text());
    }
    out
}

fn saturation(report: &PortReport) -> String {
    let mut table = Table::new([
        "case",
        "working set",
        "variant",
        "rounds x frames",
        "CPU ns/frame",
        "min..max",
        "kernel thread",
        "/bare XDP",
        "quartiles",
        "/tap floor",
        "frames/s",
        "zero-copied",
    ]);
    for case in &report.cases {
        for variant in &case.variants {
            let cpu = &variant.cpu_ns_per_frame;
            let to_bare = variant.ratio_to_floor.as_ref();
            let compared =
                report.comparisons.iter().find(|c| c.case == case.case && c.variant == variant.name);
            let to_tap = compared.and_then(|c| c.cpu_to_tap_floor);
            let kernel = variant.ledger.get("kernel_thread_ns_per_frame");
            table.row([
                case.case.to_string(),
                bytes(case.working_set_bytes),
                variant.name.clone(),
                format!("{} x {}", case.rounds, case.frames),
                figure(cpu.median),
                format!("{}..{}", figure(cpu.min), figure(cpu.max)),
                kernel.map_or("-".into(), |ns| ns.to_string()),
                to_bare.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                to_bare.map_or("-".into(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3)),
                to_tap.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                // Toward the port the clock stands while bursts are queued.
                match case.case.direction {
                    Direction::Transmit => figure(variant.frames_per_second.median),
                    Direction::Receive => "-".to_owned(),
                },
                zero_copied(variant),
            ]);
        }
    }
    format!(
        "\nSaturation, one queue (medians; ratios: medians of those round by round; kernel thread: its part of the CPU time):\n{}",
        table.render()
    )
}

/// Bandwidth and load at the longest length.
fn bandwidth(report: &PortReport) -> String {
    let Some(longest) = report.comparisons.iter().map(|c| c.case.frame_len).max() else {
        return String::new();
    };
    let mut table =
        Table::new(["case", "variant", "Gb/s", "CPU load %", "Gb/s a CPU", "bandwidth", "load", "a CPU"]);
    for c in report.comparisons.iter().filter(|c| c.case.frame_len == longest) {
        table.row([
            c.case.to_string(),
            c.variant.clone(),
            c.gigabits_per_second.map_or("-".into(), |g| figure(g.median)),
            c.cpu_load_percent.map_or("-".into(), |load| figure(load.median)),
            figure(c.gigabits_per_cpu.median),
            ratio(c, |c| c.bandwidth_to_raw_socket.map(|r| r.median)),
            ratio(c, |c| c.load_to_raw_socket.map(|r| r.median)),
            ratio(c, |c| c.per_cpu_to_raw_socket.map(|r| r.median)),
        ]);
    }
    format!(
        "\nBandwidth and CPU load against a packet socket that copies, {longest} B (the last three columns: times the {RAW}'s):\n{}",
        table.render()
    )
}

fn ratio(comparison: &Comparison, of: impl Fn(&Comparison) -> Option<f64>) -> String {
    match of(comparison) {
        Some(ratio) => format!("{ratio:.2}"),
        None if comparison.variant == RAW && comparison.case.direction == Direction::Transmit => {
            "1".to_owned()
        }
        None => "-".to_owned(),
    }
}

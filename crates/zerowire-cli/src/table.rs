//! What the tables of the commands have in common.

use std::time::Duration;

use zerowire::ledger::Totals;
use zerowire_capture::CaptureStats;
use zerowire_vhost::serve::VmProcess;

/// The bytes copied and the frames dropped, by reason.
pub fn reasons(t: &Totals) -> String {
    let list = |map: &std::collections::BTreeMap<&str, u64>| {
        map.iter().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", ")
    };
    let dropped = match t.dropped_total() {
        0 => "none dropped".to_owned(),
        _ => format!("dropped {}", list(&t.dropped_frames)),
    };
    match t.copied_total() {
        0 => dropped,
        _ => format!("{}; {dropped}", list(&t.copied_bytes)),
    }
}

/// What a capture has of a VM, in words; nothing without one.
pub fn capture_line(out: &mut String, capture: Option<CaptureStats>, what: &str) {
    if let Some(CaptureStats { captured, lost }) = capture {
        out.push_str(&format!("  capture: {captured} {what}, {lost} lost to it\n"));
    }
}

/// What was moved in both directions, by their names, in `unit`.
pub fn direction_table(out: &mut String, unit: &str, directions: [(&str, &Totals); 2]) {
    let width = directions.map(|(name, _)| name.len()).into_iter().max().unwrap_or(0) + 1;
    let [name, bytes, zero, copied] = ["direction", "bytes", "zero-copied", "copied"];
    out.push_str(&format!("  {name:<width$} {unit:>12} {bytes:>15} {zero:>15} {copied:>15}\n"));
    for (name, t) in directions {
        let (frames, bytes, zero, copied) = (t.frames, t.bytes, t.zero_copied_bytes, t.copied_total());
        out.push_str(&format!("  {name:<width$} {frames:>12} {bytes:>15} {zero:>15} {copied:>15}\n"));
    }
}

/// How often a VM waited for its limit in this direction; nothing if it never did.
pub fn limit_line(out: &mut String, direction: &str, waits: u64, seconds: f64) {
    if waits > 0 {
        out.push_str(&format!("  {direction}: waited {waits} times for the limit, {seconds:.3} s\n"));
    }
}

/// How the process of a VM fares, in words; nothing where it never died and answers.
pub fn process_line(out: &mut String, process: VmProcess) {
    let VmProcess { restarts, child_answers } = process;
    if restarts > 0 || !child_answers {
        let died = match restarts {
            0 => None,
            1 => Some("died and was replaced once".to_owned()),
            _ => Some(format!("died and was replaced {restarts} times")),
        };
        let silent = (!child_answers).then(|| "does not answer: the figures may be older".to_owned());
        let words: Vec<_> = died.into_iter().chain(silent).collect();
        out.push_str(&format!("  process: {}\n", words.join("; ")));
    }
}

/// CPU time of all threads of this process until now.
pub fn process_cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec.try_into().unwrap_or(0), t.tv_nsec.try_into().unwrap_or(0))
}

/// With fewer bytes than these, start and handshakes are most of the CPU time, and a rate would say
/// nothing.
const ENOUGH_BYTES: u64 = 1_000_000;

/// CPU time of all threads, and what that is for each gigabyte (10⁹ bytes) moved.
pub fn cpu_line(cpu_seconds: f64, uptime_seconds: f64, bytes: u64) -> String {
    let mut line = format!("CPU {cpu_seconds:.3} s in {uptime_seconds:.1} s");
    if bytes >= ENOUGH_BYTES {
        line += &format!(", {:.3} s a gigabyte moved", cpu_seconds * 1e9 / bytes as f64);
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire::ledger::{CopyReason, Counters, DropReason};

    #[test]
    fn reasons_are_named_with_their_counts() {
        let counters = Counters::default();
        assert_eq!(reasons(&counters.snapshot()), "none dropped");
        counters.copied(CopyReason::Held, 700);
        counters.copied(CopyReason::Small, 1);
        assert_eq!(reasons(&counters.snapshot()), "held 700, small 1; none dropped");
        counters.dropped(DropReason::BadPacket);
        assert_eq!(reasons(&counters.snapshot()), "held 700, small 1; dropped bad_packet 1");
    }

    #[test]
    fn a_process_has_a_line_only_where_something_is_wrong() {
        let line = |restarts, child_answers| {
            let mut out = String::new();
            process_line(&mut out, VmProcess { restarts, child_answers });
            out
        };
        assert_eq!(line(0, true), "");
        assert_eq!(line(1, true), "  process: died and was replaced once\n");
        assert_eq!(line(2, true), "  process: died and was replaced 2 times\n");
        let silent = "does not answer: the figures may be older";
        assert_eq!(line(0, false), format!("  process: {silent}\n"));
        assert_eq!(line(2, false), format!("  process: died and was replaced 2 times; {silent}\n"));
    }

    #[test]
    fn cpu_time_is_a_gigabyte_only_where_enough_moved() {
        assert_eq!(cpu_line(0.5, 2.0, 999_999), "CPU 0.500 s in 2.0 s\n");
        assert_eq!(cpu_line(0.5, 2.0, 0), "CPU 0.500 s in 2.0 s\n");
        assert_eq!(cpu_line(0.5, 2.0, 2_000_000_000), "CPU 0.500 s in 2.0 s, 0.250 s a gigabyte moved\n");
    }
}

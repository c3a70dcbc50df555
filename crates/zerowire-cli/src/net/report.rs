//! Statistics as JSON and as a table.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use zerowire::ledger::Totals;
use zerowire_virtio::daemon::{ServerStats, VmStats};

/// Prints the statistics to standard output.
pub(super) fn print(stats: &ServerStats, json: bool) -> Result<()> {
    let text = if json { format!("{}\n", serde_json::to_string(stats)?) } else { table(stats) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn table(stats: &ServerStats) -> String {
    let mut out = String::new();
    let bytes: u64 = stats.vms.iter().map(|v| v.transmit.totals.bytes + v.receive.totals.bytes).sum();
    for vm in &stats.vms {
        vm_table(&mut out, vm);
    }
    let _ = write!(out, "CPU {:.3} s in {:.1} s", stats.cpu_seconds, stats.uptime_seconds);
    if bytes > 0 {
        let _ = write!(out, ", {:.3} s a gigabyte moved", stats.cpu_seconds * 1e9 / bytes as f64);
    }
    out.push('\n');
    out
}

fn vm_table(out: &mut String, vm: &VmStats) {
    let state = if vm.connected { "connected" } else { "not connected" };
    let _ =
        writeln!(out, "{}: {} on {}, {state}, {} connections", vm.name, vm.port, vm.socket, vm.connections);
    if !vm.path.is_empty() {
        let _ = writeln!(out, "  path: {}", vm.path);
    }
    let _ = writeln!(out, "  kernel copies: {}", vm.kernel_copies);
    let _ = writeln!(
        out,
        "  {:<14} {:>12} {:>15} {:>15} {:>15}  copied why; dropped",
        "direction", "frames", "bytes", "zero-copied", "copied"
    );
    for (name, d) in [("guest to port", &vm.transmit), ("port to guest", &vm.receive)] {
        let t = &d.totals;
        let _ = writeln!(
            out,
            "  {name:<14} {:>12} {:>15} {:>15} {:>15}  {}",
            t.frames,
            t.bytes,
            t.zero_copied_bytes,
            t.copied_total(),
            reasons(t)
        );
    }
    if let Some(e) = &vm.last_error {
        let _ = writeln!(
            out,
            "  errors: {} of connections, {} of rings; last: {e}",
            vm.connection_errors, vm.ring_errors
        );
    }
}

fn reasons(t: &Totals) -> String {
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

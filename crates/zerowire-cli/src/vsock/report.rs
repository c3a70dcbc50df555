//! Statistics as a table.

use std::fmt::Write as _;

use zerowire::ledger::Totals;
use zerowire_cli::logging::printable;
use zerowire_vhost::serve::ServedStats;
use zerowire_vsock::{VsockServerStats, VsockTotals, VsockVmStats};

use crate::table::{capture_line, cpu_line, direction_table, limit_line, process_line, reasons};

/// The statistics in words.
pub(super) fn table(stats: &VsockServerStats) -> String {
    let mut out = String::new();
    for vm in &stats.vms {
        vm_table(&mut out, vm);
    }
    let bytes = stats.vms.iter().map(|v| v.totals.transmit.bytes + v.totals.receive.bytes).sum();
    out + &cpu_line(stats.cpu_seconds, stats.uptime_seconds, bytes)
}

fn vm_table(out: &mut String, vm: &ServedStats<VsockVmStats>) {
    let state = if vm.connected { "connected" } else { "not connected" };
    let t = &vm.totals;
    let _ = writeln!(
        out,
        "{}: CID {} on {}, host end {}, groups {}, {state}",
        vm.name,
        vm.cid,
        printable(&vm.socket),
        printable(&vm.uds),
        printable(&vm.groups.join(", "))
    );
    process_line(out, vm.process);
    let _ = writeln!(out, "  path: {}", vm.path);
    let _ = writeln!(out, "  kernel copies: {}", vm.kernel_copies);
    connection_lines(out, t);
    capture_line(out, vm.capture, "packets");
    let ways = [("from guest", &t.transmit), ("to guest", &t.receive)];
    direction_table(out, "packets", ways);
    for (name, d) in ways {
        let (calls, why) = (calls_a_packet(d), reasons(d));
        let _ = writeln!(out, "  {name}, system calls a packet: {calls}; bytes copied why: {why}");
    }
    let _ = writeln!(
        out,
        "  packets without payload, both ways: {}; from the guest with stale credit: {}",
        t.control_packets, t.stale_credit
    );
    let limits = &t.limits;
    limit_line(out, "from guest", limits.transmit_limit_waits, limits.transmit_limit_wait_seconds);
    limit_line(out, "to guest", limits.receive_limit_waits, limits.receive_limit_wait_seconds);
    if let Some(e) = &t.last_error {
        let _ = writeln!(
            out,
            "  errors: {} of front ends' connections, {} of rings; last: {}",
            vm.connection_errors,
            t.ring_errors,
            printable(e)
        );
    }
}

fn connection_lines(out: &mut String, t: &VsockTotals) {
    let _ = writeln!(
        out,
        "  connections: {} opened, {} open, {} refused ({} beyond the rate), {} reset; {} bad handshakes of host programs",
        t.connections_opened,
        t.connections_open,
        t.connections_refused,
        t.requests_over_rate,
        t.resets,
        t.bad_handshakes
    );
    let _ = writeln!(
        out,
        "  mapped connections: {} with {} windows, {} bytes; {} refused",
        t.mapped.mapped_connections, t.mapped.mapped_windows, t.mapped.mapped_bytes, t.mapped.mapped_refused
    );
}

fn calls_a_packet(t: &Totals) -> String {
    match t.frames {
        0 => "-".to_owned(),
        n => format!("{:.2}", t.system_calls as f64 / n as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_a_packet_only_where_packets_moved() {
        let mut t = Totals::default();
        assert_eq!(calls_a_packet(&t), "-");
        (t.frames, t.system_calls) = (8, 2);
        assert_eq!(calls_a_packet(&t), "0.25");
    }
}

//! Statistics as a table.

use std::fmt::Write as _;

use zerowire_cli::logging::printable;
use zerowire_net::{LinkState, ServerStats, VmStats};
use zerowire_vhost::serve::ServedStats;

use crate::table::{capture_line, cpu_line, direction_table, limit_line, process_line, reasons};

/// The statistics in words.
pub(super) fn table(stats: &ServerStats) -> String {
    let mut out = String::new();
    let bytes: u64 = stats.vms.iter().map(|v| v.transmit.totals.bytes + v.receive.totals.bytes).sum();
    for vm in &stats.vms {
        vm_table(&mut out, vm);
    }
    out + &cpu_line(stats.cpu_seconds, stats.uptime_seconds, bytes)
}

fn vm_table(out: &mut String, vm: &ServedStats<VmStats>) {
    let state = if vm.connected { "connected" } else { "not connected" };
    let (socket, connections) = (printable(&vm.socket), vm.connections);
    let _ = writeln!(out, "{}: {} on {socket}, {state}, {connections} connections", vm.name, vm.port);
    process_line(out, vm.process);
    if !vm.path.is_empty() {
        let _ = writeln!(out, "  path: {}", vm.path);
    }
    let state = match vm.port_state.interface_state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::NoCarrier => "no carrier",
        LinkState::Gone => "gone",
        LinkState::Unknown => "unknown",
    };
    let _ = writeln!(out, "  interface: {}, {state}", vm.port_state.interface);
    if let Some(link) = &vm.port_state.link {
        let state = if link.up { "up" } else { "down" };
        let _ = writeln!(out, "  link: {state}; the front end was disconnected {} times", link.disconnects);
    }
    let _ = writeln!(out, "  kernel copies: {}", vm.port_state.kernel_copies);
    capture_line(out, vm.port_state.capture, "frames");
    let ways = [("guest to port", &vm.transmit), ("port to guest", &vm.receive)];
    direction_table(out, "frames", ways.map(|(name, d)| (name, &d.totals)));
    for (name, d) in ways {
        let _ = writeln!(out, "  {name}, bytes copied why: {}", reasons(&d.totals));
    }
    for (name, d) in ways {
        limit_line(out, name, d.limit_waits, d.limit_wait_seconds);
    }
    if let Some(e) = &vm.last_error {
        let _ = writeln!(
            out,
            "  errors: {} of connections, {} of rings; last: {}",
            vm.connection_errors,
            vm.ring_errors,
            printable(e)
        );
    }
}

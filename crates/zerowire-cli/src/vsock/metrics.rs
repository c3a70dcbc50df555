//! The metrics of vsock VMs.

use zerowire_vhost::serve::ServedStats;
use zerowire_vsock::{VsockServerStats, VsockVmStats};

use super::report;
use crate::control::{MetricsPage, Moved, OfDirection, OfReason, OfVm, VmReport};

impl VmReport for VsockVmStats {
    fn name(&self) -> &str {
        &self.name
    }

    fn table(stats: &VsockServerStats) -> String {
        report::table(stats)
    }

    fn metrics(vms: &[ServedStats<Self>], page: &mut MetricsPage) {
        let moved: Vec<_> = vms.iter().flat_map(|vm| moved(vm)).collect();
        page.of_vms(&OF_VM, vms);
        page.of_directions(&OF_DIRECTION, &moved);
        page.limit_wait_seconds("vsock_limit_wait_seconds", &moved);
        page.kick_seconds("vsock_kick_seconds", &moved);
        page.of_reasons(&OF_REASON, &moved);
    }
}

fn moved(vm: &VsockVmStats) -> [Moved<'_>; 2] {
    let (totals, limits) = (&vm.totals, &vm.totals.limits);
    [
        Moved {
            vm: &vm.name,
            direction: "transmit",
            totals: &totals.transmit,
            limit_waits: limits.transmit_limit_waits,
            limit_wait_seconds: limits.transmit_limit_wait_seconds,
            kick_seconds: &totals.kicks.transmit_kick_seconds,
        },
        Moved {
            vm: &vm.name,
            direction: "receive",
            totals: &totals.receive,
            limit_waits: limits.receive_limit_waits,
            limit_wait_seconds: limits.receive_limit_wait_seconds,
            kick_seconds: &totals.kicks.receive_kick_seconds,
        },
    ]
}

const OF_VM: [OfVm<VsockVmStats>; 20] = [
    OfVm::gauge("front_end_connected", "1 if a front end is connected.", |v| u64::from(v.connected)),
    OfVm::counter("connections", "Connections of front ends.", |v| v.connections),
    OfVm::counter("connection_errors", "Connections that ended by an error.", |v| v.connection_errors),
    OfVm::counter("ring_errors", "Virtqueues that were stopped since the guest broke a rule.", |v| {
        v.totals.ring_errors
    }),
    OfVm::counter("vsock_restarts", "Processes of the VM that died and were replaced.", |v| {
        v.process.restarts
    }),
    OfVm::gauge("vsock_child_answers", "1 if the VM's process and its control thread answer.", |v| {
        u64::from(v.process.child_answers)
    }),
    OfVm::gauge("vsock_open_connections", "Connections of the guest that are open.", |v| {
        v.totals.connections_open
    }),
    OfVm::counter("vsock_connections", "Connections of the guest that were established.", |v| {
        v.totals.connections_opened
    }),
    OfVm::counter(
        "vsock_refused_connections",
        "Connection requests, of the guest or of host programs, that nobody took.",
        |v| v.totals.connections_refused,
    ),
    OfVm::counter(
        "vsock_requests_over_rate",
        "Connection requests of the guest beyond --request-rate.",
        |v| v.totals.requests_over_rate,
    ),
    OfVm::counter("vsock_resets", "Resets that were sent to the guest for other reasons.", |v| {
        v.totals.resets
    }),
    OfVm::counter(
        "vsock_bad_handshakes",
        "Host programs that said something else than CONNECT, or nothing in time.",
        |v| v.totals.bad_handshakes,
    ),
    OfVm::counter("vsock_control_packets", "Packets of either direction without payload.", |v| {
        v.totals.control_packets
    }),
    OfVm::counter(
        "vsock_stale_credit_packets",
        "Packets of the guest with older credit than those before them.",
        |v| v.totals.stale_credit,
    ),
    OfVm::gauge("vsock_mapped_connections", "Connections to programs that map their receive buffers.", |v| {
        v.totals.mapped.mapped_connections
    }),
    OfVm::gauge("vsock_mapped_windows", "Windows of mapped connections.", |v| v.totals.mapped.mapped_windows),
    OfVm::gauge("vsock_mapped_bytes", "Bytes of these windows and their headers.", |v| {
        v.totals.mapped.mapped_bytes
    }),
    OfVm::counter(
        "vsock_refused_mapped_connections",
        "Mapped connections for which a bound left nothing.",
        |v| v.totals.mapped.mapped_refused,
    ),
    OfVm::counter("vsock_captured_packets", "Packets in the capture; 0 without a capture.", |v| {
        v.capture.map_or(0, |capture| capture.captured)
    }),
    OfVm::counter(
        "vsock_capture_lost_packets",
        "Packets that the capture lacks; 0 without a capture.",
        |v| v.capture.map_or(0, |capture| capture.lost),
    ),
];

const OF_DIRECTION: [OfDirection; 8] = [
    OfDirection::new("vsock_packets", "Packets with payload that were delivered.", |d| d.totals.frames),
    OfDirection::new("vsock_bytes", "Bytes of payload that were delivered.", |d| d.totals.bytes),
    OfDirection::new(
        "vsock_zero_copied_packets",
        "Packets whose payload was not copied in user space.",
        |d| d.totals.zero_copied_frames,
    ),
    OfDirection::new("vsock_zero_copied_bytes", "Bytes that were not copied in user space.", |d| {
        d.totals.zero_copied_bytes
    }),
    OfDirection::new("vsock_system_calls", "System calls that moved packets.", |d| d.totals.system_calls),
    OfDirection::new("vsock_kicks", "Notifications taken from the driver.", |d| d.totals.kicks),
    OfDirection::new("vsock_calls", "Notifications given to the driver.", |d| d.totals.calls),
    OfDirection::new("vsock_limit_waits", "How often queues waited for the limit.", |d| d.limit_waits),
];

const OF_REASON: [OfReason; 2] = [
    OfReason::new("vsock_copied_bytes", "Bytes copied in user space, by reason.", |t| &t.copied_bytes),
    OfReason::new("vsock_dropped_packets", "Packets dropped, by reason.", |t| &t.dropped_frames),
];

//! The metrics of network VMs.

use zerowire_net::{LinkState, ServerStats, VmStats};

use zerowire_vhost::serve::ServedStats;

use super::report;
use crate::control::{MetricsPage, Moved, OfDirection, OfReason, OfVm, VmReport};

impl VmReport for VmStats {
    fn name(&self) -> &str {
        &self.name
    }

    fn table(stats: &ServerStats) -> String {
        report::table(stats)
    }

    fn metrics(vms: &[ServedStats<Self>], page: &mut MetricsPage) {
        let moved: Vec<_> = vms.iter().flat_map(|vm| moved(vm)).collect();
        page.of_vms(&OF_VM, vms);
        page.of_directions(&OF_DIRECTION, &moved);
        page.limit_wait_seconds("limit_wait_seconds", &moved);
        page.kick_seconds("kick_seconds", &moved);
        page.of_reasons(&OF_REASON, &moved);
    }
}

fn moved(vm: &VmStats) -> [Moved<'_>; 2] {
    [("transmit", &vm.transmit), ("receive", &vm.receive)].map(|(direction, d)| Moved {
        vm: &vm.name,
        direction,
        totals: &d.totals,
        limit_waits: d.limit_waits,
        limit_wait_seconds: d.limit_wait_seconds,
        kick_seconds: &d.kick_seconds,
    })
}

const OF_VM: [OfVm<VmStats>; 12] = [
    OfVm::gauge("front_end_connected", "1 if a front end is connected.", |v| u64::from(v.connected)),
    OfVm::gauge("interface_up", "1 if the port's interface can carry frames.", |v| {
        u64::from(matches!(v.port_state.interface_state, LinkState::Up | LinkState::Unknown))
    }),
    OfVm::gauge("link_up", "1 if the guest sees its link up; always 1 without link=follow.", |v| {
        u64::from(v.port_state.link.as_ref().is_none_or(|link| link.up))
    }),
    OfVm::counter("connections", "Connections of front ends.", |v| v.connections),
    OfVm::counter("connection_errors", "Connections that ended by an error.", |v| v.connection_errors),
    OfVm::counter("ring_errors", "Virtqueues that were stopped since the guest broke a rule.", |v| {
        v.ring_errors
    }),
    OfVm::counter(
        "unsure_frames",
        "Frames from the guest that were on their way when the process before this one died.",
        |v| v.unsure_frames,
    ),
    OfVm::counter(
        "out_of_order_frames",
        "Frames from the guest that were given back before earlier ones.",
        |v| v.out_of_order_frames,
    ),
    OfVm::counter("restarts", "Processes of the VM that died and were replaced.", |v| v.process.restarts),
    OfVm::gauge("child_answers", "1 if the VM's process and its control thread answer.", |v| {
        u64::from(v.process.child_answers)
    }),
    OfVm::counter("captured_frames", "Frames in the capture; 0 without --pcap.", |v| {
        v.port_state.capture.map_or(0, |capture| capture.captured)
    }),
    OfVm::counter("capture_lost_frames", "Frames that the capture lacks; 0 without --pcap.", |v| {
        v.port_state.capture.map_or(0, |capture| capture.lost)
    }),
];

const OF_DIRECTION: [OfDirection; 8] = [
    OfDirection::new("frames", "Frames delivered.", |d| d.totals.frames),
    OfDirection::new("bytes", "Bytes delivered, virtio-net headers included.", |d| d.totals.bytes),
    OfDirection::new(
        "zero_copied_frames",
        "Frames of which no byte but inspected headers was copied in user space.",
        |d| d.totals.zero_copied_frames,
    ),
    OfDirection::new("zero_copied_bytes", "Bytes that were not copied in user space.", |d| {
        d.totals.zero_copied_bytes
    }),
    OfDirection::new("system_calls", "System calls that moved frames.", |d| d.totals.system_calls),
    OfDirection::new("kicks", "Notifications taken from the driver.", |d| d.totals.kicks),
    OfDirection::new("calls", "Notifications given to the driver.", |d| d.totals.calls),
    OfDirection::new("limit_waits", "How often queues waited for the limit.", |d| d.limit_waits),
];

const OF_REASON: [OfReason; 2] = [
    OfReason::new("copied_bytes", "Bytes copied in user space, by reason.", |t| &t.copied_bytes),
    OfReason::new("dropped_frames", "Frames dropped, by reason.", |t| &t.dropped_frames),
];

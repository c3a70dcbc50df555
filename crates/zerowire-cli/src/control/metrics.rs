//! Statistics for Prometheus: OpenMetrics 1.0, or the text format 0.0.4 for those that ask for
//! nothing. Names and labels are interface: docs/control.md lists them.

use std::fmt::Write as _;

use zerowire::ledger::Totals;
use zerowire_net::{DirectionStats, LinkState, ServerStats, VmStats};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Exposition {
    /// The media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// It only grows; its samples end in `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A metric of each VM.
struct OfVm {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&VmStats) -> u64,
}

/// A metric of each direction of a VM.
struct OfDirection {
    name: &'static str,
    help: &'static str,
    value: fn(&DirectionStats) -> u64,
}

/// A metric of each reason in a direction of a VM.
struct OfReason {
    name: &'static str,
    help: &'static str,
    values: fn(&Totals) -> &std::collections::BTreeMap<&'static str, u64>,
}

const fn vm(name: &'static str, kind: MetricKind, help: &'static str, value: fn(&VmStats) -> u64) -> OfVm {
    OfVm { name, kind, help, value }
}

const OF_VM: [OfVm; 10] = [
    vm("front_end_connected", MetricKind::Gauge, "1 if a front end is connected.", |v| {
        u64::from(v.connected)
    }),
    vm("interface_up", MetricKind::Gauge, "1 if the port's interface can carry frames.", |v| {
        u64::from(v.port_state.interface_state == LinkState::Up)
    }),
    vm("link_up", MetricKind::Gauge, "1 if the guest sees its link up; always 1 without link=follow.", |v| {
        u64::from(v.port_state.link.as_ref().is_none_or(|link| link.up))
    }),
    vm("connections", MetricKind::Counter, "Connections of front ends.", |v| v.connections),
    vm("connection_errors", MetricKind::Counter, "Connections that ended by an error.", |v| {
        v.connection_errors
    }),
    vm(
        "ring_errors",
        MetricKind::Counter,
        "Virtqueues that were stopped since the guest broke a rule.",
        |v| v.ring_errors,
    ),
    vm(
        "unsure_frames",
        MetricKind::Counter,
        "Frames from the guest that were on their way when the process before this one died.",
        |v| v.unsure_frames,
    ),
    vm(
        "out_of_order_frames",
        MetricKind::Counter,
        "Frames from the guest that were given back before earlier ones.",
        |v| v.out_of_order_frames,
    ),
    vm("captured_frames", MetricKind::Counter, "Frames in the capture; 0 without --pcap.", |v| {
        v.port_state.capture.map_or(0, |capture| capture.captured)
    }),
    vm("capture_lost_frames", MetricKind::Counter, "Frames that the capture lacks; 0 without --pcap.", |v| {
        v.port_state.capture.map_or(0, |capture| capture.lost)
    }),
];

const OF_DIRECTION: [OfDirection; 8] = [
    OfDirection { name: "frames", help: "Frames delivered.", value: |d| d.totals.frames },
    OfDirection {
        name: "bytes",
        help: "Bytes delivered, virtio-net headers included.",
        value: |d| d.totals.bytes,
    },
    OfDirection {
        name: "zero_copied_frames",
        help: "Frames of which no byte but inspected headers was copied in user space.",
        value: |d| d.totals.zero_copied_frames,
    },
    OfDirection {
        name: "zero_copied_bytes",
        help: "Bytes that were not copied in user space.",
        value: |d| d.totals.zero_copied_bytes,
    },
    OfDirection {
        name: "system_calls",
        help: "System calls that moved frames.",
        value: |d| d.totals.system_calls,
    },
    OfDirection { name: "kicks", help: "Notifications taken from the driver.", value: |d| d.totals.kicks },
    OfDirection { name: "calls", help: "Notifications given to the driver.", value: |d| d.totals.calls },
    OfDirection {
        name: "limit_waits",
        help: "How often queues waited for the limit.",
        value: |d| d.limit_waits,
    },
];

const LIMIT_WAIT_SECONDS: &str = "limit_wait_seconds";

const OF_REASON: [OfReason; 2] = [
    OfReason {
        name: "copied_bytes",
        help: "Bytes copied in user space, by reason.",
        values: |t| &t.copied_bytes,
    },
    OfReason { name: "dropped_frames", help: "Frames dropped, by reason.", values: |t| &t.dropped_frames },
];

/// All metrics of a server.
pub fn render(stats: &ServerStats, form: Exposition) -> String {
    let mut page = MetricsPage { out: String::new(), form };
    page.server(stats);
    for metric in &OF_VM {
        page.head(metric.name, metric.kind, metric.help);
        for vm in &stats.vms {
            page.sample(metric.name, metric.kind, &[("vm", &vm.name)], (metric.value)(vm));
        }
    }
    for metric in &OF_DIRECTION {
        page.head(metric.name, MetricKind::Counter, metric.help);
        for (vm, direction, moved) in directions(stats) {
            let labels = [("vm", vm), ("direction", direction)];
            page.sample(metric.name, MetricKind::Counter, &labels, (metric.value)(moved));
        }
    }
    page.head(LIMIT_WAIT_SECONDS, MetricKind::Counter, "How long queues waited for the limit, their sum.");
    for (vm, direction, moved) in directions(stats) {
        let labels = [("vm", vm), ("direction", direction)];
        page.sample(LIMIT_WAIT_SECONDS, MetricKind::Counter, &labels, moved.limit_wait_seconds);
    }
    for metric in &OF_REASON {
        page.head(metric.name, MetricKind::Counter, metric.help);
        for (vm, direction, moved) in directions(stats) {
            for (reason, value) in (metric.values)(&moved.totals) {
                let labels = [("vm", vm), ("direction", direction), ("reason", *reason)];
                page.sample(metric.name, MetricKind::Counter, &labels, *value);
            }
        }
    }
    if form == Exposition::OpenMetrics {
        page.out.push_str("# EOF\n");
    }
    page.out
}

fn directions(stats: &ServerStats) -> impl Iterator<Item = (&str, &'static str, &DirectionStats)> {
    stats.vms.iter().flat_map(|vm| {
        [("transmit", &vm.transmit), ("receive", &vm.receive)]
            .map(|(direction, d)| (vm.name.as_str(), direction, d))
    })
}

/// A page of metrics that is being written.
struct MetricsPage {
    out: String,
    form: Exposition,
}

impl MetricsPage {
    fn server(&mut self, stats: &ServerStats) {
        self.head("build_info", MetricKind::Gauge, "Version of zerowire; always 1.");
        self.sample("build_info", MetricKind::Gauge, &[("version", stats.version)], 1);
        self.head("vms", MetricKind::Gauge, "VMs that are served.");
        self.sample("vms", MetricKind::Gauge, &[], stats.vms.len());
        self.head("uptime_seconds", MetricKind::Gauge, "Seconds since the start of the process.");
        self.sample("uptime_seconds", MetricKind::Gauge, &[], stats.uptime_seconds);
        self.head("cpu_seconds", MetricKind::Counter, "CPU time of all threads of the process.");
        self.sample("cpu_seconds", MetricKind::Counter, &[], stats.cpu_seconds);
    }

    /// The lines about a metric. OpenMetrics names the metric, the text format its samples.
    fn head(&mut self, name: &str, kind: MetricKind, help: &str) {
        let (suffix, word) = match (kind, self.form) {
            (MetricKind::Gauge, _) => ("", "gauge"),
            (MetricKind::Counter, Exposition::OpenMetrics) => ("", "counter"),
            (MetricKind::Counter, Exposition::Text) => ("_total", "counter"),
        };
        let _ = writeln!(self.out, "# HELP zerowire_{name}{suffix} {help}");
        let _ = writeln!(self.out, "# TYPE zerowire_{name}{suffix} {word}");
        let unit = ["bytes", "seconds"].into_iter().find(|unit| name.split('_').next_back() == Some(unit));
        if let (Exposition::OpenMetrics, Some(unit)) = (self.form, unit) {
            let _ = writeln!(self.out, "# UNIT zerowire_{name} {unit}");
        }
    }

    fn sample(
        &mut self,
        name: &str,
        kind: MetricKind,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        let suffix = if kind == MetricKind::Counter { "_total" } else { "" };
        let _ = write!(self.out, "zerowire_{name}{suffix}");
        for (n, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.out, "{}{label}=\"{}\"", if n == 0 { "{" } else { "," }, escaped(text));
        }
        let _ = writeln!(self.out, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// The text of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;

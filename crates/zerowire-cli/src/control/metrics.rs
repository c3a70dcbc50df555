//! Statistics for Prometheus: OpenMetrics 1.0, or the text format 0.0.4 for those that ask for
//! nothing. Names and labels are interface: docs/control.md lists them. Which metrics a VM has, its
//! device says ([`VmReport::metrics`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zerowire::ledger::Totals;
use zerowire_vhost::host::KickHistogram;
use zerowire_vhost::serve::{ServedStats, ServerStats};

use super::manage::VmReport;

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
    /// How often it was within each bound, by `le`; its samples end in `_bucket`, `_sum` and
    /// `_count`.
    Histogram,
}

/// A metric of each VM.
pub struct OfVm<V> {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&ServedStats<V>) -> u64,
}

impl<V> OfVm<V> {
    /// One that only grows: its name without prefix and suffix, a sentence about it, and its value.
    pub const fn counter(name: &'static str, help: &'static str, value: fn(&ServedStats<V>) -> u64) -> Self {
        Self { name, kind: MetricKind::Counter, help, value }
    }

    /// The same of one that goes up and down.
    pub const fn gauge(name: &'static str, help: &'static str, value: fn(&ServedStats<V>) -> u64) -> Self {
        Self { name, kind: MetricKind::Gauge, help, value }
    }
}

/// What a VM has moved in one direction.
pub struct Moved<'a> {
    /// Name of the VM.
    pub vm: &'a str,
    /// `transmit` or `receive`.
    pub direction: &'static str,
    /// What was moved.
    pub totals: &'a Totals,
    /// How often queues waited for the limit.
    pub limit_waits: u64,
    /// How long, their sum.
    pub limit_wait_seconds: f64,
    /// How long kicks took.
    pub kick_seconds: &'a KickHistogram,
}

/// A metric of each direction of a VM. It only grows.
pub struct OfDirection {
    name: &'static str,
    help: &'static str,
    value: fn(&Moved<'_>) -> u64,
}

impl OfDirection {
    /// Its name without prefix and suffix, a sentence about it, and its value.
    pub const fn new(name: &'static str, help: &'static str, value: fn(&Moved<'_>) -> u64) -> Self {
        Self { name, help, value }
    }
}

/// A metric of each reason in a direction of a VM. It only grows.
pub struct OfReason {
    name: &'static str,
    help: &'static str,
    values: fn(&Totals) -> &ByReason,
}

type ByReason = BTreeMap<&'static str, u64>;

impl OfReason {
    /// Its name without prefix and suffix, a sentence about it, and its values by reason.
    pub const fn new(name: &'static str, help: &'static str, values: fn(&Totals) -> &ByReason) -> Self {
        Self { name, help, values }
    }
}

/// All metrics of a server.
pub fn render<V: VmReport>(stats: &ServerStats<V>, form: Exposition) -> String {
    let mut page = MetricsPage { out: String::new(), form };
    page.server(stats);
    V::metrics(&stats.vms, &mut page);
    if form == Exposition::OpenMetrics {
        page.out.push_str("# EOF\n");
    }
    page.out
}

/// A page of metrics that is being written.
pub struct MetricsPage {
    out: String,
    form: Exposition,
}

impl MetricsPage {
    /// Metrics of each VM.
    pub fn of_vms<V: VmReport>(&mut self, metrics: &[OfVm<V>], vms: &[ServedStats<V>]) {
        for metric in metrics {
            self.head(metric.name, metric.kind, metric.help);
            for vm in vms {
                self.sample(metric.name, metric.kind, &[("vm", vm.name())], (metric.value)(vm));
            }
        }
    }

    /// Metrics of each direction.
    pub fn of_directions(&mut self, metrics: &[OfDirection], moved: &[Moved<'_>]) {
        for metric in metrics {
            self.head(metric.name, MetricKind::Counter, metric.help);
            for m in moved {
                let labels = [("vm", m.vm), ("direction", m.direction)];
                self.sample(metric.name, MetricKind::Counter, &labels, (metric.value)(m));
            }
        }
    }

    /// How long queues waited for the limit.
    pub fn limit_wait_seconds(&mut self, name: &str, moved: &[Moved<'_>]) {
        self.head(name, MetricKind::Counter, "How long queues waited for the limit, their sum.");
        for m in moved {
            let labels = [("vm", m.vm), ("direction", m.direction)];
            self.sample(name, MetricKind::Counter, &labels, m.limit_wait_seconds);
        }
    }

    /// How long kicks took.
    pub fn kick_seconds(&mut self, name: &str, moved: &[Moved<'_>]) {
        let help =
            "From the wake-up that a kick made until the ring was served; the wait before that is not in it.";
        self.head(name, MetricKind::Histogram, help);
        for m in moved {
            let labels = [("vm", m.vm), ("direction", m.direction)];
            let bounds = KickHistogram::bounds().map(|bound| bound.to_string());
            let mut count = 0;
            for (bound, kicks) in
                bounds.iter().map(String::as_str).chain(["+Inf"]).zip(m.kick_seconds.buckets)
            {
                count += kicks;
                self.line(name, "_bucket", &[labels[0], labels[1], ("le", bound)], count);
            }
            self.line(name, "_sum", &labels, m.kick_seconds.sum);
            self.line(name, "_count", &labels, count);
        }
    }

    /// Metrics of each reason.
    pub fn of_reasons(&mut self, metrics: &[OfReason], moved: &[Moved<'_>]) {
        for metric in metrics {
            self.head(metric.name, MetricKind::Counter, metric.help);
            for m in moved {
                for (reason, value) in (metric.values)(m.totals) {
                    let labels = [("vm", m.vm), ("direction", m.direction), ("reason", *reason)];
                    self.sample(metric.name, MetricKind::Counter, &labels, *value);
                }
            }
        }
    }

    fn server<V>(&mut self, stats: &ServerStats<V>) {
        self.head("build_info", MetricKind::Gauge, "Version of zerowire; always 1.");
        self.sample("build_info", MetricKind::Gauge, &[("version", stats.version)], 1);
        self.head("vms", MetricKind::Gauge, "VMs that are served.");
        self.sample("vms", MetricKind::Gauge, &[], stats.vms.len());
        self.head("uptime_seconds", MetricKind::Gauge, "Seconds since the start of the process.");
        self.sample("uptime_seconds", MetricKind::Gauge, &[], stats.uptime_seconds);
        self.head("cpu_seconds", MetricKind::Counter, "CPU time of all threads and processes.");
        self.sample("cpu_seconds", MetricKind::Counter, &[], stats.cpu_seconds);
        self.head("confined", MetricKind::Gauge, "1 if confined processes serve the VMs, 0 if threads do.");
        self.sample("confined", MetricKind::Gauge, &[], u64::from(stats.confined));
    }

    /// The lines about a metric. OpenMetrics names the metric, the text format its samples.
    fn head(&mut self, name: &str, kind: MetricKind, help: &str) {
        let (suffix, word) = match (kind, self.form) {
            (MetricKind::Gauge, _) => ("", "gauge"),
            (MetricKind::Histogram, _) => ("", "histogram"),
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
        self.line(name, if kind == MetricKind::Counter { "_total" } else { "" }, labels, value);
    }

    fn line(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
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

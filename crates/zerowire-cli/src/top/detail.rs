//! The lines about one VM.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::{NONE, count, gigabits, share};
use super::rates::{DirectionRates, VmRates};
use super::sample::{DirectionSample, VmSample};
use super::state::TopState;

/// What is known of the VM that is selected.
pub fn detail(state: &TopState) -> Vec<String> {
    let Some(name) = &state.selected else { return Vec::new() };
    let vms = state.vms();
    match vms.iter().find(|vm| vm.now.name == *name) {
        Some(vm) => [about(&vm.now), vm.lines()].concat(),
        None => vec![format!("{name} is gone")],
    }
}

fn about(vm: &VmSample) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", vm.name, vm.condition()), format!("  socket       {}", vm.socket)];
    match vm.cid {
        Some(cid) => lines.push(format!("  CID          {cid}")),
        None => lines.extend([
            format!("  port         {}", vm.port),
            format!("  interface    {} {}", vm.interface, vm.interface_state),
        ]),
    }
    let faults = &vm.faults;
    lines.extend([
        format!("  path         {}", vm.path),
        format!("  connections  {}, {} ended by an error", vm.connections, faults.connection_errors),
        format!("  ring errors  {}", faults.ring_errors),
        format!("  restarts     {}", faults.restarts),
    ]);
    if faults.child_answers == Some(false) {
        lines.push("  process      does not answer: the figures may be older".to_owned());
    }
    if let Some(error) = &faults.last_error {
        lines.push(format!("  last error   {error}"));
    }
    lines.push(String::new());
    lines
}

impl VmRates {
    /// Rates now, and sums since the VM was added.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            columns("", ["transmit/s", "transmit", "receive/s", "receive"].map(str::to_owned)),
            self.counts("frames", |d| d.frames, |d| d.frames),
            self.line("Gb", |d| gigabits(d.bytes), |d| gigabits(d.bytes as f64)),
            self.line("zero copy", |d| share(d.zero_copied_ratio()), |d| share(zero_copied_ratio(d))),
            self.counts("system calls", |d| d.system_calls, |d| d.system_calls),
            self.counts("kicks", |d| d.kicks, |d| d.kicks),
            self.counts("calls", |d| d.calls, |d| d.calls),
        ];
        lines.extend(self.reasons("bytes copied", |d| &d.copied_bytes, |d| &d.copied_bytes));
        lines.extend(self.reasons("frames dropped", |d| &d.dropped_frames, |d| &d.dropped_frames));
        lines
    }

    /// A line for each reason that there was in either direction, below `head`.
    fn reasons(
        &self,
        head: &str,
        rates: fn(&DirectionRates) -> &BTreeMap<String, f64>,
        sums: fn(&DirectionSample) -> &BTreeMap<String, u64>,
    ) -> Vec<String> {
        let both = [&self.now.transmit, &self.now.receive];
        let mut reasons = BTreeSet::new();
        reasons.extend(both.into_iter().flat_map(|d| sums(d).keys()));
        if reasons.is_empty() {
            return vec![format!("{head}: none")];
        }
        let line = |reason: &String| {
            let rate = |d: &DirectionRates| rates(d).get(reason).copied().unwrap_or(0.0);
            let sum = |d: &DirectionSample| sums(d).get(reason).copied().unwrap_or(0);
            self.counts(&format!("  {reason}"), rate, sum)
        };
        std::iter::once(format!("{head}:")).chain(reasons.into_iter().map(line)).collect()
    }

    fn counts(
        &self,
        label: &str,
        rate: impl Fn(&DirectionRates) -> f64,
        sum: impl Fn(&DirectionSample) -> u64,
    ) -> String {
        self.line(label, |d| count(rate(d)), |d| sum(d).to_string())
    }

    fn line(
        &self,
        label: &str,
        rate: impl Fn(&DirectionRates) -> String,
        sum: impl Fn(&DirectionSample) -> String,
    ) -> String {
        let [transmit, receive] = match &self.rates {
            Some(both) => [rate(&both.transmit), rate(&both.receive)],
            None => [NONE, NONE].map(str::to_owned),
        };
        columns(label, [transmit, sum(&self.now.transmit), receive, sum(&self.now.receive)])
    }
}

fn columns(label: &str, figures: [String; 4]) -> String {
    let figures: String = figures.iter().map(|figure| format!(" {figure:>15}")).collect();
    format!("{label:<22}{figures}")
}

fn zero_copied_ratio(direction: &DirectionSample) -> Option<f64> {
    (direction.bytes > 0).then(|| direction.zero_copied_bytes as f64 / direction.bytes as f64)
}

//! What a run prints and writes: text, JSON, charts.

use serde::Serialize;

use crate::added::{self, Added};
use crate::case::{Case, Direction};
use crate::chart::{Bars, Better};
use crate::compare::{CaseReport, NetBench, not_copied};
use crate::experiment::{
    CellReport, Column, Digits, Report, ReportHead, ReportLine, bars, failed, failures, flat, subtitle,
    titled, variants,
};
use crate::idle::IdleReport;
use crate::machine::Machine;
use crate::scaling::{self, Scaling};
use crate::stats::Summary;
use crate::table::bytes;

/// The result of `zerowire-bench net`.
#[derive(Debug, Clone, Serialize)]
pub struct NetReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Saturation, case by case.
    pub cases: Vec<CaseReport>,
    /// Many VMs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<CellReport<Scaling>>,
    /// An idle back end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// VMs that come and go.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "flat")]
    pub added: Vec<CellReport<Added>>,
}

impl NetReport {
    /// Variants that failed, with the case.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases)
    }

    fn scaling_chart(&self) -> Bars {
        let cells: Vec<&CellReport<Scaling>> = self.scaling.iter().collect();
        let value = |cell: &CellReport<Scaling>, name: &String| cell.line(name)?.spread("gigabits_per_cpu");
        Bars {
            title: "Bandwidth by CPU load of one back end process".to_owned(),
            subtitle: format!(
                "{}; 60000 B frames from guest to host, whiskers: quartiles",
                self.head.machine
            ),
            y_label: "Gb/s for a whole CPU".to_owned(),
            better: Better::Higher,
            x_label: "VMs that send at once".to_owned(),
            ..bars(&cells, |vms| vms.value.to_string(), variants(&cells), value)
        }
    }

    /// The charts of one direction's cases.
    fn charts_of(&self, direction: Direction) -> [(String, Bars); 2] {
        let cases: Vec<&CaseReport> =
            self.cases.iter().filter(|case| case.at.direction == direction).collect();
        let ratio = Bars {
            title: format!("CPU time of a frame against the floor, {direction}"),
            y_label: "CPU time / CPU time of the floor".to_owned(),
            reference: Some(1.0),
            ..chart_of_cases(&self.head.machine, &cases, to_floor)
        };
        let rate = Bars {
            title: format!("Bandwidth of one queue, {direction}"),
            y_label: "Gb/s".to_owned(),
            better: Better::Higher,
            ..chart_of_cases(&self.head.machine, &cases, |line| line.spread("gigabits_per_second"))
        };
        [("ratio", ratio), ("rate", rate)]
            .map(|(kind, bars)| (format!("net-{kind}-{}.svg", direction.short()), bars))
    }
}

impl Report for NetReport {
    fn text(&self) -> String {
        let cpus = self.head.shared_cpu("driver and back end");
        let mut out = self.head.text(&cpus);
        out.push_str(&cases_text(&self.cases));
        out.push_str(&failed(&self.failures()));
        out.push_str(&scaling::text(&self.scaling));
        if let Some(idle) = &self.idle {
            out.push('\n');
            out.push_str(&idle.text());
        }
        out.push_str(&added::text(&self.added));
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let mut charts: Vec<(String, Bars)> =
            Direction::ALL.into_iter().flat_map(|direction| self.charts_of(direction)).collect();
        charts.push(("net-vms.svg".to_owned(), self.scaling_chart()));
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

/// A chart with a group of bars for each case, a bar in it for each variant.
pub fn chart_of_cases(
    machine: &Machine,
    cases: &[&CaseReport],
    value: impl Fn(&ReportLine<NetBench>) -> Option<Summary>,
) -> Bars {
    let rounds = || cases.iter().map(|case| case.facts.rounds);
    let rounds = match (rounds().min(), rounds().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (least, _) => least.unwrap_or(0).to_string(),
    };
    let group = |case: &Case| format!("{} B {}", case.frame_len, case.working_set);
    Bars {
        subtitle: subtitle(machine, rounds),
        x_label: "frame length and working set (hot: 256 KiB, cold: 64 MiB)".to_owned(),
        ..bars(cases, group, variants(cases), |case, name| value(case.line(name)?))
    }
}

/// CPU time divided by the floor's; the floor's own is 1.
pub(crate) fn to_floor(line: &ReportLine<NetBench>) -> Option<Summary> {
    line.spread("ratio_to_floor").or(Summary::of([1.0]))
}

/// The columns that say which line it is: case, working set, variant, and how much was moved.
pub(crate) const WHICH: [Column<NetBench>; 4] = [
    Column::words("case", |case, _| Some(case.at.to_string())),
    Column::words("working set", |case, _| Some(bytes(case.facts.working_set_bytes))),
    Column::words("variant", |_, line| Some(line.variant.clone())),
    Column::words("rounds x frames", |case, _| {
        Some(format!("{} x {}", case.facts.rounds, case.facts.frames))
    }),
];

/// CPU time of a frame.
pub(crate) const CPU: [Column<NetBench>; 2] = [
    Column::median("CPU ns/frame", "cpu_ns_per_frame", Digits::Three),
    Column::range("min..max", "cpu_ns_per_frame", Digits::Three),
];

const REST: [Column<NetBench>; 4] = [
    Column::spread("/floor", "ratio_to_floor", Digits::Behind(2)),
    Column::median("frames/s", "frames_per_second", Digits::Three),
    Column::median("Gb/s", "gigabits_per_second", Digits::Three),
    Column::words("zero-copied", not_copied),
];

/// Where the bare calls were measured.
const BARE: Column<NetBench> = Column::median("/bare calls", "ratio_to_bare_calls", Digits::Behind(2));

/// Where several programs were measured: finer than other ratios.
pub(crate) fn before(cases: &[CaseReport]) -> Option<Column<NetBench>> {
    let column = || Column::spread("/before", "ratio_to_before", Digits::Behind(3));
    has(cases, "ratio_to_before").then(column)
}

fn has(cases: &[CaseReport], key: &str) -> bool {
    cases.iter().flat_map(|case| &case.lines).any(|line| line.spread(key).is_some())
}

fn cases_text(cases: &[CaseReport]) -> String {
    let mut columns: Vec<Column<NetBench>> = WHICH.into_iter().chain(CPU).chain(REST).collect();
    columns.extend(has(cases, "ratio_to_bare_calls").then_some(BARE));
    columns.extend(before(cases));
    let title = format!(
        "Saturation, one queue (medians; /floor{} and /bare calls: median of the ratios round by round)",
        if has(cases, "ratio_to_before") { ", /before (the first program)" } else { "" }
    );
    titled(&title, cases, &columns, 3)
}

#[cfg(test)]
mod tests;

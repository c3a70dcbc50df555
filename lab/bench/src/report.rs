//! What a run prints and writes: text, JSON, charts.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::case::Direction;
use crate::chart::{Bars, Better, Series};
use crate::compare::{CaseReport, VariantReport};
use crate::idle::IdleReport;
use crate::machine::Machine;
use crate::record::Failure;
use crate::scaling::{self, ScalingRow};
use crate::stats::Summary;
use crate::table::{Table, bytes, figure};
use crate::wrong::wrong;

/// The result of `zerowire-bench net`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the driver and the measured side had a CPU each.
    pub separate_cpus: bool,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Saturation, case by case.
    pub cases: Vec<CaseReport>,
    /// Many VMs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<ScalingRow>,
    /// An idle back end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
}

impl Report {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.machine);
        if !self.separate_cpus {
            out.push_str("One CPU only: driver and back end took turns; rates mean little.\n");
        }
        for note in &self.notes {
            out.push_str(&format!("Note: {note}.\n"));
        }
        out.push('\n');
        out.push_str(&cases_text(&self.cases));
        for failure in self.failures() {
            out.push_str(&format!("FAILED: {failure}\n"));
        }
        if !self.scaling.is_empty() {
            out.push('\n');
            out.push_str(&scaling::text(&self.scaling));
        }
        if let Some(idle) = &self.idle {
            out.push('\n');
            out.push_str(&idle.text());
        }
        out
    }

    /// Variants that failed, with the case.
    pub fn failures(&self) -> Vec<String> {
        let of = |report: &CaseReport| -> Vec<String> {
            let line =
                |failure: &Failure| format!("{} ({}): {}", failure.variant, report.case, failure.reason);
            report.failures.iter().map(line).collect()
        };
        self.cases.iter().flat_map(of).collect()
    }

    /// Writes the charts into the folder `folder`, which is made if it isn't there. Returns the
    /// names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for direction in Direction::ALL {
            let cases: Vec<&CaseReport> =
                self.cases.iter().filter(|report| report.case.direction == direction).collect();
            if cases.is_empty() {
                continue;
            }
            for (kind, chart) in
                [("ratio", self.ratio_chart(direction, &cases)), ("rate", self.rate_chart(direction, &cases))]
            {
                let name = format!("net-{kind}-{}.svg", direction.short());
                chart.write(&folder.join(&name))?;
                names.push(name);
            }
        }
        if !self.scaling.is_empty() {
            let name = "net-vms.svg".to_owned();
            self.scaling_chart().write(&folder.join(&name))?;
            names.push(name);
        }
        Ok(names)
    }

    fn scaling_chart(&self) -> Bars {
        let paths = self.scaling.first().map_or(&[][..], |row| &row.paths);
        let series = paths.iter().enumerate().map(|(index, path)| Series {
            name: path.name.clone(),
            values: self
                .scaling
                .iter()
                .map(|row| row.paths.get(index).map(|path| path.gigabits_per_cpu))
                .collect(),
        });
        Bars {
            title: "Bandwidth by CPU load of one back end process".to_owned(),
            subtitle: format!("{}; 60000 B frames from guest to host, whiskers: quartiles", self.machine),
            y_label: "Gb/s for a whole CPU".to_owned(),
            better: Better::Higher,
            x_label: "VMs that send at once".to_owned(),
            groups: self.scaling.iter().map(|row| row.vms.to_string()).collect(),
            series: series.collect(),
            reference: None,
        }
    }

    fn ratio_chart(&self, direction: Direction, cases: &[&CaseReport]) -> Bars {
        let one = Summary::of([1.0]);
        let labels = Labels {
            title: format!("CPU time of a frame against the floor, {direction}"),
            y: "CPU time / CPU time of the floor",
            better: Better::Lower,
            x: CASES,
            reference: Some(1.0),
        };
        chart_of_cases(&self.machine, cases, labels, |variant| variant.ratio_to_floor.or(one))
    }

    fn rate_chart(&self, direction: Direction, cases: &[&CaseReport]) -> Bars {
        let labels = Labels {
            title: format!("Bandwidth of one queue, {direction}"),
            y: "Gb/s",
            better: Better::Higher,
            x: CASES,
            reference: None,
        };
        chart_of_cases(&self.machine, cases, labels, |variant| Some(variant.gigabits_per_second))
    }
}

/// What the groups of the charts are.
const CASES: &str = "frame length and working set (hot: 256 KiB, cold: 64 MiB)";

/// What a chart of cases says beside its bars.
pub struct Labels<'a> {
    /// The title.
    pub title: String,
    /// The unit of the values.
    pub y: &'a str,
    /// Which values are good.
    pub better: Better,
    /// What the groups are.
    pub x: &'a str,
    /// A line at this value.
    pub reference: Option<f64>,
}

/// A chart with a group of bars for each case, a bar in it for each variant.
pub fn chart_of_cases(
    machine: &Machine,
    cases: &[&CaseReport],
    labels: Labels<'_>,
    value: impl Fn(&VariantReport) -> Option<Summary>,
) -> Bars {
    let mut names: Vec<&str> = Vec::new();
    for variant in cases.iter().flat_map(|case| &case.variants) {
        if !names.contains(&variant.name.as_str()) {
            names.push(&variant.name);
        }
    }
    let find = |case: &CaseReport, name: &str| {
        case.variants.iter().find(|variant| variant.name == name).and_then(&value)
    };
    let series = names.into_iter().map(|name| Series {
        name: name.to_owned(),
        values: cases.iter().map(|case| find(case, name)).collect(),
    });
    let rounds = || cases.iter().map(|case| case.rounds);
    let rounds = match (rounds().min(), rounds().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (least, _) => least.unwrap_or(0).to_string(),
    };
    let group = |report: &&CaseReport| format!("{} B {}", report.case.frame_len, report.case.working_set);
    Bars {
        title: labels.title,
        subtitle: format!("{machine}; medians of {rounds} interleaved rounds, whiskers: quartiles"),
        y_label: labels.y.to_owned(),
        better: labels.better,
        x_label: labels.x.to_owned(),
        groups: cases.iter().map(group).collect(),
        series: series.collect(),
        reference: labels.reference,
    }
}

/// Whether [`give_out`] will be able to write its files: asked before a long measurement, not after it. Makes the folder.
pub fn check_places((json, svg): (Option<&Path>, Option<&Path>)) -> Result<()> {
    // Pipes and terminals can't be tried without being used.
    if let Some(path) =
        json.filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file() || m.is_dir()) || !path.exists())
    {
        let is_new = !path.exists();
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("can't write {}", path.display()))?;
        if is_new {
            let _ = fs::remove_file(path);
        }
    }
    if let Some(folder) = svg {
        if cfg!(not(feature = "charts")) {
            wrong!("--svg {}: this program was built without charts", folder.display());
        }
        fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
    }
    Ok(())
}

/// Prints a report's text, and writes the files that were asked for: JSON, and charts by `charts`, which gives their names.
pub fn give_out(
    report: &impl Serialize,
    text: &str,
    (json, svg): (Option<&Path>, Option<&Path>),
    charts: impl FnOnce(&Path) -> Result<Vec<String>>,
    out: &mut dyn Write,
) -> Result<()> {
    out.write_all(text.as_bytes())?;
    if let Some(path) = json {
        write_json(report, path)?;
        writeln!(out, "JSON: {}", path.display())?;
    }
    if let Some(folder) = svg {
        for name in charts(folder)? {
            writeln!(out, "chart: {}", folder.join(name).display())?;
        }
    }
    Ok(())
}

/// Writes any report as indented JSON, replacing the file.
pub fn write_json(report: &impl Serialize, path: &Path) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

/// The share of the bytes that the back end's ledger counts as not copied in user space.
pub(crate) fn zero_copied(variant: &VariantReport) -> String {
    let of = |key| variant.ledger.get(key).copied().unwrap_or(0) as f64;
    match of("bytes") {
        0.0 => "-".to_owned(),
        bytes => format!("{:.0} %", 100.0 * of("zero_copied_bytes") / bytes),
    }
}

/// The cells of a ratio to the first program: the median, finer than other ratios, and the quartiles.
pub(crate) fn beside(ratio: Option<&Summary>) -> [String; 2] {
    let cells = |r: &Summary| [format!("{:.3}", r.median), format!("{:.3}..{:.3}", r.q1, r.q3)];
    ratio.map_or(["-".into(), "-".into()], cells)
}

fn cases_text(cases: &[CaseReport]) -> String {
    if cases.is_empty() {
        return String::new();
    }
    let all = || cases.iter().flat_map(|case| &case.variants);
    let bare_calls = all().any(|variant| variant.ratio_to_bare_calls.is_some());
    let mut headings = vec![
        "case",
        "working set",
        "variant",
        "rounds x frames",
        "CPU ns/frame",
        "min..max",
        "/floor",
        "quartiles",
        "frames/s",
        "Gb/s",
        "zero-copied",
    ];
    if bare_calls {
        headings.push("/bare calls");
    }
    let before = all().any(|variant| variant.ratio_to_before.is_some());
    if before {
        headings.extend(["/before", "quartiles"]);
    }
    let median = |ratio: Option<&Summary>| ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median));
    let mut table = Table::new(headings).labels(3);
    for report in cases {
        for variant in &report.variants {
            let cpu = &variant.cpu_ns_per_frame;
            let ratio = variant.ratio_to_floor.as_ref();
            let mut row = vec![
                report.case.to_string(),
                bytes(report.working_set_bytes),
                variant.name.clone(),
                format!("{} x {}", report.rounds, report.frames),
                figure(cpu.median),
                format!("{}..{}", figure(cpu.min), figure(cpu.max)),
                median(ratio),
                ratio.map_or("-".into(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3)),
                figure(variant.frames_per_second.median),
                figure(variant.gigabits_per_second.median),
                zero_copied(variant),
            ];
            if bare_calls {
                row.push(median(variant.ratio_to_bare_calls.as_ref()));
            }
            if before {
                row.extend(beside(variant.ratio_to_before.as_ref()));
            }
            table.row(row);
        }
    }
    format!(
        "Saturation, one queue (medians; /floor{} and /bare calls: median of the ratios round by round):\n{}",
        if before { ", /before (the first program)" } else { "" },
        table.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::sample_reports;

    fn report() -> Report {
        Report {
            machine: Machine {
                kernel: "6.18.0".into(),
                cpu: "Some CPU".into(),
                cores: 2,
                virtualised: true,
                memory_bytes: 1 << 30,
            },
            separate_cpus: true,
            notes: vec!["the back end was left out".into()],
            cases: sample_reports(),
            scaling: Vec::new(),
            idle: None,
        }
    }

    #[test]
    fn text_names_machine_case_working_set_and_ratio() {
        let text = report().text();
        for word in [
            "Linux 6.18.0, Some CPU, 2 CPUs (virtual)",
            "Note: the back end was left out.",
            "tx 60000 B hot",
            "256 KiB",
            "1.10..1.10",
            "FAILED: broken (tx 64 B hot): round 2: lost a frame",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn the_ratio_to_the_bare_calls_is_there_where_they_were_measured() {
        let mut report = report();
        assert!(!report.text().contains("/bare calls\n"));
        assert!(!serde_json::to_string(&report).unwrap().contains("ratio_to_bare_calls"));
        report.cases[0].variants[1].ratio_to_bare_calls = Summary::of([1.04, 1.05, 1.07]);
        let text = report.text();
        assert!(text.contains("/bare calls\n") && text.contains("1.05\n"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cases"][0]["variants"][1]["ratio_to_bare_calls"]["median"], 1.05);
    }

    #[test]
    fn the_ratio_to_the_first_program_is_there_where_there_are_several() {
        let mut report = report();
        assert!(!report.text().contains("/before"));
        assert!(!serde_json::to_string(&report).unwrap().contains("ratio_to_before"));
        report.cases[0].variants[1].ratio_to_before = Summary::of([1.012, 1.021, 1.034]);
        let text = report.text();
        assert!(text.contains("/floor, /before (the first program)") && text.contains("1.021"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cases"][0]["variants"][1]["ratio_to_before"]["median"], 1.021);
    }

    #[test]
    fn json_carries_every_run() {
        let json = serde_json::to_value(report()).unwrap();
        let case = &json["cases"][0];
        assert_eq!(case["direction"], "transmit");
        assert_eq!(case["working_set_bytes"], 256 << 10);
        assert_eq!(case["variants"][1]["samples"].as_array().unwrap().len(), 3);
        assert!(case["variants"][0]["ratio_to_floor"].is_null());
    }

    #[test]
    fn charts_name_the_machine() {
        let report = report();
        let cases: Vec<&CaseReport> = report.cases.iter().collect();
        let svg = report.ratio_chart(Direction::Transmit, &cases).render().unwrap();
        assert!(svg.contains("Linux 6.18.0"));
        assert!(svg.contains("60000 B hot"));
        assert!(svg.contains("zero copy"));
    }
}

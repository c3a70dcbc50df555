//! The figures of a run.

use serde::Serialize;

use super::cell::{ComparedPart, OURS, PeerCell, Peers};
use crate::chart::{Bars, Better};
use crate::experiment::{CellReport, Report, ReportHead, bars, failures, sections, subtitle, variants};
use crate::stats::Summary;

/// The result of `zerowire-bench peers`.
#[derive(Debug, Clone, Serialize)]
pub struct PeersReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Whether less was measured.
    pub quick: bool,
    /// Rounds of each row.
    pub rounds: usize,
    /// The programs that were there.
    pub programs: Vec<ProgramVersion>,
    /// One entry a peer in a part.
    pub summary: Vec<SummaryRow>,
    /// The figures, row by row.
    pub cases: Vec<CellReport<Peers>>,
}

/// A program, as it names itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramVersion {
    /// Its name.
    pub name: String,
    /// The first line of what it says; `None` where it says nothing.
    pub version: Option<String>,
}

/// A peer over all rows of a part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryRow {
    /// Which part.
    pub part: ComparedPart,
    /// The peer.
    pub name: String,
    /// The least and the largest median of its CPU time divided by ours.
    pub cpu_to_zerowire: [f64; 2],
    /// The same of its rate.
    pub rate_to_zerowire: [f64; 2],
}

/// The summary of `cases`.
pub(super) fn summary(cases: &[CellReport<Peers>]) -> Vec<SummaryRow> {
    let mut rows = Vec::new();
    for (part, cells) in sections(cases, PeerCell::part) {
        for name in variants(&cells).into_iter().filter(|name| name != OURS) {
            let range = |key: &str| {
                let medians = cells.iter().filter_map(|cell| cell.line(&name)?.middle(key));
                Summary::of(medians).map(|all| [all.min, all.max])
            };
            let ratios = range("cpu_to_zerowire").zip(range("rate_to_zerowire"));
            let row = |(cpu_to_zerowire, rate_to_zerowire)| SummaryRow {
                part,
                name: name.clone(),
                cpu_to_zerowire,
                rate_to_zerowire,
            };
            rows.extend(ratios.map(row));
        }
    }
    rows
}

impl PeersReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases)
    }
}

impl Report for PeersReport {
    fn text(&self) -> String {
        super::text::text(self)
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let all = [
            ("cpu", "CPU time", Better::Lower, "cpu_to_zerowire"),
            ("rate", "Rate", Better::Higher, "rate_to_zerowire"),
        ];
        let mut charts = Vec::new();
        for (part, cells) in sections(&self.cases, PeerCell::part) {
            for (kind, title, better, key) in all {
                let peers = variants(&cells).into_iter().filter(|name| name != OURS);
                let chart = Bars {
                    title: format!("{title}, {part}"),
                    subtitle: subtitle(&self.head.machine, self.rounds),
                    y_label: format!("{title} / that of zerowire"),
                    better,
                    x_label: "what moves".to_owned(),
                    reference: Some(1.0),
                    ..bars(&cells, PeerCell::to_string, peers, |cell, name| cell.line(name)?.spread(key))
                };
                charts.push((format!("peers-{part}-{kind}.svg"), chart));
            }
        }
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

#[cfg(test)]
mod tests;

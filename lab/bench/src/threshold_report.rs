//! What the threshold benchmark concludes.

use serde::Serialize;

use crate::case::WorkingSet;
use crate::machine::Machine;
use crate::table::{Table, figure};
use crate::threshold::{Cell, Method, SEGMENTS, SIZES};

/// The result of `zerowire-bench net --threshold`.
#[derive(Debug, Clone, Serialize)]
pub struct ThresholdReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Runs of each method in each cell.
    pub rounds: usize,
    /// Every cell of the grid.
    pub cells: Vec<Cell>,
    /// The best limit for each segment count.
    pub limits: Vec<Limit>,
    /// The best single limit in bytes, whatever the segment count; 0: never gather.
    pub overall_limit_bytes: usize,
}

/// The longest frame that is better gathered, for one segment count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// Segments, the private head included.
    pub segments: usize,
    /// In bytes, from hot cells only; 0: never gather.
    pub hot_bytes: usize,
    /// In bytes, from cold cells only.
    pub cold_bytes: usize,
    /// In bytes, from both.
    pub bytes: usize,
}

impl ThresholdReport {
    /// Draws the conclusions from measured cells.
    pub fn new(machine: Machine, rounds: usize, cells: Vec<Cell>) -> Self {
        let limits = SEGMENTS
            .iter()
            .map(|&segments| {
                let of = |set: Option<WorkingSet>| {
                    best_limit(cells.iter().filter(|cell| {
                        cell.segments == segments && set.is_none_or(|set| cell.working_set == set)
                    }))
                };
                Limit {
                    segments,
                    hot_bytes: of(Some(WorkingSet::Hot)),
                    cold_bytes: of(Some(WorkingSet::Cold)),
                    bytes: of(None),
                }
            })
            .collect();
        Self { machine, rounds, limits, overall_limit_bytes: best_limit(cells.iter()), cells }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut headings = vec!["frame", "segments", "working set"];
        let methods = Method::ALL.map(|method| method.to_string());
        headings.extend(methods.iter().map(String::as_str));
        headings.extend(["cheapest", "gather/vector"]);
        let mut table = Table::new(headings).labels(3);
        for cell in &self.cells {
            let mut row = vec![
                format!("{} B", cell.frame_len),
                cell.segments.to_string(),
                cell.working_set.to_string(),
            ];
            row.extend(Method::ALL.map(|method| figure(cell.median(method))));
            row.push(cell.best().to_string());
            row.push(format!("{:.2}", cell.gather() / cell.vector().max(1.0)));
            table.row(row);
        }
        let mut limits = Table::new(["segments", "hot", "cold", "both"]);
        for limit in &self.limits {
            limits.row([
                limit.segments.to_string(),
                limit.hot_bytes.to_string(),
                limit.cold_bytes.to_string(),
                limit.bytes.to_string(),
            ]);
        }
        format!(
            "{}\n\nCPU ns a frame, medians of {} interleaved rounds; the last column compares the \
             cheapest way that gathers with the cheapest that doesn't:\n{}\n\
             Gather frames up to this many bytes (least time lost over the cells):\n{}\n\
             With one limit for all: {} bytes.\n",
            self.machine,
            self.rounds,
            table.render(),
            limits.render(),
            self.overall_limit_bytes
        )
    }
}

/// The frame length up to which gathering loses the least against always knowing the better way.
/// What is lost counts relative to the better way's time, so that long frames don't outvote short
/// ones. Of equal limits the smallest wins: it copies less.
fn best_limit<'a>(cells: impl Iterator<Item = &'a Cell>) -> usize {
    let cells: Vec<&Cell> = cells.collect();
    let lost = |limit: usize| -> f64 {
        let of = |cell: &&Cell| {
            let (gather, vector) = (cell.gather(), cell.vector());
            let chosen = if cell.frame_len <= limit { gather } else { vector };
            chosen / gather.min(vector).max(1.0) - 1.0
        };
        cells.iter().map(of).sum()
    };
    let mut best = (lost(0), 0);
    for limit in SIZES {
        let lost = lost(limit);
        if lost < best.0 {
            best = (lost, limit);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Summary;

    /// Gathering costs 1 ns for 4 bytes, a vector 100 ns a segment.
    fn cells() -> Vec<Cell> {
        let mut cells = Vec::new();
        for working_set in WorkingSet::ALL {
            for segments in SEGMENTS {
                for frame_len in SIZES {
                    let gather = 400.0 + frame_len as f64 / 4.0;
                    let vector = 400.0 + 100.0 * segments as f64;
                    let figures = [gather, vector];
                    cells.push(Cell {
                        frame_len,
                        segments,
                        working_set,
                        cpu_ns_per_frame: figures
                            .iter()
                            .filter_map(|figure| Summary::of([*figure]))
                            .collect(),
                    });
                }
            }
        }
        cells
    }

    fn report() -> ThresholdReport {
        ThresholdReport::new(Machine::detect(), 3, cells())
    }

    #[test]
    fn limits_follow_the_crossover() {
        // 100 ns a segment against a quarter of a nanosecond a byte: gathering wins up to 400 bytes
        // a segment. The limits are the longest frames of the grid below that.
        let limits = report().limits;
        let bytes: Vec<usize> = limits.iter().map(|limit| limit.bytes).collect();
        assert_eq!(bytes, [512, 1024, 1500, 2048, 4096]);
        assert!(limits.iter().all(|limit| limit.hot_bytes == limit.cold_bytes));
    }

    #[test]
    fn never_gather_is_a_possible_answer() {
        let mut cells = cells();
        for cell in &mut cells {
            let dearer = cell.vector() * 1.5;
            for method in Method::ALL.into_iter().filter(|method| method.gathers()) {
                cell.cpu_ns_per_frame[method as usize].median = dearer;
            }
        }
        let report = ThresholdReport::new(Machine::detect(), 3, cells);
        assert!(report.limits.iter().all(|limit| limit.bytes == 0));
        assert_eq!(report.overall_limit_bytes, 0);
    }

    #[test]
    fn the_text_has_every_cell_and_the_limits() {
        let text = report().text();
        assert_eq!(text.matches(" hot ").count(), SEGMENTS.len() * SIZES.len() + 1, "{text}");
        assert!(text.contains("With one limit for all"));
    }
}

//! What it costs to add a VM to a process that runs: the time of the request, and the round trips
//! of another VM meanwhile.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use crate::backend::BackendKind;
use crate::cpu::Placement;
use crate::experiment::{CellReport, Column, Digits, Figure, NumberCell, Runs, Subject, part_cell, titled};
use crate::held::Held;
use crate::scaling::{Effort, Party};
use crate::stats::{Summary, TripSample, rotation};
use crate::table::figure;

/// How long the server may take for a request.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Memory that the other VM sends from.
const WORKING_SET: usize = 1 << 20;

/// Pauses between a VM that went and the next one that comes, in milliseconds.
const PAUSES_MS: [usize; 2] = [250, 0];

/// VMs that come and go.
#[derive(Debug, Clone)]
pub struct Added;

/// The requests of all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct AddedFacts {
    /// VMs that were added and removed.
    pub added: usize,
    /// From the request to the answer that a VM is served, in milliseconds.
    pub add_ms: Summary,
    /// From the request to the answer that a VM is gone, its tap with it, in milliseconds.
    pub remove_ms: Summary,
}

impl Subject for Added {
    /// The pause between one that went and the next one, in milliseconds.
    type Cell = NumberCell;
    type CellFacts = AddedFacts;
    type Variant = String;
    type Facts = ();
    /// The other VM's round trips in a round: while none comes or goes, and while they do.
    type Sample = [TripSample; 2];

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("alone_p50_us", |_, s| Some(s[0].p50_us)),
        Figure::<Self>::spread("alone_p99_us", |_, s| Some(s[0].p99_us)),
        Figure::<Self>::spread("beside_p50_us", |_, s| Some(s[1].p50_us)),
        Figure::<Self>::spread("beside_p99_us", |_, s| Some(s[1].p99_us)),
        // While VMs come and go by without, in the same round.
        Figure::<Self>::spread("p99_ratio", |_, s| Some(s[1].p99_us / s[0].p99_us)),
    ];
}

/// Measures VMs that come and go now and then, and all the time.
pub fn measure(program: &Path, effort: Effort, placement: &Placement) -> Result<Vec<CellReport<Added>>> {
    PAUSES_MS.iter().map(|pause_ms| measure_with(program, *pause_ms, effort, placement)).collect()
}

/// Measures `effort.rounds` rounds of round trips without and with VMs that come and go, in turns.
fn measure_with(
    program: &Path,
    pause_ms: usize,
    effort: Effort,
    placement: &Placement,
) -> Result<CellReport<Added>> {
    let held = Held::temporary()?;
    let manager =
        Manager { control: held.folder().join("control.sock"), socket: held.folder().join("vm.sock") };
    let mut kind = BackendKind::zero_copy();
    kind.args = vec!["--control".to_owned(), manager.control.display().to_string()];
    let mut party = Party::start(program, kind, 0, 1, WORKING_SET, effort, placement)?;
    let mut times = vec![manager.cycle().with_context(|| party.log())?];
    // Without, with.
    let mut sides: [Vec<TripSample>; 2] = Default::default();
    for round in 0..effort.rounds {
        for with in rotation(2, round) {
            let ended = AtomicBool::new(with == 0);
            let trips = std::thread::scope(|scope| {
                let cycles = scope.spawn(|| manager.cycles_until(&ended, pause_ms, placement));
                let trips = party.round_trips(effort.trips);
                ended.store(true, Ordering::Relaxed);
                times.extend(cycles.join().map_err(|_| anyhow!("the thread that adds VMs died"))??);
                trips
            });
            sides[with].push(trips.with_context(|| party.log())?);
        }
    }
    report(pause_ms, &times, sides)
}

fn report(pause_ms: usize, times: &[[f64; 2]], sides: [Vec<TripSample>; 2]) -> Result<CellReport<Added>> {
    let at = NumberCell { axis: "pause_ms", value: pause_ms };
    let summary = |place: usize| Summary::of(times.iter().map(|row| row[place])).context("no requests");
    let facts = AddedFacts { added: times.len(), add_ms: summary(0)?, remove_ms: summary(1)? };
    let [alone, beside] = sides;
    let samples = alone.into_iter().zip(beside).map(<[TripSample; 2]>::from).collect();
    let runs = Runs { samples, failed: None };
    part_cell(at, facts, None, [("zerowire".to_owned(), runs)])
}

/// Who adds and removes a VM by the control socket.
struct Manager {
    control: PathBuf,
    /// The VM's own socket.
    socket: PathBuf,
}

impl Manager {
    /// Adds and removes a VM until `ended`; the milliseconds of both, each time.
    fn cycles_until(
        &self,
        ended: &AtomicBool,
        pause_ms: usize,
        placement: &Placement,
    ) -> Result<Vec<[f64; 2]>> {
        placement.avoid_driver()?;
        let mut times = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            times.push(self.cycle()?);
            std::thread::sleep(Duration::from_millis(pause_ms as u64));
        }
        Ok(times)
    }

    fn cycle(&self) -> Result<[f64; 2]> {
        let body = serde_json::json!({ "socket": self.socket, "port": "tap:zwadded" }).to_string();
        Ok([self.request("PUT", &body, "201")?, self.request("DELETE", "", "204")?])
    }

    /// Milliseconds from the connection to the answer, which must have the status `wanted`.
    fn request(&self, method: &str, body: &str, wanted: &str) -> Result<f64> {
        let begin = Instant::now();
        let mut stream = UnixStream::connect(&self.control).context("the control socket")?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write!(
            stream,
            "{method} /vms/added HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("the server's answer")?;
        let time = begin.elapsed().as_secs_f64() * 1000.0;
        ensure!(answer.split(' ').nth(1) == Some(wanted), "{method} /vms/added: {answer}");
        Ok(time)
    }
}

const COLUMNS: [Column<Added>; 11] = [
    Column::words("ms between", |cell, _| Some(cell.at.value.to_string())),
    Column::words("added", |cell, _| Some(cell.facts.added.to_string())),
    Column::words("served after ms", |cell, _| Some(figure(cell.facts.add_ms.median))),
    Column::words("max", |cell, _| Some(figure(cell.facts.add_ms.max))),
    Column::words("gone after ms", |cell, _| Some(figure(cell.facts.remove_ms.median))),
    Column::words("max", |cell, _| Some(figure(cell.facts.remove_ms.max))),
    Column::median("p50 us alone", "alone_p50_us", Digits::Three),
    Column::median("p99 us alone", "alone_p99_us", Digits::Three),
    Column::median("p50 us beside", "beside_p50_us", Digits::Three),
    Column::median("p99 us beside", "beside_p99_us", Digits::Three),
    Column::spread("/alone", "p99_ratio", Digits::Behind(3)),
];

/// The cells as text.
pub fn text(cells: &[CellReport<Added>]) -> String {
    let title = "VMs that are added and removed, and the round trips of another VM alone and beside that (medians; times from the \
                 request to its answer; /alone: median of the ratios of p99 round by round)";
    titled(title, cells, &COLUMNS, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_compared_with_their_own() {
        let trips = |p99s: [f64; 2]| p99s.map(|p99_us| TripSample { p50_us: 4.0, p99_us }).to_vec();
        let sides = [trips([10.0, 20.0]), trips([11.0, 22.0])];
        let cell = report(250, &[[1.0, 30.0], [3.0, 32.0]], sides).unwrap();
        assert_eq!((cell.facts.added, cell.facts.add_ms.max, cell.facts.remove_ms.min), (2, 3.0, 30.0));
        assert!((cell.lines[0].middle("p99_ratio").unwrap() - 1.1).abs() < 1e-9);
        let text = text(&[cell]);
        assert!(text.contains("1.100"), "{text}");
    }
}

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
use crate::held::Held;
use crate::scaling::{Effort, Party};
use crate::stats::{Summary, rotation};

/// How long the server may take for a request.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Memory that the other VM sends from.
const WORKING_SET: usize = 1 << 20;

/// Pauses between a VM that went and the next one that comes.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::ZERO];

/// The figures of VMs that come and go.
#[derive(Debug, Clone, Serialize)]
pub struct AddedReport {
    /// The pause between one that went and the next one, in milliseconds.
    pub pause_ms: u64,
    /// VMs that were added and removed.
    pub added: usize,
    /// From the request to the answer that a VM is served, in milliseconds.
    pub add_ms: Summary,
    /// From the request to the answer that a VM is gone, its tap with it, in milliseconds.
    pub remove_ms: Summary,
    /// Half of the other VM's round trips are faster while none comes or goes, in microseconds.
    pub alone_p50_us: Summary,
    /// 99 of 100 are faster.
    pub alone_p99_us: Summary,
    /// Half of its round trips are faster while VMs come and go, in microseconds.
    pub beside_p50_us: Summary,
    /// 99 of 100 are faster.
    pub beside_p99_us: Summary,
    /// The 99th percentile while VMs come and go, divided by the one of the same round without.
    pub p99_ratio: Summary,
}

/// Measures VMs that come and go now and then, and all the time.
pub fn measure(program: &Path, effort: Effort, placement: &Placement) -> Result<Vec<AddedReport>> {
    PAUSES.iter().map(|pause| measure_with(program, *pause, effort, placement)).collect()
}

/// Measures `effort.rounds` rounds of round trips without and with VMs that come and go, in turns.
fn measure_with(
    program: &Path,
    pause: Duration,
    effort: Effort,
    placement: &Placement,
) -> Result<AddedReport> {
    let held = Held::temporary(&format!("zerowire-bench-{}-added", std::process::id()))?;
    let manager =
        Manager { control: held.folder().join("control.sock"), socket: held.folder().join("vm.sock") };
    let mut kind = BackendKind::zero_copy();
    kind.args = vec!["--control".to_owned(), manager.control.display().to_string()];
    let mut party = Party::start(program, kind, 0, 1, WORKING_SET, effort, placement)?;
    let mut times = vec![manager.cycle().with_context(|| party.log())?];
    // Percentiles of each round: without, with.
    let mut rounds: [Vec<[f64; 2]>; 2] = Default::default();
    for round in 0..effort.rounds {
        for with in rotation(2, round) {
            let ended = AtomicBool::new(with == 0);
            let histogram = std::thread::scope(|scope| {
                let cycles = scope.spawn(|| manager.cycles_until(&ended, pause, placement));
                let trips = party.round_trips(effort.trips);
                ended.store(true, Ordering::Relaxed);
                times.extend(cycles.join().map_err(|_| anyhow!("the thread that adds VMs died"))??);
                trips
            });
            let histogram = histogram.with_context(|| party.log())?;
            rounds[with].push([0.5, 0.99].map(|at| histogram.value_at_quantile(at) as f64 / 1000.0));
        }
    }
    report(pause, &times, &rounds)
}

fn report(pause: Duration, times: &[[f64; 2]], rounds: &[Vec<[f64; 2]>; 2]) -> Result<AddedReport> {
    let summary = |of: &[[f64; 2]], at: usize| Summary::of(of.iter().map(|row| row[at])).context("no rounds");
    let [alone, beside] = rounds.each_ref().map(|rounds| rounds.iter().map(|row| row[1]).collect::<Vec<_>>());
    Ok(AddedReport {
        pause_ms: pause.as_millis() as u64,
        added: times.len(),
        add_ms: summary(times, 0)?,
        remove_ms: summary(times, 1)?,
        alone_p50_us: summary(&rounds[0], 0)?,
        alone_p99_us: summary(&rounds[0], 1)?,
        beside_p50_us: summary(&rounds[1], 0)?,
        beside_p99_us: summary(&rounds[1], 1)?,
        p99_ratio: Summary::ratio(&beside, &alone).context("no rounds")?,
    })
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
        pause: Duration,
        placement: &Placement,
    ) -> Result<Vec<[f64; 2]>> {
        placement.avoid_driver()?;
        let mut times = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            times.push(self.cycle()?);
            std::thread::sleep(pause);
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

impl AddedReport {
    /// The report as text.
    pub fn text(&self) -> String {
        format!(
            "Added, with {} ms between one and the next: a VM is served {:.2} ms after the request (max {:.1}), and gone {:.1} ms after the one to remove it (max {:.1}; \
             medians of {}). Round trips of another VM meanwhile: p50 {:.2} us, p99 {:.2}; while none comes or goes: p50 {:.2}, p99 \
             {:.2}; p99 with to without, round by round: {:.3} ({:.3}..{:.3}).\n",
            self.pause_ms,
            self.add_ms.median,
            self.add_ms.max,
            self.remove_ms.median,
            self.remove_ms.max,
            self.added,
            self.beside_p50_us.median,
            self.beside_p99_us.median,
            self.alone_p50_us.median,
            self.alone_p99_us.median,
            self.p99_ratio.median,
            self.p99_ratio.q1,
            self.p99_ratio.q3,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_compared_with_their_own() {
        let rounds = [vec![[4.0, 10.0], [4.0, 20.0]], vec![[5.0, 11.0], [5.0, 22.0]]];
        let report = report(PAUSES[0], &[[1.0, 30.0], [3.0, 32.0]], &rounds).unwrap();
        assert_eq!((report.added, report.add_ms.max, report.remove_ms.min), (2, 3.0, 30.0));
        assert!((report.p99_ratio.median - 1.1).abs() < 1e-9);
        assert!(report.text().contains("1.100"), "{}", report.text());
    }
}

//! Many VMs on one back end process: bandwidth, CPU load, bandwidth by CPU load, round-trip time.
//!
//! All VMs send large frames at once; one driver thread serves their rings in turn. The back end
//! has the other CPUs. The zero-copy path and the copying path run in processes of their own and
//! take turns round by round.
//!
//! A round trip is an ARP request that the host's kernel answers at once. The guest polls for the
//! answer, so the time is that of the back end (two wake-ups) and the host.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::backend::{BackendKind, BackendProcess};
use crate::case::WorkingSet;
use crate::cpu::Placement;
use crate::frame::{Frame, GUEST_MAC, SINK_MAC, arp_request};
use crate::guest::{NetGuest, STALL_LIMIT};
use crate::progress::ProgressLine;
use crate::stats::{Summary, percent_change, rotation};
use crate::table::{Table, figure};

/// Length of the frames for bandwidth.
const FRAME_LEN: usize = 60_000;
/// Memory for what is sent and received beside the frames: one ARP request, answers.
const SPARE: usize = 1 << 20;
/// How long a back end may take to go to sleep.
const SETTLE_LIMIT: Duration = Duration::from_millis(100);

/// The longest round trip that the histogram tells from longer ones, in nanoseconds.
const LONGEST_TRIP_NS: u64 = 10_000_000_000;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds of each number of VMs.
    pub rounds: usize,
    /// Time of sending in each round.
    pub span: Duration,
    /// Round trips in each round, over all VMs.
    pub trips: usize,
    /// Fragments of the large frames, in bytes.
    pub fragment_len: usize,
}

/// The figures of one number of VMs.
#[derive(Debug, Clone, Serialize)]
pub struct ScalingRow {
    /// VMs served by one process.
    pub vms: usize,
    /// Memory that all VMs together send from, in bytes.
    pub working_set_bytes: usize,
    /// The zero-copy path, then the copying path.
    pub paths: Vec<PathFigures>,
}

/// The figures of one path.
#[derive(Debug, Clone, Serialize)]
pub struct PathFigures {
    /// Its name.
    pub name: String,
    /// Gigabits a second of all VMs together.
    pub gigabits_per_second: Summary,
    /// CPU seconds a second of the back end: 1.0 is a whole CPU.
    pub cpu_load: Summary,
    /// Gigabits a second for a whole CPU.
    pub gigabits_per_cpu: Summary,
    /// Half of the round trips are faster, in microseconds.
    pub round_trip_p50_us: Summary,
    /// 99 of 100 round trips are faster, in microseconds.
    pub round_trip_p99_us: Summary,
}

/// One round of one path.
#[derive(Debug, Clone, Copy)]
struct Round {
    gigabits: f64,
    load: f64,
    p50: f64,
    p99: f64,
}

/// A back end with its connected guests.
pub(crate) struct Party {
    kind: BackendKind,
    /// Which of the processes that are compared: it has networks of its own.
    place: usize,
    backend: BackendProcess,
    guests: Vec<NetGuest>,
}

/// Measures each number of VMs in `counts` in the namespace of the calling thread.
pub fn measure(
    program: &Path,
    counts: &[usize],
    effort: Effort,
    placement: &Placement,
) -> Result<Vec<ScalingRow>> {
    let mut progress = ProgressLine::new("VMs", counts.len());
    let mut rows = Vec::new();
    for &vms in counts {
        progress.step(format_args!("{vms} VMs"));
        let row = measure_count(program, vms, effort, placement);
        rows.push(row.with_context(|| format!("scaling, {vms} VMs"))?);
        progress.advance();
    }
    progress.finish();
    Ok(rows)
}

fn measure_count(program: &Path, vms: usize, effort: Effort, placement: &Placement) -> Result<ScalingRow> {
    let working_set = WorkingSet::Cold.bytes();
    let mut parties = Vec::new();
    for (place, kind) in [BackendKind::zero_copy(), BackendKind::copy()].into_iter().enumerate() {
        parties.push(Party::start(program, kind, place, vms, working_set / vms, effort, placement)?);
    }
    let mut rounds = vec![Vec::with_capacity(effort.rounds); parties.len()];
    for number in 0..effort.rounds {
        for index in rotation(parties.len(), number) {
            let party = &mut parties[index];
            let round = party.round(working_set / vms, effort);
            rounds[index].push(round.with_context(|| party.log())?);
        }
    }
    let paths = parties.iter().zip(&rounds).map(|(party, rounds)| figures(&party.kind.name, rounds));
    Ok(ScalingRow { vms, working_set_bytes: working_set, paths: paths.collect::<Result<_>>()? })
}

impl Party {
    /// Starts a process with `vms` connected guests, each with memory to send `working_set` bytes
    /// from.
    pub(crate) fn start(
        program: &Path,
        kind: BackendKind,
        place: usize,
        vms: usize,
        working_set: usize,
        effort: Effort,
        placement: &Placement,
    ) -> Result<Self> {
        let backend = BackendProcess::start(program, &kind, vms, placement)?;
        let frame = large_frame()?;
        let memory = NetGuest::transmit_bytes(working_set, &frame, effort.fragment_len) + SPARE;
        let mut guests = Vec::new();
        for vm in 0..vms {
            guests.push(NetGuest::connect(&backend.socket(vm), memory)?);
            let link = backend.link(vm)?;
            link.set_ipv4(host_address(place, vm), 24)?;
        }
        Ok(Self { kind, place, backend, guests })
    }

    /// What the process said last.
    pub(crate) fn log(&self) -> String {
        format!("{}; its last words: {}", self.kind.name, self.backend.log())
    }

    fn round(&mut self, working_set: usize, effort: Effort) -> Result<Round> {
        let frame = large_frame()?;
        for guest in &mut self.guests {
            guest.prepare_transmit(working_set, &frame, effort.fragment_len)?;
        }
        let (gigabits, load) = self.bandwidth(effort.span)?;
        let histogram = self.round_trips(effort.trips)?;
        let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Round { gigabits, load, p50: micros(0.5), p99: micros(0.99) })
    }

    /// Sends on all VMs for `span`; gigabits a second and CPU load.
    fn bandwidth(&mut self, span: Duration) -> Result<(f64, f64)> {
        let clock = self.backend.clock()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let start = Instant::now();
        let mut frames = 0;
        loop {
            let elapsed = start.elapsed();
            let more = elapsed < span;
            let mut busy = false;
            for guest in &mut self.guests {
                frames += guest.pump(more)?;
                busy |= guest.in_flight();
            }
            if !more && !busy {
                break;
            }
            if elapsed > span + STALL_LIMIT {
                bail!("the back end stopped after {frames} frames");
            }
        }
        let wall = start.elapsed().as_secs_f64();
        let cpu = (clock.settled(SETTLE_LIMIT)?.0 - before).as_secs_f64();
        Ok(((frames * FRAME_LEN * 8) as f64 / 1e9 / wall, cpu / wall))
    }

    /// Round trips on all VMs in turn, in nanoseconds.
    pub(crate) fn round_trips(&mut self, trips: usize) -> Result<Histogram<u64>> {
        for (vm, guest) in self.guests.iter_mut().enumerate() {
            let host = host_address(self.place, vm).octets();
            let own = [host[0], host[1], host[2], 2];
            let request = Frame::plain(arp_request(GUEST_MAC, own, host));
            guest.prepare_transmit(0, &request, usize::MAX)?;
            guest.prepare_receive(16 * 2048, request.bytes().len())?;
        }
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_TRIP_NS, 3)
            .map_err(|error| anyhow!("histogram of up to {LONGEST_TRIP_NS} ns: {error}"))?;
        for trip in 0..trips {
            let index = trip % self.guests.len();
            let time = self.guests[index].round_trip()?;
            histogram.saturating_record(time.as_nanos() as u64);
        }
        Ok(histogram)
    }
}

fn large_frame() -> Result<Frame> {
    Frame::build(FRAME_LEN, SINK_MAC, GUEST_MAC)
}

/// The host's address on the tap of a VM: each tap is a network of its own (RFC 1918).
fn host_address(place: usize, vm: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77 + place as u8, vm as u8, 1)
}

fn figures(name: &str, rounds: &[Round]) -> Result<PathFigures> {
    let summary = |of: fn(&Round) -> f64| Summary::of(rounds.iter().map(of)).context("no rounds");
    Ok(PathFigures {
        name: name.to_owned(),
        gigabits_per_second: summary(|round| round.gigabits)?,
        cpu_load: summary(|round| round.load)?,
        gigabits_per_cpu: summary(|round| round.gigabits / round.load.max(1e-9))?,
        round_trip_p50_us: summary(|round| round.p50)?,
        round_trip_p99_us: summary(|round| round.p99)?,
    })
}

/// The rows as text: the figures, then the change from the copying path in percent.
pub fn text(rows: &[ScalingRow]) -> String {
    let mut table =
        Table::new(["VMs", "path", "Gb/s", "CPU load", "Gb/s per CPU", "round trip p50 us", "p99 us"])
            .labels(2);
    let mut change =
        Table::new(["VMs", "bandwidth %", "CPU load %", "bandwidth per CPU load %", "p50 %", "p99 %"]);
    for row in rows {
        for path in &row.paths {
            table.row([
                row.vms.to_string(),
                path.name.clone(),
                figure(path.gigabits_per_second.median),
                figure(path.cpu_load.median),
                figure(path.gigabits_per_cpu.median),
                figure(path.round_trip_p50_us.median),
                figure(path.round_trip_p99_us.median),
            ]);
        }
        if let [zero_copy, copy] = &row.paths[..] {
            let percent = |of: fn(&PathFigures) -> Summary| {
                format!("{:+.1}", percent_change(of(zero_copy).median, of(copy).median))
            };
            change.row([
                row.vms.to_string(),
                percent(|path| path.gigabits_per_second),
                percent(|path| path.cpu_load),
                percent(|path| path.gigabits_per_cpu),
                percent(|path| path.round_trip_p50_us),
                percent(|path| path.round_trip_p99_us),
            ]);
        }
    }
    format!(
        "Many VMs, {FRAME_LEN} B frames from guest to host, 64 MiB working set in all:\n{}\n\
         Zero-copy path against copying path:\n{}",
        table.render(),
        change.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_compare_with_the_copying_path() {
        let round = |gigabits, load| Round { gigabits, load, p50: 30.0, p99: 60.0 };
        let row = ScalingRow {
            vms: 3,
            working_set_bytes: 1,
            paths: vec![
                figures("zerowire", &[round(12.0, 0.5), round(12.0, 0.5)]).unwrap(),
                figures("copy", &[round(10.0, 1.0)]).unwrap(),
            ],
        };
        let text = text(&[row]);
        assert!(text.contains("+20.0"), "{text}");
        assert!(text.contains("-50.0"), "{text}");
        assert!(text.contains("+140.0"), "{text}");
        assert!(figures("none", &[]).is_err());
    }

    #[test]
    fn taps_have_networks_of_their_own() {
        assert_ne!(host_address(0, 1), host_address(1, 1));
        assert_eq!(host_address(0, 11).to_string(), "10.77.11.1");
    }
}

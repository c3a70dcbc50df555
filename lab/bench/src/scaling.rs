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

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::backend::{BackendKind, BackendProcess};
use crate::case::WorkingSet;
use crate::cpu::Placement;
use crate::experiment::{
    Base, CellReport, Column, Digits, Figure, NumberCell, ProgressLine, Subject, interleave, part_cell,
    titled,
};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC, arp_request};
use crate::guest::{NetGuest, STALL_LIMIT};
use crate::stats::{TripSample, round_trips};

/// Length of the frames for bandwidth.
const FRAME_LEN: usize = 60_000;
/// Memory for what is sent and received beside the frames: one ARP request, answers.
const SPARE: usize = 1 << 20;
/// How long a back end may take to go to sleep.
const SETTLE_LIMIT: Duration = Duration::from_millis(100);
/// The label of the copying path.
const COPY: &str = "copy";

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

/// The comparison of paths with many VMs.
#[derive(Debug, Clone)]
pub struct Scaling;

/// What is known of a number of VMs besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct ScalingFacts {
    /// Memory that all VMs together send from, in bytes.
    pub working_set_bytes: usize,
}

/// One round of one path.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ScalingSample {
    /// Gigabits a second of all VMs together.
    pub gigabits_per_second: f64,
    /// CPU seconds a second of the back end: 1.0 is a whole CPU.
    pub cpu_load: f64,
    /// Round trips on all VMs.
    #[serde(flatten)]
    pub trips: TripSample,
}

impl ScalingSample {
    fn gigabits_per_cpu(&self) -> f64 {
        self.gigabits_per_second / self.cpu_load.max(1e-9)
    }
}

impl Subject for Scaling {
    /// VMs served by one process.
    type Cell = NumberCell;
    type CellFacts = ScalingFacts;
    type Variant = String;
    type Facts = ();
    type Sample = ScalingSample;

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("gigabits_per_second", |_, s| Some(s.gigabits_per_second)),
        Figure::<Self>::spread("cpu_load", |_, s| Some(s.cpu_load)),
        // Gigabits a second for a whole CPU.
        Figure::<Self>::spread("gigabits_per_cpu", |_, s| Some(s.gigabits_per_cpu())),
        Figure::<Self>::spread("round_trip_p50_us", |_, s| Some(s.trips.p50_us)),
        Figure::<Self>::spread("round_trip_p99_us", |_, s| Some(s.trips.p99_us)),
        // Divided by those of the copying path.
        Figure::<Self>::ratio_if_any("bandwidth_to_copy", COPY, |_, s| s.gigabits_per_second),
        Figure::<Self>::ratio_if_any("load_to_copy", COPY, |_, s| s.cpu_load),
        Figure::<Self>::ratio_if_any("per_cpu_to_copy", COPY, |_, s| s.gigabits_per_cpu()),
        Figure::<Self>::ratio_if_any("p50_to_copy", COPY, |_, s| s.trips.p50_us),
        Figure::<Self>::ratio_if_any("p99_to_copy", COPY, |_, s| s.trips.p99_us),
    ];
    const LINES: &'static str = "paths";
    const VARIANT: &'static str = "name";
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
) -> Result<Vec<CellReport<Scaling>>> {
    let mut progress = ProgressLine::new("VMs", counts.len() * (effort.rounds + 1));
    counts.iter().map(|vms| measure_count(program, *vms, effort, placement, &mut progress)).collect()
}

fn measure_count(
    program: &Path,
    vms: usize,
    effort: Effort,
    placement: &Placement,
    progress: &mut ProgressLine,
) -> Result<CellReport<Scaling>> {
    let at = NumberCell { axis: "vms", value: vms };
    let working_set_bytes = WorkingSet::Cold.bytes();
    let working_set = working_set_bytes / vms;
    let start = |(place, kind)| Party::start(program, kind, place, vms, working_set, effort, placement);
    let kinds = [BackendKind::zero_copy(), BackendKind::copy()].into_iter().enumerate();
    let mut parties: Vec<Party> = kinds.map(start).collect::<Result<_>>().with_context(|| at.to_string())?;
    let runs = interleave(parties.len(), effort.rounds, at, progress, |index, _| {
        let party = &mut parties[index];
        party.round(working_set, effort).with_context(|| party.log())
    });
    let names = parties.iter().map(|party| party.kind.name.clone());
    let copy = Base { label: COPY, variant: BackendKind::copy().name };
    part_cell(at, ScalingFacts { working_set_bytes }, Some(copy), names.zip(runs))
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

    fn round(&mut self, working_set: usize, effort: Effort) -> Result<ScalingSample> {
        let frame = large_frame()?;
        for guest in &mut self.guests {
            guest.prepare_transmit(working_set, &frame, effort.fragment_len)?;
        }
        let (gigabits_per_second, cpu_load) = self.bandwidth(effort.span)?;
        Ok(ScalingSample { gigabits_per_second, cpu_load, trips: self.round_trips(effort.trips)? })
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

    /// Round trips on all VMs in turn.
    pub(crate) fn round_trips(&mut self, trips: usize) -> Result<TripSample> {
        for (vm, guest) in self.guests.iter_mut().enumerate() {
            let host = host_address(self.place, vm).octets();
            let own = [host[0], host[1], host[2], 2];
            let request = Frame::plain(arp_request(GUEST_MAC, own, host));
            guest.prepare_transmit(0, &request, usize::MAX)?;
            guest.prepare_receive(16 * 2048, request.bytes().len())?;
        }
        let vms = self.guests.len();
        round_trips(trips, |trip| self.guests[trip % vms].round_trip())
    }
}

fn large_frame() -> Result<Frame> {
    Frame::build(FRAME_LEN, SINK_MAC, GUEST_MAC)
}

/// The host's address on the tap of a VM: each tap is a network of its own (RFC 1918).
fn host_address(place: usize, vm: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77 + place as u8, vm as u8, 1)
}

const COLUMNS: [Column<Scaling>; 12] = [
    Column::words("VMs", |cell, _| Some(cell.at.value.to_string())),
    Column::words("path", |_, line| Some(line.variant.clone())),
    Column::median("Gb/s", "gigabits_per_second", Digits::Three),
    Column::median("/copy", "bandwidth_to_copy", Digits::Behind(2)),
    Column::median("CPU load", "cpu_load", Digits::Three),
    Column::median("/copy", "load_to_copy", Digits::Behind(2)),
    Column::median("Gb/s per CPU", "gigabits_per_cpu", Digits::Three),
    Column::median("/copy", "per_cpu_to_copy", Digits::Behind(2)),
    Column::median("round trip p50 us", "round_trip_p50_us", Digits::Three),
    Column::median("/copy", "p50_to_copy", Digits::Behind(2)),
    Column::median("p99 us", "round_trip_p99_us", Digits::Three),
    Column::median("/copy", "p99_to_copy", Digits::Behind(2)),
];

/// The cells as text.
pub fn text(cells: &[CellReport<Scaling>]) -> String {
    let title = format!(
        "Many VMs, {FRAME_LEN} B frames from guest to host, 64 MiB working set in all (medians; /copy: median of \
         the ratios to the copying path round by round)"
    );
    titled(&title, cells, &COLUMNS, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Runs;

    #[test]
    fn ratios_are_to_the_copying_path() {
        let (at, facts) = (NumberCell { axis: "vms", value: 3 }, ScalingFacts { working_set_bytes: 1 });
        let sample = |gigabits_per_second, cpu_load| ScalingSample {
            gigabits_per_second,
            cpu_load,
            trips: TripSample { p50_us: 30.0, p99_us: 60.0 },
        };
        let runs = |one| Runs { samples: vec![one, one], failed: None };
        let ran = [("zerowire", runs(sample(12.0, 0.5))), (COPY, runs(sample(10.0, 1.0)))];
        let ran = ran.map(|(name, runs)| (name.to_owned(), runs));
        let cell = part_cell(at, facts, Some(Base { label: COPY, variant: COPY.to_owned() }), ran).unwrap();
        let ratio = |key| cell.lines[0].middle(key).unwrap();
        let ratios = ["bandwidth_to_copy", "load_to_copy", "per_cpu_to_copy", "p99_to_copy"].map(ratio);
        assert_eq!(ratios, [1.2, 0.5, 2.4, 1.0]);
        assert_eq!(cell.lines[1].middle("load_to_copy"), None);
        let text = text(&[cell]);
        assert!(text.contains("1.20") && text.contains("2.40"), "{text}");
    }

    #[test]
    fn taps_have_networks_of_their_own() {
        assert_ne!(host_address(0, 1), host_address(1, 1));
        assert_eq!(host_address(0, 11).to_string(), "10.77.11.1");
    }
}

//! The benchmark from end to end, with a sender of its own.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::external;
use super::link::{self, Senders};
use super::options::{Client, TcpRxOptions};
use super::report::{Line, Memory, Sample, TcpRxCase, TcpRxReport};
use super::traffic::Traffic;
use super::way::{self, Goal, Way, WayName};
use crate::cpu::{Placement, thread_time};
use crate::interleave::{Runs, interleave};
use crate::machine::Machine;
use crate::netns::{Link, in_new_namespace};
use crate::others::Usage;
use crate::progress::Progress;
use crate::record::Failure;
use crate::report::{check_places, give_out};

/// Measures every way with every number of connections; text goes to `out`, files where the options say.
///
/// Fails when options make no sense, when the namespace can't be made, and when a file can't be written; a way that fails or
/// isn't to be had is named in the report.
pub fn run_tcp_rx(options: &TcpRxOptions, out: &mut dyn Write) -> Result<TcpRxReport> {
    options.verify()?;
    let (json, svg) = (options.json.as_deref(), options.svg.as_deref());
    let to_stdout = json == Some(Path::new("-"));
    check_places((json.filter(|_| !to_stdout), svg))?;
    raise_descriptors()?;
    let before = Usage::now();
    let placement = Placement::detect()?;
    let mut report = TcpRxReport {
        machine: Machine::detect(),
        client: "own",
        separate_cpus: placement.separate(),
        quick: options.quick,
        touch: options.touch,
        read_bytes: options.read_bytes,
        rounds: options.rounds(),
        ..TcpRxReport::default()
    };
    match &options.client {
        Client::Own => {
            (report.cases, report.memory) = in_new_namespace(|| {
                Link::new("lo")?.up()?;
                placement.pin_worker()?;
                measure(options, &placement)
            })?;
        }
        Client::External { bind, port } => {
            report.client = "external";
            (report.cases, report.memory) = external::measure(options, bind, *port)?;
        }
    }
    report.notes.extend(before.remark(&Usage::now()));
    if to_stdout {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
        if let Some(folder) = svg {
            report.write_charts(folder)?;
        }
        return Ok(report);
    }
    give_out(&report, &report.text(), (json, svg), |folder| report.write_charts(folder), out)?;
    Ok(report)
}

/// All ways are open at the same time, with two descriptors a connection.
fn raise_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("can't raise the number of open files to its hard limit")
}

fn measure(options: &TcpRxOptions, placement: &Placement) -> Result<(Vec<TcpRxCase>, Memory)> {
    let (traffic, memory) = traffic();
    let rounds = options.rounds();
    let mut progress = Progress::new("tcp-rx", options.connections.len() * (rounds + 1));
    let mut cases = Vec::new();
    for &connections in &options.connections {
        let mut seats = Seats::new(options, connections);
        let what = format!("{connections} connections");
        let runs = interleave(seats.ways.len(), rounds, what, &mut progress, |index, _| {
            seats.run(index, options, placement, traffic.as_ref())
        });
        cases.push(case(connections, rounds, seats.into_parts(), runs));
    }
    progress.finish();
    Ok((cases, memory))
}

/// Opens the counters of the calling thread.
pub(super) fn traffic() -> (Option<Traffic>, Memory) {
    match Traffic::open() {
        Ok(traffic) => {
            let memory = Memory::Measured(traffic.what.clone());
            (Some(traffic), memory)
        }
        Err(why) => (None, Memory::NotMeasured(why)),
    }
}

/// One way with its connections, kept from round to round.
struct Seat {
    senders: Senders,
    way: Box<dyn Way>,
}

/// The ways of one case.
struct Seats {
    connections: usize,
    ways: Vec<WayName>,
    seats: Vec<Option<Seat>>,
    paths: Vec<String>,
    absent: Vec<Failure>,
}

impl Seats {
    /// Opens every way that is to be had; select's first, since it takes low descriptors only.
    fn new(options: &TcpRxOptions, connections: usize) -> Self {
        let mut new =
            Self { connections, ways: Vec::new(), seats: Vec::new(), paths: Vec::new(), absent: Vec::new() };
        let mut names: Vec<_> = options.ways().into_iter().filter(|way| way.serves(connections)).collect();
        names.sort();
        names.dedup();
        for name in names {
            match Self::open(name, options, connections) {
                Ok(seat) => {
                    new.ways.push(name);
                    new.paths.push(seat.way.path());
                    new.seats.push(Some(seat));
                }
                Err(e) => new.absent.push(Failure { variant: name.to_string(), reason: format!("{e:#}") }),
            }
        }
        new
    }

    fn open(name: WayName, options: &TcpRxOptions, connections: usize) -> Result<Seat> {
        let (senders, sockets) = link::connect(connections)?;
        Ok(Seat { senders, way: way::open(name, sockets, options)? })
    }

    fn run(
        &mut self,
        index: usize,
        options: &TcpRxOptions,
        placement: &Placement,
        traffic: Option<&Traffic>,
    ) -> Result<Sample> {
        // What is left of a run that fails must not be sent in the middle of another one's.
        let mut seat = self.seats[index].take().context("its connections were closed")?;
        let bytes = seat.senders.whole(options.bytes());
        let goal = Goal::of(bytes);
        let sample = std::thread::scope(|scope| {
            let (senders, goal) = (&mut seat.senders, &goal);
            let sender = std::thread::Builder::new()
                .name("sender".into())
                .spawn_scoped(scope, move || senders.send(bytes, goal, placement))?;
            let sample = sample(seat.way.as_mut(), goal, options.touch, traffic);
            if sample.is_err() {
                goal.set(0);
            }
            let sent = sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
            sample.and_then(|sample| sent.map(|()| sample))
        })?;
        anyhow::ensure!(
            sample.tally.bytes == bytes,
            "{bytes} bytes were sent and {} came over {} connections: the run is void",
            sample.tally.bytes,
            self.connections
        );
        self.seats[index] = Some(seat);
        Ok(sample)
    }

    fn into_parts(self) -> (Vec<WayName>, Vec<String>, Vec<Failure>) {
        (self.ways, self.paths, self.absent)
    }
}

/// One run of a way, measured.
pub(super) fn sample(
    way: &mut dyn Way,
    goal: &Goal,
    touch: bool,
    traffic: Option<&Traffic>,
) -> Result<Sample> {
    let memory = || traffic.and_then(|t| t.bytes().ok());
    let (begin, cpu, before) = (Instant::now(), thread_time(), memory());
    let tally = way.receive(goal, touch)?;
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), thread_time() - cpu);
    let memory_bytes = memory().zip(before).map(|(after, before)| after.saturating_sub(before));
    Ok(Sample { tally, seconds, cpu_seconds: cpu.as_secs_f64(), memory_bytes })
}

/// Puts the figures of one case together.
pub(super) fn case(
    connections: usize,
    rounds: usize,
    (ways, paths, absent): (Vec<WayName>, Vec<String>, Vec<Failure>),
    mut runs: Vec<Runs<Sample>>,
) -> TcpRxCase {
    let mut failures = Vec::new();
    for (way, runs) in ways.iter().zip(&mut runs) {
        if let Some(error) = runs.failed.take() {
            failures.push(Failure { variant: way.to_string(), reason: format!("{error:#}") });
            // Fewer samples than the others have don't pair up with them.
            runs.samples.clear();
        }
        debug_assert!(runs.samples.is_empty() || runs.samples.len() == rounds);
    }
    let of = |name: WayName| {
        let found = ways.iter().position(|way| *way == name);
        found.map_or(Vec::new(), |index| runs[index].samples.clone())
    };
    let (recv, epoll) = (of(WayName::Recv), of(WayName::Epoll));
    let lines = ways.iter().zip(paths).zip(&runs);
    let lines =
        lines.filter_map(|((way, path), runs)| Line::of(*way, path, runs.samples.clone(), &recv, &epoll));
    TcpRxCase { connections, lines: lines.collect(), absent, failures }
}

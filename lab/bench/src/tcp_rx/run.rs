//! The benchmark from end to end, with a sender of its own.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};

use super::external;
use super::link::{self, Senders};
use super::options::{Client, TcpRxOptions};
use super::report::{Connections, MemoryTraffic, TcpFacts, TcpRx, TcpRxReport, TcpSample, bases};
use super::traffic::Traffic;
use super::way::{self, Goal, TcpWay, WayName};
use crate::cpu::{Placement, thread_time};
use crate::experiment::Failure;
use crate::experiment::{CellReport, Tried, measured};
use crate::interleave::{Runs, interleave};
use crate::machine::Machine;
use crate::netns::{NetnsLink, in_new_namespace};
use crate::progress::ProgressLine;

/// Measures every way with every number of connections; text goes to `out`, files where the options
/// say.
///
/// Fails when options make no sense, when the namespace can't be made, and when a file can't be
/// written. The report names each way that fails or that this machine lacks.
pub fn run_tcp_rx(options: &TcpRxOptions, out: &mut dyn Write) -> Result<TcpRxReport> {
    options.verify()?;
    measured(&options.files, out, || report(options))
}

fn report(options: &TcpRxOptions) -> Result<TcpRxReport> {
    raise_descriptors()?;
    let placement = Placement::detect()?;
    let (client, (cases, memory)) = match options.client {
        Client::Own => {
            let cases = in_new_namespace(|| {
                NetnsLink::new("lo")?.up()?;
                placement.pin_worker()?;
                measure(options, &placement)
            });
            ("own", cases?)
        }
        Client::External => ("external", external::measure(options)?),
    };
    Ok(TcpRxReport {
        machine: Machine::detect(),
        client,
        separate_cpus: placement.separate(),
        quick: options.quick,
        touch: options.touch,
        read_bytes: options.read_bytes,
        rounds: options.rounds(),
        memory,
        notes: Vec::new(),
        cases,
    })
}

/// All ways are open at the same time, with two descriptors a connection.
fn raise_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("can't raise the number of open files to its hard limit")
}

fn measure(options: &TcpRxOptions, placement: &Placement) -> Result<(Vec<CellReport<TcpRx>>, MemoryTraffic)> {
    let (traffic, memory) = traffic();
    let rounds = options.rounds();
    let mut progress = ProgressLine::new("tcp-rx", options.connections.len() * (rounds + 1));
    let mut cases = Vec::new();
    for &connections in &options.connections {
        let mut seats = Seats::new(options, connections);
        let what = format!("{connections} connections");
        let runs = interleave(seats.ways.len(), rounds, what, &mut progress, |index, _| {
            seats.run(index, options, placement, traffic.as_ref())
        });
        cases.push(case(connections, seats.into_parts(), runs));
    }
    progress.finish();
    Ok((cases, memory))
}

/// Opens the counters of the calling thread.
pub(super) fn traffic() -> (Option<Traffic>, MemoryTraffic) {
    match Traffic::open() {
        Ok(traffic) => {
            let memory = MemoryTraffic::Measured(traffic.what.clone());
            (Some(traffic), memory)
        }
        Err(why) => (None, MemoryTraffic::NotMeasured(why)),
    }
}

/// One way with its connections, kept from round to round.
struct Seat {
    senders: Senders,
    way: Box<dyn TcpWay>,
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
    /// Opens every way that this machine has; select's first, since it takes low descriptors only.
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
    ) -> Result<TcpSample> {
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
    way: &mut dyn TcpWay,
    goal: &Goal,
    touch: bool,
    traffic: Option<&Traffic>,
) -> Result<TcpSample> {
    let memory = || traffic.and_then(|t| t.bytes().ok());
    let (begin, cpu, before) = (Instant::now(), thread_time(), memory());
    let tally = way.receive(goal, touch)?;
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), thread_time() - cpu);
    let memory_bytes = memory().zip(before).map(|(after, before)| after.saturating_sub(before));
    Ok(TcpSample { tally, seconds, cpu_seconds: cpu.as_secs_f64(), memory_bytes })
}

/// Puts the figures of one case together.
pub(super) fn case(
    connections: usize,
    (ways, paths, absent): (Vec<WayName>, Vec<String>, Vec<Failure>),
    runs: Vec<Runs<TcpSample>>,
) -> CellReport<TcpRx> {
    let tried = ways.into_iter().zip(paths).zip(runs);
    let tried = tried.map(|((variant, path), runs)| Tried {
        variant,
        bases: bases(),
        facts: TcpFacts { path },
        runs,
    });
    CellReport::of(Connections { connections }, (), tried.collect(), absent)
}

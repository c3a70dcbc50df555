//! The benchmark from end to end, with a sender of its own.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::external;
use super::options::{Client, TcpRxOptions};
use super::report::{Connections, MemoryTraffic, TcpFacts, TcpRx, TcpRxReport, TcpSample, bases};
use super::traffic::Traffic;
use super::way::{self, Goal, TcpWay, WayName};
use crate::cpu::{Placement, thread_time};
use crate::experiment::{CellReport, Failure, ProgressLine, ReportHead, Runs, Tried, interleave, measured};
use crate::netns::{NetnsLink, in_new_namespace};

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
    let (cases, memory) = match options.client {
        Client::Own => in_new_namespace(|| {
            NetnsLink::new("lo")?.up()?;
            placement.pin_worker()?;
            measure(options, &placement)
        })?,
        Client::External => external::measure(options)?,
    };
    Ok(TcpRxReport {
        head: ReportHead::detect(&placement),
        client: options.client,
        quick: options.quick,
        touch: options.touch,
        read_bytes: options.read_bytes,
        rounds: options.rounds(),
        memory,
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
        let at = Connections { connections };
        let (mut seats, mut absent) = (Vec::new(), Vec::new());
        // select's comes early, since it takes low descriptors only.
        for name in options.ways().into_iter().filter(|way| way.serves(connections)) {
            match Seat::open(name, options, connections) {
                Ok(seat) => seats.push(seat),
                Err(error) => absent.push(Failure::of(name, error)),
            }
        }
        let runs = interleave(seats.len(), rounds, at, &mut progress, |index, _| {
            seats[index].run(options, placement, traffic.as_ref())
        });
        let tried = seats.into_iter().zip(runs).map(|(seat, runs)| tried(seat.name, seat.path, runs));
        cases.push(CellReport::of(at, (), tried.collect(), absent));
    }
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
    name: WayName,
    path: String,
    /// None after a run that failed.
    open: Option<(Senders, Box<dyn TcpWay>)>,
}

impl Seat {
    fn open(name: WayName, options: &TcpRxOptions, connections: usize) -> Result<Self> {
        let (senders, sockets) = connect(connections)?;
        let way = way::open(name, sockets, options)?;
        Ok(Self { name, path: way.path(), open: Some((senders, way)) })
    }

    fn run(
        &mut self,
        options: &TcpRxOptions,
        placement: &Placement,
        traffic: Option<&Traffic>,
    ) -> Result<TcpSample> {
        // What is left of a run that fails must not be sent in the middle of another one's.
        let (mut senders, mut way) = self.open.take().context("its connections were closed")?;
        let bytes = senders.whole(options.bytes());
        let goal = Goal::of(bytes);
        let sample = std::thread::scope(|scope| {
            let (senders, goal) = (&mut senders, &goal);
            let sender = std::thread::Builder::new()
                .name("sender".into())
                .spawn_scoped(scope, move || senders.send(bytes, goal, placement))?;
            let sample = sample(way.as_mut(), goal, options.touch, traffic);
            if sample.is_err() {
                goal.set(0);
            }
            let sent = sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
            sample.and_then(|sample| sent.map(|()| sample))
        })?;
        anyhow::ensure!(
            sample.tally.bytes == bytes,
            "{bytes} bytes were sent and {} came: the run is void",
            sample.tally.bytes
        );
        self.open = Some((senders, way));
        Ok(sample)
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

/// A way with its runs.
pub(super) fn tried(variant: WayName, path: String, runs: Runs<TcpSample>) -> Tried<TcpRx> {
    Tried { variant, bases: bases(), facts: TcpFacts { path }, runs }
}

/// Bytes of a write, as of iperf3.
const CHUNK: usize = 128 << 10;
/// A sender that can send nowhere looks so often whether the receiver has given up.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The sending ends.
#[derive(Debug)]
pub struct Senders {
    streams: Vec<TcpStream>,
    block: Vec<u8>,
}

/// Makes `count` connections; the receiving ends come second.
pub fn connect(count: usize) -> Result<(Senders, Vec<OwnedFd>)> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("can't listen on the loopback interface")?;
    let address = listener.local_addr()?;
    let (mut streams, mut sockets) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let stream = TcpStream::connect(address).context("can't connect over the loopback interface")?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
        sockets.push(listener.accept()?.0.into());
    }
    let block = (0..CHUNK).map(|i| (i % 251) as u8).collect();
    Ok((Senders { streams, block }, sockets))
}

impl Senders {
    /// The bytes of a run of about `bytes`: the same on each connection.
    pub fn whole(&self, bytes: u64) -> u64 {
        let count = self.streams.len() as u64;
        bytes.div_ceil(count) * count
    }

    /// Sends `bytes` ([`Senders::whole`]) on all connections in turn, a write each, until all is
    /// sent or `goal` is 0: the receiver has given up. Runs on the driver's CPU.
    pub fn send(&mut self, bytes: u64, goal: &Goal, placement: &Placement) -> Result<()> {
        placement.pin_driver()?;
        let each = bytes / self.streams.len().max(1) as u64;
        let mut left: Vec<u64> = vec![each; self.streams.len()];
        let mut open = left.len();
        while open > 0 && goal.bytes() > 0 {
            let mut moved = false;
            for (stream, left) in self.streams.iter_mut().zip(&mut left).filter(|(_, left)| **left > 0) {
                let len = usize::try_from(*left).unwrap_or(CHUNK).min(CHUNK);
                match stream.write(&self.block[..len]) {
                    Ok(n) => {
                        *left -= n as u64;
                        moved = true;
                        open -= usize::from(*left == 0);
                    }
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(e) => return Err(e).context("sending failed"),
                }
            }
            if !moved {
                let open = self.streams.iter().zip(&left).filter(|(_, left)| **left > 0);
                let mut fds: Vec<_> = open.map(|(stream, _)| PollFd::new(stream, PollFlags::OUT)).collect();
                let _ = poll(&mut fds, Some(&TICK));
            }
        }
        Ok(())
    }
}

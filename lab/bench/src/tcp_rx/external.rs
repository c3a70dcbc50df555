//! The same with iperf3 clients: one test of a client is one run of a way.

use std::net::{Shutdown, TcpListener, ToSocketAddrs as _};

use anyhow::{Context, Result, bail};
use zerowire_cli::logging;

use super::iperf3::{self, Test};
use super::options::TcpRxOptions;
use super::report::{Connections, MemoryTraffic, TcpRx, TcpSample};
use super::run::{sample, traffic, tried};
use super::traffic::Traffic;
use super::way::{self, Goal, WayName};
use crate::experiment::{CellReport, Failure, ProgressLine, interleave};

/// The port to listen at where none is named: iperf3's.
const PORT: u16 = 5201;

/// Serves as many tests as the ways and rounds need.
pub fn measure(options: &TcpRxOptions) -> Result<(Vec<CellReport<TcpRx>>, MemoryTraffic)> {
    let (bind, port) = (options.bind.as_str(), options.port.unwrap_or(PORT));
    let addresses: Vec<_> = (bind, port)
        .to_socket_addrs()
        .with_context(|| format!("--bind {bind} is no address and no name that can be resolved"))?
        .collect();
    let listener = TcpListener::bind(&addresses[..])
        .with_context(|| format!("can't listen at port {port} of {bind}: give another -p"))?;
    let port = listener.local_addr()?.port();
    let rounds = options.rounds();
    let names = options.ways();
    let tests = names.len() * (rounds + 1);
    logging::say(&format!(
        "waiting for {tests} tests of iperf3, one after the other; on the other machine:\n  \
         for i in $(seq {tests}); do iperf3 -c HOST -p {port} -n 4G; done"
    ));
    let (traffic, memory) = traffic();
    let mut progress = ProgressLine::new("tcp-rx", rounds + 1);
    let mut external = External {
        options,
        listener,
        traffic,
        connections: None,
        paths: vec![String::new(); names.len()],
        absent: Vec::new(),
    };
    let runs = interleave(names.len(), rounds, "iperf3", &mut progress, |index, _| {
        external.run(index, names[index])
    });
    let External { connections, paths, absent, .. } = external;
    let connections = connections.context("no test of iperf3 was served")?;
    // What can't be had here was told when its first test came.
    let is_absent = |name: &WayName| absent.iter().any(|failure| failure.variant == name.to_string());
    let ways = names.into_iter().zip(paths).zip(runs).filter(|((name, _), _)| !is_absent(name));
    let tried = ways.map(|((name, path), runs)| tried(name, path, runs)).collect();
    Ok((vec![CellReport::of(Connections { connections }, (), tried, absent)], memory))
}

struct External<'a> {
    options: &'a TcpRxOptions,
    listener: TcpListener,
    traffic: Option<Traffic>,
    /// Streams of the first test; all others must have as many.
    connections: Option<usize>,
    paths: Vec<String>,
    absent: Vec<Failure>,
}

impl External<'_> {
    fn run(&mut self, index: usize, name: WayName) -> Result<TcpSample> {
        let mut test = iperf3::accept(&self.listener)?;
        let count = test.streams.len();
        let first = *self.connections.get_or_insert(count);
        if count != first {
            bail!("the test has {count} streams and the first one had {first}: give the same -P to all");
        }
        let sockets = std::mem::take(&mut test.streams);
        let mut way = match way::open(name, sockets, self.options) {
            Ok(way) => way,
            Err(e) => {
                self.absent.push(Failure::of(name, &e));
                return Err(e);
            }
        };
        self.paths[index] = way.path();
        let goal = Goal::open();
        let breaker = test.breaker()?;
        let (sample, test, sent) = std::thread::scope(|scope| {
            let told = &goal;
            let control =
                std::thread::Builder::new().name("iperf3".into()).spawn_scoped(scope, move || {
                    let sent = test.sent();
                    match &sent {
                        Ok(sent) => told.set(sent.bytes()),
                        Err(_) => told.set(0),
                    }
                    (test, sent)
                })?;
            let sample = sample(way.as_mut(), told, self.options.touch, self.traffic.as_ref());
            if sample.is_err() {
                // An error means that it is gone already.
                let _ = breaker.shutdown(Shutdown::Both);
            }
            let (test, sent): (Test, _) = control
                .join()
                .map_err(|_| anyhow::anyhow!("the thread of the control connection panicked"))?;
            anyhow::Ok((sample?, test, sent?))
        })?;
        if sample.tally.bytes != sent.bytes() {
            bail!(
                "the client says that it sent {} bytes, and {} came: the run is void",
                sent.bytes(),
                sample.tally.bytes
            );
        }
        test.finish(&sent, sample.seconds, sample.cpu_seconds)?;
        Ok(sample)
    }
}

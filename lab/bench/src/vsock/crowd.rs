//! Many connections at once from one guest, with and without one whose program doesn't read.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use zerowire_guest::vsock::ConnId;

use super::case::{SocketKind, WRITE_LEN};
use super::compare::VsockSample;
use super::device::{SETTLE_LIMIT, accept_from};
use super::guest::{Setup, VsockGuest, Watch};
use super::host::{self, HostCpu};
use crate::amount::amount;
use crate::backend::BackendProcess;
use crate::case::WorkingSet;
use crate::cpu::{Placement, thread_time};
use crate::experiment::{
    Base, CellReport, Column, Digits, Figure, NumberCell, ProgressLine, Subject, interleave, part_cell,
    titled,
};
use crate::guest::STALL_LIMIT;
use crate::table::bytes;

/// Packets of one connection before the next one's turn.
const TURN: usize = 2;
/// What the other connection does: nothing, or it sends and nobody reads it.
const OTHER: [&str; 2] = ["idle", "stalled"];

/// The comparison of many connections beside one that is idle with those beside one that stalls.
#[derive(Debug, Clone)]
pub struct Crowded;

/// What is known of a number of connections besides their figures.
#[derive(Debug, Clone, Serialize)]
pub struct CrowdFacts {
    /// Bytes that all but the one that may stall move in a run.
    pub bytes: usize,
    /// Bytes that the stalled one had sent when it stopped.
    pub stalled_bytes: usize,
}

impl Subject for Crowded {
    /// Connections, the one that may stall among them.
    type Cell = NumberCell;
    type CellFacts = CrowdFacts;
    /// What the one that may stall does.
    type Variant = String;
    type Facts = ();
    type Sample = VsockSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // 10⁶ bytes a second, all others together.
        Figure::<Self>::spread("megabytes_per_second", |_, s| Some(s.megabytes_per_second())),
        Figure::<Self>::ratio_if_any("rate_ratio", "idle", |_, s| s.megabytes_per_second()),
        // CPU seconds of the back end for 10⁹ bytes.
        Figure::<Self>::spread("cpu_s_per_gb", |_, s| Some(s.cpu_per_gb())),
    ];
    const VARIANT: &'static str = "other";
}

/// Measures `connections` connections from guest to host, whose program runs on `host_cpu`.
pub fn measure(
    program: &Path,
    connections: usize,
    host_cpu: HostCpu,
    (rounds, quick): (usize, bool),
    placement: &Placement,
) -> Result<Vec<CellReport<Crowded>>> {
    let backend = BackendProcess::start_vsock(program, &[], &[""], placement)?;
    let mut crowd = Crowd::connect(&backend, connections)?;
    let each = amount(if quick { 512 << 10 } else { 2 << 20 });
    let mut stalled_bytes = 0;
    let at = NumberCell { axis: "connections", value: connections };
    let mut progress = ProgressLine::new("many connections", rounds + 1);
    let runs = interleave(OTHER.len(), rounds, at, &mut progress, |index, _| {
        let run = crowd.run(&backend, each, index == 1, &|| host_cpu.pin(placement));
        let (sample, stalled) = backend.with_last_words(run)?;
        stalled_bytes = stalled_bytes.max(stalled);
        Ok(sample)
    });
    let facts = CrowdFacts { bytes: each * (connections - 1), stalled_bytes };
    let idle = Base { label: "idle", variant: "idle".to_owned() };
    let cell = part_cell(at, facts, Some(idle), OTHER.map(str::to_owned).into_iter().zip(runs))?;
    Ok(vec![cell])
}

/// One guest with many connections; the first one may stall.
struct Crowd {
    guest: VsockGuest,
    members: Vec<(ConnId, UnixStream)>,
}

impl Crowd {
    fn connect(backend: &BackendProcess, connections: usize) -> Result<Self> {
        if connections < 2 {
            bail!("{connections} connections: at least 2 are needed");
        }
        let setup = Setup { pool_bytes: WorkingSet::Hot.bytes(), ..Setup::default() };
        let mut guest = VsockGuest::connect(&backend.socket(0), &setup)?;
        let mut members = Vec::new();
        for _ in 0..connections {
            let (conn, stream) = accept_from(&mut guest, backend, SocketKind::Stream)?;
            stream.set_nonblocking(true)?;
            members.push((conn, stream));
        }
        Ok(Self { guest, members })
    }

    /// Every connection but the first sends `each` bytes. With `stall` the first one sends as much
    /// as its credit allows, and is read afterwards. `seat` moves the host's program to its CPU.
    /// Returns what the others cost, and what the first one had sent.
    fn run(
        &mut self,
        backend: &BackendProcess,
        each: usize,
        stall: bool,
        seat: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<(VsockSample, usize)> {
        let Self { guest, members } = self;
        let streams: Vec<&UnixStream> = members.iter().map(|(_, stream)| stream).collect();
        let conns: Vec<ConnId> = members.iter().map(|(conn, _)| *conn).collect();
        let clock = backend.clock()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let ended = AtomicBool::new(false);
        let begin = Instant::now();
        let program = || {
            let cpu = thread_time();
            let outcome = seat().and_then(|()| read_all(&streams[1..], each));
            ended.store(true, Ordering::Release);
            outcome.map(|()| (thread_time() - cpu, Instant::now()))
        };
        let ((host_cpu, end), stalled) =
            host::beside(program, || send_all(guest, &conns, each, stall, &ended))?;
        let (after, _) = clock.settled(SETTLE_LIMIT)?;
        let bytes = each * (members.len() - 1);
        let sample = VsockSample::new(after - before, host_cpu, end - begin, bytes);
        read_all(&streams[..1], stalled).context("what the stalled connection sent")?;
        // The guest hears of the credit that came back.
        guest.turn(true)?;
        Ok((sample, stalled))
    }
}

/// Sends in turns; returns the bytes of the first connection.
fn send_all(
    guest: &mut VsockGuest,
    conns: &[ConnId],
    each: usize,
    stall: bool,
    ended: &AtomicBool,
) -> Result<usize> {
    let mut left = vec![each; conns.len()];
    let (mut stalled, mut sent, total) = (0, 0, each * (conns.len() - 1));
    let mut watch = Watch::new("many connections", total);
    let mut first = 1;
    while sent < total || !ended.load(Ordering::Acquire) {
        let before = sent;
        if stall {
            stalled += guest.push(conns[0], WRITE_LEN, TURN * WRITE_LEN, TURN)?;
        }
        // Another one begins each time: else the last ones would find the queue full.
        first = 1 + first % (conns.len() - 1);
        for place in (first..conns.len()).chain(1..first) {
            if left[place] > 0 {
                let count = guest.push(conns[place], WRITE_LEN, left[place], TURN)?;
                left[place] -= count;
                sent += count;
            }
        }
        guest.turn(sent > before)?;
        watch.look(sent)?;
    }
    guest.stack().flush(STALL_LIMIT)?;
    Ok(stalled)
}

/// Reads `each` bytes of every stream, whichever has some.
fn read_all(streams: &[&UnixStream], each: usize) -> Result<()> {
    let mut left = vec![each; streams.len()];
    let mut buffer = vec![0; WRITE_LEN];
    let mut open = if each > 0 { streams.len() } else { 0 };
    let limit = Timespec { tv_sec: STALL_LIMIT.as_secs() as i64, tv_nsec: 0 };
    while open > 0 {
        let places: Vec<usize> = (0..streams.len()).filter(|place| left[*place] > 0).collect();
        let mut fds: Vec<PollFd<'_>> =
            places.iter().map(|place| PollFd::new(streams[*place], PollFlags::IN)).collect();
        if poll(&mut fds, Some(&limit))? == 0 {
            bail!("{open} connections brought nothing for {STALL_LIMIT:?}");
        }
        for (fd, place) in fds.iter().zip(&places) {
            if fd.revents().is_empty() {
                continue;
            }
            let most = left[*place].min(buffer.len());
            let mut stream = streams[*place];
            match stream.read(&mut buffer[..most]) {
                Ok(0) => bail!("a connection ended with {} bytes to come", left[*place]),
                Ok(count) => left[*place] -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            open -= usize::from(left[*place] == 0);
        }
    }
    Ok(())
}

const COLUMNS: [Column<Crowded>; 5] = [
    Column::words("the other one", |_, line| Some(line.variant.clone())),
    Column::words("has sent", |cell, line| {
        (line.variant == "stalled").then(|| bytes(cell.facts.stalled_bytes))
    }),
    Column::spread("MB/s", "megabytes_per_second", Digits::Three),
    Column::spread("/idle", "rate_ratio", Digits::Behind(2)),
    Column::spread("CPU s/GB", "cpu_s_per_gb", Digits::Behind(3)),
];

/// The cells as text.
pub fn text(cells: &[CellReport<Crowded>]) -> String {
    let Some(cell) = cells.first() else { return String::new() };
    let title = format!(
        "{} connections, guest to host, 64 KiB writes; all but one send {} in all. The other one is idle, or sends and its \
         program doesn't read (/idle: rate divided by the rate beside the idle one, round by round; CPU: the back end)",
        cell.at.value,
        bytes(cell.facts.bytes)
    );
    titled(&title, cells, &COLUMNS, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_is_read_to_its_last_byte() {
        let pairs: Vec<(UnixStream, UnixStream)> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (a, b) in &pairs {
            b.set_nonblocking(true).unwrap();
            std::io::Write::write_all(&mut &*a, &[1; 1000]).unwrap();
        }
        let streams: Vec<&UnixStream> = pairs.iter().map(|(_, b)| b).collect();
        read_all(&streams, 1000).unwrap();
        read_all(&streams, 0).unwrap();
        drop(pairs.into_iter().map(|(a, _)| a).collect::<Vec<_>>());
    }
}

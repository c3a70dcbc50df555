//! Round trips: the guest sends, a program of the host answers with the same bytes.
//!
//! The guest sleeps until its interrupt and the program waits in read(), so a trip holds four
//! wake-ups: back end, program, back end, guest. The program is on the guest's CPU, so each of them
//! is on the other CPU than the one before. The floor is a pair of unix sockets between two
//! threads, on a CPU each: two wake-ups.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use serde::Serialize;
use zerowire_guest::vsock::ConnId;

use super::case::{RX_BUFFER, SocketKind};
use super::device::accept_from;
use super::guest::{Setup, VsockGuest};
use super::host;
use crate::backend::BackendProcess;
use crate::cpu::Placement;
use crate::guest::STALL_LIMIT;
use crate::progress::ProgressLine;
use crate::stats::{Summary, rotation};
use crate::table::{Table, bytes, figure};

/// The longest round trip that the histogram tells from longer ones, in nanoseconds.
const LONGEST_TRIP_NS: u64 = 10_000_000_000;
/// Trips before anything counts.
const WARM_UP: usize = 100;

/// The figures of one length.
#[derive(Debug, Clone, Serialize)]
pub struct TripRow {
    /// Bytes each way.
    pub len: usize,
    /// The floor, then the back end.
    pub name: String,
    /// Trips in a round.
    pub trips: usize,
    /// Half of a round's trips are faster, in microseconds.
    pub p50_us: Summary,
    /// 99 of 100 are faster, in microseconds.
    pub p99_us: Summary,
}

/// Measures 1 byte and 4 KiB.
pub fn measure(program: &Path, rounds: usize, trips: usize, placement: &Placement) -> Result<Vec<TripRow>> {
    let backend = BackendProcess::start_vsock(program, &[], 1, placement)?;
    let setup =
        Setup { pool_bytes: 0, rx_buffers: 0, rx_buffer_len: RX_BUFFER, credit: 256 << 10, sleeps: true };
    let mut guest = VsockGuest::connect(&backend.socket(0), &setup)?;
    let (conn, answering) = accept_from(&mut guest, &backend, SocketKind::Stream)?;
    let (asking, floor_answering) = UnixStream::pair()?;
    host::patient(&asking)?;
    let echoes = [(answering, false), (floor_answering, true)].map(|(stream, worker)| {
        let placement = placement.clone();
        std::thread::spawn(move || {
            if worker {
                placement.pin_worker()?;
            }
            echo(stream)
        })
    });
    let mut rows = Vec::new();
    let mut progress = ProgressLine::new("round trips", 2 * rounds);
    for len in [1, 4096] {
        progress.step(bytes(len));
        rows.extend(measure_len(len, (rounds, trips), &mut progress, |index, count| match index {
            0 => run(count, || floor_trip(&asking, len)),
            _ => {
                let trips = run(count, || trip(&mut guest, conn, len));
                trips.with_context(|| format!("the back end's last words: {}", backend.log()))
            }
        })?);
    }
    progress.finish();
    guest.stack().close(conn)?;
    drop(asking);
    let _ = guest.stack().wait_closed(conn, STALL_LIMIT)?;
    for echo in echoes {
        echo.join().map_err(|_| anyhow!("the answering thread panicked"))?.context("the answering thread")?;
    }
    Ok(rows)
}

/// The floor and the back end with one length, in turns; `run` takes which one, and the
/// number of trips.
fn measure_len(
    len: usize,
    (rounds, trips): (usize, usize),
    progress: &mut ProgressLine,
    mut run: impl FnMut(usize, usize) -> Result<Histogram<u64>>,
) -> Result<Vec<TripRow>> {
    let mut sides: [(&str, Vec<[f64; 2]>); 2] = [("floor", Vec::new()), ("zerowire", Vec::new())];
    for round in 0..=rounds {
        let count = if round == 0 { WARM_UP } else { trips };
        for index in rotation(2, round) {
            let histogram = run(index, count)?;
            let at = |q: f64| histogram.value_at_quantile(q) as f64 / 1000.0;
            if round > 0 {
                sides[index].1.push([at(0.5), at(0.99)]);
            }
        }
        if round > 0 {
            progress.advance();
        }
    }
    let row = |(name, values): &(&str, Vec<[f64; 2]>)| {
        let summary = |place: usize| Summary::of(values.iter().map(|value| value[place]));
        let none = || "no rounds";
        Ok(TripRow {
            len,
            name: (*name).to_owned(),
            trips,
            p50_us: summary(0).with_context(none)?,
            p99_us: summary(1).with_context(none)?,
        })
    };
    sides.iter().map(row).collect()
}

/// Answers until the stream ends.
fn echo(mut stream: UnixStream) -> Result<()> {
    // The other side may pause longer than it may be silent within a trip.
    stream.set_read_timeout(None)?;
    let mut buffer = [0; 8192];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

fn run(count: usize, mut trip: impl FnMut() -> Result<Duration>) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new_with_bounds(1, LONGEST_TRIP_NS, 3)?;
    for _ in 0..count {
        histogram.saturating_record(trip()?.as_nanos() as u64);
    }
    Ok(histogram)
}

fn floor_trip(mut stream: &UnixStream, len: usize) -> Result<Duration> {
    let (out, mut back) = ([7; 4096], [0; 4096]);
    let begin = Instant::now();
    stream.write_all(&out[..len])?;
    stream.read_exact(&mut back[..len])?;
    Ok(begin.elapsed())
}

fn trip(guest: &mut VsockGuest, conn: ConnId, len: usize) -> Result<Duration> {
    let out = [9; 4096];
    let begin = Instant::now();
    guest.stack().send_all(conn, &out[..len], STALL_LIMIT)?;
    let back = guest.stack().recv_exact(conn, len, STALL_LIMIT)?;
    let elapsed = begin.elapsed();
    if back != out[..len] {
        bail!("a round trip changed its bytes");
    }
    Ok(elapsed)
}

/// The rows as text.
pub fn text(rows: &[TripRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(["bytes", "variant", "trips a round", "p50 us", "quartiles", "p99 us", "quartiles"])
            .labels(2);
    for row in rows {
        let spread = |s: &Summary| format!("{}..{}", figure(s.q1), figure(s.q3));
        table.row([
            bytes(row.len),
            row.name.clone(),
            row.trips.to_string(),
            figure(row.p50_us.median),
            spread(&row.p50_us),
            figure(row.p99_us.median),
            spread(&row.p99_us),
        ]);
    }
    format!(
        "Round trip guest, host program, guest; all of them sleep when they wait (floor: two threads on a CPU each, over \
         a pair of unix sockets):\n{}",
        table.render()
    )
}

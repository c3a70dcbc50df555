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
use serde::Serialize;
use zerowire_guest::vsock::ConnId;

use super::case::SocketKind;
use super::device::accept_from;
use super::guest::{Setup, VsockGuest};
use super::host;
use crate::backend::BackendProcess;
use crate::cpu::Placement;
use crate::experiment::{
    CellReport, Column, Digits, Figure, NumberCell, ProgressLine, Subject, Turn, interleave, part_cell,
    titled,
};
use crate::guest::STALL_LIMIT;
use crate::stats::{TripSample, round_trips};
use crate::table::bytes;

/// Bytes each way.
const LENS: [usize; 2] = [1, 4096];
/// Trips before anything counts.
const WARM_UP: usize = 100;

/// The comparison of round trips.
#[derive(Debug, Clone)]
pub struct Latency;

/// What is known of a length besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyFacts {
    /// Trips in a round.
    pub trips: usize,
}

impl Subject for Latency {
    /// Bytes each way.
    type Cell = NumberCell;
    type CellFacts = LatencyFacts;
    type Variant = String;
    type Facts = ();
    type Sample = TripSample;

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("p50_us", |_, s| Some(s.p50_us)),
        Figure::<Self>::spread("p99_us", |_, s| Some(s.p99_us)),
    ];
    const VARIANT: &'static str = "name";
}

/// Measures each length, the floor and the back end in turns.
pub fn measure(
    program: &Path,
    rounds: usize,
    trips: usize,
    placement: &Placement,
) -> Result<Vec<CellReport<Latency>>> {
    let backend = BackendProcess::start_vsock(program, &[], &[""], placement)?;
    let setup = Setup { sleeps: true, ..Setup::default() };
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
    let mut cells = Vec::new();
    let mut progress = ProgressLine::new("round trips", LENS.len() * (rounds + 1));
    for len in LENS {
        let runs = interleave(2, rounds, bytes(len), &mut progress, |index, turn| {
            let count = if turn == Turn::WarmUp { WARM_UP } else { trips };
            match index {
                0 => round_trips(count, |_| floor_trip(&asking, len)),
                _ => backend.with_last_words(round_trips(count, |_| trip(&mut guest, conn, len))),
            }
        });
        let at = NumberCell { axis: "len", value: len };
        let ran = ["floor", "zerowire"].map(str::to_owned).into_iter().zip(runs);
        cells.push(part_cell(at, LatencyFacts { trips }, None, ran)?);
    }
    drop(progress);
    guest.stack().close(conn)?;
    drop(asking);
    let _ = guest.stack().wait_closed(conn, STALL_LIMIT)?;
    for echo in echoes {
        echo.join().map_err(|_| anyhow!("the answering thread panicked"))?.context("the answering thread")?;
    }
    Ok(cells)
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

const COLUMNS: [Column<Latency>; 5] = [
    Column::words("bytes", |cell, _| Some(bytes(cell.at.value))),
    Column::words("variant", |_, line| Some(line.variant.clone())),
    Column::words("trips a round", |cell, _| Some(cell.facts.trips.to_string())),
    Column::spread("p50 us", "p50_us", Digits::Three),
    Column::spread("p99 us", "p99_us", Digits::Three),
];

/// The cells as text.
pub fn text(cells: &[CellReport<Latency>]) -> String {
    let title = "Round trip guest, host program, guest; all of them sleep when they wait (floor: two threads on a CPU each, over \
                 a pair of unix sockets)";
    titled(title, cells, &COLUMNS, 2)
}

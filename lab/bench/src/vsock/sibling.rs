//! Guest to guest: two guests on one back end, one connection.
//!
//! One driver thread serves both in turn. The floor is memcpy of the same bytes, in pieces of a
//! receive buffer, between working sets of the same size.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zerowire_guest::vsock::{ConnId, HEADER_LEN, SocketType};

use super::case::{CREDIT, QUEUE_SIZE, RX_BUFFER, WRITE_LEN};
use super::compare::VsockSample;
use super::device::{PORT, SETTLE_LIMIT};
use super::guest::{Setup, VsockGuest, Watch};
use super::host::Walk;
use crate::amount::amount;
use crate::area::Area;
use crate::backend::BackendProcess;
use crate::case::WorkingSet;
use crate::cpu::{Placement, on_worker};
use crate::experiment::{
    Base, CellReport, Column, Digits, Figure, NumberCell, ProgressLine, Subject, Turn, interleave, part_cell,
    titled,
};
use crate::guest::STALL_LIMIT;
use crate::table::bytes;

/// The comparison of ways from guest to guest.
#[derive(Debug, Clone)]
pub struct Siblings;

impl Subject for Siblings {
    /// The working set of each guest in bytes.
    type Cell = NumberCell;
    type CellFacts = ();
    type Variant = String;
    type Facts = ();
    type Sample = VsockSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // CPU seconds of the back end, or of memcpy, for 10⁹ bytes.
        Figure::<Self>::spread("cpu_s_per_gb", |_, s| Some(s.cpu_per_gb())),
        Figure::<Self>::ratio("ratio_to_floor", "floor", |_, s| s.cpu_per_gb()),
        // 10⁶ bytes a second.
        Figure::<Self>::spread("megabytes_per_second", |_, s| Some(s.megabytes_per_second())),
    ];
    const VARIANT: &'static str = "name";
}

/// Measures each working set, the floor and the back end in turns.
pub fn measure(
    program: &Path,
    sets: &[WorkingSet],
    rounds: usize,
    quick: bool,
    placement: &Placement,
) -> Result<Vec<CellReport<Siblings>>> {
    let backend = BackendProcess::start_vsock(program, &[], &["", ""], placement)?;
    let run_bytes = amount(if quick { 32 << 20 } else { 96 << 20 });
    let mut cells = Vec::new();
    let mut progress = ProgressLine::new("guest to guest", sets.len() * (rounds + 1));
    for set in sets {
        // Never less than the receive queue holds.
        let set_bytes = set.bytes().max(usize::from(QUEUE_SIZE) * RX_BUFFER as usize);
        let mut pair = Pair::connect(&backend, set_bytes)?;
        let mut areas = [Area::new(set_bytes)?, Area::new(set_bytes)?];
        for area in &mut areas {
            area.bytes_mut().fill(3);
        }
        let runs = interleave(2, rounds, bytes(set_bytes), &mut progress, |index, turn| {
            let check = turn == Turn::WarmUp;
            let count = if check { amount(8 << 20) } else { run_bytes };
            match index {
                0 => copy(&mut areas, count, placement),
                _ => backend.with_last_words(pair.run(&backend, count, check)),
            }
        });
        let at = NumberCell { axis: "working_set_bytes", value: set_bytes };
        let floor = Base { label: "floor", variant: "floor".to_owned() };
        let ran = ["floor", "zerowire"].map(str::to_owned).into_iter().zip(runs);
        cells.push(part_cell(at, (), Some(floor), ran)?);
    }
    Ok(cells)
}

/// Two guests with a connection from the first to the second.
struct Pair {
    sender: VsockGuest,
    receiver: VsockGuest,
    from: ConnId,
    to: ConnId,
    received: u64,
}

impl Pair {
    fn connect(backend: &BackendProcess, set_bytes: usize) -> Result<Self> {
        let sends = Setup { pool_bytes: set_bytes, ..Setup::default() };
        let receives = Setup { rx_buffers: set_bytes / RX_BUFFER as usize, ..Setup::default() };
        let mut sender = VsockGuest::connect(&backend.socket(0), &sends)?;
        let mut receiver = VsockGuest::connect(&backend.socket(1), &receives)?;
        receiver.stack().listen(PORT, SocketType::Stream);
        let from = sender.stack().connect(BackendProcess::cid(1), PORT, SocketType::Stream)?;
        let to = receiver
            .stack()
            .accept_wait(PORT, STALL_LIMIT)
            .context("one guest's request doesn't reach the other")?;
        if !sender.stack().wait_connected(from, STALL_LIMIT)? {
            bail!("the connection to the other guest is refused");
        }
        Ok(Self { sender, receiver, from, to, received: 0 })
    }

    fn run(&mut self, backend: &BackendProcess, count: usize, check: bool) -> Result<VsockSample> {
        self.receiver.count(self.to, check)?;
        let target = self.received + count as u64;
        let clock = backend.clock()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let begin = Instant::now();
        let mut watch = Watch::new("guest to guest", count);
        let mut sent = 0;
        while self.received < target {
            if sent < count {
                sent += self.sender.push(self.from, WRITE_LEN, count - sent, usize::from(QUEUE_SIZE))?;
            }
            // Neither guest gives its CPU away: nobody else wants it here.
            self.sender.stack().turn(Duration::ZERO)?;
            self.receiver.stack().turn(Duration::ZERO)?;
            self.received = self.receiver.stack().drained(self.to).bytes;
            watch.look(sent + self.received as usize)?;
        }
        let wall = begin.elapsed();
        if self.received != target || sent != count {
            bail!("{sent} bytes were sent, {} too many arrived", self.received - target);
        }
        self.sender.stack().flush(STALL_LIMIT)?;
        let (after, _) = clock.settled(SETTLE_LIMIT)?;
        if check {
            self.check(count)?;
        }
        Ok(VsockSample::new(after - before, Duration::ZERO, wall, count))
    }

    fn check(&mut self, count: usize) -> Result<()> {
        if self.sender.pool_sum(count as u64)? != self.receiver.stack().drained(self.to).sum {
            bail!("{count} bytes arrived and are not those that were sent");
        }
        Ok(())
    }
}

/// Copies `count` bytes from one area to the other on the back end's CPU.
fn copy(areas: &mut [Area; 2], count: usize, placement: &Placement) -> Result<VsockSample> {
    let [from, to] = areas;
    let piece = RX_BUFFER as usize - HEADER_LEN;
    let (source, target) = (from.bytes(), to.bytes_mut());
    let (cpu, wall) = on_worker(placement, move || {
        let (mut out, mut into) = (Walk::default(), Walk::default());
        let mut left = count;
        while left > 0 {
            let place = out.next(piece.min(left), source.len());
            let range = into.next(place.len(), target.len());
            let len = range.len();
            target[range].copy_from_slice(&source[place.start..place.start + len]);
            std::hint::black_box(&target);
            out.advance(len);
            into.advance(len);
            left -= len;
        }
        Ok(())
    })?;
    Ok(VsockSample::new(cpu, Duration::ZERO, wall, count))
}

const COLUMNS: [Column<Siblings>; 5] = [
    Column::words("working set", |cell, _| Some(bytes(cell.at.value))),
    Column::words("variant", |_, line| Some(line.variant.clone())),
    Column::spread("CPU s/GB", "cpu_s_per_gb", Digits::Behind(3)),
    Column::spread("/floor", "ratio_to_floor", Digits::Behind(2)),
    Column::median("MB/s", "megabytes_per_second", Digits::Three),
];

/// The cells as text.
pub fn text(cells: &[CellReport<Siblings>]) -> String {
    let title = format!(
        "Guest to guest, 64 KiB writes, {} of credit, receive buffers of {RX_BUFFER} B; CPU: the back end (floor: memcpy of \
         the same bytes in pieces of a receive buffer)",
        bytes(CREDIT as usize)
    );
    titled(&title, cells, &COLUMNS, 2)
}

//! Guest to guest: two guests on one back end, one connection.
//!
//! One driver thread serves both in turn. The floor is memcpy of the same bytes, in pieces of a
//! receive buffer, between working sets of the same size.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use zerowire_guest::vsock::{ConnId, HEADER_LEN, SocketType};

use super::case::{QUEUE_SIZE, RX_BUFFER};
use super::device::{PORT, SETTLE_LIMIT};
use super::guest::{Setup, VsockGuest, Watch};
use super::host::Walk;
use super::variant::VsockSample;
use crate::area::Area;
use crate::backend::BackendProcess;
use crate::case::WorkingSet;
use crate::cpu::{Placement, thread_time};
use crate::guest::STALL_LIMIT;
use crate::progress::ProgressLine;
use crate::stats::{Summary, rotation};
use crate::table::{Table, bytes, figure};

/// Bytes of a write.
const WRITE_LEN: usize = 64 << 10;
/// Credit of the connection.
const CREDIT: u32 = 256 << 10;

/// The figures of one working set.
#[derive(Debug, Clone, Serialize)]
pub struct SiblingRow {
    /// The working set of each guest in bytes.
    pub working_set_bytes: usize,
    /// `floor` or `zerowire`.
    pub name: String,
    /// CPU seconds of the back end, or of memcpy, for 10⁹ bytes.
    pub cpu_s_per_gb: Summary,
    /// The same divided by the floor's of the same round.
    pub ratio_to_floor: Option<Summary>,
    /// 10⁶ bytes a second.
    pub megabytes_per_second: Summary,
    /// Every run, in order.
    pub samples: Vec<VsockSample>,
}

/// Measures each working set.
pub fn measure(
    program: &Path,
    sets: &[WorkingSet],
    rounds: usize,
    quick: bool,
    placement: &Placement,
) -> Result<Vec<SiblingRow>> {
    let backend =
        BackendProcess::start_vsock(program, &["--buffer".to_owned(), CREDIT.to_string()], 2, placement)?;
    let run_bytes = if quick { 32 << 20 } else { 96 << 20 };
    let mut rows = Vec::new();
    let mut progress = ProgressLine::new("guest to guest", sets.len() * rounds);
    for set in sets {
        // Never less than the receive queue holds.
        let set_bytes = set.bytes().max(usize::from(QUEUE_SIZE) * RX_BUFFER as usize);
        progress.step(bytes(set_bytes));
        let mut pair = Pair::connect(&backend, set_bytes)?;
        let mut areas = [Area::new(set_bytes)?, Area::new(set_bytes)?];
        for area in &mut areas {
            area.bytes_mut().fill(3);
        }
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            let count = if round == 0 { 8 << 20 } else { run_bytes };
            for index in rotation(2, round) {
                let sample = match index {
                    0 => copy(&mut areas, count, placement)?,
                    _ => pair
                        .run(&backend, count, round == 0)
                        .with_context(|| format!("the back end's last words: {}", backend.log()))?,
                };
                // The first round warms up and checks.
                if round > 0 {
                    samples[index].push(sample);
                }
            }
            if round > 0 {
                progress.advance();
            }
        }
        rows.extend(figures(set_bytes, samples)?);
    }
    progress.finish();
    Ok(rows)
}

fn figures(set_bytes: usize, samples: [Vec<VsockSample>; 2]) -> Result<Vec<SiblingRow>> {
    let costs = |samples: &[VsockSample]| samples.iter().map(VsockSample::cpu_per_gb).collect::<Vec<f64>>();
    let floor = costs(&samples[0]);
    let row = |(name, samples): (&str, Vec<VsockSample>)| {
        let summary = |figure: fn(&VsockSample) -> f64| Summary::of(samples.iter().map(figure));
        Some(SiblingRow {
            working_set_bytes: set_bytes,
            name: name.to_owned(),
            cpu_s_per_gb: summary(VsockSample::cpu_per_gb)?,
            ratio_to_floor: (name != "floor").then(|| Summary::ratio(&costs(&samples), &floor)).flatten(),
            megabytes_per_second: summary(VsockSample::megabytes_per_second)?,
            samples,
        })
    };
    let rows: Option<Vec<SiblingRow>> = ["floor", "zerowire"].into_iter().zip(samples).map(row).collect();
    rows.context("no rounds")
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
        let setup =
            Setup { pool_bytes: 0, rx_buffers: 0, rx_buffer_len: RX_BUFFER, credit: CREDIT, sleeps: false };
        let sends = Setup { pool_bytes: set_bytes, ..setup };
        let receives = Setup { rx_buffers: set_bytes / RX_BUFFER as usize, ..setup };
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
    let copied = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            placement.pin_worker()?;
            let (mut out, mut into) = (Walk::default(), Walk::default());
            let (begin, cpu) = (Instant::now(), thread_time());
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
            let sample = VsockSample::new(thread_time() - cpu, Duration::ZERO, begin.elapsed(), count);
            Ok::<_, anyhow::Error>(sample)
        });
        worker.join()
    });
    copied.map_err(|_| anyhow!("the copying thread panicked"))?
}

/// The rows as text.
pub fn text(rows: &[SiblingRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(["working set", "variant", "CPU s/GB", "quartiles", "/floor", "quartiles", "MB/s"])
            .labels(2);
    for row in rows {
        let spread = |s: &Summary| format!("{:.3}..{:.3}", s.q1, s.q3);
        let ratio = row.ratio_to_floor.as_ref();
        table.row([
            bytes(row.working_set_bytes),
            row.name.clone(),
            format!("{:.3}", row.cpu_s_per_gb.median),
            spread(&row.cpu_s_per_gb),
            ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
            ratio.map_or("-".into(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3)),
            figure(row.megabytes_per_second.median),
        ]);
    }
    format!(
        "Guest to guest, 64 KiB writes, {} of credit, receive buffers of {RX_BUFFER} B; CPU: the back end (floor: memcpy of \
         the same bytes in pieces of a receive buffer):\n{}",
        bytes(CREDIT as usize),
        table.render()
    )
}

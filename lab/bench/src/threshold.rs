//! `zerowire-bench net --threshold`: when is it cheaper to gather a frame's pieces than to hand
//! them to the kernel one by one?
//!
//! A transmit chain is a private head (virtio-net header and packet headers, read once) and pieces
//! of guest memory. Copying the pieces behind the head costs user-space time by the byte. Handing
//! the kernel a vector costs time by the piece, and more when the pieces are cold.
//!
//! From this table the back end takes [`GATHER_MAX_BYTES`](zerowire_net::GATHER_MAX_BYTES)
//! and `SCATTER_MEAN_BYTES`, its limits of a frame's length and of the mean length of its pieces.
//!
//! Both are measured, interleaved, on one tap: gather and write(2), and writev(2).

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::area::Area;
use crate::case::WorkingSet;
use crate::cpu::{Placement, thread_time};
use crate::frame::{Frame, GUEST_MAC, LARGEST_PLAIN, SINK_MAC};
use crate::generator::verify_sent;
use crate::progress::ProgressLine;
use crate::stats::{Summary, rotation};
use crate::sys;
use crate::tap::{Tap, VNET_HEADER_LEN};
use anyhow::{Context, Result};
use serde::Serialize;

/// Frame lengths of the grid, in bytes.
pub const SIZES: [usize; 12] = [64, 128, 256, 512, 1024, 1500, 2048, 4096, 8192, 16_384, 32_768, 65_536 - 16];
/// Segments of the grid, the private head included.
pub const SEGMENTS: [usize; 5] = [2, 3, 5, 9, 17];

/// Heads, which frames use in turn.
const HEADS: usize = 32;
/// Room for a head: virtio-net header and at most 66 bytes of packet headers.
const HEAD_ROOM: usize = 128;
/// Room for a gathered frame.
const GATHER_ROOM: usize = 17 * 4096;
/// Where the working set begins in the area: behind heads and the gathered frame.
const PAYLOAD_AT: usize = (HEADS * HEAD_ROOM + GATHER_ROOM).next_multiple_of(4096);

/// A way of writing a frame in several pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Copy into one buffer, write(2).
    GatherWrite,
    /// writev(2).
    VectorWrite,
}

impl Method {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 2] = [Self::GatherWrite, Self::VectorWrite];

    /// Whether it copies the pieces in user space.
    pub fn gathers(self) -> bool {
        matches!(self, Self::GatherWrite)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::GatherWrite => "gather write",
            Self::VectorWrite => "writev",
        })
    }
}

/// One cell of the grid with its figures.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Frame length in bytes from the Ethernet header on.
    pub frame_len: usize,
    /// Segments, the private head included.
    pub segments: usize,
    /// Working set of the guest's pieces.
    pub working_set: WorkingSet,
    /// CPU ns a frame, in the order of [`Method::ALL`].
    pub cpu_ns_per_frame: Vec<Summary>,
}

impl Cell {
    /// The median of one method.
    pub fn median(&self, method: Method) -> f64 {
        self.cpu_ns_per_frame[method as usize].median
    }

    /// The cheapest method.
    pub fn best(&self) -> Method {
        self.cheapest(|_| true)
    }

    /// The median of the cheapest method that gathers.
    pub fn gather(&self) -> f64 {
        self.median(self.cheapest(Method::gathers))
    }

    /// The median of the cheapest method that hands over the pieces.
    pub fn vector(&self) -> f64 {
        self.median(self.cheapest(|method| !method.gathers()))
    }

    fn cheapest(&self, among: impl Fn(Method) -> bool) -> Method {
        Method::ALL
            .into_iter()
            .filter(|method| among(*method))
            .min_by(|a, b| self.median(*a).total_cmp(&self.median(*b)))
            .unwrap_or(Method::GatherWrite)
    }
}

/// Measures the grid on a tap in the namespace of the calling thread, `rounds` runs a cell.
pub fn measure(placement: &Placement, rounds: usize, quick: bool) -> Result<Vec<Cell>> {
    placement.pin_worker()?;
    let tap = Tap::create("zwthresh", false)?;
    tap.link().set_mtu(9000)?;
    let area = Area::new(PAYLOAD_AT + WorkingSet::Cold.bytes())?;
    let mut bench = Bench { tap, area, uses: 0 };
    let grid: Vec<_> = WorkingSet::ALL
        .into_iter()
        .flat_map(|set| SEGMENTS.map(|segments| (set, segments)))
        .flat_map(|(set, segments)| SIZES.map(|len| (set, segments, len)))
        .collect();
    let mut progress = ProgressLine::new("threshold", grid.len());
    let mut cells = Vec::new();
    for (working_set, segments, frame_len) in grid {
        progress.step(format_args!("{frame_len} B, {segments} segments, {working_set}"));
        let shape = Shape::new(frame_len, segments, working_set)?;
        cells.push(
            bench
                .cell(&shape, rounds, quick)
                .with_context(|| format!("threshold: {frame_len} B in {segments} segments, {working_set}"))?,
        );
        progress.advance();
    }
    progress.finish();
    Ok(cells)
}

/// How the frames of a cell are cut.
struct Shape {
    frame: Frame,
    segments: usize,
    working_set: WorkingSet,
    head_len: usize,
}

impl Shape {
    fn new(frame_len: usize, segments: usize, working_set: WorkingSet) -> Result<Self> {
        let frame = Frame::build(frame_len, SINK_MAC, GUEST_MAC)?;
        // Ethernet, IPv4 and UDP or TCP with timestamps: what is inspected and kept private.
        let headers = if frame_len > LARGEST_PLAIN { 66 } else { 42 };
        Ok(Self { frame, segments, working_set, head_len: VNET_HEADER_LEN + headers })
    }

    fn total_len(&self) -> usize {
        self.frame.bytes().len() + VNET_HEADER_LEN
    }

    /// Lengths of the pieces behind the head; they differ by one byte at most.
    fn piece_lens(&self) -> impl Iterator<Item = usize> + use<> {
        let pieces = self.segments - 1;
        let payload = self.total_len() - self.head_len;
        (0..pieces).map(move |piece| payload * (piece + 1) / pieces - payload * piece / pieces)
    }

    /// Frames of a run: about 1 to 5 ms.
    fn frames(&self, quick: bool) -> usize {
        let frames = match self.total_len() {
            0..=4200 => 2048,
            4201..=17_000 => 1024,
            _ => 512,
        };
        if quick { frames / 2 } else { frames }
    }
}

struct Bench {
    tap: Tap,
    area: Area,
    /// Pieces placed so far: the walk over the working set goes on from run to run.
    uses: usize,
}

impl Bench {
    fn cell(&mut self, shape: &Shape, rounds: usize, quick: bool) -> Result<Cell> {
        let image = shape.frame.with_header();
        for head in self.area.bytes_mut()[..HEADS * HEAD_ROOM].chunks_mut(HEAD_ROOM) {
            head[..shape.head_len].copy_from_slice(&image[..shape.head_len]);
        }
        let frames = shape.frames(quick);
        let mut costs = vec![Vec::with_capacity(rounds); Method::ALL.len()];
        for method in Method::ALL {
            self.run(shape, method, HEADS)?;
        }
        for round in 0..rounds {
            for index in rotation(Method::ALL.len(), round) {
                let before = self.tap.link().counters()?;
                let cpu = self.run(shape, Method::ALL[index], frames)?;
                verify_sent(before, self.tap.link().counters()?, frames)?;
                costs[index].push(cpu.as_nanos() as f64 / frames as f64);
            }
        }
        Ok(Cell {
            frame_len: shape.frame.bytes().len(),
            segments: shape.segments,
            working_set: shape.working_set,
            cpu_ns_per_frame: costs
                .into_iter()
                .map(|costs| Summary::of(costs).context("at least one round is needed"))
                .collect::<Result<_>>()?,
        })
    }

    /// Places the pieces of the next frames in the working set: ranges of the area, frame by frame.
    /// Each lies on other pages than the one before. Not measured.
    fn place(&mut self, shape: &Shape, frames: usize) -> Vec<Range<usize>> {
        let longest = shape.piece_lens().max().unwrap_or(1);
        let stride = longest.next_multiple_of(4096);
        let slots = (shape.working_set.bytes() / stride).max(1);
        let mut pieces = Vec::with_capacity(frames * (shape.segments - 1));
        for _ in 0..frames {
            for len in shape.piece_lens() {
                // A prime step visits all slots, far from each other. The place within the slot
                // moves on by whole lines, so that short pieces use every line in the end.
                let slot = self.uses * 7919 % slots;
                let room = (stride - longest) / 64 + 1;
                let line = (self.uses / slots + slot * 5) % room;
                let start = PAYLOAD_AT + slot * stride + line * 64;
                pieces.push(start..start + len);
                self.uses += 1;
            }
        }
        pieces
    }

    /// Writes `frames` frames; CPU time of this thread.
    fn run(&mut self, shape: &Shape, method: Method, frames: usize) -> Result<Duration> {
        let per_frame = shape.segments - 1;
        let pieces = self.place(shape, frames);
        let vectors = self.vectors(shape, &pieces);
        let len = shape.total_len();
        let cpu = thread_time();
        for frame in 0..frames {
            let own = frame * per_frame..(frame + 1) * per_frame;
            let vector = frame * shape.segments..(frame + 1) * shape.segments;
            match method {
                Method::GatherWrite => {
                    let at = gather(&mut self.area, shape, &pieces[own]);
                    self.tap.write(&self.area.bytes()[at..at + len])?
                }
                Method::VectorWrite => sys::write_vector(self.tap.as_fd(), &vectors[vector])?,
            };
        }
        Ok(thread_time() - cpu)
    }

    /// The same pieces as iovecs, the head of each frame first.
    fn vectors(&self, shape: &Shape, pieces: &[Range<usize>]) -> Vec<libc::iovec> {
        let bytes = self.area.bytes();
        let iovec = |range: Range<usize>| libc::iovec {
            iov_base: bytes[range.clone()].as_ptr() as *mut libc::c_void,
            iov_len: range.len(),
        };
        let mut vectors = Vec::with_capacity(pieces.len() / (shape.segments - 1) * shape.segments);
        for (frame, own) in pieces.chunks(shape.segments - 1).enumerate() {
            let head = frame % HEADS * HEAD_ROOM;
            vectors.push(iovec(head..head + shape.head_len));
            vectors.extend(own.iter().cloned().map(iovec));
        }
        vectors
    }
}

/// Copies head and pieces into the gather buffer; where it begins in the area.
fn gather(area: &mut Area, shape: &Shape, pieces: &[Range<usize>]) -> usize {
    let bytes = area.bytes_mut();
    let start = HEADS * HEAD_ROOM;
    bytes.copy_within(..shape.head_len, start);
    let mut to = start + shape.head_len;
    for piece in pieces {
        bytes.copy_within(piece.clone(), to);
        to += piece.len();
    }
    start
}

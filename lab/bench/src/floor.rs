//! The floor: a bare loop of write() or read() on a tap with the same frame.
//!
//! Nothing is parsed, no ring is kept, every frame is one system call on one contiguous buffer that
//! holds the virtio-net header and the frame. The buffer walks the working set. A back end that
//! batches its system calls can be cheaper than this.
//!
//! [`TapFloor::as_bare_calls`] makes it the same loop with the device's copies and calls for a
//! frame.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::area::{Area, Slots};
use crate::bare_calls::{BARE_CALLS, Calls};
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::{Placement, QUIET, on_worker};
use crate::experiment::{Turn, Variant};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::{Generator, verify_received, verify_sent};
use crate::netns::{Tap, VNET_HEADER_LEN};
use crate::transfer::TransferSample;

/// The floor on its own tap.
#[derive(Debug)]
pub struct TapFloor {
    name: &'static str,
    tap: Tap,
    placement: Placement,
    /// With the device's calls: bytes of the pieces in which the guest sends large frames.
    fragment_len: Option<usize>,
    ready: Option<ReadyTap>,
}

/// What [`Variant::prepare`] made for one case.
#[derive(Debug)]
struct ReadyTap {
    case: Case,
    buffers: TapBuffers,
    generator: Generator,
    /// The walk goes on where the run before ended, so that a cold working set stays cold.
    next: usize,
}

/// The working set, and how a frame moves between it and the tap.
#[derive(Debug)]
struct TapBuffers {
    area: Area,
    slots: Slots,
    calls: Calls,
    /// Bytes of a frame with its virtio-net header.
    len: usize,
}

impl TapBuffers {
    /// Writes frame `index`.
    #[inline]
    fn write(&mut self, tap: &Tap, index: usize) -> Result<()> {
        let written = self.calls.write(tap, self.area.bytes(), self.slots, index, self.len)?;
        if written != self.len {
            bail!("the tap took {written} of {} bytes", self.len);
        }
        Ok(())
    }

    /// Reads a frame into the buffers of frame `index`.
    #[inline]
    fn read(&mut self, tap: &Tap, index: usize) -> Result<()> {
        let read = self.calls.read(tap, self.area.bytes_mut(), self.slots, index, self.len);
        let read = read.context("the tap's queue ran empty")?;
        if read != self.len {
            bail!("a frame of {read} bytes was read where {} were sent", self.len);
        }
        Ok(())
    }
}

impl TapFloor {
    /// Creates the tap `name` in the namespace of the calling thread.
    pub fn new(name: &str, placement: Placement) -> Result<Self> {
        Ok(Self { name: "floor", tap: Tap::create(name)?, placement, fragment_len: None, ready: None })
    }

    /// Under another name, where it is one of several floors.
    pub fn called(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// With the copies and calls that the device makes for a frame. The guest sends large ones in
    /// pieces of `fragment_len` bytes.
    pub fn as_bare_calls(self, fragment_len: usize) -> Self {
        Self { name: BARE_CALLS, fragment_len: Some(fragment_len), ..self }
    }
}

impl Variant<NetBench> for TapFloor {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        // The old memory goes first: two cold working sets at a time would only take memory.
        self.ready = None;
        let link = self.tap.link();
        let mac = link.mac()?;
        let outgoing = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        let (slots, calls) = match self.fragment_len {
            None => (case.slots(), Calls::One),
            Some(fragment_len) => Calls::of_device(case, &outgoing, fragment_len)?,
        };
        let mut area = Area::new(slots.total())?;
        if case.direction == Direction::Transmit {
            calls.fill(area.bytes_mut(), slots, &outgoing.with_header());
        }
        let len = case.frame_len + VNET_HEADER_LEN;
        link.set_mtu(outgoing.mtu())?;
        link.set_txqueuelen(case.burst())?;
        let generator = Generator::new(link, Frame::build(case.frame_len, GUEST_MAC, mac)?)?;
        let buffers = TapBuffers { area, slots, calls, len };
        self.ready = Some(ReadyTap { case: *case, buffers, generator, next: 0 });
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<TransferSample> {
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("the floor was not prepared for {case}");
        };
        let before = self.tap.link().counters()?;
        let times = match case.direction {
            Direction::Transmit => transmit(&self.tap, &self.placement, ready, frames)?,
            Direction::Receive => receive(&self.tap, &self.placement, ready, frames)?,
        };
        let after = self.tap.link().counters()?;
        match case.direction {
            Direction::Transmit => verify_sent(before, after, frames)?,
            Direction::Receive => verify_received(before, after, frames)?,
        }
        Ok(TransferSample::of_frames(times, frames, case.frame_len))
    }
}

/// Writes `frames` frames on a thread of its own; CPU and wall time of the loop.
fn transmit(
    tap: &Tap,
    placement: &Placement,
    ready: &mut ReadyTap,
    frames: usize,
) -> Result<(Duration, Duration)> {
    let mut indices = ready.next..ready.next + frames;
    ready.next += frames;
    let buffers = &mut ready.buffers;
    on_worker(placement, || indices.try_for_each(|index| buffers.write(tap, index)))
}

/// Reads `frames` frames, preloaded a burst at a time, on a thread of its own; CPU and wall time of
/// the loops.
fn receive(
    tap: &Tap,
    placement: &Placement,
    ready: &mut ReadyTap,
    frames: usize,
) -> Result<(Duration, Duration)> {
    let ReadyTap { case, buffers, generator, next } = ready;
    let end = *next + frames;
    let mut total = (Duration::ZERO, Duration::ZERO);
    while *next < end {
        let mut indices = *next..end.min(*next + case.burst());
        *next = indices.end;
        generator.preload(indices.len())?;
        // Frames wait as long as those of a back end, which must sleep before its sample begins.
        // What another CPU wrote leaves the caches meanwhile.
        std::thread::sleep(QUIET);
        let (cpu, wall) = on_worker(placement, || indices.try_for_each(|index| buffers.read(tap, index)))?;
        total = (total.0 + cpu, total.1 + wall);
    }
    Ok(total)
}

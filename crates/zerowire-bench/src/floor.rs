//! The floor: a bare loop of write() or read() on a tap with the same frame.
//!
//! Nothing is parsed, no ring is kept, every frame is one system call on one contiguous buffer that
//! holds the virtio-net header and the frame. The buffer walks the working set. A back end that
//! batches its system calls can be cheaper than this.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::area::{Area, Slots};
use crate::case::{Case, Direction};
use crate::cpu::{Placement, QUIET, thread_time};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::{Generator, verify_received, verify_sent};
use crate::tap::{Tap, VNET_HEADER_LEN};
use crate::variant::{Sample, Variant};

/// The floor on its own tap.
#[derive(Debug)]
pub struct Floor {
    name: &'static str,
    tap: Tap,
    placement: Placement,
    ready: Option<Ready>,
}

/// What [`Variant::prepare`] made for one case.
#[derive(Debug)]
struct Ready {
    case: Case,
    area: Area,
    generator: Generator,
    /// The walk goes on where the run before ended, so that a cold working set stays cold.
    next: usize,
}

impl Floor {
    /// Creates the tap `name` in the namespace of the calling thread.
    pub fn new(name: &str, placement: Placement) -> Result<Self> {
        Ok(Self { name: "floor", tap: Tap::create(name, false)?, placement, ready: None })
    }

    /// Under another name, where it is one of several floors.
    pub fn called(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

impl Variant for Floor {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        // The old memory goes first: two cold working sets at a time would only take memory.
        self.ready = None;
        let link = self.tap.link();
        let mac = link.mac()?;
        let slots = case.slots();
        let mut area = Area::new(slots.total())?;
        let outgoing = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        let image = outgoing.with_header();
        for at in (0..slots.places()).map(|index| slots.offset(index)) {
            area.bytes_mut()[at..at + image.len()].copy_from_slice(&image);
        }
        link.set_mtu(outgoing.mtu())?;
        link.set_txqueuelen(case.burst())?;
        let generator = Generator::new(link, Frame::build(case.frame_len, GUEST_MAC, mac)?)?;
        self.ready = Some(Ready { case: *case, area, generator, next: 0 });
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize) -> Result<Sample> {
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("the floor was not prepared for {case}");
        };
        let slots = case.slots();
        let before = self.tap.link().counters()?;
        let (cpu, wall) = match case.direction {
            Direction::Transmit => transmit(&self.tap, &self.placement, ready, slots, frames)?,
            Direction::Receive => receive(&self.tap, &self.placement, ready, slots, frames)?,
        };
        let after = self.tap.link().counters()?;
        match case.direction {
            Direction::Transmit => verify_sent(before, after, frames)?,
            Direction::Receive => verify_received(before, after, frames)?,
        }
        Ok(Sample { cpu, wall, frames: frames as u64, bytes: (frames * case.frame_len) as u64 })
    }
}

/// Writes `frames` frames on a thread of its own; CPU and wall time of the loop.
fn transmit(
    tap: &Tap,
    placement: &Placement,
    ready: &mut Ready,
    slots: Slots,
    frames: usize,
) -> Result<(Duration, Duration)> {
    let len = ready.case.frame_len + VNET_HEADER_LEN;
    let first = ready.next;
    ready.next += frames;
    let bytes = ready.area.bytes();
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                placement.pin_worker()?;
                let wall = Instant::now();
                let cpu = thread_time();
                for index in first..first + frames {
                    let at = slots.offset(index);
                    let written = tap.write(&bytes[at..at + len])?;
                    if written != len {
                        bail!("the tap took {written} of {len} bytes");
                    }
                }
                Ok((thread_time() - cpu, wall.elapsed()))
            })
            .join()
            .map_err(|_| anyhow!("the floor's thread panicked"))?
    })
}

/// Reads `frames` frames, preloaded a burst at a time, on a thread of its own; CPU and wall time of
/// the loops.
fn receive(
    tap: &Tap,
    placement: &Placement,
    ready: &mut Ready,
    slots: Slots,
    frames: usize,
) -> Result<(Duration, Duration)> {
    let len = ready.case.frame_len + VNET_HEADER_LEN;
    let burst = ready.case.burst();
    let (orders, inbox) = mpsc::channel::<usize>();
    let (outbox, results) = mpsc::channel::<Result<(Duration, Duration)>>();
    let mut index = ready.next;
    ready.next += frames;
    let (area, generator) = (&mut ready.area, &ready.generator);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Err(error) = placement.pin_worker() {
                let _ = outbox.send(Err(error.into()));
                return;
            }
            let bytes = area.bytes_mut();
            while let Ok(count) = inbox.recv() {
                let _ = outbox.send(drain(tap, bytes, slots, len, &mut index, count));
            }
        });
        let mut total = (Duration::ZERO, Duration::ZERO);
        let mut left = frames;
        while left > 0 {
            let count = left.min(burst);
            generator.preload(count)?;
            // Frames wait as long as those of a back end, which must be seen to sleep before its sample
            // begins: what another CPU wrote leaves the caches meanwhile.
            std::thread::sleep(QUIET);
            orders.send(count).context("the floor's thread ended early")?;
            let (cpu, wall) = results.recv().context("the floor's thread ended early")??;
            total = (total.0 + cpu, total.1 + wall);
            left -= count;
        }
        drop(orders);
        Ok(total)
    })
}

/// Reads exactly `count` waiting frames.
fn drain(
    tap: &Tap,
    bytes: &mut [u8],
    slots: Slots,
    len: usize,
    index: &mut usize,
    count: usize,
) -> Result<(Duration, Duration)> {
    let wall = Instant::now();
    let cpu = thread_time();
    for _ in 0..count {
        let at = slots.offset(*index);
        let read = tap.read(&mut bytes[at..at + len]).context("the tap's queue ran empty")?;
        if read != len {
            bail!("a frame of {read} bytes was read where {len} were sent");
        }
        *index += 1;
    }
    Ok((thread_time() - cpu, wall.elapsed()))
}

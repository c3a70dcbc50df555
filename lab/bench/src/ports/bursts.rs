//! Frames to receive: one burst after the other, each found whole by the receiving side, or a
//! stream.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::area::{RECEIVE_BUFFER, Slots};
use crate::case::{Case, Direction};
use crate::cpu::{Placement, thread_time};
use crate::generator::Generator;
use crate::guest::{QUEUE_SIZE, STALL_LIMIT};
use anyhow::{Result, anyhow, bail};

use super::hold::Hold;
use super::veth::QUEUE;

/// Buffers that the receiving side has posted: as many as the guest's ring has entries.
pub const POSTED: usize = QUEUE_SIZE as usize;

/// Frames of a burst: half of the posted buffers. A back end that sleeps need not have taken more
/// of them than that.
pub const BURST: usize = POSTED / 2;
const _: () = assert!(BURST <= QUEUE);

/// Frames of a stream that are sent together: [`BURST`] of them are on their way at most, in four
/// portions.
const PORTION: usize = BURST / 4;

/// Frames that a side takes from a ring, or adds to it, before it notifies the other side: the
/// batch of the port (crates/zerowire-net/src/io).
pub const BATCH: usize = 64;

/// How received frames come.
#[derive(Debug, Clone)]
pub enum Arrivals {
    /// Burst after burst, with the worker's CPU held while one is queued: for CPU time. The clock
    /// stands meanwhile.
    Bursts(Rc<Hold>),
    /// A portion as soon as one was received, while the others are on their way: for bandwidth and
    /// load. The clock runs.
    Stream,
}

/// The working set of what is received: buffers are posted once at a time, so that it has a place
/// for each.
pub fn working_set(case: &Case) -> usize {
    case.working_set.bytes().max(POSTED * 2048)
}

/// Where receive buffers lie: as the guest's do.
pub fn slots(case: &Case) -> Slots {
    Slots::received(working_set(case), RECEIVE_BUFFER)
}

/// Where the frames of a bare loop lie.
pub fn slots_of(case: &Case) -> Slots {
    match case.direction {
        Direction::Transmit => case.slots(),
        Direction::Receive => slots(case),
    }
}

/// Sends `frames` frames as `arrivals` says. `drained` waits until as many more as it is passed
/// were received. Returns how long that took; of bursts all of them together, from when one was
/// queued.
pub fn send(
    arrivals: &Arrivals,
    generator: &Generator,
    frames: usize,
    drained: impl FnMut(usize) -> Result<()>,
) -> Result<Duration> {
    match arrivals {
        Arrivals::Bursts(hold) => bursts(hold, generator, frames, drained),
        Arrivals::Stream => stream(generator, frames, drained),
    }
}

fn bursts(
    hold: &Hold,
    generator: &Generator,
    frames: usize,
    mut drained: impl FnMut(usize) -> Result<()>,
) -> Result<Duration> {
    let mut wall = Duration::ZERO;
    let mut left = frames;
    while left > 0 {
        let count = left.min(BURST);
        hold.acquire();
        let sent = generator.preload(count);
        // Before the release: this thread may lose its CPU right after it.
        let start = Instant::now();
        hold.release();
        sent?;
        drained(count)?;
        wall += start.elapsed();
        left -= count;
    }
    Ok(wall)
}

fn stream(
    generator: &Generator,
    frames: usize,
    mut drained: impl FnMut(usize) -> Result<()>,
) -> Result<Duration> {
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < frames {
        while sent < frames && sent - received < BURST {
            let count = PORTION.min(frames - sent);
            generator.preload(count)?;
            sent += count;
        }
        let count = PORTION.min(sent - received);
        drained(count)?;
        received += count;
    }
    Ok(start.elapsed())
}

/// Waits until `done` has reached `target`. Fails when nothing comes for [`STALL_LIMIT`].
pub fn wait_for(done: &AtomicUsize, target: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        for _ in 0..1024 {
            if done.load(Ordering::Acquire) >= target {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > STALL_LIMIT {
            let got = done.load(Ordering::Acquire);
            bail!("{got} of {target} frames were received, and no further one within {STALL_LIMIT:?}");
        }
    }
}

/// Receives `frames` frames, which the calling thread sends as `arrivals` says. `work` takes them
/// on a thread of its own and counts them. CPU time of that thread, and wall time as [`send`] has
/// it.
pub fn receive_on_worker(
    arrivals: &Arrivals,
    placement: &Placement,
    generator: &Generator,
    frames: usize,
    work: impl FnOnce(&AtomicUsize) -> Result<()> + Send,
) -> Result<(Duration, Duration)> {
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            placement.pin_worker()?;
            let cpu = thread_time();
            work(&done)?;
            anyhow::Ok(thread_time() - cpu)
        });
        let mut target = 0;
        let wall = send(arrivals, generator, frames, |count| {
            target += count;
            wait_for(&done, target)
        });
        // Where frames are missing both sides say so: the loop knows more.
        let cpu = thread.join().map_err(|_| anyhow!("the thread of the bare loop panicked"))??;
        Ok((cpu, wall?))
    })
}

//! Frames to receive: one burst after the other, each found whole by the receiving side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::hold::Hold;
use super::veth::QUEUE;
use crate::area::Slots;
use crate::case::Case;
use crate::generator::Generator;
use crate::guest::{QUEUE_SIZE, STALL_LIMIT};

/// Buffers that the receiving side has posted: as many as the guest's ring has entries.
pub const POSTED: usize = QUEUE_SIZE as usize;

/// Frames of a burst: half of the posted buffers. A back end that sleeps need not have taken more of them than that.
pub const BURST: usize = POSTED / 2;
const _: () = assert!(BURST <= QUEUE);

/// Bytes of a receive buffer: what Linux posts for frames of Ethernet's usual length.
pub const BUFFER_LEN: usize = 1536;

/// Frames that are taken from, or given to, a ring before the other side is told: the batch of the port
/// (crates/zerowire-virtio/src/io).
pub const BATCH: usize = 64;

/// The working set of what is received: buffers are posted once at a time, so that it has a place for each.
pub fn working_set(case: &Case) -> usize {
    case.working_set.bytes().max(POSTED * 2048)
}

/// Where receive buffers lie.
pub fn slots(case: &Case) -> Slots {
    Slots::new(working_set(case), BUFFER_LEN)
}

/// Sends `frames` frames in bursts. After each `drained` waits until so many more were received. Returns how long that took,
/// all bursts together.
pub fn send(
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

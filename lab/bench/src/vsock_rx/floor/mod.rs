//! The floors: one memcpy plus the program's look, and the look alone, without any device.
//!
//! The memcpy runs on a thread on the back end's CPU and the look on one where the host's program
//! runs, in turns. If these are two CPUs, the second one has to fetch what the first one has
//! written. Waiting for the turn is not counted, but in the floors of `woken`.

mod woken;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::tally::touch;
use super::variant::{RxCase, RxSample, RxWay};
use crate::area::Area;
use crate::cpu::{Placement, thread_time};
use crate::vsock::host::{HostCpu, Walk};

/// Memory of one case.
pub struct RxFloor {
    case: RxCase,
    /// The sender's memory: the working set.
    source: Area,
    /// Windows.
    ring: Area,
    walk: Walk,
    host_cpu: HostCpu,
    placement: Placement,
    /// Bytes at a time, where threads wake each other.
    credit: usize,
}

impl RxFloor {
    /// Memory for a case, written once.
    pub fn new(case: &RxCase, host_cpu: HostCpu, placement: &Placement, credit: u32) -> Result<Self> {
        let mut source = Area::new(case.working_set.bytes())?;
        for (at, byte) in source.bytes_mut().iter_mut().enumerate() {
            *byte = (at ^ at >> 8 ^ at >> 16) as u8;
        }
        let mut ring = Area::new(case.windows as usize * case.len)?;
        ring.bytes_mut().fill(1);
        let (placement, credit) = (placement.clone(), credit as usize);
        Ok(Self { case: *case, source, ring, walk: Walk::default(), host_cpu, placement, credit })
    }

    /// Moves `bytes` bytes, or looks at them.
    pub fn run(&mut self, line: RxWay, bytes: u64) -> Result<RxSample> {
        self.host_cpu.pin(&self.placement)?;
        let sample = match line {
            RxWay::FloorTouch => Ok(self.touch_alone(bytes)),
            RxWay::FloorTouchWoken => self.woken(bytes, false),
            RxWay::FloorCopyTouchWoken => self.woken(bytes, true),
            _ => self.copy_and_touch(bytes),
        };
        self.placement.pin_driver()?;
        sample
    }

    fn touch_alone(&mut self, bytes: u64) -> RxSample {
        let (begin, cpu) = (Instant::now(), thread_time());
        let mut left = bytes as usize;
        let mut looks = 0;
        while left > 0 {
            let range = self.walk.next(self.case.len.min(left), self.source.bytes().len());
            touch(&self.source.bytes()[range.clone()]);
            self.walk.advance(range.len());
            left -= range.len();
            looks += 1;
        }
        let cpu = thread_time() - cpu;
        sample(bytes, looks, begin.elapsed(), Duration::ZERO, cpu)
    }

    fn copy_and_touch(&mut self, bytes: u64) -> Result<RxSample> {
        let Self { case, source, ring, walk, placement, .. } = self;
        let (len, begin) = (case.len, Instant::now());
        // The ring goes back and forth between the threads: never do both use it.
        let (to_reader, from_writer) = channel::<(&mut [u8], usize)>();
        let (to_writer, from_reader) = channel::<&mut [u8]>();
        let source = source.bytes();
        to_writer.send(ring.bytes_mut()).map_err(|_| anyhow!("the floor's channel is closed"))?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                placement.pin_worker()?;
                Ok::<_, anyhow::Error>(write(source, walk, len, bytes as usize, from_reader, &to_reader))
            });
            let mut cpu = Duration::ZERO;
            let mut looks = 0;
            while let Ok((ring, filled)) = from_writer.recv() {
                let before = thread_time();
                for window in ring[..filled].chunks(len) {
                    touch(window);
                    looks += 1;
                }
                cpu += thread_time() - before;
                // With nothing left the writer is gone.
                let _ = to_writer.send(ring);
            }
            let copied = writer.join().map_err(|_| anyhow!("the floor's thread panicked"))??;
            Ok(sample(bytes, looks, begin.elapsed(), copied, cpu))
        })
    }
}

/// Fills the ring again and again; returns the CPU time of that.
fn write<'a>(
    source: &[u8],
    walk: &mut Walk,
    len: usize,
    bytes: usize,
    from_reader: Receiver<&'a mut [u8]>,
    to_reader: &Sender<(&'a mut [u8], usize)>,
) -> Duration {
    let mut cpu = Duration::ZERO;
    let mut left = bytes;
    while left > 0 {
        let Ok(ring) = from_reader.recv() else { break };
        let before = thread_time();
        let filled = ring.len().min(left);
        ring[..filled].chunks_mut(len).for_each(|window| fill(window, source, walk));
        left -= filled;
        cpu += thread_time() - before;
        if to_reader.send((ring, filled)).is_err() {
            break;
        }
    }
    cpu
}

/// Fills a window from the working set, which may be shorter.
fn fill(window: &mut [u8], source: &[u8], walk: &mut Walk) {
    let mut filled = 0;
    while filled < window.len() {
        let range = walk.next(window.len() - filled, source.len());
        let count = range.len();
        window[filled..filled + count].copy_from_slice(&source[range]);
        walk.advance(count);
        filled += count;
    }
}

fn sample(bytes: u64, looks: u64, wall: Duration, copied: Duration, looked: Duration) -> RxSample {
    RxSample {
        bytes,
        send_seconds: wall.as_secs_f64(),
        loop_seconds: wall.as_secs_f64(),
        touch_seconds: looked.as_secs_f64(),
        dequeues: looks,
        backend_cpu_seconds: copied.as_secs_f64(),
        program_cpu_seconds: looked.as_secs_f64(),
        ..RxSample::default()
    }
}

#[cfg(test)]
mod tests;

//! One run over the interface of a port: what it took, the kernel's thread with it, and whether
//! every frame arrived.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::veth::Wire;
use crate::case::{Case, Direction};
use crate::generator::{verify_received, verify_sent};
use crate::netns::Counters;
use crate::transfer::TransferSample;

/// CPU time of the kernel thread over the runs of a case.
#[derive(Debug, Default)]
pub(super) struct KernelTime {
    time: Duration,
    frames: u64,
}

impl KernelTime {
    /// Adds a run.
    pub(super) fn add(&mut self, time: Duration, frames: usize) {
        self.time += time;
        self.frames += frames as u64;
    }

    /// As an entry of a ledger; nothing where the thread had nothing to do.
    pub(super) fn note(&self, ledger: &mut BTreeMap<String, u64>) {
        let each = self.time.as_nanos() as u64 / self.frames.max(1);
        if each > 0 {
            ledger.insert("kernel_thread_ns_per_frame".to_owned(), each);
        }
    }
}

/// Runs `work`, which moves `frames` frames over `wire` and says what CPU and wall time it took. A
/// side that copies frames may send them later than it says, by `patience` at most.
///
/// # Errors
/// As `work`, or frames were lost: the run is void then.
pub(super) fn measured(
    wire: &Wire,
    kernel: &mut KernelTime,
    (case, frames): (&Case, usize),
    patience: Duration,
    work: impl FnOnce() -> Result<(Duration, Duration)>,
) -> Result<TransferSample> {
    let before = (wire.kernel_time()?, wire.lost()?, wire.peer().counters()?);
    let outcome = work();
    let thread = wire.kernel_time()? - before.0;
    let lost = wire.lost()? - before.1;
    let (cpu, wall) = outcome.with_context(|| format!("{lost} of {frames} frames were lost on the way"))?;
    if lost != 0 {
        bail!("{lost} of {frames} frames were lost on the way: the run is void");
    }
    match (case.direction, wire) {
        (Direction::Transmit, _) => wait_for_sent(wire, before.2, frames, patience)?,
        (Direction::Receive, Wire::Tap(link)) => verify_received(before.2, link.counters()?, frames)?,
        (Direction::Receive, Wire::Veth(_)) => {}
    }
    kernel.add(thread, frames);
    Ok(TransferSample::of_frames((cpu + thread, wall), frames, case.frame_len))
}

/// Checks that `frames` frames reached the host.
fn wait_for_sent(wire: &Wire, before: Counters, frames: usize, patience: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let sent = verify_sent(before, wire.peer().counters()?, frames);
        if sent.is_ok() || start.elapsed() >= patience {
            return sent;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_kernel_thread_is_told_by_frame() {
        let mut ledger = BTreeMap::new();
        let mut kernel = KernelTime::default();
        kernel.note(&mut ledger);
        assert!(ledger.is_empty());
        kernel.add(Duration::from_micros(3), 10);
        kernel.note(&mut ledger);
        assert_eq!(ledger["kernel_thread_ns_per_frame"], 300);
    }
}

//! One run of a bare loop over a veth pair: what it took, the kernel's thread with it, and whether
//! every frame arrived.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::veth::Veth;
use crate::case::{Case, Direction};
use crate::generator::verify_sent;
use crate::variant::NetSample;

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

/// Runs `work`, which moves `frames` frames and says what CPU and wall time it took.
///
/// # Errors
/// As `work`, or frames were lost: the run is void then.
pub(super) fn measured(
    veth: &Veth,
    kernel: &mut KernelTime,
    case: &Case,
    frames: usize,
    work: impl FnOnce() -> Result<(Duration, Duration)>,
) -> Result<NetSample> {
    let before = (veth.kernel_time()?, veth.lost()?, veth.peer().counters()?);
    let (cpu, wall) = work()?;
    let thread = veth.kernel_time()? - before.0;
    kernel.add(thread, frames);
    if case.direction == Direction::Transmit {
        verify_sent(before.2, veth.peer().counters()?, frames)?;
    }
    let lost = veth.lost()? - before.1;
    if lost != 0 {
        bail!("{lost} of {frames} frames were lost on the way: the run is void");
    }
    Ok(NetSample { cpu: cpu + thread, wall, frames: frames as u64, bytes: (frames * case.frame_len) as u64 })
}

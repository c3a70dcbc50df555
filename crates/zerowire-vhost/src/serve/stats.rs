//! What a server has to tell, whatever its device.

use std::ops::Deref;
use std::time::Instant;

use serde::Serialize;

/// All VMs of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStats<V> {
    /// Version of zerowire.
    pub version: &'static str,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// CPU time of all threads of this process, seconds.
    pub cpu_seconds: f64,
    /// True: confined processes serve the VMs, not threads of this one.
    pub confined: bool,
    /// Each VM.
    pub vms: Vec<ServedStats<V>>,
}

/// What a VM has moved, and how the process fares that serves it.
#[derive(Clone, Debug, Serialize)]
pub struct ServedStats<V> {
    /// What its device has to tell.
    #[serde(flatten)]
    pub vm: V,
    /// The process.
    #[serde(flatten)]
    pub process: VmProcess,
}

/// The process that serves a VM, as its supervisor sees it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VmProcess {
    /// Processes of the VM that died and were replaced. 0 where a thread serves it.
    pub restarts: u64,
    /// True: it has answered the question for these statistics, and the VM's control thread goes
    /// on. Always so where a thread serves the VM.
    pub child_answers: bool,
}

impl<V> Deref for ServedStats<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.vm
    }
}

/// Of a VM that threads of this process serve.
impl<V> From<V> for ServedStats<V> {
    fn from(vm: V) -> Self {
        Self { vm, process: VmProcess { restarts: 0, child_answers: true } }
    }
}

impl<V> ServerStats<V> {
    /// Of a server that runs since `start`, and serves these VMs by threads.
    pub fn since(start: Instant, vms: Vec<V>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds(),
            confined: false,
            vms: vms.into_iter().map(ServedStats::from).collect(),
        }
    }
}

/// CPU time of all threads of this process, seconds.
pub fn process_cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

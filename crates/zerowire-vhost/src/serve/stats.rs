//! What a server has to tell, whatever its device.

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
    /// Each VM.
    pub vms: Vec<V>,
}

impl<V> ServerStats<V> {
    /// Of a server that runs since `start`.
    pub fn since(start: Instant, vms: Vec<V>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds(),
            vms,
        }
    }
}

/// CPU time of all threads of this process, seconds.
pub fn process_cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

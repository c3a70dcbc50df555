//! What one run of moving a stream yields.

use std::time::Duration;

use serde::Serialize;

/// What one run cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VsockSample {
    /// CPU time of the measured side: of a back end all its threads, of a floor the thread in the
    /// back end's place.
    pub cpu_ns: u64,
    /// CPU time of the host's program; of a floor the other thread's.
    pub host_cpu_ns: u64,
    /// From the start until the last byte was read.
    pub wall_ns: u64,
    /// Bytes moved, every one accounted for.
    pub bytes: u64,
    /// How often the measured side went to sleep.
    pub sleeps: u64,
}

impl VsockSample {
    /// A sample of these times.
    pub fn new(cpu: Duration, host: Duration, wall: Duration, bytes: usize) -> Self {
        let ns = |time: Duration| time.as_nanos() as u64;
        Self { cpu_ns: ns(cpu), host_cpu_ns: ns(host), wall_ns: ns(wall), bytes: bytes as u64, sleeps: 0 }
    }

    /// The sample with this number of sleeps of the measured side.
    pub fn with_sleeps(self, sleeps: u64) -> Self {
        Self { sleeps, ..self }
    }

    /// How often the measured side slept for 10⁶ bytes.
    pub fn sleeps_per_mb(&self) -> f64 {
        self.sleeps as f64 * 1e6 / self.bytes.max(1) as f64
    }

    /// CPU seconds of the measured side for 10⁹ bytes: the same as nanoseconds a byte.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu_ns as f64 / self.bytes.max(1) as f64
    }

    /// CPU seconds of the host's program for 10⁹ bytes.
    pub fn host_cpu_per_gb(&self) -> f64 {
        self.host_cpu_ns as f64 / self.bytes.max(1) as f64
    }

    /// 10⁶ bytes a second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.wall_ns.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_the_counts() {
        let time = Duration::from_millis;
        let sample = VsockSample::new(time(50), time(20), time(100), 100_000_000);
        assert!((sample.cpu_per_gb() - 0.5).abs() < 1e-9);
        assert!((sample.host_cpu_per_gb() - 0.2).abs() < 1e-9);
        assert!((sample.megabytes_per_second() - 1000.0).abs() < 1e-9);
        assert!(VsockSample::default().cpu_per_gb().is_finite());
    }
}

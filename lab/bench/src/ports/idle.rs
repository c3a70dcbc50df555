//! What a port costs while nothing happens.

use std::time::Duration;

use serde::Serialize;

use crate::stats::percent;

/// CPU time of a back end with a guest that is connected, has posted its receive buffers, and does
/// nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PortIdle {
    /// The variant.
    pub variant: String,
    /// How long it was watched, in milliseconds.
    pub watched_ms: u64,
    /// CPU time of all its threads, in nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of the kernel thread of its port, in nanoseconds.
    pub kernel_thread_ns: u64,
    /// Both, in percent of one CPU.
    pub load_percent: f64,
}

impl PortIdle {
    /// From the times over `watch`.
    pub fn new(variant: &str, watch: Duration, cpu: Duration, kernel: Duration) -> Self {
        Self {
            variant: variant.to_owned(),
            watched_ms: watch.as_millis() as u64,
            cpu_ns: cpu.as_nanos() as u64,
            kernel_thread_ns: kernel.as_nanos() as u64,
            load_percent: percent((cpu + kernel).as_secs_f64(), watch.as_secs_f64()),
        }
    }

    /// One line.
    pub fn text(&self) -> String {
        format!(
            "Idle: {}: {} us of CPU in {} ms with a guest that waits for frames ({:.2} % of a CPU).\n",
            self.variant,
            (self.cpu_ns + self.kernel_thread_ns) / 1000,
            self.watched_ms,
            self.load_percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_of_one_cpu() {
        let millis = Duration::from_millis;
        let idle = PortIdle::new("zerowire xdp", millis(2000), millis(15), millis(5));
        assert_eq!(idle.load_percent, 1.0);
        assert!(idle.text().contains("20000 us of CPU in 2000 ms"));
        assert!(idle.text().contains("1.00 %"));
    }
}

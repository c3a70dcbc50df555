//! What one run of moving frames yields.

use std::time::Duration;

use serde::Serialize;

/// What one run cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NetSample {
    /// CPU time of the side that is measured, all its threads.
    #[serde(serialize_with = "nanoseconds", rename = "cpu_ns")]
    pub cpu: Duration,
    /// Time on the wall while frames moved; the time to fill queues beforehand doesn't count.
    #[serde(serialize_with = "nanoseconds", rename = "wall_ns")]
    pub wall: Duration,
    /// Frames moved, every one accounted for.
    pub frames: u64,
    /// Bytes moved, from the Ethernet header on.
    pub bytes: u64,
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(time.as_nanos() as u64)
}

impl NetSample {
    /// CPU time of one frame in nanoseconds.
    pub fn cpu_ns_per_frame(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.frames.max(1) as f64
    }

    /// Frames in a second of wall time.
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Gigabits (10⁹ bits) in a second of wall time.
    pub fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Gigabits in a second of CPU time.
    pub fn gigabits_per_cpu(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// CPU seconds a second: 1.0 is one CPU fully used.
    pub fn cpu_load(&self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_the_counts() {
        let sample = NetSample {
            cpu: Duration::from_micros(500),
            wall: Duration::from_millis(1),
            frames: 1000,
            bytes: 1_500_000,
        };
        assert_eq!(sample.cpu_ns_per_frame(), 500.0);
        assert_eq!(sample.frames_per_second(), 1e6);
        assert!((sample.gigabits_per_second() - 12.0).abs() < 1e-9);
        assert!((sample.cpu_load() - 0.5).abs() < 1e-9);
        assert!((sample.gigabits_per_cpu() - 24.0).abs() < 1e-9);
        assert!(NetSample::default().cpu_ns_per_frame().is_finite());
        let json = serde_json::to_value(&sample).unwrap();
        assert_eq!(json["cpu_ns"], 500_000);
    }
}

//! What one run of moving frames, or a stream, yields.

use std::time::Duration;

use serde::Serialize;

/// What one run cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TransferSample {
    /// CPU time of the side that is measured, all its threads.
    pub cpu_ns: u64,
    /// Time on the wall: of a device while frames moved, without filling its queues; of a program
    /// from its start to its end; of a stream as its two ends measure it.
    pub wall_ns: u64,
    /// Frames moved, every one accounted for; 0 of a stream.
    pub frames: u64,
    /// Bytes moved, every one accounted for; of frames from the Ethernet header on.
    pub bytes: u64,
}

impl TransferSample {
    /// Of `frames` frames of `frame_len` bytes, from the CPU time and the time on the wall.
    pub fn of_frames((cpu, wall): (Duration, Duration), frames: usize, frame_len: usize) -> Self {
        let bytes = (frames * frame_len) as u64;
        Self { frames: frames as u64, ..Self::of_stream((cpu, wall), bytes) }
    }

    /// Of a stream of `bytes` bytes.
    pub fn of_stream((cpu, wall): (Duration, Duration), bytes: u64) -> Self {
        Self { cpu_ns: cpu.as_nanos() as u64, wall_ns: wall.as_nanos() as u64, frames: 0, bytes }
    }

    fn units(&self) -> f64 {
        if self.frames > 0 { self.frames as f64 } else { self.bytes.max(1) as f64 }
    }

    /// CPU time of a frame, or of a byte of a stream, in nanoseconds. Of 10⁹ bytes these are
    /// seconds.
    pub fn cpu_each(&self) -> f64 {
        self.cpu_ns as f64 / self.units()
    }

    /// Frames, or bytes of a stream, in a second of wall time.
    pub fn rate(&self) -> f64 {
        self.units() * 1e9 / self.wall_ns.max(1) as f64
    }

    /// 10⁶ bytes in a second of wall time.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.wall_ns.max(1) as f64
    }

    /// Gigabits (10⁹ bits) in a second of wall time.
    pub fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.wall_ns.max(1) as f64
    }

    /// Gigabits in a second of CPU time.
    pub fn gigabits_per_cpu(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.cpu_ns.max(1) as f64
    }

    /// CPU seconds a second: 1.0 is one CPU fully used.
    pub fn cpu_load(&self) -> f64 {
        self.cpu_ns as f64 / self.wall_ns.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_the_counts() {
        let times = (Duration::from_micros(500), Duration::from_millis(1));
        let sample = TransferSample::of_frames(times, 1000, 1500);
        assert_eq!((sample.cpu_each(), sample.rate(), sample.megabytes_per_second()), (500.0, 1e6, 1500.0));
        assert!((sample.gigabits_per_second() - 12.0).abs() < 1e-9);
        assert!((sample.cpu_load() - 0.5).abs() < 1e-9);
        assert!((sample.gigabits_per_cpu() - 24.0).abs() < 1e-9);
        assert!(TransferSample::default().cpu_each().is_finite());
        let json = serde_json::to_value(sample).unwrap();
        assert_eq!(json["cpu_ns"], 500_000);
        let stream = TransferSample { cpu_ns: 2000, wall_ns: 4000, ..TransferSample::of_stream(times, 400) };
        assert_eq!((stream.cpu_each(), stream.rate()), (5.0, 1e8));
    }
}

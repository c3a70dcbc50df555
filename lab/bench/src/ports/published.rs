//! Published figures of a raw socket and of zero copy on a port, of another kernel.
//!
//! They are of the patch set "Provide a zero-copy method on KVM virtio-net", version 4 (Xiaohui
//! Xin, 2010, netdev mailing list). They were measured by netperf over a 10 Gb/s card without
//! segmentation offloads. They name neither a direction nor the frames' length, and their load is
//! that of several CPUs.

use serde::Serialize;

use crate::stats::Summary;

/// A line of the published comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// What it was.
    pub name: &'static str,
    /// Gigabits a second.
    pub gigabits_per_second: f64,
    /// CPU load in percent of one CPU, from and to.
    pub cpu_load_percent: [f64; 2],
}

/// The raw socket, and zero copy.
pub const PUBLISHED: [Published; 2] = [
    Published { name: "raw socket", gigabits_per_second: 1.1, cpu_load_percent: [120.0, 140.0] },
    Published { name: "zero copy", gigabits_per_second: 1.7, cpu_load_percent: [140.0, 160.0] },
];

impl Published {
    /// Gigabits a second.
    pub fn rate(&self) -> Option<Summary> {
        Summary::of([self.gigabits_per_second])
    }

    /// The load: its quartiles are the range.
    pub fn load(&self) -> Option<Summary> {
        let [min, max] = self.cpu_load_percent;
        Some(Summary { median: self.middle_load(), min, max, q1: min, q3: max })
    }

    /// The middle of the load.
    pub fn middle_load(&self) -> f64 {
        self.cpu_load_percent.iter().sum::<f64>() / 2.0
    }

    /// Gigabits a second for a whole CPU.
    pub fn gigabits_per_cpu(&self) -> f64 {
        self.gigabits_per_second * 100.0 / self.middle_load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_gain_is_more_for_a_cpu_too() {
        let [raw, zero_copy] = PUBLISHED;
        assert_eq!((raw.middle_load(), zero_copy.middle_load()), (130.0, 150.0));
        assert!((zero_copy.gigabits_per_cpu() / raw.gigabits_per_cpu() - 1.34).abs() < 0.01);
    }
}

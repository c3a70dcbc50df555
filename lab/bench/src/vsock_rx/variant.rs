//! What is compared, and what a run yields.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::guest_receive::rx_buffer_for;
use super::options::ReceiveMode;
use crate::case::{Direction, WorkingSet};
use crate::table::bytes;
use crate::vsock::case::QUEUE_SIZE;
use crate::words::by_words;

/// A case: a column of the table, hot or cold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RxCase {
    /// Which way: transmit is guest to host.
    pub direction: Direction,
    /// Bytes of a dequeue.
    pub len: usize,
    /// How much memory the payload takes on the guest's side.
    pub working_set: WorkingSet,
    /// Windows of a program of the host.
    pub windows: u32,
}

impl RxCase {
    /// Bytes of memory that the payload on the guest's side walks through.
    pub fn set_bytes(&self) -> usize {
        let least = match self.direction {
            Direction::Transmit => 0,
            Direction::Receive => usize::from(QUEUE_SIZE) * self.rx_buffer() as usize,
        };
        self.working_set.bytes().max(least)
    }

    /// Bytes of the guest's receive buffers: a quarter of the queue holds a dequeue.
    pub fn rx_buffer(&self) -> u32 {
        rx_buffer_for(self.len)
    }

    /// Credit that the guest gives: a dequeue must fit, and one more behind it.
    pub fn guest_credit(&self, credit: u32) -> u32 {
        credit.max(2 * self.len as u32)
    }
}

impl fmt::Display for RxCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} dequeues, {}", self.direction.arrow(), bytes(self.len), self.working_set)
    }
}

/// A way of receiving, or a floor, with its name in tables, in whose order they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RxWay {
    /// The program alone looks at each cache line of memory that lies ready.
    #[value(name = "floor: touch")]
    FloorTouch,
    /// One memcpy by a thread on the back end's CPU, and the look on the program's CPU.
    #[value(name = "floor: memcpy + touch")]
    FloorCopyTouch,
    /// The look alone, by a program that is woken for each credit of bytes.
    #[value(name = "woken: touch")]
    FloorTouchWoken,
    /// Memcpy and look by two threads that wake each other for each credit of bytes.
    #[value(name = "woken: memcpy + touch")]
    FloorCopyTouchWoken,
    /// Copying receive.
    Copy,
    /// Mapped receive, sleeping.
    Mapped,
    /// Mapped receive, polling.
    Polling,
    /// Direct windows, sleeping.
    Direct,
    /// The negative control: mapped receive, and everything copied once more before the program
    /// reads it.
    #[value(name = "mapped, then copied")]
    MappedCopied,
}

by_words!(RxWay);

impl RxWay {
    /// All of them, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Whether it is one without a device.
    pub fn is_floor(self) -> bool {
        self.mode().is_none()
    }

    /// The tool's mode behind it; `None` for the floors.
    pub fn mode(self) -> Option<ReceiveMode> {
        match self {
            Self::FloorTouch | Self::FloorCopyTouch | Self::FloorTouchWoken | Self::FloorCopyTouchWoken => {
                None
            }
            Self::Copy => Some(ReceiveMode::Copy),
            Self::Mapped | Self::MappedCopied => Some(ReceiveMode::Mapped),
            Self::Polling => Some(ReceiveMode::Polling),
            Self::Direct => Some(ReceiveMode::Direct),
        }
    }
}

/// What one run cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct RxSample {
    /// Bytes moved, every one accounted for.
    pub bytes: u64,
    /// A: seconds of the send loop.
    pub send_seconds: f64,
    /// B: seconds of the receive loop.
    pub loop_seconds: f64,
    /// C: seconds in dequeue calls.
    pub dequeue_seconds: f64,
    /// Seconds in which the program looks at what it has.
    pub touch_seconds: f64,
    /// Dequeues.
    pub dequeues: u64,
    /// Wake-ups.
    pub wake_ups: u64,
    /// CPU seconds of the back end, all threads; of a floor the thread that copies.
    pub backend_cpu_seconds: f64,
    /// CPU seconds of the program that receives; of a floor the thread that looks.
    pub program_cpu_seconds: f64,
    /// Bytes that were left where the guest had them.
    pub direct_bytes: u64,
    /// Bytes that the back end copied an additional time, because the program was behind.
    pub held_bytes: u64,
}

impl RxSample {
    /// Seconds for 10⁹ bytes, or nanoseconds for a byte, of the seconds that all took.
    pub fn per_gb(&self, seconds: f64) -> f64 {
        seconds * 1e9 / self.bytes.max(1) as f64
    }

    /// D: nanoseconds in dequeue calls for each `len` bytes.
    pub fn dequeue_ns(&self, len: usize) -> f64 {
        self.per_gb(self.dequeue_seconds) * len as f64
    }

    /// The same with the program's look.
    pub fn dequeue_and_touch_ns(&self, len: usize) -> f64 {
        self.per_gb(self.dequeue_seconds + self.touch_seconds) * len as f64
    }

    /// CPU seconds of back end and program for 10⁹ bytes.
    pub fn cpu_per_gb(&self) -> f64 {
        self.per_gb(self.backend_cpu_seconds + self.program_cpu_seconds)
    }

    /// `count` for each dequeue, on average.
    pub fn per_dequeue(&self, count: u64) -> f64 {
        count as f64 / self.dequeues.max(1) as f64
    }
}

#[cfg(test)]
mod tests;

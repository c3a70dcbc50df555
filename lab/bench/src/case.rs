//! What is measured: a direction, a frame length, a working set; and how much of it at a time.

use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::amount::amount;
use crate::area::Slots;
use crate::frame::{LARGEST, LARGEST_PLAIN, SMALLEST};
use crate::netns::VNET_HEADER_LEN;
use crate::words::{by_words, wrong};

/// Which way frames go, seen from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Guest to host: written to the tap.
    #[value(name = "tx", alias = "transmit")]
    Transmit,
    /// Host to guest: read from the tap.
    #[value(name = "rx", alias = "receive")]
    Receive,
}

impl Direction {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Transmit, Self::Receive];

    /// Two letters for tables.
    pub fn short(self) -> &'static str {
        match self {
            Self::Transmit => "tx",
            Self::Receive => "rx",
        }
    }

    /// From whom to whom, where both are named.
    pub fn from_to(self) -> &'static str {
        match self {
            Self::Transmit => "guest to host",
            Self::Receive => "host to guest",
        }
    }

    /// The same with an arrow.
    pub fn arrow(self) -> String {
        self.from_to().replace(" to ", " -> ")
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Transmit => "transmit",
            Self::Receive => "receive",
        })
    }
}

/// The memory that the walk over the guest's buffers touches before it begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WorkingSet {
    /// 256 KiB: within a second-level cache.
    Hot,
    /// 64 MiB: beyond the usual third-level cache.
    Cold,
}

impl WorkingSet {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Hot, Self::Cold];

    /// Its size.
    pub fn bytes(self) -> usize {
        match self {
            Self::Hot => 256 << 10,
            Self::Cold => 64 << 20,
        }
    }
}

by_words!(WorkingSet);

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Which way.
    pub direction: Direction,
    /// Length of a frame in bytes from the Ethernet header on, without check sequence.
    pub frame_len: usize,
    /// How much memory the buffers of the guest's side take.
    pub working_set: WorkingSet,
}

impl Case {
    /// All combinations. Refuses frame lengths that no frame can have.
    pub fn all(directions: &[Direction], sizes: &[usize], working_sets: &[WorkingSet]) -> Result<Vec<Self>> {
        if let Some(size) = sizes.iter().find(|size| !(SMALLEST..=LARGEST).contains(size)) {
            wrong!("frame length {size}: choose {SMALLEST} to {LARGEST} bytes");
        }
        let mut cases = Vec::new();
        for &direction in directions {
            for &frame_len in sizes {
                for &working_set in working_sets {
                    cases.push(Self { direction, frame_len, working_set });
                }
            }
        }
        Ok(cases)
    }

    /// Where the buffers lie in the working set; each holds a frame and its virtio-net header.
    pub fn slots(&self) -> Slots {
        let (bytes, len) = (self.working_set.bytes(), self.frame_len + VNET_HEADER_LEN);
        match self.direction {
            Direction::Transmit => Slots::new(bytes, len),
            Direction::Receive => Slots::received(bytes, len),
        }
    }

    /// Frames that wait in the tap's queue before the reader starts: some 20 to 40 MiB of socket
    /// buffers at each length, in an optimised build.
    pub fn burst(&self) -> usize {
        amount(match self.frame_len {
            0..=2000 => 8192,
            2001..=LARGEST_PLAIN => 2048,
            _ => 512,
        })
    }

    /// Rounds for each one of `--rounds`. Long frames wait for memory, whose speed drifts by more
    /// from a tenth of a second to the next than within one. So what is compared is measured closer
    /// together, in more and shorter samples.
    pub fn rounds_for_one(&self) -> usize {
        if self.frame_len > LARGEST_PLAIN { 3 } else { 1 }
    }

    /// Frames of one sample: 10 to 60 ms of CPU time, whole bursts. `quick` takes half of it.
    pub fn frames(&self, quick: bool) -> usize {
        let bursts = match self.frame_len {
            0..=2000 => 6,
            2001..=LARGEST_PLAIN => 8,
            _ => 4,
        };
        self.burst() * if quick { bursts / 2 } else { bursts }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} B {}", self.direction.short(), self.frame_len, self.working_set)
    }
}

#[cfg(test)]
mod tests;

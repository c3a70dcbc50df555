//! What is compared: a part of zerowire, and what moves through it.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::case::{Case, Direction};
use crate::experiment::{Figure, Subject};
use crate::table::bytes;
use crate::vsock::case::VsockCase;
use crate::words::by_words;

/// Name of ours among the variants.
pub const OURS: &str = "zerowire";

/// A part of zerowire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ComparedPart {
    /// The net device on a tap.
    Net,
    /// The same device, and the host's IP behind the tap.
    Udp,
    /// The vsock device.
    Vsock,
    /// Sending a capture.
    Replay,
    /// Sending and receiving TCP.
    Tcp,
}

by_words!(ComparedPart);

impl ComparedPart {
    /// Whether its unit is a frame; else a byte.
    pub fn counts_frames(self) -> bool {
        matches!(self, Self::Net | Self::Udp | Self::Replay)
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "part", rename_all = "lowercase")]
pub enum PeerCell {
    /// Frames between a guest and a tap.
    Net(Case),
    /// Datagrams from a guest to a socket of the host.
    Udp {
        /// Bytes of a frame, Ethernet header included.
        frame_len: usize,
    },
    /// A stream between a guest and a program of the host.
    Vsock(VsockCase),
    /// A capture, sent to an ifb device.
    Replay {
        /// Bytes of a frame, Ethernet header included.
        frame_len: usize,
    },
    /// A stream over a veth pair.
    Tcp {
        /// Transmit: the measured program sends.
        direction: Direction,
    },
}

impl PeerCell {
    /// Which part it belongs to.
    pub fn part(&self) -> ComparedPart {
        match self {
            Self::Net(_) => ComparedPart::Net,
            Self::Udp { .. } => ComparedPart::Udp,
            Self::Vsock(_) => ComparedPart::Vsock,
            Self::Replay { .. } => ComparedPart::Replay,
            Self::Tcp { .. } => ComparedPart::Tcp,
        }
    }
}

impl fmt::Display for PeerCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(case) => write!(f, "net {case}"),
            Self::Udp { frame_len } => write!(f, "udp {frame_len} B"),
            Self::Vsock(case) => {
                let (way, len) = (case.direction.short(), bytes(case.write_len));
                write!(f, "vsock {way} {len} {}", case.working_set)
            }
            Self::Replay { frame_len } => write!(f, "replay {frame_len} B"),
            Self::Tcp { direction: Direction::Transmit } => f.write_str("tcp send"),
            Self::Tcp { direction: Direction::Receive } => f.write_str("tcp recv"),
        }
    }
}

/// What one run of a program cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PeerSample {
    /// CPU time of all its threads.
    pub cpu_ns: u64,
    /// How long it took.
    pub wall_ns: u64,
    /// Frames moved, every one accounted for; 0 of a stream.
    pub frames: u64,
    /// Bytes moved, every one accounted for.
    pub bytes: u64,
}

impl PeerSample {
    fn units(&self) -> f64 {
        if self.frames > 0 { self.frames as f64 } else { self.bytes.max(1) as f64 }
    }

    /// CPU time of a frame, or of a byte of a stream, in nanoseconds. Of 10⁹ bytes these are
    /// seconds.
    pub fn cpu_each(&self) -> f64 {
        self.cpu_ns as f64 / self.units()
    }

    /// Frames, or bytes of a stream, a second.
    pub fn rate(&self) -> f64 {
        self.units() * 1e9 / self.wall_ns.max(1) as f64
    }

    /// 10⁶ bytes a second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.wall_ns.max(1) as f64
    }
}

/// The comparison.
#[derive(Debug, Clone)]
pub struct Peers;

impl Subject for Peers {
    type Cell = PeerCell;
    type CellFacts = ();
    type Variant = String;
    type Facts = ();
    type Sample = PeerSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // Of frames, and of streams; then divided by ours of the same round.
        Figure::<Self>::spread("cpu_ns_per_frame", |cell, s| {
            cell.part().counts_frames().then(|| s.cpu_each())
        }),
        Figure::<Self>::spread("cpu_s_per_gb", |cell, s| {
            (!cell.part().counts_frames()).then(|| s.cpu_each())
        }),
        Figure::<Self>::ratio("cpu_to_zerowire", OURS, |_, s| s.cpu_each()),
        Figure::<Self>::spread("frames_per_second", |cell, s| cell.part().counts_frames().then(|| s.rate())),
        Figure::<Self>::spread("megabytes_per_second", |_, s| Some(s.megabytes_per_second())),
        Figure::<Self>::ratio("rate_to_zerowire", OURS, |_, s| s.rate()),
    ];
    const LINES: &'static str = "programs";
    const VARIANT: &'static str = "name";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_bytes_are_the_units() {
        let frames = PeerSample { cpu_ns: 2000, wall_ns: 4000, frames: 4, bytes: 400 };
        assert_eq!((frames.cpu_each(), frames.rate(), frames.megabytes_per_second()), (500.0, 1e6, 100.0));
        let stream = PeerSample { frames: 0, ..frames };
        assert_eq!((stream.cpu_each(), stream.rate()), (5.0, 1e8));
    }

    #[test]
    fn a_cell_says_its_part_in_text_and_json() {
        let cell = PeerCell::Tcp { direction: Direction::Receive };
        assert_eq!(cell.to_string(), "tcp recv");
        let json = serde_json::to_value(cell).unwrap();
        assert_eq!((json["part"].as_str(), json["direction"].as_str()), (Some("tcp"), Some("receive")));
    }
}

//! What is compared: a part of zerowire, and what moves through it.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::case::{Case, Direction};
use crate::experiment::{Figure, Subject};
use crate::table::bytes;
use crate::transfer::TransferSample;
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

/// The comparison.
#[derive(Debug, Clone)]
pub struct Peers;

impl Subject for Peers {
    type Cell = PeerCell;
    type CellFacts = ();
    type Variant = String;
    type Facts = ();
    type Sample = TransferSample;

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
    fn a_cell_says_its_part_in_text_and_json() {
        let cell = PeerCell::Tcp { direction: Direction::Receive };
        assert_eq!(cell.to_string(), "tcp recv");
        let json = serde_json::to_value(cell).unwrap();
        assert_eq!((json["part"].as_str(), json["direction"].as_str()), (Some("tcp"), Some("receive")));
    }
}

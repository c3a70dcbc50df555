//! What is done with each packet of a capture: send it as it is, change it as the user asked, skip
//! it, or refuse all.
//!
//! Plain code: a packet in, a frame in the caller's buffer out.

use std::collections::BTreeMap;

use clap::ValueEnum;
use zerowire::packet::{MAX_FRAME_BYTES, VnetHeader};

use super::capture::CapturedPacket;
use super::interface::ETHERNET_BYTES;
use super::segment;

/// What to do with a packet that has no whole Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Short {
    /// Refuse the capture.
    Fail,
    /// Leave it out.
    Skip,
}

/// What to do with a packet of which the capture holds a part only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TruncatedPolicy {
    /// Refuse the capture.
    Fail,
    /// Leave it out.
    Skip,
    /// Send what was captured.
    Send,
    /// Send it in its original length, with zeroes at the end (--pad).
    #[value(skip)]
    Pad,
}

/// What to do with a packet that is longer than the interface takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Oversized {
    /// Refuse the capture.
    Fail,
    /// Leave it out.
    Skip,
    /// Let TCP be cut into segments on its way out, and refuse the capture if another one is too
    /// long.
    Gso,
    /// Let TCP be cut into segments on its way out, and leave others out.
    GsoSkip,
}

impl Oversized {
    /// Whether frames go with a virtio-net header.
    pub fn offload(self) -> bool {
        matches!(self, Self::Gso | Self::GsoSkip)
    }
}

/// What is done with packets, as the user asked.
#[derive(Clone, Debug)]
pub struct Policy {
    /// MTU of the interface, bytes.
    pub mtu: usize,
    /// Without a whole Ethernet header.
    pub short: Short,
    /// Captured in part.
    pub cut: TruncatedPolicy,
    /// Longer than the interface takes.
    pub oversized: Oversized,
    /// Payload of each segment, bytes; None for what the MTU leaves.
    pub mss: Option<u16>,
}

/// Why a packet was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// No whole Ethernet header.
    Short,
    /// Captured in part.
    Truncated,
    /// Longer than the interface takes.
    Oversized,
}

impl Skip {
    /// The word of tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Truncated => "truncated",
            Self::Oversized => "oversized",
        }
    }
}

/// Packets left out, by reason.
pub type Skipped = BTreeMap<&'static str, u64>;

/// A packet that can't be sent, by its number, and what to do. Lengths are bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No byte of it was captured.
    #[error("packet {0} has no bytes: --short skip leaves such packets out")]
    Empty(u64),
    /// No whole Ethernet header.
    #[error(
        "packet {number} has {bytes} bytes, less than an Ethernet header of 14: --short skip leaves such packets out"
    )]
    Short { number: u64, bytes: usize },
    /// Captured in part.
    #[error(
        "packet {number} was captured with {captured} of its {wire} bytes (snap length): --pad fills up with zeroes, \
         --truncated send sends the part, --truncated skip leaves such packets out"
    )]
    Truncated { number: u64, captured: usize, wire: u32 },
    /// Longer than the interface takes.
    #[error(
        "packet {number} has {bytes} bytes, and the interface takes {limit} (MTU {mtu}): raise the MTU, let TCP be cut \
         into segments with --oversized gso, or leave such packets out with --oversized skip"
    )]
    Oversized { number: u64, bytes: usize, limit: usize, mtu: usize },
    /// Longer than the interface takes, and not to be segmented.
    #[error(
        "packet {number} has {bytes} bytes, more than the interface takes (MTU {mtu}), and can't be cut into segments: \
         {why}; --oversized gso-skip leaves such packets out"
    )]
    NoSegments { number: u64, bytes: usize, mtu: usize, why: String },
}

impl Policy {
    /// Puts the packet's frame into `frame` (which is emptied first). Ok(Err(…)): leave the packet
    /// out.
    pub fn apply(
        &self,
        packet: &CapturedPacket<'_>,
        frame: &mut Vec<u8>,
    ) -> Result<Result<VnetHeader, Skip>, Refusal> {
        frame.clear();
        let (number, captured, wire) = (packet.number, packet.data.len(), packet.wire_bytes);
        if captured < ETHERNET_BYTES {
            return match self.short {
                Short::Skip => Ok(Err(Skip::Short)),
                Short::Fail if captured == 0 => Err(Refusal::Empty(number)),
                Short::Fail => Err(Refusal::Short { number, bytes: captured }),
            };
        }
        let mut bytes = captured;
        if captured < wire as usize {
            match self.cut {
                TruncatedPolicy::Fail => return Err(Refusal::Truncated { number, captured, wire }),
                TruncatedPolicy::Skip => return Ok(Err(Skip::Truncated)),
                TruncatedPolicy::Send => {}
                TruncatedPolicy::Pad => bytes = wire as usize,
            }
        }
        let limit = self.mtu + ETHERNET_BYTES + segment::tag_bytes(packet.data);
        let oversized = Refusal::Oversized { number, bytes, limit, mtu: self.mtu };
        if bytes > limit {
            match self.oversized {
                Oversized::Fail => return Err(oversized),
                Oversized::Skip => return Ok(Err(Skip::Oversized)),
                Oversized::Gso | Oversized::GsoSkip => {}
            }
        }
        // Where the MTU allows more (the loopback's 65536), or segmentation: nothing takes longer
        // frames.
        if bytes > MAX_FRAME_BYTES {
            let why = format!("segmentation takes {MAX_FRAME_BYTES} bytes at most");
            return match self.oversized {
                Oversized::Skip | Oversized::GsoSkip => Ok(Err(Skip::Oversized)),
                Oversized::Fail => {
                    Err(Refusal::Oversized { number, bytes, limit: MAX_FRAME_BYTES, mtu: self.mtu })
                }
                Oversized::Gso => Err(Refusal::NoSegments { number, bytes, mtu: self.mtu, why }),
            };
        }
        frame.extend_from_slice(packet.data);
        frame.resize(bytes, 0);
        if bytes <= limit {
            return Ok(Ok(VnetHeader::NONE));
        }
        match segment::prepare(frame, self.mss, self.mtu) {
            Ok(header) => Ok(Ok(header)),
            Err(_) if self.oversized == Oversized::GsoSkip => Ok(Err(Skip::Oversized)),
            Err(why) => Err(Refusal::NoSegments { number, bytes, mtu: self.mtu, why }),
        }
    }
}

#[cfg(test)]
mod tests;

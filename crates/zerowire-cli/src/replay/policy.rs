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

/// A packet that can't be sent, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No byte of it was captured.
    #[error("packet {0} has no bytes: --short skip leaves such packets out")]
    Empty(u64),
    /// No whole Ethernet header.
    #[error(
        "packet {number} has {bytes} bytes, less than an Ethernet header of 14: --short skip leaves such packets out"
    )]
    Short {
        /// Which one.
        number: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// Captured in part.
    #[error(
        "packet {number} was captured with {captured} of its {wire} bytes (snap length): --pad fills up with zeroes, \
         --truncated send sends the part, --truncated skip leaves such packets out"
    )]
    Truncated {
        /// Which one.
        number: u64,
        /// Captured bytes.
        captured: usize,
        /// Original bytes.
        wire: u32,
    },
    /// Longer than the interface takes.
    #[error(
        "packet {number} has {bytes} bytes, and the interface takes {limit} (MTU {mtu}): raise the MTU, let TCP be cut \
         into segments with --oversized gso, or leave such packets out with --oversized skip"
    )]
    Oversized {
        /// Which one.
        number: u64,
        /// Its bytes.
        bytes: usize,
        /// The most.
        limit: usize,
        /// MTU, bytes.
        mtu: usize,
    },
    /// Longer than the interface takes, and not to be segmented.
    #[error(
        "packet {number} has {bytes} bytes, more than the interface takes (MTU {mtu}), and can't be cut into segments: \
         {why}; --oversized gso-skip leaves such packets out"
    )]
    NoSegments {
        /// Which one.
        number: u64,
        /// Its bytes.
        bytes: usize,
        /// MTU, bytes.
        mtu: usize,
        /// What stands against it.
        why: String,
    },
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
mod tests {
    use super::super::capture::testing::{frame, tcp4};
    use super::*;

    fn policy() -> Policy {
        Policy {
            mtu: 1500,
            short: Short::Fail,
            cut: TruncatedPolicy::Fail,
            oversized: Oversized::Fail,
            mss: None,
        }
    }

    fn apply(policy: &Policy, data: &[u8], wire: u32) -> Result<Result<(VnetHeader, Vec<u8>), Skip>, String> {
        let mut out = vec![1, 2, 3];
        let packet = CapturedPacket { number: 7, time: None, wire_bytes: wire, data };
        let done = policy.apply(&packet, &mut out).map_err(|e| e.to_string())?;
        Ok(done.map(|h| (h, out)))
    }

    fn refused(policy: &Policy, data: &[u8], wire: u32, words: &[&str]) {
        let e = apply(policy, data, wire).expect_err("refused");
        for word in [&["packet 7"], words].concat() {
            assert!(e.contains(word), "no '{word}' in {e}");
        }
    }

    fn sent(policy: &Policy, data: &[u8], wire: u32) -> (VnetHeader, Vec<u8>) {
        apply(policy, data, wire).expect("not refused").expect("not left out")
    }

    #[test]
    fn ordinary_frames_are_left_as_they_are() {
        for len in [14, 60, 1514] {
            let f = frame(1, len);
            assert_eq!(sent(&policy(), &f, len as u32), (VnetHeader::NONE, f));
        }
        let mut tagged = frame(1, 1518);
        tagged[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!(sent(&policy(), &tagged, 1518).1, tagged);
    }

    #[test]
    fn short_ones_are_refused_or_left_out() {
        refused(&policy(), &[], 0, &["no bytes", "--short skip"]);
        refused(&policy(), &[0; 13], 13, &["13 bytes", "--short skip"]);
        let skip = Policy { short: Short::Skip, ..policy() };
        assert_eq!(apply(&skip, &[0; 13], 60), Ok(Err(Skip::Short)));
    }

    #[test]
    fn parts_are_refused_left_out_sent_or_filled_up() {
        let f = frame(1, 96);
        refused(&policy(), &f, 1514, &["96 of its 1514", "--pad", "--truncated send"]);
        let with = |cut| Policy { cut, ..policy() };
        assert_eq!(apply(&with(TruncatedPolicy::Skip), &f, 1514), Ok(Err(Skip::Truncated)));
        assert_eq!(sent(&with(TruncatedPolicy::Send), &f, 1514).1, f);
        let padded = sent(&with(TruncatedPolicy::Pad), &f, 1514).1;
        assert_eq!((padded.len(), &padded[..96]), (1514, &f[..]));
        assert!(padded[96..].iter().all(|b| *b == 0));
        // A length that no frame has is not filled up.
        refused(&with(TruncatedPolicy::Pad), &f, u32::MAX, &["4294967295"]);
    }

    #[test]
    fn long_ones_are_refused_left_out_or_cut() {
        let f = frame(1, 1515);
        refused(&policy(), &f, 1515, &["1515", "1514 (MTU 1500)", "--oversized gso", "--oversized skip"]);
        let with = |oversized| Policy { oversized, ..policy() };
        assert_eq!(apply(&with(Oversized::Skip), &f, 1515), Ok(Err(Skip::Oversized)));
        refused(&with(Oversized::Gso), &f, 1515, &["ethertype 88b5", "gso-skip"]);
        assert_eq!(apply(&with(Oversized::GsoSkip), &f, 1515), Ok(Err(Skip::Oversized)));
        let tcp = tcp4(20_000);
        let len = tcp.len() as u32;
        for oversized in [Oversized::Gso, Oversized::GsoSkip] {
            let (header, out) = sent(&with(oversized), &tcp, len);
            assert!(header.is_segmented());
            assert_eq!((&out[..50], &out[52..]), (&tcp[..50], &tcp[52..]));
        }
        // Short frames go as they are.
        assert_eq!(sent(&with(Oversized::Gso), &frame(1, 60), 60).0, VnetHeader::NONE);
        refused(&with(Oversized::Gso), &vec![0; 70_000], 70_000, &["70000", "65550"]);
        let lo = Policy { mtu: 65_536, ..policy() };
        refused(&Policy { mtu: 100_000, ..lo }, &vec![0; 70_000], 70_000, &["65550"]);
    }
}

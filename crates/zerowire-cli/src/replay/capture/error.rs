//! What can be wrong with a capture, in the words that the user reads.

use std::io;

use super::linktype;

/// Longest packet that a capture may hold, bytes: what libpcap takes at most (its MAXIMUM_SNAPLEN).
/// A longer one means that the file is damaged, since frames have 65 549 bytes at most. Without a
/// bound a damaged length would cost gigabytes.
pub const MAX_PACKET_BYTES: u32 = 262_144;

/// Longest pcapng block that is taken into memory, bytes: a packet with room for its options.
/// Blocks of kinds that mean nothing here may be longer, they are passed over piece by piece.
pub const MAX_BLOCK_BYTES: u32 = 1 << 20;

/// Most interfaces in a pcapng section, so that a file of nothing else can't fill memory.
pub const MAX_INTERFACES: usize = 65_536;

/// An error of a capture. Packets are counted from 1, as Wireshark and tcpdump do.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file can't be read, or not be unpacked.
    #[error("reading failed after {packets} whole packets: {cause}")]
    Read {
        /// Whole packets before.
        packets: u64,
        /// What the system, or the decompressor, says.
        cause: io::Error,
    },
    /// No byte at all.
    #[error("the file is empty: a capture has a header even without packets")]
    Empty,
    /// The first bytes are those of no capture.
    #[error(
        "this is no capture: it begins with {first}; pcap begins with d4c3b2a1 or a1b2c3d4 (microseconds), 4d3cb2a1 or \
         a1b23c4d (nanoseconds), pcapng with 0a0d0d0a, and gzip of either is read, too"
    )]
    NotACapture {
        /// The first bytes, hexadecimal.
        first: String,
    },
    /// A known format that is not read here.
    #[error("this is {what}, which is not read here; {remedy}")]
    OtherFormat {
        /// The format.
        what: &'static str,
        /// How to turn it into one that is.
        remedy: &'static str,
    },
    /// A version of the format that is not known.
    #[error("{format} version {major}.{minor} is not known here (known: {known})")]
    Version {
        /// pcap or pcapng.
        format: &'static str,
        /// From the header.
        major: u16,
        /// From the header.
        minor: u16,
        /// Which ones are.
        known: &'static str,
    },
    /// The file ends too early.
    #[error(
        "the file ends inside {place} (at byte {offset}, unpacked), {whole}; \
         --ignore-truncated sends those"
    )]
    Truncated {
        /// What is cut off.
        place: CapturePosition,
        /// Where that begins.
        offset: u64,
        /// Whole packets before.
        whole: Whole,
    },
    /// A captured length that no packet has.
    #[error(
        "packet {number} says that {captured} bytes were captured, {limit} at most are possible: the file is damaged there \
         (byte {offset}, unpacked)"
    )]
    PacketTooLong {
        /// Which one.
        number: u64,
        /// Its captured length.
        captured: u32,
        /// The most.
        limit: u32,
        /// Where it begins.
        offset: u64,
    },
    /// A pcapng block that breaks the format's rules.
    #[error("{place}: {what}: the file is damaged there (byte {offset}, unpacked)")]
    Block {
        /// Which block.
        place: CapturePosition,
        /// What is wrong.
        what: String,
        /// Where it begins.
        offset: u64,
    },
    /// Frames without an Ethernet header.
    #[error("{}", linktype::refusal(*link, *number, *interface))]
    LinkType {
        /// LINKTYPE number.
        link: u32,
        /// The packet; None where the whole file has this link type.
        number: Option<u64>,
        /// Interface of a pcapng section.
        interface: Option<u32>,
    },
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePosition {
    /// Before all packets.
    Header,
    /// A packet, counted from 1.
    Packet(u64),
    /// A pcapng block other than a packet: its type, and the packets before it.
    Block(u32, u64),
    /// A gzip stream whose end is missing, though what was unpacked so far ends well; the packets
    /// in it.
    Gzip(u64),
}

impl std::fmt::Display for CapturePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => write!(f, "the capture's header"),
            Self::Packet(n) => write!(f, "packet {n}"),
            Self::Block(kind, n) => write!(f, "a block of type {kind:#010x} after packet {n}"),
            Self::Gzip(n) => write!(f, "the gzip stream, after packet {n}"),
        }
    }
}

/// How many whole packets were read before an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole(pub u64);

impl std::fmt::Display for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => write!(f, "and no packet before that is whole"),
            1 => write!(f, "the one packet before that is whole"),
            n => write!(f, "the {n} packets before that are whole"),
        }
    }
}

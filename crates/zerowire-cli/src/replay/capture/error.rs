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
    Read { packets: u64, cause: io::Error },
    /// No byte at all.
    #[error("the file is empty: a capture has a header even without packets")]
    Empty,
    /// The first bytes, which are hexadecimal here, are those of no capture.
    #[error(
        "this is no capture: it begins with {first}; pcap begins with d4c3b2a1 or a1b2c3d4 (microseconds), 4d3cb2a1 or \
         a1b23c4d (nanoseconds), pcapng with 0a0d0d0a, and gzip of either is read, too"
    )]
    NotACapture { first: String },
    /// A known format that is not read here, and how to turn it into one that is.
    #[error("this is {what}, which is not read here; {remedy}")]
    OtherFormat { what: &'static str, remedy: &'static str },
    /// A version of the format that is not known.
    #[error("{format} version {major}.{minor} is not known here (known: {known})")]
    Version { format: &'static str, major: u16, minor: u16, known: &'static str },
    /// The file ends too early: what is cut off begins at `offset`.
    #[error(
        "the file ends inside {place} (at byte {offset}, unpacked), {whole}; \
         --ignore-truncated sends those"
    )]
    Truncated { place: CapturePosition, offset: u64, whole: Whole },
    /// A captured length that no packet has, which begins at `offset`.
    #[error(
        "packet {number} says that {captured} bytes were captured, {limit} at most are possible: the file is damaged there \
         (byte {offset}, unpacked)"
    )]
    PacketTooLong { number: u64, captured: u32, limit: u32, offset: u64 },
    /// A pcapng block, beginning at `offset`, that breaks the format's rules.
    #[error("{place}: {what}: the file is damaged there (byte {offset}, unpacked)")]
    Block { place: CapturePosition, what: String, offset: u64 },
    /// Frames without an Ethernet header. `number` is the packet's, None where the whole file has
    /// this link type, and `interface` that of a pcapng section.
    #[error("{}", linktype::refusal(*link, *number, *interface))]
    LinkType { link: u32, number: Option<u64>, interface: Option<u32> },
}

impl CaptureError {
    /// The file ends inside its header.
    pub(super) const NO_HEADER: Self =
        Self::Truncated { place: CapturePosition::Header, offset: 0, whole: Whole(0) };
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

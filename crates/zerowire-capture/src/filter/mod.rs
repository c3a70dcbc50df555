//! Which packets a capture keeps: expressions as pcap-filter(7) has them, as far as they are of use
//! for a virtual machine's frames, and two words for vsock.
//!
//! An expression is a list of steps in postfix order: tests and what connects them. The writer's
//! thread carries them out, on the bytes that a ring has of a packet.

mod facts;
mod parse;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use thiserror::Error;
use zerowire_wire::ethernet;
use zerowire_wire::pcapng::{LINKTYPE_VSOCK, PacketDirection};

use facts::PacketFacts;

/// Bytes of a packet that a filter looks at: all headers up to the ports, behind two VLAN tags and
/// some IPv6 extension headers.
pub(crate) const LOOKED_AT_BYTES: u32 = 256;

/// Which packets a capture keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    text: String,
    steps: Vec<Step>,
    link: u16,
}

/// An expression that is none. The text is what the user reads.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("filter '{filter}': {problem}")]
pub struct BadFilter {
    filter: String,
    problem: String,
}

/// A part of an expression. Results of tests wait on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Puts a result on the stack.
    Is(FilterTest),
    /// Turns the last one.
    Not,
    /// Connects the last two.
    And,
    Or,
}

/// What one word, or a word with a value, says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FilterTest {
    /// The EtherType, behind VLAN tags.
    Type(u16),
    /// What an IP packet carries.
    Protocol(u8),
    /// A tag, with this number if there is one.
    Vlan(Option<u16>),
    Mac(PacketEnd, [u8; 6]),
    /// To all stations.
    Broadcast,
    /// To a group of stations, or to all.
    Multicast,
    /// The first bits of an address of IP or ARP.
    Network(PacketEnd, IpAddr, u32),
    /// Of TCP, UDP or vsock.
    Ports(PacketEnd, RangeInclusive<u32>),
    Cid(PacketEnd, u64),
    /// At most this many bytes.
    Less(u32),
    /// At least this many bytes.
    Greater(u32),
    Direction(PacketDirection),
}

/// Which of two addresses or ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketEnd {
    Source,
    Destination,
    Either,
}

impl PacketEnd {
    fn is<T>(self, ends: Option<(T, T)>, matches: impl Fn(&T) -> bool) -> bool {
        let Some((source, destination)) = ends else { return false };
        match self {
            Self::Source => matches(&source),
            Self::Destination => matches(&destination),
            Self::Either => matches(&source) || matches(&destination),
        }
    }
}

impl CaptureFilter {
    /// Reads an expression on packets of this link type.
    ///
    /// # Errors
    /// [`BadFilter`]: a word is not known, or none of this link type; a value is wrong.
    pub fn parse(text: &str, link: u16) -> Result<Self, BadFilter> {
        let bad = |problem| BadFilter { filter: text.chars().take(100).collect(), problem };
        let steps = parse::steps(text, link == LINKTYPE_VSOCK).map_err(bad)?;
        Ok(Self { text: text.to_owned(), steps, link })
    }

    /// Whether a packet of `len` bytes passes, which begins with these and went this way. A word
    /// about a header that is not in them does not hold.
    pub fn passes(&self, bytes: &[u8], len: u32, direction: PacketDirection) -> bool {
        let facts = match self.link == LINKTYPE_VSOCK {
            true => PacketFacts::of_vsock(bytes),
            false => PacketFacts::of_frame(bytes),
        };
        // The stack: the last result is the lowest bit. As deep as expressions may be nested.
        let mut stack = 0_u64;
        for step in &self.steps {
            stack = match step {
                Step::Is(test) => stack << 1 | u64::from(test.holds(&facts, len, direction)),
                Step::Not => stack ^ 1,
                Step::And => stack >> 1 & (stack | !1),
                Step::Or => stack >> 1 | stack & 1,
            };
        }
        stack & 1 != 0
    }
}

impl fmt::Display for CaptureFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FilterTest {
    fn holds(&self, facts: &PacketFacts, len: u32, direction: PacketDirection) -> bool {
        match self {
            Self::Type(of) => facts.ether_type == Some(*of),
            Self::Protocol(of) => facts.protocol == Some(*of),
            Self::Vlan(None) => facts.vlan.is_some(),
            Self::Vlan(of) => facts.vlan == *of,
            Self::Mac(end, of) => end.is(facts.macs, |mac| mac == of),
            Self::Broadcast => PacketEnd::Destination.is(facts.macs, |mac| *mac == ethernet::BROADCAST),
            Self::Multicast => PacketEnd::Destination.is(facts.macs, ethernet::is_group),
            Self::Network(end, of, bits) => end.is(facts.addresses, |ip| in_network(*ip, *of, *bits)),
            Self::Ports(end, of) => end.is(facts.ports, |port| of.contains(port)),
            Self::Cid(end, of) => end.is(facts.cids, |cid| cid == of),
            Self::Less(most) => len <= *most,
            Self::Greater(least) => len >= *least,
            Self::Direction(of) => direction == *of,
        }
    }
}

/// Whether the first `bits` of both are the same.
fn in_network(ip: IpAddr, of: IpAddr, bits: u32) -> bool {
    match (ip, of) {
        (IpAddr::V4(ip), IpAddr::V4(of)) => (ip.to_bits() ^ of.to_bits()).leading_zeros() >= bits,
        (IpAddr::V6(ip), IpAddr::V6(of)) => (ip.to_bits() ^ of.to_bits()).leading_zeros() >= bits,
        _ => false,
    }
}

#[cfg(test)]
mod tests;

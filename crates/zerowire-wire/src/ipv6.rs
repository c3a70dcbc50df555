//! IPv6 headers (RFC 8200 §3), and the extension headers that can be passed (§4).
//!
//! ```text
//! 0 version, class, label | 4 payload length | 6 next header | 7 hop limit |
//! 8 source | 24 destination | 40
//! ```

use std::ops::Range;

use crate::ip::IpError;

/// Bytes of the header, without extension headers.
pub const HEADER_BYTES: usize = 40;

/// Bytes behind the header.
pub const PAYLOAD_LEN: Range<usize> = 4..6;
/// Source and destination.
pub const ADDRESSES: Range<usize> = 8..40;
/// Source.
pub const SOURCE: Range<usize> = 8..24;
/// Destination.
pub const DESTINATION: Range<usize> = 24..40;
/// Where the kind of what follows stands.
pub const NEXT_AT: usize = 6;

/// Extension headers that begin with the next one's kind and their own length: hop by hop, routing,
/// destination.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// The fragment header: next kind, reserved, offset in units of 8 bytes and flags, identification.
const FRAGMENT: u8 = 44;
const FRAGMENT_BYTES: usize = 8;

/// Which part of a packet is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6Part {
    /// All of it.
    Whole,
    /// Its first fragment, which may be the only one.
    First,
    /// Another fragment, which begins within the payload.
    Later,
}

/// What stands behind the headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Payload {
    /// Its protocol, or an extension header that can't be passed.
    pub protocol: u8,
    /// Bytes of all headers before it.
    pub at: usize,
    /// How much of it is here.
    pub part: Ipv6Part,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes behind the header; 0 in captures of packets that are longer than 16 bits can say.
    pub payload_bytes: u16,
    /// The kind of what follows: an extension header, or a protocol.
    pub next: u8,
}

impl Header {
    /// Reads the header at the start of `packet`. Ignores addresses, which may be missing.
    ///
    /// # Errors
    /// [`IpError`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, IpError> {
        let first = *packet.first().ok_or(IpError::Short)?;
        if first >> 4 != 6 {
            return Err(IpError::Version(first));
        }
        let fields = packet.first_chunk::<7>().ok_or(IpError::Short)?;
        let payload_bytes = u16::from_be_bytes([fields[PAYLOAD_LEN.start], fields[PAYLOAD_LEN.start + 1]]);
        Ok(Self { payload_bytes, next: fields[NEXT_AT] })
    }

    /// The protocol behind the extension headers of `packet`, which begins with this header, and
    /// the bytes of all headers before it. A kind that can't be passed counts as the protocol. None
    /// where the packet ends before.
    #[inline]
    pub fn protocol(&self, packet: &[u8]) -> Option<(u8, usize)> {
        pass_extensions(packet, (self.next, HEADER_BYTES))
    }

    /// What stands behind the extension headers of `packet`, which begins with this header, and
    /// behind its fragment headers. None where the packet ends before.
    #[inline]
    pub fn payload(&self, packet: &[u8]) -> Option<Ipv6Payload> {
        let mut payload = Ipv6Payload { protocol: self.next, at: HEADER_BYTES, part: Ipv6Part::Whole };
        // Each round passes eight bytes at least of those that there are.
        loop {
            (payload.protocol, payload.at) = pass_extensions(packet, (payload.protocol, payload.at))?;
            if payload.protocol != FRAGMENT {
                return Some(payload);
            }
            let fragment = packet.get(payload.at..payload.at + FRAGMENT_BYTES)?;
            payload.protocol = fragment[0];
            payload.at += FRAGMENT_BYTES;
            payload.part = Ipv6Part::First;
            if u16::from_be_bytes([fragment[2], fragment[3]]) >> 3 != 0 {
                return Some(Ipv6Payload { part: Ipv6Part::Later, ..payload });
            }
        }
    }
}

/// Passes the extension headers at `at`, of which the first has the kind `next`. Returns the kind
/// of what stands behind them, and where. None where the packet ends before.
#[inline]
fn pass_extensions(packet: &[u8], (mut next, mut at): (u8, usize)) -> Option<(u8, usize)> {
    // Each round passes eight bytes at least of those that there are.
    while EXTENSIONS.contains(&next) {
        let extension = packet.get(at..at + 2)?;
        next = extension[0];
        at += (usize::from(extension[1]) + 1) * 8;
    }
    Some((next, at))
}

/// The address of the receiver of `packet`; None where the packet ends before.
#[inline]
pub fn destination(packet: &[u8]) -> Option<[u8; 16]> {
    packet.get(DESTINATION)?.try_into().ok()
}

/// The address of the sender of `packet`; None where the packet ends before.
#[inline]
pub fn source(packet: &[u8]) -> Option<[u8; 16]> {
    packet.get(SOURCE)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::UDP;

    #[test]
    fn extension_headers_are_passed() {
        let mut packet = vec![0x60, 0, 0, 0, 1, 2, 0, 64];
        packet.extend([0xfd; 32]);
        packet.extend([60, 1].into_iter().chain([0; 14]));
        packet.extend([UDP, 0, 0, 0, 0, 0, 0, 0]);
        let header = Header::parse(&packet).expect("a header");
        assert_eq!(header, Header { payload_bytes: 0x102, next: 0 });
        assert_eq!(header.protocol(&packet), Some((UDP, 64)));
        assert_eq!(header.protocol(&packet[..57]), None);
        assert_eq!(
            Header { next: 44, ..header }.protocol(&packet),
            Some((44, 40)),
            "fragments are not passed"
        );
        assert_eq!(Header::parse(&packet[..6]), Err(IpError::Short));
        assert_eq!(Header::parse(&[0x45; 40]), Err(IpError::Version(0x45)));
    }

    #[test]
    fn fragment_headers_are_passed_up_to_the_first_fragment() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 44, 64];
        packet.extend([0xfd; 32]);
        packet.extend([60, 0, 0, 1, 0, 0, 0, 7]);
        packet.extend([UDP, 0, 0, 0, 0, 0, 0, 0]);
        let header = Header::parse(&packet).expect("a header");
        let first = Ipv6Payload { protocol: UDP, at: 56, part: Ipv6Part::First };
        assert_eq!(header.payload(&packet), Some(first));
        assert_eq!(source(&packet), Some([0xfd; 16]));
        for len in 40..50 {
            assert_eq!(header.payload(&packet[..len]), None, "{len}");
        }
        packet[43] = 8;
        assert_eq!(
            header.payload(&packet),
            Some(Ipv6Payload { protocol: 60, at: 48, part: Ipv6Part::Later })
        );
        let whole = Ipv6Payload { protocol: UDP, at: 40, part: Ipv6Part::Whole };
        assert_eq!(Header { next: UDP, ..header }.payload(&packet), Some(whole));
    }
}

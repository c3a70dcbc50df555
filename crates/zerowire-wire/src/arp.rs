//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//! 0 hardware | 2 protocol | 4 lengths | 6 operation | 8 sender: MAC | 14 IP |
//! 18 target: MAC | 24 IP | 28
//! ```

use std::ops::Range;

/// Bytes of a packet.
pub const PACKET_BYTES: usize = 28;
/// Request or reply.
pub const OPERATION: Range<usize> = 6..8;
/// The operation "request", as it stands in a packet.
pub const REQUEST: [u8; 2] = [0, 1];
/// The operation "reply", as it stands in a packet.
pub const REPLY: [u8; 2] = [0, 2];
/// The operation "request reverse", as it stands in a packet (RFC 903).
pub const REQUEST_REVERSE: [u8; 2] = [0, 3];
/// The IPv4 address that the sender asks for.
pub const TARGET_ADDRESS: Range<usize> = 24..28;

/// Hardware "Ethernet", protocol IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Why a packet can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpError {
    /// The bytes end before it does.
    Short,
    /// It is for other hardware or another protocol.
    Kind,
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// [`REQUEST`], [`REPLY`], or something else.
    pub operation: [u8; 2],
    /// The sender's MAC address.
    pub sender_mac: [u8; 6],
    /// The sender's IPv4 address; 0.0.0.0 in a probe (RFC 5227).
    pub sender: [u8; 4],
    /// The target's MAC address; a request doesn't know it.
    pub target_mac: [u8; 6],
    /// The target's IPv4 address.
    pub target: [u8; 4],
}

impl ArpPacket {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`ArpError`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, ArpError> {
        let p = packet.first_chunk::<PACKET_BYTES>().ok_or(ArpError::Short)?;
        if p[..KIND.len()] != KIND {
            return Err(ArpError::Kind);
        }
        Ok(Self {
            operation: [p[6], p[7]],
            sender_mac: [p[8], p[9], p[10], p[11], p[12], p[13]],
            sender: [p[14], p[15], p[16], p[17]],
            target_mac: [p[18], p[19], p[20], p[21], p[22], p[23]],
            target: [p[24], p[25], p[26], p[27]],
        })
    }

    /// The packet's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { operation, sender_mac, sender, target_mac, target } = self;
        [&KIND[..], operation, sender_mac, sender, target_mac, target].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_and_other_kinds_are_refused() {
        let ends = [[2, 3, 4, 5, 6, 7, 10, 0, 0, 9], [2, 3, 4, 5, 6, 8, 10, 0, 0, 1]];
        let mut packet = [KIND.as_slice(), &REPLY, &ends[0], &ends[1]].concat();
        let want = ArpPacket {
            operation: REPLY,
            sender_mac: [2, 3, 4, 5, 6, 7],
            sender: [10, 0, 0, 9],
            target_mac: [2, 3, 4, 5, 6, 8],
            target: [10, 0, 0, 1],
        };
        assert_eq!(ArpPacket::parse(&packet), Ok(want));
        assert_eq!(packet[OPERATION], want.operation);
        assert_eq!(packet[TARGET_ADDRESS], want.target);
        assert_eq!(want.to_bytes(), packet);
        for len in 0..PACKET_BYTES {
            assert_eq!(ArpPacket::parse(&packet[..len]), Err(ArpError::Short), "{len}");
        }
        for at in 0..KIND.len() {
            packet[at] ^= 1;
            assert_eq!(ArpPacket::parse(&packet), Err(ArpError::Kind), "{at}");
            packet[at] ^= 1;
        }
    }
}

//! The twelve bytes in front of each message.

use crate::{MAX_BODY, WireError};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 12;
/// The only version of the protocol (bits 0 and 1 of the flags).
pub const VERSION: u32 = 1;
/// Bit 2 of the flags: the message is a reply.
pub const FLAG_REPLY: u32 = 1 << 2;
/// Bit 3 of the flags: the sender awaits a reply (REPLY_ACK negotiated).
pub const FLAG_NEED_REPLY: u32 = 1 << 3;

/// A message header ("Message Specification, Header"). Integers are in the
/// byte order of the machine, as both sides run on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Request number, not checked.
    pub request: u32,
    /// Version and flags.
    pub flags: u32,
    /// Bytes of payload that follow.
    pub size: u32,
}

impl Header {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// Reads a header and checks version and size. The request number is not
    /// checked, so that a caller can answer unknown ones as it likes.
    ///
    /// # Errors
    /// [`WireError::BadVersion`], [`WireError::TooLong`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, WireError> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header { request: word(0), flags: word(4), size: word(8) };
        if header.flags & 3 != VERSION {
            return Err(WireError::BadVersion { request: header.request, flags: header.flags });
        }
        if header.size as usize > MAX_BODY {
            return Err(WireError::TooLong { request: header.request, got: u64::from(header.size) });
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let header = Header { request: 5, flags: VERSION | FLAG_NEED_REPLY, size: 264 };
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    }

    #[test]
    fn wrong_versions_and_sizes_are_refused() {
        for flags in [0, 2, 3, FLAG_REPLY] {
            let header = Header { request: 1, flags, size: 0 };
            assert!(matches!(
                Header::decode(&header.encode()),
                Err(WireError::BadVersion { request: 1, .. })
            ));
        }
        for size in [MAX_BODY as u32 + 1, u32::MAX] {
            let header = Header { request: 1, flags: 1, size };
            assert!(matches!(
                Header::decode(&header.encode()),
                Err(WireError::TooLong { got, .. }) if got == u64::from(size)
            ));
        }
    }
}

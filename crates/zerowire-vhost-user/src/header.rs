//! The twelve bytes in front of each message.

use crate::payload::wire_struct;
use crate::{MAX_BODY, WireError};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 12;
/// The only version of the protocol (bits 0 and 1 of the flags).
pub const VERSION: u32 = 1;
/// Bit 2 of the flags: the message is a reply.
pub const FLAG_REPLY: u32 = 1 << 2;
/// Bit 3 of the flags: the sender awaits a reply.
pub const FLAG_NEED_REPLY: u32 = 1 << 3;

wire_struct! {
    /// A message header ("Message Specification, Header"). Integers are in the
    /// byte order of the machine, as both sides run on it.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    Header, 12 bytes {
        /// Request number, not checked.
        request: u32,
        /// Version and flags.
        flags: u32,
        /// Bytes of payload that follow.
        size: u32,
    }
}

impl Header {
    /// Reads a header and checks version and size. The request number is not
    /// checked, so that a caller can answer unknown ones as it likes.
    ///
    /// # Errors
    /// [`WireError::BadVersion`], [`WireError::TooLong`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, WireError> {
        let header = Self::read(bytes);
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

//! Ethernet headers (IEEE 802.3) and VLAN tags (IEEE 802.1Q, 802.1ad).
//!
//! ```text
//! 0           6        12                                14            bytes, without tags
//! destination | source | (tag type, tag control)* | type | payload
//! ```

/// Bytes of a header without tags: no frame is shorter.
pub const HEADER_BYTES: usize = 14;
/// Bytes of both addresses. Tags come behind them.
pub const ADDRESSES_BYTES: usize = 12;
/// Bytes of a tag: its type, and priority and number of the VLAN.
pub const TAG_BYTES: usize = 4;

/// EtherType of IPv4 (RFC 894).
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6 (RFC 2464).
pub const IPV6: u16 = 0x86dd;
/// EtherType of a tag (IEEE 802.1Q).
pub const TAG: u16 = 0x8100;
/// EtherType of a service tag (IEEE 802.1ad).
pub const SERVICE_TAG: u16 = 0x88a8;

/// The first EtherType of a frame, which may be that of a tag; None where the frame ends before.
#[inline]
pub fn first_type(frame: &[u8]) -> Option<u16> {
    crate::word(frame, ADDRESSES_BYTES)
}

/// The EtherType behind at most `most_tags` tags, and where what it names begins. None where the
/// frame ends before.
#[inline]
pub fn payload(frame: &[u8], most_tags: usize) -> Option<(u16, usize)> {
    let mut at = ADDRESSES_BYTES;
    let mut ether_type = crate::word(frame, at)?;
    let mut tags = 0;
    while matches!(ether_type, TAG | SERVICE_TAG) && tags < most_tags {
        at += TAG_BYTES;
        tags += 1;
        ether_type = crate::word(frame, at)?;
    }
    Some((ether_type, at + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_passed_as_many_as_are_allowed() {
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0, 5, 0x88, 0xa8, 0, 6, 0x81, 0, 0, 7, 0x86, 0xdd, 0x60]);
        assert_eq!(first_type(&frame), Some(TAG));
        for (most, found) in
            [(0, (TAG, 14)), (1, (SERVICE_TAG, 18)), (2, (TAG, 22)), (3, (IPV6, 26)), (9, (IPV6, 26))]
        {
            assert_eq!(payload(&frame, most), Some(found), "{most}");
        }
        for len in 0..26 {
            assert_eq!(payload(&frame[..len], 3), None, "{len}");
        }
        assert_eq!((first_type(&frame[..13]), first_type(&frame[..14])), (None, Some(TAG)));
    }
}

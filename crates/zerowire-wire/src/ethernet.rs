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
/// EtherType of reverse ARP (RFC 903).
pub const REVERSE_ARP: u16 = 0x8035;
/// EtherType of IPv6 (RFC 2464).
pub const IPV6: u16 = 0x86dd;
/// EtherType of a tag (IEEE 802.1Q).
pub const TAG: u16 = 0x8100;
/// EtherType of a service tag (IEEE 802.1ad).
pub const SERVICE_TAG: u16 = 0x88a8;

/// EtherTypes of tags that Linux passes on as a payload, and that some switches take.
const OLD_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];
/// The first EtherType. What is less is a length, and a header of IEEE 802.2 follows.
const FIRST_TYPE: u16 = 0x0600;
/// The number of the VLAN in the control field of a tag.
const VLAN: u16 = 0x0fff;

/// The address of all stations.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// A header without tags.
#[inline]
pub fn header(destination: [u8; 6], source: [u8; 6], ether_type: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&destination);
    header[6..ADDRESSES_BYTES].copy_from_slice(&source);
    header[ADDRESSES_BYTES..].copy_from_slice(&ether_type.to_be_bytes());
    header
}

/// Whom the frame is for; None where the frame ends before.
#[inline]
pub fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(..6)?.try_into().ok()
}

/// Whether this is the address of a group, such as all stations.
#[inline]
pub fn is_group(address: &[u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// Who sends the frame; None where the frame ends before.
#[inline]
pub fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..ADDRESSES_BYTES)?.try_into().ok()
}

/// Whether this is the EtherType of a VLAN tag, of an old kind also.
#[inline]
pub fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, TAG | SERVICE_TAG) || OLD_TAGS.contains(&ether_type)
}

/// Whether this is the length of a payload that begins with a header of IEEE 802.2, which may name
/// any EtherType.
#[inline]
pub fn is_length(ether_type: u16) -> bool {
    ether_type < FIRST_TYPE
}

/// The number of the VLAN in the first tag of a frame that has one; None where the frame ends
/// before.
#[inline]
pub fn first_vlan(frame: &[u8]) -> Option<u16> {
    crate::word(frame, HEADER_BYTES).map(|control| control & VLAN)
}

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
    fn a_header_reads_as_it_was_written() {
        let frame = header(BROADCAST, [2, 3, 4, 5, 6, 7], REVERSE_ARP);
        assert_eq!((destination(&frame), source(&frame)), (Some(BROADCAST), Some([2, 3, 4, 5, 6, 7])));
        assert_eq!(payload(&frame, 0), Some((0x8035, HEADER_BYTES)));
    }

    #[test]
    fn the_source_and_the_first_vlan_are_read() {
        let frame = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 3, 4, 5, 6, 7, 0x81, 0, 0xb0, 0x05];
        assert_eq!((source(&frame), first_vlan(&frame)), (Some([2, 3, 4, 5, 6, 7]), Some(5)));
        assert_eq!((source(&frame[..11]), first_vlan(&frame[..15])), (None, None));
        assert_eq!((destination(&frame), destination(&frame[..5])), (Some(BROADCAST), None));
        assert!(
            is_group(&BROADCAST) && is_group(&[1, 0, 0x5e, 0, 0, 1]) && !is_group(&[2, 0xff, 0, 0, 0, 1])
        );
    }

    #[test]
    fn types_tags_and_lengths_differ() {
        for tag in [TAG, SERVICE_TAG, 0x9100, 0x9200, 0x9300] {
            assert!(is_tag(tag) && !is_length(tag), "{tag:#x}");
        }
        for ether_type in [IPV4, ARP, IPV6, FIRST_TYPE] {
            assert!(!is_tag(ether_type) && !is_length(ether_type), "{ether_type:#x}");
        }
        assert!(is_length(0) && is_length(1500) && is_length(FIRST_TYPE - 1));
    }

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

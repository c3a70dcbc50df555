//! A VLAN tag goes back to its place in a frame. Plain code on private memory.

use zerowire_wire::ethernet::ADDRESSES_BYTES;
pub use zerowire_wire::ethernet::TAG_BYTES;

use crate::header::{GSO_NONE, NEEDS_CSUM};
use crate::port::packet::Tag;

/// Puts `tag` into the frame of `len` bytes at the start of `buffer`, its virtio-net header of
/// `header_bytes` included. Also moves the offsets that the header gives. Returns the frame's new
/// length; None where it has no Ethernet addresses, or `buffer` no room.
pub fn restore(buffer: &mut [u8], len: usize, header_bytes: usize, tag: Tag) -> Option<usize> {
    let at = header_bytes + ADDRESSES_BYTES;
    if len < at || buffer.len() < len + TAG_BYTES {
        return None;
    }
    buffer.copy_within(at..len, at + TAG_BYTES);
    buffer[at..at + 2].copy_from_slice(&tag.protocol.to_be_bytes());
    buffer[at + 2..at + 4].copy_from_slice(&tag.control.to_be_bytes());
    let (flags, gso) = (0, 1);
    let (hdr_len, csum_start) = (2, 6);
    let [segmented, partial] = [buffer[gso] != GSO_NONE, buffer[flags] & NEEDS_CSUM != 0];
    let mut add = |place: usize| {
        let word = u16::from_le_bytes([buffer[place], buffer[place + 1]]);
        buffer[place..place + 2].copy_from_slice(&word.saturating_add(TAG_BYTES as u16).to_le_bytes());
    };
    if segmented {
        add(hdr_len);
    }
    if partial {
        add(csum_start);
    }
    Some(len + TAG_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag { protocol: 0x8100, control: 0x2005 };

    #[test]
    fn the_tag_comes_behind_the_addresses_and_places_move() {
        let mut buffer =
            [[1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0].as_slice(), &[7; 12], &[8, 0, 9, 9, 9], &[0; 9]]
                .concat();
        assert_eq!(restore(&mut buffer, 29, 12, TAG), Some(33));
        assert_eq!(buffer[..10], [1, 1, 58, 0, 0xa8, 5, 38, 0, 16, 0]);
        assert_eq!(buffer[12..33], [&[7; 12][..], &[0x81, 0, 0x20, 5, 8, 0, 9, 9, 9]].concat());
    }

    #[test]
    fn a_plain_header_stays_and_the_bounds_hold() {
        let mut buffer = [0; 10 + 12 + 6];
        assert_eq!(restore(&mut buffer, 24, 10, TAG), Some(28));
        assert_eq!(buffer[..10], [0; 10]);
        assert_eq!(buffer[22..26], [0x81, 0, 0x20, 5]);
        assert_eq!(restore(&mut buffer, 25, 10, TAG), None, "no room");
        assert_eq!(restore(&mut buffer, 21, 10, TAG), None, "too short");
    }
}

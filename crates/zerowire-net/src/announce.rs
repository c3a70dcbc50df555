//! Telling switches where a guest is, after it came from another host (vhost-user SEND_RARP).

use zerowire_wire::{arp, ethernet};

/// The shortest Ethernet frame without its check sum and tags, bytes.
const FRAME_BYTES: usize = 60;

/// A reverse ARP request that the station with this address broadcasts (RFC 903): switches on the
/// way note on which side it is now. Nobody has to answer it. With `vlan` it has a tag of this
/// number.
pub fn rarp(mac: [u8; 6], vlan: Option<u16>) -> Vec<u8> {
    // Sender and target are the same station; their IP addresses are not known.
    let request = arp::ArpPacket {
        operation: arp::REQUEST_REVERSE,
        sender_mac: mac,
        sender: [0; 4],
        target_mac: mac,
        target: [0; 4],
    };
    let header = ethernet::header(ethernet::BROADCAST, mac, ethernet::REVERSE_ARP);
    let mut frame = [&header[..], &request.to_bytes()].concat();
    frame.resize(FRAME_BYTES, 0);
    if let Some(number) = vlan {
        let tag = [ethernet::TAG.to_be_bytes(), number.to_be_bytes()].concat();
        frame.splice(ethernet::ADDRESSES_BYTES..ethernet::ADDRESSES_BYTES, tag);
    }
    frame
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_frame_is_a_broadcast_from_the_guest() {
        let mac = [0x52, 0x54, 0, 1, 2, 3];
        let frame = super::rarp(mac, None);
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 0x52, 0x54, 0, 1, 2, 3, 0x80, 0x35]);
        assert_eq!(frame[14..22], [0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!((&frame[22..28], &frame[32..38]), (&mac[..], &mac[..]));
        assert!(frame[28..32].iter().chain(&frame[38..]).all(|b| *b == 0));
        let tagged = super::rarp(mac, Some(7));
        assert_eq!(tagged, [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat());
    }
}

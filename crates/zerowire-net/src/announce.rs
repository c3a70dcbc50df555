//! Telling switches where a guest is, after it came from another host (vhost-user SEND_RARP).

use zerowire_wire::ethernet;

use super::ETH_HEADER_BYTES;

/// The shortest Ethernet frame without its check sum and tags, bytes.
const FRAME_BYTES: usize = 60;

/// A reverse ARP request that the station with this address broadcasts (RFC 903): switches on the
/// way note on which side it is now. Nobody has to answer it. With `vlan` it has a tag of this
/// number.
pub fn rarp(mac: [u8; 6], vlan: Option<u16>) -> Vec<u8> {
    /// Ethernet, IPv4, their address lengths, and opcode 3, request reverse.
    const OPERATION: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];
    let mut frame = vec![0; FRAME_BYTES];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x80, 0x35]);
    let arp = &mut frame[ETH_HEADER_BYTES..];
    arp[..8].copy_from_slice(&OPERATION);
    // Sender and target are the same station; their IP addresses are not known.
    arp[8..14].copy_from_slice(&mac);
    arp[18..24].copy_from_slice(&mac);
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

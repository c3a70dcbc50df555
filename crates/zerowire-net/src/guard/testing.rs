//! Another reading of frames, to compare with.

/// Checks of a guest with an address of each kind.
pub const GUARD: &str = "mac=52:54:00:00:00:01+ip=10.0.0.2+fd00::2+arp+nd";

/// Its MAC address.
pub const OWN: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
/// Its IPv4 address.
pub const OWN_V4: [u8; 4] = [10, 0, 0, 2];
/// Its IPv6 address.
pub const OWN_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
/// Its link-local address, which follows from the first.
pub const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 1];

/// Whether a frame names another host than that of [`GUARD`] as its sender, or announces one, by a
/// simple reading of its own. None where the frame ends before.
pub fn names_another(frame: &[u8]) -> Option<bool> {
    if frame.get(6..12)? != OWN {
        return Some(true);
    }
    let mut at = 12;
    while matches!(frame.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
        at += 4;
    }
    let packet = frame.get(at + 2..)?;
    match frame[at..at + 2] {
        [0x08, 0x06] => {
            let (mac, ip) = (packet.get(8..14)?, packet.get(14..18)?);
            Some(mac != OWN || (ip != OWN_V4 && ip != [0; 4]))
        }
        [0x08, 0x00] => {
            let source = packet.get(12..16)?;
            let is_dhcp = || {
                let ports = packet.get(usize::from(packet[0] & 15) * 4..)?.get(..4)?;
                Some(packet[9] == 17 && ports == [0, 68, 0, 67])
            };
            Some(source != OWN_V4 && (source != [0; 4] || !is_dhcp()?))
        }
        [0x86, 0xdd] => packet_names_another(packet),
        _ => Some(false),
    }
}

fn packet_names_another(packet: &[u8]) -> Option<bool> {
    let is_own = |address: &[u8]| address == OWN_V6 || address == LINK_LOCAL;
    let source = packet.get(8..24)?;
    let (mut next, mut at) = (packet[6], 40);
    while matches!(next, 0 | 43 | 44 | 60) {
        let header = packet.get(at..at + 8)?;
        if next == 44 && (header[2] != 0 || header[3] >> 3 != 0) {
            return Some(!is_own(source));
        }
        at += if next == 44 { 8 } else { 8 * (usize::from(header[1]) + 1) };
        next = header[0];
    }
    if !is_own(source) && (source != [0; 16] || next != 58) {
        return Some(true);
    }
    if next != 58 {
        return Some(false);
    }
    let message = packet.get(at..)?;
    let begin = match *message.first()? {
        134 | 137 => return Some(true),
        133 => 8,
        135 | 136 => 24,
        _ => return Some(false),
    };
    if message[0] == 136 && !is_own(message.get(8..24)?) {
        return Some(true);
    }
    let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let mut options = message.get(begin..(40 + len).checked_sub(at)?)?;
    while let [kind, units @ 1..=255, ..] = *options {
        let option = options.get(..8 * usize::from(units))?;
        if matches!(kind, 1 | 2) && option[2..] != OWN {
            return Some(true);
        }
        options = &options[option.len()..];
    }
    Some(false)
}

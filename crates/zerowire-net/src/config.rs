//! The configuration space of a network device (virtio 1.3 §5.1.4), for front ends that ask the
//! back end for it (vhost-user GET_CONFIG). QEMU does not: it keeps the space itself.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The address of one network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress(pub(crate) [u8; 6]);

/// No address of a device. The text is what the user reads.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "MAC address '{0}': give six bytes as 52:54:00:00:00:01; the first is even (an odd one is that of a group), and not all \
     are 0"
)]
pub struct BadMac(String);

impl FromStr for MacAddress {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let of_one = |bytes: &[u8; 6]| bytes[0] & 1 == 0 && *bytes != [0; 6];
        six_bytes(text).filter(of_one).map(Self).ok_or_else(|| BadMac(text.to_owned()))
    }
}

impl MacAddress {
    /// Its bytes, as they stand in a frame.
    #[inline]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Six bytes in hexadecimal, with colons between them.
pub(crate) fn six_bytes(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        // from_str_radix would take a sign.
        let part = parts.next().filter(|p| p.len() <= 2 && !p.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// An MTU that a device can have, bytes. 68 is the least of IPv4 (RFC 791), 65535 the most that the
/// field takes (virtio 1.3 §5.1.4).
pub(crate) fn check_mtu(mtu: u64) -> Result<usize, String> {
    let fits = (68..=65535).contains(&mtu);
    fits.then_some(mtu as usize).ok_or_else(|| format!("MTU {mtu} is not within 68 to 65535"))
}

/// `VIRTIO_NET_S_LINK_UP`. The front end does not learn of changes, so the link is always up here.
const LINK_UP: u16 = 1;

/// `struct virtio_net_config` of a device with `pairs` queue pairs and this MTU, bytes. The speed,
/// the duplex mode and what belongs to RSS are unknown.
pub fn space(mac: MacAddress, pairs: usize, mtu: usize) -> Vec<u8> {
    let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
    let mut bytes = mac.0.to_vec();
    bytes.extend(LINK_UP.to_le_bytes());
    bytes.extend(word(pairs));
    bytes.extend(word(mtu));
    bytes.extend([0xff; 5]);
    bytes.resize(24, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_has_its_fields_where_drivers_read_them() {
        let mac: MacAddress = "52:54:00:77:00:01".parse().expect("an address");
        let bytes = space(mac, 3, 9000);
        assert_eq!(bytes[..6], [0x52, 0x54, 0, 0x77, 0, 1]);
        assert_eq!(bytes[6..12], [1, 0, 3, 0, 0x28, 0x23]);
        assert_eq!(bytes[12..17], [0xff; 5], "SPEED_UNKNOWN and DUPLEX_UNKNOWN");
        assert_eq!(bytes[17..], [0; 7]);
        assert_eq!(mac.to_string(), "52:54:00:77:00:01");
    }

    #[test]
    fn addresses_are_those_of_one_device() {
        let signed = ["52:54:00:00:00:+1", "+2:54:00:00:00:01"];
        let others = ["", "52:54:00:00:00", "01:00:5e:00:00:01", "0:0:0:0:0:0", "52:54:00:00:00:1g"];
        for bad in signed.into_iter().chain(others) {
            let error = bad.parse::<MacAddress>().expect_err(bad).to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("six bytes"), "{error}");
        }
    }
}

//! Names of devices on the bus.

use std::fmt;
use std::str::FromStr;

use crate::GuestError;

/// Domain, bus, device and function of a PCI device, written as sysfs does:
/// `0000:01:00.0`. The domain may be left out.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = GuestError;

    fn from_str(text: &str) -> Result<PciAddress, GuestError> {
        parse(text).ok_or_else(|| GuestError::BadDevice {
            device: format!("'{}'", text.escape_debug()),
            rule: "it must be an address as lspci -D shows it, such as 0000:01:00.0".into(),
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str, most: usize| {
        let good = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if good { u32::from_str_radix(digits, 16).ok() } else { None }
    };
    let (front, function) = text.split_once('.')?;
    let mut parts = front.rsplit(':');
    let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
    if parts.next().is_some() {
        return None;
    }
    let address = PciAddress {
        domain: hex(domain, 8)?,
        bus: hex(bus, 2)? as u8,
        device: hex(device, 2)? as u8,
        function: hex(function, 1)? as u8,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

#[cfg(test)]
mod tests;

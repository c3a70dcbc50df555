//! The checks of a VM's frames as the user writes them: CHECK+CHECK+….

use std::fmt;

use thiserror::Error;

use super::addresses::GuestAddresses;
use super::{FrameGuard, VlanRule};
use crate::config::MacAddress;

/// The numbers that a VLAN can have (IEEE 802.1Q: 0 and 4095 are reserved).
const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;

/// Frames a second that a bound can have.
const RATES: std::ops::RangeInclusive<u32> = 1..=1_000_000;

/// Checks that can't be understood. The text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("guard '{guard}': {problem}")]
pub struct BadGuard {
    /// The text that was given.
    pub guard: String,
    /// What is wrong with it, and what to give.
    pub problem: String,
}

impl FrameGuard {
    /// Reads checks: `mac`, `mac=MAC`, `vlan=off`, `vlan=NUMBER`, `ip=ADDRESS+ADDRESS…`, `arp`,
    /// `nd` and `storm=RATE`, with `+` between them. `own` is the device's address if that is
    /// known: `mac` means it.
    ///
    /// # Errors
    /// The text says what is wrong, and what to give.
    pub fn parse(text: &str, own: Option<MacAddress>) -> Result<Self, BadGuard> {
        read(text, own).map_err(|problem| BadGuard { guard: text.to_owned(), problem })
    }
}

fn read(text: &str, own: Option<MacAddress>) -> Result<FrameGuard, String> {
    let mut guard = FrameGuard::default();
    let mut keys = Vec::new();
    for item in text.split('+') {
        let (key, value) = item.split_once('=').map_or((item, None), |(key, value)| (key, Some(value)));
        if keys.contains(&key) {
            return Err(format!("give '{key}' once"));
        }
        match (key, value) {
            ("mac", None | Some("on")) => {
                guard.mac = Some(own.ok_or("'mac' needs the VM's address: give mac=MAC in its place")?);
            }
            ("mac", Some(mac)) => guard.mac = Some(mac.parse::<MacAddress>().map_err(|e| e.to_string())?),
            ("vlan", Some("off")) => guard.vlan = Some(VlanRule::Off),
            ("vlan", Some(number)) => guard.vlan = Some(VlanRule::Only(vlan(number)?)),
            ("ip", Some(address)) => guard.addresses.get_or_insert_default().add(address)?,
            ("arp", None | Some("on")) => guard.arp = true,
            ("nd", None | Some("on")) => guard.nd = true,
            ("storm", Some(rate)) => guard.storm = Some(storm(rate)?),
            // Further addresses.
            (address, None) if keys.last() == Some(&"ip") && address.contains(['.', ':']) => {
                guard.addresses.get_or_insert_default().add(address)?;
                continue;
            }
            _ => {
                return Err(format!(
                    "'{item}' is not known: mac, mac=MAC, vlan=off, vlan=NUMBER, ip=ADDRESS+ADDRESS, arp, nd, storm=RATE, with '+' \
                     between them"
                ));
            }
        }
        keys.push(key);
    }
    if let Some(mac) = guard.mac {
        guard.addresses.iter_mut().for_each(|addresses| addresses.add_link_local(mac));
    } else if guard.arp || guard.nd {
        let check = if guard.arp { "arp" } else { "nd" };
        return Err(format!("'{check}' compares with the guest's MAC address: give mac or mac=MAC as well"));
    }
    Ok(guard)
}

fn vlan(text: &str) -> Result<u16, String> {
    let number = text.parse::<u16>().ok().filter(|number| VLANS.contains(number));
    number.ok_or_else(|| format!("vlan={text}: give off, or a number from 1 to 4094"))
}

fn storm(text: &str) -> Result<u32, String> {
    let rate = text.parse::<u32>().ok().filter(|rate| RATES.contains(rate));
    rate.ok_or_else(|| format!("storm={text}: give frames a second, from 1 to 1000000"))
}

impl fmt::Display for VlanRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("vlan=off"),
            Self::Only(number) => write!(f, "vlan={number}"),
        }
    }
}

impl fmt::Display for FrameGuard {
    /// Text that [`Self::parse`] reads, whatever the device's address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = |addresses: &GuestAddresses| format!("ip={addresses}");
        let checks = [
            self.mac.map(|mac| format!("mac={mac}")),
            self.vlan.map(|rule| rule.to_string()),
            self.addresses.as_ref().map(ip),
            self.arp.then(|| "arp".to_owned()),
            self.nd.then(|| "nd".to_owned()),
            self.storm.map(|rate| format!("storm={rate}")),
        ];
        f.write_str(&checks.into_iter().flatten().collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests;

//! Flow steering rules of an interface, by the ioctls that read them (ETHTOOL_GRXCLSRLCNT,
//! GRXCLSRLALL, GRXCLSRULE; include/uapi/linux/ethtool.h): netlink has no question for them. No
//! privilege is needed, and nothing is changed.
//!
//! ```text
//!   struct ethtool_rxnfc, 64-bit machines, bytes
//!   0 command | 4 flow type | 8 data | 16 specification ......... | 184 count | 188 locations...
//!                                     +0 type  +4 what is compared |
//!                                     +152 ring cookie (168)  +160 location (176)
//! ```

use std::io;

use super::InterfaceRequest;
use crate::ioctl::{self, RULE_COUNT, RULE_WORDS};

const FLOW_TYPE: usize = 4;
const COOKIE: usize = 42;
const LOCATION: usize = 44;
/// Where the destination port lies in the specification of TCP and UDP over IPv4 and IPv6, bytes of
/// the structure.
const PORT_V4: usize = 30;
const PORT_V6: usize = 54;
/// More rules than this are not looked at: no NIC has as many.
const MOST: u32 = 16 << 10;

/// A rule that puts some flows into a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Rule {
    /// Its number, which `ethtool -N IF delete` takes.
    pub location: u32,
    /// The queue; `None` for a rule that drops, or spreads over several.
    pub queue: Option<u32>,
    /// Such as `tcp6`; `other` for what is not TCP or UDP.
    pub flow: &'static str,
    /// The destination port that is compared, if one is.
    pub port: Option<u16>,
}

/// The rules of `interface` of this thread's network namespace, by their numbers.
///
/// # Errors
/// Those of the system calls: ENODEV; EOPNOTSUPP where the driver has no rules.
pub fn read(interface: &str) -> io::Result<Vec<Rule>> {
    if cfg!(not(target_pointer_width = "64")) {
        // The structure has another layout there.
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let socket = super::socket()?;
    let interface = InterfaceRequest::of(interface)?;
    let head = ioctl::ETHTOOL_GRXCLSRLCNT.ask(&socket, interface)?;
    let count = head[RULE_COUNT].min(MOST);
    if count == 0 {
        return Ok(Vec::new());
    }
    let locations = ioctl::rule_locations(&socket, interface, count as usize)?;
    let mut rules = Vec::with_capacity(locations.len());
    for location in locations {
        let mut one = [0; RULE_WORDS];
        one[LOCATION] = location;
        match ioctl::ETHTOOL_GRXCLSRULE.of(&socket, interface, one) {
            Ok(one) => rules.push(parse(&one)),
            // It was deleted since.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {}
            Err(e) => return Err(e),
        }
    }
    rules.sort_unstable_by_key(|r| r.location);
    Ok(rules)
}

/// What a filled-in structure says.
fn parse(words: &[u32]) -> Rule {
    let byte = |at: usize| words[at / 4].to_ne_bytes()[at % 4];
    // Flags: FLOW_EXT, FLOW_MAC_EXT, FLOW_RSS. With the last, the cookie is an offset in a
    // context's table.
    let (kind, is_spread) = (words[FLOW_TYPE] & 0x1fff_ffff, words[FLOW_TYPE] & 0x2000_0000 != 0);
    let (flow, port_at) = match kind {
        1 => ("tcp4", Some(PORT_V4)),
        2 => ("udp4", Some(PORT_V4)),
        5 => ("tcp6", Some(PORT_V6)),
        6 => ("udp6", Some(PORT_V6)),
        _ => ("other", None),
    };
    let port = port_at.map(|at| u16::from_be_bytes([byte(at), byte(at + 1)])).filter(|p| *p != 0);
    let mut cookie = [0; 8];
    for (i, b) in cookie.iter_mut().enumerate() {
        *b = byte(COOKIE * 4 + i);
    }
    // The low half is the queue; what is above names a virtual function. All ones: drop; all but
    // one: wake the machine.
    let queue = u32::try_from(u64::from_ne_bytes(cookie)).ok().filter(|_| !is_spread);
    Rule { location: words[LOCATION], queue, flow, port }
}

#[cfg(test)]
mod tests;

//! The IP addresses of a guest.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::MacAddress;

/// Entries at most.
const MAX_ENTRIES: usize = 64;

/// An address, or all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    /// The first address.
    address: IpAddr,
    /// How many of its bits count.
    bits: u8,
}

/// The IP addresses that a guest may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestAddresses {
    networks: Vec<Network>,
    /// The link-local address that follows from its MAC address.
    link_local: Option<Ipv6Addr>,
}

impl GuestAddresses {
    /// Whether the guest may use this IPv4 address.
    #[inline]
    pub fn has_v4(&self, address: [u8; 4]) -> bool {
        let address = u32::from_be_bytes(address);
        self.networks.iter().any(|network| match network.address {
            IpAddr::V4(first) => {
                (first.to_bits() ^ address).checked_shr(32 - u32::from(network.bits)).unwrap_or(0) == 0
            }
            IpAddr::V6(_) => false,
        })
    }

    /// Whether the guest may use this IPv6 address.
    #[inline]
    pub fn has_v6(&self, address: [u8; 16]) -> bool {
        let address = u128::from_be_bytes(address);
        let is_listed = |network: &Network| match network.address {
            IpAddr::V6(first) => {
                (first.to_bits() ^ address).checked_shr(128 - u32::from(network.bits)).unwrap_or(0) == 0
            }
            IpAddr::V4(_) => false,
        };
        self.networks.iter().any(is_listed) || self.link_local.is_some_and(|own| own.to_bits() == address)
    }

    /// Adds an address, or a network: ADDRESS/BITS.
    ///
    /// # Errors
    /// What is wrong with the text, and what to give.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        if self.networks.len() == MAX_ENTRIES {
            return Err(format!("at most {MAX_ENTRIES} addresses: give networks, such as 10.0.0.0/24"));
        }
        let network = read(text).ok_or_else(|| {
            format!("'{text}' is no IP address, and no network such as 10.0.0.0/24 or fd00::/64")
        })?;
        if network.has_more_bits() {
            return Err(format!("'{text}' has bits behind its prefix: give the network's first address"));
        }
        if !network.is_usable() {
            return Err(format!("'{text}' is no address of one host: leave it out"));
        }
        self.networks.push(network);
        Ok(())
    }

    /// A guest that may use IPv6 has the link-local address that follows from its MAC address
    /// (RFC 4291, appendix A).
    pub fn add_link_local(&mut self, mac: MacAddress) {
        let [a, b, c, d, e, f] = mac.bytes();
        let address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let uses_v6 = self.networks.iter().any(|network| network.address.is_ipv6());
        self.link_local = uses_v6.then(|| address.into());
    }
}

/// Reads an address or a network, which may have bits behind its prefix.
fn read(text: &str) -> Option<Network> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(first, bits)| (first, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let all = Network::all_bits(&address);
    let bits = bits.map_or(Some(all), |bits| bits.parse().ok())?;
    (bits <= all).then_some(Network { address, bits })
}

impl Network {
    fn all_bits(address: &IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether bits are set behind those that count.
    fn has_more_bits(&self) -> bool {
        let bits = u32::from(self.bits);
        match self.address {
            IpAddr::V4(first) => first.to_bits() & u32::MAX.checked_shr(bits).unwrap_or(0) != 0,
            IpAddr::V6(first) => first.to_bits() & u128::MAX.checked_shr(bits).unwrap_or(0) != 0,
        }
    }

    /// Whether a host can have an address of it. The network of no bits has all addresses.
    fn is_usable(&self) -> bool {
        let is_nobody = self.address.is_unspecified() && self.bits > 0;
        !is_nobody && !self.address.is_multicast() && self.address != Ipv4Addr::BROADCAST
    }
}

impl fmt::Display for GuestAddresses {
    /// As the user gives them, without the link-local address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Network { address, bits }) in self.networks.iter().enumerate() {
            let plus = if i > 0 { "+" } else { "" };
            write!(f, "{plus}{address}")?;
            if *bits < Network::all_bits(address) {
                write!(f, "/{bits}")?;
            }
        }
        Ok(())
    }
}

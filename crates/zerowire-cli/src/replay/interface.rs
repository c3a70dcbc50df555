//! Queries the interface before anything is sent: netdevice(7), in the calling thread's network
//! namespace.

use std::fs;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use zerowire_sys::netdevice;

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = zerowire_wire::ethernet::HEADER_BYTES;

/// Bytes that a frame with a VLAN tag may be longer (net/packet/af_packet.c:
/// `packet_extra_vlan_len_allowed`).
pub const VLAN_BYTES: usize = zerowire_wire::ethernet::TAG_BYTES;

/// Bytes of the longest name.
const NAME_BYTES: usize = 15;

/// An interface that frames can be sent on.
#[derive(Clone, Debug)]
pub struct OutInterface {
    /// Its name.
    pub name: String,
    /// Longest packet behind the Ethernet header, bytes.
    pub mtu: usize,
    /// What drives it, such as `veth`; empty if the system doesn't say.
    pub kind: String,
}

/// What the interface has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Frames that it sent, of all programs; one for each that was segmented by it, or one for each
    /// segment: as its driver counts.
    pub tx_packets: u64,
    /// Frames that it dropped instead of sending them.
    pub tx_dropped: u64,
}

impl OutInterface {
    /// Looks at interface `name`, which must be there, up, and of the Ethernet kind.
    pub fn find(name: &str) -> Result<Self> {
        let socket = netdevice::socket().context("no socket to ask for interfaces")?;
        if name.is_empty() || name.len() > NAME_BYTES || name.contains(['/', '\0']) {
            bail!("interface '{name}': names have 1 to {NAME_BYTES} bytes, without '/'");
        }
        let told = |e| anyhow!("interface {name}: {e}: 'ip link' lists those of this network namespace");
        let mtu = netdevice::mtu(&socket, name).map_err(told)?;
        let kind = netdevice::hardware_kind(&socket, name).map_err(told)?;
        if !matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            bail!(
                "interface {name} is of type {kind} (ARPHRD of linux/if_arp.h), not Ethernet (1): it takes no frames with an \
                 Ethernet header; choose an Ethernet interface, such as a veth, a tap or a network card"
            );
        }
        let kind = match kind {
            libc::ARPHRD_LOOPBACK => "lo".to_owned(),
            _ => netdevice::driver(&socket, name).unwrap_or_default().name,
        };
        if netdevice::flags(&socket, name).map_err(told)? & libc::IFF_UP == 0 {
            bail!("interface {name} is down: 'ip link set {name} up'");
        }
        Ok(Self { name: name.to_owned(), mtu, kind })
    }

    /// Bytes of the longest frame without a VLAN tag.
    pub fn frame_bytes(&self) -> usize {
        self.mtu + ETHERNET_BYTES
    }

    /// Its counters; None where they can't be read.
    pub fn counted(&self) -> Option<Counted> {
        counters(&fs::read_to_string("/proc/thread-self/net/dev").ok()?, &self.name)
    }
}

impl Counted {
    /// What was counted since `before`; None where it is less, since the interface is another one
    /// of the same name.
    pub fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            tx_packets: self.tx_packets.checked_sub(before.tx_packets)?,
            tx_dropped: self.tx_dropped.checked_sub(before.tx_dropped)?,
        })
    }
}

/// The line of an interface in /proc/net/dev (net/core/net-procfs.c): eight numbers of receiving,
/// eight of sending.
fn counters(text: &str, name: &str) -> Option<Counted> {
    let line = text.lines().find_map(|l| l.split_once(':').filter(|(n, _)| n.trim() == name))?.1;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    Some(Counted { tx_packets: *numbers.get(9)?, tx_dropped: *numbers.get(11)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_are_checked() {
        let text = |name: &str| OutInterface::find(name).expect_err("refused").to_string();
        assert!(text("").contains("1 to 15 bytes"));
        assert!(text("sixteen-bytes-xx").contains("1 to 15 bytes"));
        assert!(text("none-here").contains("'ip link' lists"), "{}", text("none-here"));
    }

    #[test]
    fn counters_are_those_of_sending() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
                    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(counters(text, "lo"), Some(Counted { tx_packets: 10, tx_dropped: 12 }));
        assert_eq!(counters(text, "l"), None);
        assert_eq!(counters("x: 1 2", "x"), None);
        let counted = |tx_packets, tx_dropped| Counted { tx_packets, tx_dropped };
        assert_eq!(counted(5, 3).since(counted(1, 3)), Some(counted(4, 0)));
        assert_eq!(counted(5, 3).since(counted(6, 3)), None, "made anew meanwhile");
    }
}

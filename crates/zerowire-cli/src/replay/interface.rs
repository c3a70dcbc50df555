//! What is asked of the interface before anything is sent: netdevice(7), in the calling thread's network namespace.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::Serialize;

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;

/// Bytes that a frame with a VLAN tag may be longer (net/packet/af_packet.c: `packet_extra_vlan_len_allowed`).
pub const VLAN_BYTES: usize = 4;

/// Interface types whose frames begin with an Ethernet header (linux/if_arp.h): Ethernet and the loopback.
const ETHERNET_TYPES: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];

/// `SIOCETHTOOL` (include/uapi/linux/sockios.h).
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `ETHTOOL_GDRVINFO`, and the length of struct ethtool_drvinfo, in which the driver's name stands from byte 4 to 36
/// (include/uapi/linux/ethtool.h).
const ETHTOOL_GDRVINFO: u32 = 3;
const DRIVER_INFO_BYTES: usize = 196;

/// An interface that frames can be sent on.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Longest packet behind the Ethernet header, bytes.
    pub mtu: usize,
    /// What drives it, such as `veth`; empty where that can't be asked.
    pub kind: String,
}

/// What the interface has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Frames that it sent, of all programs; one for each that was segmented by it, or one for each segment: as its driver
    /// counts.
    pub tx_packets: u64,
    /// Frames that it dropped instead of sending them.
    pub tx_dropped: u64,
}

impl Interface {
    /// Looks at interface `name`, which must be there, up, and of the Ethernet kind.
    pub fn find(name: &str) -> Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .context("no socket to ask for interfaces")?;
        let mut request = request(name)?;
        ask(&socket, libc::SIOCGIFMTU, &mut request, name)?;
        // SAFETY: SIOCGIFMTU filled in this member of the union, which is plain data.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        ask(&socket, libc::SIOCGIFHWADDR, &mut request, name)?;
        // SAFETY: SIOCGIFHWADDR filled in this member of the union, which is plain data.
        let kind = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        if !ETHERNET_TYPES.contains(&kind) {
            bail!(
                "interface {name} is of type {kind} (ARPHRD of linux/if_arp.h), not Ethernet (1): it takes no frames with an \
                 Ethernet header; choose an Ethernet interface, such as a veth, a tap or a network card"
            );
        }
        let kind = if kind == libc::ARPHRD_LOOPBACK { "lo".to_owned() } else { driver(&socket, name) };
        ask(&socket, libc::SIOCGIFFLAGS, &mut request, name)?;
        // SAFETY: SIOCGIFFLAGS filled in this member of the union, which is plain data.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        if i32::from(flags) & libc::IFF_UP == 0 {
            bail!("interface {name} is down: 'ip link set {name} up'");
        }
        Ok(Self { name: name.to_owned(), mtu: usize::try_from(mtu).unwrap_or(0), kind })
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
    /// What was counted since `before`; None where it is less, since the interface is another one of the same name.
    pub fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            tx_packets: self.tx_packets.checked_sub(before.tx_packets)?,
            tx_dropped: self.tx_dropped.checked_sub(before.tx_dropped)?,
        })
    }
}

/// The line of an interface in /proc/net/dev (net/core/net-procfs.c): eight numbers of receiving, eight of sending.
fn counters(text: &str, name: &str) -> Option<Counted> {
    let line = text.lines().find_map(|l| l.split_once(':').filter(|(n, _)| n.trim() == name))?.1;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
    Some(Counted { tx_packets: *numbers.get(9)?, tx_dropped: *numbers.get(11)? })
}

/// Name of an interface's driver, or of its kind where it has none (net/ethtool/ioctl.c, `ethtool_get_drvinfo`); empty
/// where it tells neither.
fn driver(socket: &OwnedFd, name: &str) -> String {
    let mut info = [0u8; DRIVER_INFO_BYTES];
    info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    let Ok(mut request) = request(name) else { return String::new() };
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    if ask(socket, SIOCETHTOOL, &mut request, name).is_err() {
        return String::new();
    }
    let driver = &info[4..36];
    let end = driver.iter().position(|b| *b == 0).unwrap_or(driver.len());
    String::from_utf8_lossy(&driver[..end]).into_owned()
}

/// A request for `name`, zeroed besides.
fn request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: struct ifreq is plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(['/', '\0']) {
        bail!("interface '{name}': names have 1 to {} bytes, without '/'", request.ifr_name.len() - 1);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ask(socket: &OwnedFd, code: libc::Ioctl, request: &mut libc::ifreq, name: &str) -> Result<()> {
    // SAFETY: the request is a struct ifreq, which these codes read the name from and write the answer to; with SIOCETHTOOL
    // it points to an array that is as long as the command in it says, and lives until the call returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => {
            let e = io::Error::last_os_error();
            Err(anyhow!("interface {name}: {e}: 'ip link' lists those of this network namespace"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_are_checked() {
        let text = |name: &str| Interface::find(name).expect_err("refused").to_string();
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

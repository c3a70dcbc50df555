//! A network namespace of one's own and its interfaces, without external programs.
//!
//! A network namespace belongs to a thread (network_namespaces(7)), so a benchmark runs on a thread
//! that has left the namespace of the process: [`in_new_namespace`]. Threads and child processes
//! started from it are inside as well. The namespace and its interfaces vanish with the last of
//! them. Interfaces are set with the ioctls of netdevice(7).
//!
//! A [`Tap`] is opened the way the back end opens it. The host's side is the interface, ours the
//! descriptor. A write is a frame that the host receives; a read takes a frame that the host sent.
//! Each carries a virtio-net header of 12 bytes in front (virtio 1.3 §5.1.6). The interface goes
//! when the last descriptor closes.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use zerowire_sys::{netdevice, tap};
use zerowire_testkit::net::lab::{Offload, try_set_offload};

use crate::sys;

/// Runs `work` on a new thread in a new, empty network namespace and returns its result.
///
/// Needs CAP_SYS_ADMIN: run as root, or in a user namespace (`unshare -Urn`).
pub fn in_new_namespace<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_own_thread(|| {
        enter_new_namespace()?;
        work()
    })
}

/// Runs `work` on a new thread and returns its result. What `work` changes of its thread, such as
/// its CPUs, ends with it.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("bench".into())
            .spawn_scoped(scope, work)?
            .join()
            .map_err(|_| anyhow!("the benchmark's thread panicked; its message is above"))?
    })
}

/// Moves the calling thread into a new network namespace, for good, and turns IPv6 off in it. So no
/// interface that is made later sends frames of its own as it comes up.
fn enter_new_namespace() -> Result<()> {
    sys::leave_network_namespace().context(
        "can't make a network namespace of its own: run as root (CAP_SYS_ADMIN), \
         or prefix the command with `unshare -Urn`",
    )?;
    disable_ipv6("default")
}

/// A further network namespace. It stays as long as this value, or a socket that was made in it.
pub(crate) struct OtherNamespace(File);

impl OtherNamespace {
    /// A new, empty one.
    pub(crate) fn new() -> Result<Self> {
        in_new_namespace(|| Ok(Self(File::open("/proc/thread-self/ns/net")?)))
    }

    /// Runs `work` on a new thread inside and returns its result.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .context("can't enter another network namespace")?;
            work()
        })
    }
}

impl AsFd for OtherNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Turns IPv6 off for one interface, or for all made later (`default`). A kernel without IPv6 needs
/// nothing.
fn disable_ipv6(interface: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match fs::write(&path, "1") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't write {path}"))
        }
        _ => Ok(()),
    }
}

/// Counters of one interface, as the host sees it: what a program writes to a tap is received, what
/// it reads is transmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames the host received (written to the tap).
    pub rx_packets: u64,
    /// Frames the host received and dropped before any protocol.
    pub rx_dropped: u64,
    /// Frames the host sent (read from the tap).
    pub tx_packets: u64,
    /// Frames the host sent that found the tap's queue full.
    pub tx_dropped: u64,
}

/// One interface of the namespace that the calling thread is in.
#[derive(Debug)]
pub struct NetnsLink {
    name: String,
    control: OwnedFd,
}

impl NetnsLink {
    /// The interface `name`, which must exist.
    pub fn new(name: &str) -> Result<Self> {
        let link = Self { name: name.to_owned(), control: sys::control_socket()? };
        link.index()?;
        Ok(link)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn said<T>(&self, result: io::Result<T>, what: &str) -> Result<T> {
        result.with_context(|| format!("interface {}: cannot {what}", self.name))
    }

    fn ioctl(&self, code: libc::Ioctl, request: &mut libc::ifreq, what: &str) -> Result<()> {
        self.said(sys::ioctl_ifreq(self.control.as_fd(), code, request), what)
    }

    /// Its index.
    pub fn index(&self) -> Result<u32> {
        self.said(netdevice::index(&self.control, &self.name), "find it")
    }

    /// Its Ethernet address (`SIOCGIFHWADDR`).
    pub fn mac(&self) -> Result<[u8; 6]> {
        let mut request = sys::ifreq(&self.name)?;
        self.ioctl(libc::SIOCGIFHWADDR, &mut request, "read its address")?;
        Ok(sys::request_mac(&request))
    }

    /// Sets its MTU in bytes, without the Ethernet header.
    pub fn set_mtu(&self, mtu: usize) -> Result<()> {
        self.said(netdevice::set_mtu(&self.control, &self.name, mtu), &format!("set MTU {mtu}"))
    }

    /// Sets the length of its transmit queue in frames (`SIOCSIFTXQLEN`). For a tap this is the
    /// number of frames that wait for the reader before the kernel drops.
    pub fn set_txqueuelen(&self, frames: usize) -> Result<()> {
        let mut request = sys::ifreq(&self.name)?;
        // ifr_qlen is the same int of the union as ifr_ifindex (include/uapi/linux/if.h).
        request.ifr_ifru.ifru_ifindex = i32::try_from(frames)?;
        let what = format!("set a queue of {frames} frames");
        self.ioctl(libc::SIOCSIFTXQLEN, &mut request, &what)
    }

    /// Turns an offload on or off. The link is in the namespace of the calling thread.
    pub fn set_offload(&self, offload: Offload, on: bool) -> Result<()> {
        self.said(try_set_offload(&self.name, offload, on), &format!("set an offload ({offload:?})"))
    }

    /// Gives it an IPv4 address with a network mask of `prefix` bits.
    pub fn set_ipv4(&self, address: Ipv4Addr, prefix: u32) -> Result<()> {
        let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
        for (code, value, what) in [
            (libc::SIOCSIFADDR, u32::from(address), "set its IPv4 address"),
            (libc::SIOCSIFNETMASK, mask, "set its IPv4 mask"),
        ] {
            let mut data = [0; 14];
            // sockaddr_in: port in bytes 0 and 1, address in network order in bytes 2 to 5.
            for (to, from) in data[2..6].iter_mut().zip(value.to_be_bytes()) {
                *to = from as libc::c_char;
            }
            let mut request = sys::ifreq(&self.name)?;
            request.ifr_ifru.ifru_addr =
                libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data };
            self.ioctl(code, &mut request, what)?;
        }
        Ok(())
    }

    /// Sets it up, so that frames flow.
    pub fn up(&self) -> Result<()> {
        let flags = self.said(netdevice::flags(&self.control, &self.name), "read its flags")?;
        self.said(netdevice::set_flags(&self.control, &self.name, flags | libc::IFF_UP), "set it up")
    }

    /// Reads its counters from the calling thread's view of /proc.
    pub fn counters(&self) -> Result<Counters> {
        let path = "/proc/thread-self/net/dev";
        let text = fs::read_to_string(path).with_context(|| format!("can't read {path}"))?;
        parse_counters(&text, &self.name)
    }
}

/// Finds the line of interface `name` in the text of /proc/net/dev (net/core/net-procfs.c).
fn parse_counters(text: &str, name: &str) -> Result<Counters> {
    for line in text.lines() {
        let Some((found, rest)) = line.split_once(':') else {
            continue;
        };
        if found.trim() != name {
            continue;
        }
        let fields: Vec<u64> = rest.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [_, rx_packets, _, rx_dropped, _, _, _, _, _, tx_packets, _, tx_dropped, ..] = fields[..] else {
            bail!("interface {name}: {} counters where 16 were expected", fields.len());
        };
        return Ok(Counters { rx_packets, rx_dropped, tx_packets, tx_dropped });
    }
    bail!("interface {name} is not in this network namespace");
}

/// The length of the virtio-net header in front of each frame (virtio 1.3 §5.1.6, VERSION_1).
pub const VNET_HEADER_LEN: usize = 12;

/// The offloads that a modern guest acknowledges: the host may hand over frames without a checksum
/// and large TCP frames.
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// An open queue of a tap.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    link: NetnsLink,
}

impl Tap {
    /// Creates the tap `name` in the namespace of the calling thread, sets it up and
    /// attaches one queue to it, which does not block.
    pub fn create(name: &str) -> Result<Self> {
        let fd = tap::open()
            .context("can't open /dev/net/tun: load the module tun, or give access to the device")?;
        tap::set_interface(&fd, name, tap::IFF_TAP | tap::IFF_NO_PI | tap::IFF_VNET_HDR)
            .with_context(|| format!("can't create tap {name}: CAP_NET_ADMIN is needed"))?;
        tap::set_header_len(&fd, VNET_HEADER_LEN)?;
        tap::set_offloads(&fd, OFFLOADS)
            .with_context(|| format!("tap {name}: the kernel refuses TCP offloads"))?;
        let link = NetnsLink::new(name)?;
        link.up()?;
        Ok(Self { fd, link })
    }

    /// The host's side.
    pub fn link(&self) -> &NetnsLink {
        &self.link
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
                    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                   tap0:  100 20 0 3 0 0 0 0 5000 40 0 7 0 0 0 0\n";
        let counters = parse_counters(text, "tap0").unwrap();
        assert_eq!(counters.rx_packets, 20);
        assert_eq!(counters.rx_dropped, 3);
        assert_eq!(counters.tx_packets, 40);
        assert_eq!(counters.tx_dropped, 7);
        assert!(parse_counters(text, "tap").is_err());
        assert!(parse_counters("x: 1 2", "x").is_err());
    }

    #[test]
    fn long_interface_names_are_refused() {
        assert!(sys::ifreq("sixteen-bytes-xx").is_err());
        assert!(sys::ifreq("").is_err());
        assert!(sys::ifreq("fifteen-bytes-x").is_ok());
    }
}

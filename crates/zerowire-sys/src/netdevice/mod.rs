//! What a network interface says of itself: netdevice(7) and the ioctl of ethtool(8). What changes
//! something begins with `set_`.
//!
//! Any socket will do to ask by; the names are those of the network namespace that it was made in.
//!
//! # Errors
//! Those of the system calls: ENODEV, the interface is gone; EOPNOTSUPP, its driver does not tell.
//! InvalidInput where the name can't be that of an interface.

pub mod rules;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::park_timeout;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::check;

/// `SIOCETHTOOL` (include/uapi/linux/sockios.h).
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GDRVINFO` (include/uapi/linux/ethtool.h), and the 32-bit words of `struct
/// ethtool_drvinfo`.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const DRIVER_INFO_WORDS: usize = 49;
/// `ETHTOOL_GCHANNELS`, and the words of `struct ethtool_channels`.
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const CHANNELS_WORDS: usize = 9;

/// What drives an interface (`struct ethtool_drvinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Name of the driver, or of the kind of interface where it has none, such as `veth`.
    pub name: String,
    /// Address of the device on its bus (PCI: `0000:03:00.0`); empty where there is none.
    pub bus_address: String,
}

/// A socket to ask by, in this thread's network namespace. It is of the unix family, the one that a
/// confined service has.
pub fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Its number in the namespace, which stays when it is renamed.
pub fn index(socket: impl AsFd, name: &str) -> io::Result<u32> {
    // rustix would panic on a longer name.
    request(name)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

/// The name by which the interface with this number is found.
///
/// One that is being renamed has its new name before it is found by that: the kernel waits for
/// readers in between (net/core/dev.c, `dev_change_name`). This waits as long, some milliseconds.
pub fn name(socket: impl AsFd, index: u32) -> io::Result<String> {
    loop {
        let name = rustix::net::netdevice::index_to_name(&socket, index)?;
        match rustix::net::netdevice::name_to_index(&socket, &name) {
            Ok(found) if found == index => return Ok(name),
            Ok(_) | Err(Errno::NODEV) => park_timeout(Duration::from_millis(1)),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Bytes that a frame can carry behind its Ethernet header.
pub fn mtu(socket: impl AsFd, name: &str) -> io::Result<usize> {
    let request = ask(socket, libc::SIOCGIFMTU, name)?;
    // SAFETY: every member of the union is made of integers: any bytes are a valid value.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// `IFF_…` flags.
pub fn flags(socket: impl AsFd, name: &str) -> io::Result<libc::c_int> {
    let request = ask(socket, libc::SIOCGIFFLAGS, name)?;
    // SAFETY: as above.
    Ok(unsafe { request.ifr_ifru.ifru_flags }.into())
}

/// `ARPHRD_…` (include/uapi/linux/if_arp.h): what kind of header frames have.
pub fn hardware_kind(socket: impl AsFd, name: &str) -> io::Result<u16> {
    let request = ask(socket, libc::SIOCGIFHWADDR, name)?;
    // SAFETY: as above.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

/// Whether frames begin with an Ethernet header, as those of Ethernet and of the loopback do.
pub fn is_ethernet(socket: impl AsFd, name: &str) -> io::Result<bool> {
    Ok(matches!(hardware_kind(socket, name)?, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK))
}

/// Sets how many bytes a frame can carry behind its Ethernet header.
///
/// # Errors
/// See the module; EPERM without CAP_NET_ADMIN.
pub fn set_mtu(socket: impl AsFd, name: &str, mtu: usize) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    // SAFETY: SIOCSIFMTU reads the request.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFMTU, &raw const request) }).map(drop)
}

/// Sets the `IFF_…` flags.
///
/// # Errors
/// See the module; EPERM without CAP_NET_ADMIN.
pub fn set_flags(socket: impl AsFd, name: &str, flags: libc::c_int) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the request.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
        .map(drop)
}

/// What drives it (net/ethtool/ioctl.c, `ethtool_get_drvinfo`).
pub fn driver(socket: impl AsFd, name: &str) -> io::Result<Driver> {
    let mut info = [0; DRIVER_INFO_WORDS];
    info[0] = ETHTOOL_GDRVINFO;
    // SAFETY: the array is as long as the structure of this command.
    unsafe { ethtool(socket, name, &mut info) }?;
    // Texts of 32 bytes: the driver, its version, the firmware's, the address on the bus.
    let text = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Driver { name: text(&info[1..9]), bus_address: text(&info[25..33]) })
}

/// Queues that take frames, or queues that frames come from, whichever are more.
pub fn queues(socket: impl AsFd, name: &str) -> io::Result<u32> {
    let mut channels = [0; CHANNELS_WORDS];
    channels[0] = ETHTOOL_GCHANNELS;
    // SAFETY: the array is as long as the structure of this command.
    unsafe { ethtool(socket, name, &mut channels) }?;
    // Behind the maxima those in use: receive, transmit, other, combined.
    Ok(channels[5].max(channels[6]).saturating_add(channels[8]))
}

/// Runs an ethtool command, the first of the words; the kernel puts its answer into them.
///
/// # Safety
/// The words are as long as the command's structure and all that the counts in it promise behind
/// it. The command makes the kernel follow no address in them.
pub unsafe fn ethtool(socket: impl AsFd, name: &str, words: &mut [u32]) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the caller answers for the words, which live until the call returns.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) }).map(drop)
}

/// One of the three codes of this file that fill in an ifreq and follow no address.
fn ask(socket: impl AsFd, code: libc::Ioctl, name: &str) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    // SAFETY: SIOCGIFMTU, SIOCGIFFLAGS and SIOCGIFHWADDR read the name and fill in the rest of one
    // ifreq.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), code, &raw mut request) })?;
    Ok(request)
}

/// A request of zeroes.
pub(crate) fn empty_request() -> libc::ifreq {
    // SAFETY: a structure of integers and a union of integers and addresses: all zeroes is a valid
    // value.
    unsafe { std::mem::zeroed() }
}

/// A request for `name`, zeroed besides.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    let mut request = empty_request();
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        let text =
            format!("interface name {name:?} has {} bytes: give 1 to 15, none of them zero", name.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

#[cfg(test)]
mod tests;

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
use std::os::fd::{AsFd, OwnedFd};
use std::thread::park_timeout;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::ioctl::{self, TypedIoctl};
use crate::plain::{PlainData, plain};

/// What drives an interface (`struct ethtool_drvinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Name of the driver, or of the kind of interface where it has none, such as `veth`.
    pub name: String,
    /// Address of the device on its bus (PCI: `0000:03:00.0`); empty where there is none.
    pub bus_address: String,
}

/// What [`is_name`] takes, in words.
pub const NAME_RULE: &str = "1 to 15 bytes, none of them '/', ':', '%', a space or NUL, and '.', '..', 'all' and 'default' are no names";

/// Whether an interface can have this name: what `dev_valid_name` takes (net/core/dev.c), without
/// the folders of /proc/sys/net/ipv4/conf that are no interface's (`sysctl_dev_name_is_allowed`).
/// The kernel puts a number in place of `%d`, and takes no other percent sign.
pub fn is_name(name: &str) -> bool {
    // The kernel's `isspace` knows ISO 8859-1.
    let is_space = |b: u8| b.is_ascii_whitespace() || matches!(b, b'\x0b' | b'\xa0');
    (1..libc::IFNAMSIZ).contains(&name.len())
        && !matches!(name, "." | ".." | "all" | "default")
        && !name.bytes().any(|b| matches!(b, 0 | b'/' | b':' | b'%') || is_space(b))
}

/// A socket to ask by, in this thread's network namespace. It is of the unix family, the one that a
/// confined service has.
pub fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Its number in the namespace, which stays when it is renamed.
pub fn index(socket: impl AsFd, name: &str) -> io::Result<u32> {
    // rustix would panic on a longer name.
    InterfaceRequest::of(name)?;
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
    ask::<i32>(socket, ioctl::SIOCGIFMTU, name).map(|mtu| mtu.max(0) as usize)
}

/// `IFF_…` flags.
pub fn flags(socket: impl AsFd, name: &str) -> io::Result<libc::c_int> {
    ask::<i16>(socket, ioctl::SIOCGIFFLAGS, name).map(libc::c_int::from)
}

/// `ARPHRD_…` (include/uapi/linux/if_arp.h): what kind of header frames have.
pub fn hardware_kind(socket: impl AsFd, name: &str) -> io::Result<u16> {
    // The family of an address.
    ask(socket, ioctl::SIOCGIFHWADDR, name)
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
    let mut request = InterfaceRequest::of(name)?;
    request.set(&(mtu as i32).to_ne_bytes());
    ioctl::SIOCSIFMTU.of(socket, request).map(drop)
}

/// Sets the `IFF_…` flags.
///
/// # Errors
/// See the module; EPERM without CAP_NET_ADMIN.
pub fn set_flags(socket: impl AsFd, name: &str, flags: libc::c_int) -> io::Result<()> {
    let mut request = InterfaceRequest::of(name)?;
    request.set(&(flags as i16).to_ne_bytes());
    ioctl::SIOCSIFFLAGS.of(socket, request).map(drop)
}

/// What drives it (net/ethtool/ioctl.c, `ethtool_get_drvinfo`).
pub fn driver(socket: impl AsFd, name: &str) -> io::Result<Driver> {
    let info = ioctl::ETHTOOL_GDRVINFO.ask(socket, InterfaceRequest::of(name)?)?;
    // Texts of 32 bytes: the driver, its version, the firmware's, the address on the bus.
    let text = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Driver { name: text(&info[1..9]), bus_address: text(&info[25..33]) })
}

/// Queues that take frames, or queues that frames come from, whichever are more.
pub fn queues(socket: impl AsFd, name: &str) -> io::Result<u32> {
    let channels = ioctl::ETHTOOL_GCHANNELS.ask(socket, InterfaceRequest::of(name)?)?;
    // Behind the maxima those in use: receive, transmit, other, combined.
    Ok(channels[5].max(channels[6]).saturating_add(channels[8]))
}

/// What the kernel says of an interface, which its answer begins with.
fn ask<T: PlainData>(socket: impl AsFd, request: TypedIoctl<InterfaceRequest>, name: &str) -> io::Result<T> {
    let answer = request.of(socket, InterfaceRequest::of(name)?)?;
    Ok(T::read(&answer.value).unwrap_or_else(T::zeroed))
}

plain! {
    /// `struct ifreq`: zeroes, where nothing else was set.
    #[derive(Debug)]
    pub(crate) struct InterfaceRequest {
        name: [u8; libc::IFNAMSIZ],
        /// A union: what is set, or what the kernel says. It lies at the start.
        value: [u8; size_of::<libc::ifreq>() - libc::IFNAMSIZ],
    }
}

impl InterfaceRequest {
    /// For the interface `name`.
    pub(crate) fn of(name: &str) -> io::Result<Self> {
        let mut request = Self::zeroed();
        if name.is_empty() || name.len() >= request.name.len() || name.contains('\0') {
            let text =
                format!("interface name {name:?} has {} bytes: give 1 to 15, none of them zero", name.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// Sets the value, whose bytes these are.
    pub(crate) fn set(&mut self, value: &[u8]) {
        self.value[..value.len()].copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests;

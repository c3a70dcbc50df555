//! What is to be known of a network interface: index, MTU, carrier, queues. Nothing is changed.
//!
//! The names are those of the network namespace of the thread that opens the value, whatever thread uses it later.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::error::XdpError;

/// `ETHTOOL_GCHANNELS` (include/uapi/linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// `ETHTOOL_GDRVINFO` and `struct ethtool_drvinfo`: its length, and where the address on the bus is in it, bytes.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const DRVINFO_BYTES: usize = 196;
const BUS_INFO: std::ops::Range<usize> = 100..132;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// An interface that there was when the value was made.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    control: OwnedFd,
}

/// `struct ifreq`, as far as it is needed here.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: Data,
}

#[repr(C)]
union Data {
    number: libc::c_int,
    flags: libc::c_short,
    pointer: *mut libc::c_void,
    pad: [u8; 24],
}

impl Interface {
    /// The interface of that name in this thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError::NoInterface`], [`XdpError::System`].
    pub fn open(name: &str) -> Result<Self, XdpError> {
        let missing = || XdpError::NoInterface { interface: name.to_owned() };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(missing());
        }
        let control =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|e| XdpError::system(format!("interface {name}"), "socket", e))?;
        let index = name_to_index(&control, name).map_err(|_| missing())?;
        Ok(Self { name: name.to_owned(), index, control })
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the namespace, which stays when it is renamed.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes that a frame can carry behind its Ethernet header.
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        let data = self.ask(libc::SIOCGIFMTU, Data { pad: [0; 24] })?;
        // SAFETY: the kernel filled in a number.
        Ok(usize::try_from(unsafe { data.number }).unwrap_or(0))
    }

    /// Whether it is up, and whether frames can leave it (the other side of a veth is up, a cable is plugged in).
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn up_and_running(&self) -> io::Result<(bool, bool)> {
        let data = self.ask(libc::SIOCGIFFLAGS, Data { pad: [0; 24] })?;
        // SAFETY: the kernel filled in the flags.
        let flags = libc::c_int::from(unsafe { data.flags });
        Ok((flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0))
    }

    /// Queues that sockets can be bound to, where the driver tells.
    pub fn queues(&self) -> Option<u32> {
        // struct ethtool_channels: command; maxima of receive, transmit, other, combined; then the same in use.
        let mut channels = [0u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        self.ask(SIOCETHTOOL, Data { pointer: channels.as_mut_ptr().cast() }).ok()?;
        let queues = channels[5].max(channels[6]).saturating_add(channels[8]);
        (queues > 0).then_some(queues)
    }

    /// The address of its device on the bus (a PCI device: `0000:03:00.0`), where the driver tells.
    pub fn bus_address(&self) -> Option<String> {
        let mut info = [0u8; DRVINFO_BYTES];
        info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
        self.ask(SIOCETHTOOL, Data { pointer: info.as_mut_ptr().cast() }).ok()?;
        let text = info.get(BUS_INFO)?.split(|b| *b == 0).next()?;
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// The name is looked up by the index first: an interface may be renamed at any time.
    fn ask(&self, what: libc::Ioctl, data: Data) -> io::Result<Data> {
        let name = index_to_name(&self.control, self.index)?;
        let mut request = Request { name: [0; libc::IFNAMSIZ], data };
        let n = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..n].copy_from_slice(&name.as_bytes()[..n]);
        // SAFETY: these ioctls read the name, and fill in the data or the array that it points to, which are long enough.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), what, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(request.data)
    }
}

//! What is to be known of a network interface: index, MTU, carrier, queues. Nothing is changed.
//!
//! The names are those of the network namespace of the thread that opens the value, whatever thread uses it later.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::error::XdpError;
use crate::netdevice;

/// An interface that there was when the value was made.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    control: OwnedFd,
}

impl Interface {
    /// The interface of that name in this thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError::NoInterface`], [`XdpError::System`].
    pub fn open(name: &str) -> Result<Self, XdpError> {
        let missing = || XdpError::NoInterface { interface: name.to_owned() };
        let control =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|e| XdpError::system(format!("interface {name}"), "socket", e))?;
        let index = netdevice::index(&control, name).map_err(|_| missing())?;
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
        netdevice::mtu(&self.control, &self.name_now()?)
    }

    /// Whether it is up, and whether frames can leave it (the other side of a veth is up, a cable is plugged in).
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn up_and_running(&self) -> io::Result<(bool, bool)> {
        let flags = netdevice::flags(&self.control, &self.name_now()?)?;
        Ok((flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0))
    }

    /// `ARPHRD_…` (include/uapi/linux/if_arp.h): what kind of header its frames have.
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn hardware_kind(&self) -> io::Result<u16> {
        netdevice::hardware_kind(&self.control, &self.name_now()?)
    }

    /// Queues that sockets can be bound to, where the driver tells.
    pub fn queues(&self) -> Option<u32> {
        netdevice::queues(&self.control, &self.name_now().ok()?).ok().filter(|queues| *queues > 0)
    }

    /// The name of its driver, where that tells (`veth`, `virtio_net`).
    pub fn driver(&self) -> Option<String> {
        let driver = netdevice::driver(&self.control, &self.name_now().ok()?).ok()?;
        Some(driver.name).filter(|name| !name.is_empty())
    }

    /// The address of its device on the bus (a PCI device: `0000:03:00.0`), where the driver tells.
    pub fn bus_address(&self) -> Option<String> {
        let driver = netdevice::driver(&self.control, &self.name_now().ok()?).ok()?;
        Some(driver.bus_address).filter(|address| !address.is_empty())
    }

    /// An interface may be renamed at any time.
    fn name_now(&self) -> io::Result<String> {
        Ok(index_to_name(&self.control, self.index)?)
    }
}

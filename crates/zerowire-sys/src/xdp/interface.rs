//! Reads a network interface's index, MTU, carrier and queues. It changes nothing.
//!
//! The names are those of the network namespace of the thread that opens the value, whatever thread
//! uses it later.

use std::io;
use std::os::fd::OwnedFd;

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
    /// The interface called `name` in this thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError::NoInterface`], [`XdpError::System`].
    pub fn open(name: &str) -> Result<Self, XdpError> {
        let missing = || XdpError::NoInterface { interface: name.to_owned() };
        let control =
            netdevice::socket().map_err(|e| XdpError::system(format!("interface {name}"), "socket", e))?;
        let index = netdevice::index(&control, name).map_err(|_| missing())?;
        Ok(Self { name: name.to_owned(), index, control })
    }

    /// The interface called `name` with this number, in the network namespace of a socket that is
    /// there to ask by.
    pub fn known(name: &str, index: u32, control: OwnedFd) -> Self {
        Self { name: name.to_owned(), index, control }
    }

    /// Whether its name is another interface's now, or nobody's. One that was renamed alone is
    /// meant as well.
    pub fn has_lost_name(&self) -> bool {
        netdevice::index(&self.control, &self.name).ok() != Some(self.index)
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
        self.ask(|name| netdevice::mtu(&self.control, name))
    }

    /// Whether it is up, and whether frames can leave it (the other side of a veth is up, a cable
    /// is plugged in).
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn up_and_running(&self) -> io::Result<(bool, bool)> {
        let flags = self.ask(|name| netdevice::flags(&self.control, name))?;
        Ok((flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0))
    }

    /// `ARPHRD_…` (include/uapi/linux/if_arp.h): what kind of header its frames have.
    ///
    /// # Errors
    /// ENODEV or ENXIO: it is gone.
    pub fn hardware_kind(&self) -> io::Result<u16> {
        self.ask(|name| netdevice::hardware_kind(&self.control, name))
    }

    /// Queues that sockets can be bound to, where the driver tells.
    pub fn queues(&self) -> Option<u32> {
        self.ask(|name| netdevice::queues(&self.control, name)).ok().filter(|queues| *queues > 0)
    }

    /// The name of its driver, where that tells (`veth`, `virtio_net`).
    pub fn driver(&self) -> Option<String> {
        let driver = self.ask(|name| netdevice::driver(&self.control, name)).ok()?;
        Some(driver.name).filter(|name| !name.is_empty())
    }

    /// The address of its device on the bus (a PCI device: `0000:03:00.0`), where the driver tells.
    pub fn bus_address(&self) -> Option<String> {
        let driver = self.ask(|name| netdevice::driver(&self.control, name)).ok()?;
        Some(driver.bus_address).filter(|address| !address.is_empty())
    }

    /// Asks the kernel, which wants a name. An interface may be renamed at any time, and another
    /// one may get its name. So an answer counts only if the name was this interface's before and
    /// after.
    fn ask<T>(&self, question: impl Fn(&str) -> io::Result<T>) -> io::Result<T> {
        let mut name = netdevice::name(&self.control, self.index)?;
        loop {
            let answer = question(&name);
            let now = netdevice::name(&self.control, self.index)?;
            if now == name {
                return answer;
            }
            name = now;
        }
    }
}

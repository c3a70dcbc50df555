//! What a user asks for with `--port packet:…`.

use std::fmt;

use zerowire_sys::allowed::AllowedCall;

use super::handed::FIRST_NUMBER;
use super::kept::{self, KeptPacket};
use super::{KERNEL_COPIES, PacketPort, SYSTEM_CALLS};
use crate::port::spec::{FollowLink, Spec};
use crate::port::{KeptPort, OpenPort, PortError, PortParts};

/// The least limit of open files of a process that takes one over.
pub(super) const LEAST_DESCRIPTORS: u64 = 1024;

/// What may be asked of a packet port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketSpec {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Whether frames of the guest go by a ring shared with the kernel.
    pub rings: PacketRings,
    /// Whether frames to the guest come by a ring shared with the kernel.
    pub receive: PacketReceive,
    /// Whether the guest sees the interface's state.
    pub link: FollowLink,
}

impl PacketSpec {
    /// All defaults.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rings: PacketRings::default(),
            receive: PacketReceive::default(),
            link: FollowLink::default(),
        }
    }

    zerowire_wire::setters! { rings: PacketRings, receive: PacketReceive, link: FollowLink }
}

/// Who copies a frame of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRings {
    /// This process, into a ring, where the interface's driver sends from that; the kernel
    /// elsewhere.
    #[default]
    Auto,
    /// This process, into a ring.
    On,
    /// The kernel.
    Off,
}

/// Where frames to the guest are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketReceive {
    /// The ring, and the socket where that can't be opened or stands still.
    #[default]
    Auto,
    /// A ring, opened again and again where that fails.
    Ring,
    /// The socket.
    Socket,
}

impl Spec for PacketSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("rings", "auto") => self.rings = PacketRings::Auto,
            ("rings", "on") => self.rings = PacketRings::On,
            ("rings", "off") => self.rings = PacketRings::Off,
            ("rings", other) => return Err(format!("rings={other}: give on, off or auto")),
            ("receive", "auto") => self.receive = PacketReceive::Auto,
            ("receive", "ring") => self.receive = PacketReceive::Ring,
            ("receive", "socket") => self.receive = PacketReceive::Socket,
            ("receive", other) => return Err(format!("receive={other}: give ring, socket or auto")),
            ("link", word) => self.link = FollowLink::parse(word)?,
            ("queues", "1") => {}
            ("queues", n) => {
                return Err(format!("queues={n}: a packet port has one queue pair; tap and xdp have more"));
            }
            _ => {
                return Err(format!(
                    "'{key}={value}' is not known, only rings=on|off|auto, receive=ring|socket|auto and link=follow|ignore"
                ));
            }
        }
        Ok(())
    }

    fn interface(&self) -> &str {
        &self.interface
    }

    fn queues(&self) -> usize {
        1
    }

    fn link(&self) -> Option<FollowLink> {
        Some(self.link)
    }

    /// An interface can have any number of packet sockets.
    fn sole(&self) -> Vec<String> {
        Vec::new()
    }

    fn takes_interface(&self) -> bool {
        true
    }

    fn check_descriptors(&self, most: u64) -> Result<(), String> {
        if most >= LEAST_DESCRIPTORS {
            return Ok(());
        }
        Err(format!(
            "its sockets have numbers from {FIRST_NUMBER} on, and the limit is {most}: give 'ulimit -n {LEAST_DESCRIPTORS}'"
        ))
    }

    fn open(&self) -> Result<OpenPort, PortError> {
        Ok(PacketPort::open(self)?)
    }

    fn keep(&self) -> Result<Box<dyn KeptPort>, PortError> {
        Ok(Box::new(KeptPacket::open(self)?))
    }

    fn take_over(&self, parts: PortParts<'_>) -> Result<OpenPort, String> {
        kept::take_over(self, parts)
    }

    fn kernel_copies(&self) -> &'static str {
        KERNEL_COPIES
    }

    fn system_calls(&self) -> &'static [&'static [AllowedCall]] {
        SYSTEM_CALLS
    }
}

impl fmt::Display for PacketSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packet:{}", self.interface)?;
        match self.rings {
            PacketRings::Auto => {}
            PacketRings::On => f.write_str(",rings=on")?,
            PacketRings::Off => f.write_str(",rings=off")?,
        }
        match self.receive {
            PacketReceive::Auto => {}
            PacketReceive::Ring => f.write_str(",receive=ring")?,
            PacketReceive::Socket => f.write_str(",receive=socket")?,
        }
        f.write_str(self.link.option())
    }
}

//! An interface by its name: route netlink, RTM_GETLINK (rtnetlink(7),
//! include/uapi/linux/if_link.h).

use super::attributes::{Attributes, Builder};
use super::error::{Malformed, NetlinkError};
use super::socket::{Extent, Socket};
use crate::netdevice;

const RTM_GETLINK: u16 = 18;
/// Bytes of `struct ifinfomsg`: family, padding, type, index, flags, change.
const HEADER: usize = 16;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
/// Leaves statistics out of the answer (include/uapi/linux/rtnetlink.h).
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// Where an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
pub enum XdpAttached {
    /// In the driver.
    Driver,
    /// In the stack (generic).
    Stack,
    /// In the NIC.
    Hardware,
    /// In several places.
    Several,
}

impl XdpAttached {
    /// As `ip link set dev IF … off` names it.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Driver => "xdpdrv",
            Self::Stack => "xdpgeneric",
            Self::Hardware => "xdpoffload",
            Self::Several => "xdp",
        }
    }
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LinkInfo {
    /// Its number in this network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it was set up (`ip link set dev IF up`).
    pub is_up: bool,
    /// Whether frames can pass: a cable is plugged in, the other end of a pair is up.
    pub is_running: bool,
    /// Bytes that a frame can carry behind its Ethernet header.
    pub mtu: Option<u32>,
    /// Receive queues that there is room for; those in use may be fewer.
    pub rx_queues: Option<u32>,
    /// Kind of a virtual interface, such as `veth` or `tun`.
    pub kind: Option<String>,
    /// Bus and name of the device behind it; virtual interfaces have none (reported since Linux
    /// 5.15).
    pub parent: Option<String>,
    /// An XDP program on it: where, and its number (`bpftool prog show id N`).
    pub xdp: Option<(XdpAttached, Option<u32>)>,
}

impl LinkInfo {
    /// Looks `name` up in this thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Name`]; ENODEV where no interface has this name.
    pub fn find(name: &str) -> Result<Self, NetlinkError> {
        const WHAT: &str = "asking for an interface";
        if !netdevice::is_name(name) {
            return Err(NetlinkError::Name { interface: name.to_owned() });
        }
        let mut body = vec![0; HEADER];
        let which = Builder::default().text(IFLA_IFNAME, name).word(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        body.extend_from_slice(&which.finish());
        let parts = Socket::open(None)?.ask(WHAT, RTM_GETLINK, Extent::One, &body)?;
        let link = parts.first().ok_or(Malformed("no answer")).and_then(|p| Self::parse(p));
        link.map_err(|e| e.of(WHAT))
    }

    pub(super) fn parse(part: &[u8]) -> Result<Self, Malformed> {
        let Some((header, attributes)) = part.split_first_chunk::<HEADER>() else {
            return Err(Malformed("a link without its header"));
        };
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let flags = word(8);
        let mut link = Self {
            index: word(4),
            is_up: flags & libc::IFF_UP as u32 != 0,
            is_running: flags & libc::IFF_RUNNING as u32 != 0,
            ..Self::default()
        };
        let (mut bus, mut device) = (None, None);
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                IFLA_IFNAME => link.name = a.text(),
                IFLA_MTU => link.mtu = Some(a.word()?),
                IFLA_NUM_RX_QUEUES => link.rx_queues = Some(a.word()?),
                IFLA_LINKINFO => {
                    for inner in a.nested() {
                        let inner = inner?;
                        if inner.kind == IFLA_INFO_KIND {
                            link.kind = Some(inner.text());
                        }
                    }
                }
                IFLA_XDP => link.xdp = xdp(a.nested())?,
                IFLA_PARENT_DEV_NAME => device = Some(a.text()),
                IFLA_PARENT_DEV_BUS_NAME => bus = Some(a.text()),
                _ => {}
            }
        }
        link.parent = device.map(|d| bus.map_or_else(|| d.clone(), |b| format!("{b} {d}")));
        Ok(link)
    }
}

/// `attached` (2) says where; the number of the program (4) comes where there is one only.
fn xdp(attributes: Attributes<'_>) -> Result<Option<(XdpAttached, Option<u32>)>, Malformed> {
    let (mut place, mut number) = (None, None);
    for attribute in attributes {
        let a = attribute?;
        match a.kind {
            2 => {
                place = match a.number()? {
                    0 => None,
                    1 => Some(XdpAttached::Driver),
                    2 => Some(XdpAttached::Stack),
                    3 => Some(XdpAttached::Hardware),
                    _ => Some(XdpAttached::Several),
                }
            }
            4 => number = Some(a.word()?),
            _ => {}
        }
    }
    Ok(place.map(|p| (p, number)))
}

//! A tap device opened the way the back end opens it.
//!
//! The host's side is the interface, ours the descriptor. A write is a frame that the host
//! receives; a read takes a frame that the host sent. Each carries a virtio-net header of 12 bytes
//! in front (virtio 1.3 §5.1.6). The interface vanishes when the last descriptor closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use zerowire_sys::tap;

use crate::netns::NetnsLink;

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
    ///
    /// `multi_queue` makes the interface accept more queues (`IFF_MULTI_QUEUE`).
    pub fn create(name: &str, multi_queue: bool) -> Result<Self> {
        let fd = tap::open()
            .context("can't open /dev/net/tun: load the module tun, or give access to the device")?;
        let queues = if multi_queue { tap::IFF_MULTI_QUEUE } else { 0 };
        tap::set_interface(&fd, name, tap::IFF_TAP | tap::IFF_NO_PI | tap::IFF_VNET_HDR | queues)
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

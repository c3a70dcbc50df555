//! Tap interfaces (Documentation/networking/tuntap.rst, drivers/net/tun.c).
//!
//! # Errors
//! Those of the system calls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::ioctl::{
    SIOCGIFFLAGS, SIOCGIFMTU, TUNGETVNETHDRSZ, TUNSETIFF, TUNSETOFFLOAD, TUNSETQUEUE, TUNSETVNETHDRSZ,
};
use crate::netdevice::InterfaceRequest;

/// Frames, not packets.
pub const IFF_TAP: i16 = 0x0002;
/// Nothing stands before a frame but its virtio-net header.
pub const IFF_NO_PI: i16 = 0x1000;
/// A virtio-net header stands before each frame.
pub const IFF_VNET_HDR: i16 = 0x4000;
/// The interface has several queues.
pub const IFF_MULTI_QUEUE: i16 = 0x0100;
/// The interface is made by this call, or the call fails with EBUSY.
pub const IFF_TUN_EXCL: i16 = i16::MIN;

const IFF_ATTACH_QUEUE: i16 = 0x0200;
const IFF_DETACH_QUEUE: i16 = 0x0400;

/// Requests to an open tap, those about its interface by any socket, and the one whether a socket
/// blocks. None of them makes or changes an interface.
pub const IOCTLS: &[u32] = &[
    TUNSETOFFLOAD.number(),
    TUNGETVNETHDRSZ.number(),
    TUNSETVNETHDRSZ.number(),
    TUNSETQUEUE.number(),
    SIOCGIFMTU.number(),
    SIOCGIFFLAGS.number(),
    libc::SIOCGIFINDEX as u32,
    libc::SIOCGIFNAME as u32,
    libc::FIONBIO as u32,
];

/// Opens /dev/net/tun, without waiting for frames later.
pub fn open() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty())
}

/// Makes an open /dev/net/tun a queue of the interface `name`, which is made where there is none.
/// With `%d` in the name the kernel fills in a number. `flags` are `IFF_…` of this module.
pub fn set_interface(fd: impl AsFd, name: &str, flags: i16) -> io::Result<()> {
    let mut request = InterfaceRequest::of(name)?;
    request.set(&flags.to_ne_bytes());
    TUNSETIFF.of(fd, request).map(drop)
}

/// Lets a queue take part in its interface's traffic, or not.
pub fn attach_queue(fd: impl AsFd, on: bool) -> io::Result<()> {
    let mut request = InterfaceRequest::default();
    request.set(&if on { IFF_ATTACH_QUEUE } else { IFF_DETACH_QUEUE }.to_ne_bytes());
    TUNSETQUEUE.of(fd, request).map(drop)
}

/// Says which offloads frames out of the interface may use: `TUN_F_…` bits
/// (include/uapi/linux/if_tun.h).
pub fn set_offloads(fd: impl AsFd, bits: u32) -> io::Result<()> {
    TUNSETOFFLOAD.of(fd, bits as usize).map(drop)
}

/// Bytes of the virtio-net header before each frame.
pub fn header_len(fd: impl AsFd) -> io::Result<usize> {
    TUNGETVNETHDRSZ.of(fd, 0).map(|len| len.max(0) as usize)
}

/// Sets the length of the virtio-net header before each frame, bytes.
pub fn set_header_len(fd: impl AsFd, len: usize) -> io::Result<()> {
    TUNSETVNETHDRSZ.of(fd, len as i32).map(drop)
}

//! Packet sockets (packet(7)): their calls, each behind a safe function, and the memory of their
//! rings. No call keeps a pointer after it returns.
//!
//! # Errors
//! Those of the system calls.

mod geometry;
mod receive;
mod transmit;

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::socket::{Messages, attach_filter, set_int};
use crate::{check, syscall};

pub use geometry::{Geometry, GeometryError, MAX_FRAME_BYTES, MAX_RING_BYTES, MAX_SLOTS, Version};
pub use receive::{Arrived, SLOT_BYTES, SLOTS, Slots};
pub use transmit::{Status, TransmitRing};

/// Options of include/uapi/linux/if_packet.h.
const PACKET_VERSION: i32 = 10;
const PACKET_TX_RING: i32 = 13;
/// A transmit ring skips frames that the kernel refuses.
pub const PACKET_LOSS: i32 = 14;
/// Each frame has a virtio-net header.
pub const PACKET_VNET_HDR: i32 = 15;
/// Frames go straight to the driver, past the interface's queue.
pub const PACKET_QDISC_BYPASS: i32 = 20;

/// Requests to an open packet socket, and those about interfaces by it. None of them changes an
/// interface.
pub const IOCTLS: &[u32] = &[
    // SIOCOUTQ and SIOCINQ.
    libc::TIOCOUTQ as u32,
    libc::FIONREAD as u32,
    libc::FIONBIO as u32,
    libc::SIOCGIFINDEX as u32,
    libc::SIOCGIFNAME as u32,
    libc::SIOCGIFMTU as u32,
    libc::SIOCGIFFLAGS as u32,
];

/// A VLAN tag that the kernel took out of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its EtherType: 0x8100, or 0x88a8.
    pub protocol: u16,
    /// Priority and number of the VLAN.
    pub control: u16,
}

/// All protocols (include/uapi/linux/if_ether.h).
const ETH_P_ALL: u16 = 3;
/// Where a filter finds what is beside a frame's bytes: `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`
/// (include/uapi/linux/filter.h).
const TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;
/// And the number of its interface: `SKF_AD_OFF + SKF_AD_IFINDEX`.
const INTERFACE: u32 = (-0x1000_i32 + 8) as u32;
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// A packet socket of whole frames that receives nothing until it is bound.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option that is a number.
pub fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    set_int(socket, level, option, value)
}

/// Sets an option to a value of a type that the option takes.
///
/// # Safety
/// Addresses in the value, if any, are valid for what the option does with them before it returns.
unsafe fn set_to<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (at, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of the value; what it points to is by the contract.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, len) }).map(drop)
}

/// The socket gets frames with a tag only, or without one only.
pub fn filter_by_tag(socket: BorrowedFd<'_>, tagged: bool) -> io::Result<()> {
    // Of a frame that passes all bytes are kept, of another one none.
    let bytes = |passes| if passes { u32::MAX } else { 0 };
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_WORD, 0, 0, TAG_PRESENT),
        step(JUMP_IF_EQUAL, 0, 1, 0),
        step(RETURN, 0, 0, bytes(!tagged)),
        step(RETURN, 0, 0, bytes(tagged)),
    ];
    attach_filter(socket, &mut program)
}

/// The same for frames of the interface with this number alone. None gets no frame. The filter
/// stays as long as the socket, whoever gets that, and whatever it is bound to.
pub fn filter_for_good(socket: BorrowedFd<'_>, of: Option<(u32, bool)>) -> io::Result<()> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (index, tagged) = of.unwrap_or_default();
    let (with, without) = if tagged { (1, 0) } else { (0, 1) };
    let mut program = [
        step(LOAD_WORD, 0, 0, INTERFACE),
        step(JUMP_IF_EQUAL, 0, 3, index),
        step(LOAD_WORD, 0, 0, TAG_PRESENT),
        step(JUMP_IF_EQUAL, with, without, 0),
        step(RETURN, 0, 0, if of.is_some() { u32::MAX } else { 0 }),
        step(RETURN, 0, 0, 0),
    ];
    attach_filter(socket, &mut program)?;
    set(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
}

/// Gives the socket a receive ring of `slots` slots, in blocks of `block_bytes`, or none.
pub fn set_ring(
    socket: BorrowedFd<'_>,
    block_bytes: usize,
    slot_bytes: usize,
    slots: usize,
) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: block_bytes as u32,
        tp_block_nr: (slots * slot_bytes).checked_div(block_bytes).unwrap_or(0) as u32,
        tp_frame_size: slot_bytes as u32,
        tp_frame_nr: slots as u32,
    };
    // SAFETY: a structure of integers without addresses.
    unsafe { set_to(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request) }
}

/// Gives the socket, which has no ring yet, a transmit ring.
pub fn set_transmit_ring(socket: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_VERSION, geometry.version().number())?;
    // SAFETY: a structure of integers without addresses.
    unsafe { set_to(socket, libc::SOL_PACKET, PACKET_TX_RING, &geometry.request()) }
}

/// Takes the socket's transmit ring away, if it has one. EBUSY: a process maps it, or the kernel
/// still has frames of it.
pub fn end_transmit_ring(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a structure of integers without addresses, as long as the longest that may be read.
    unsafe { set_to(socket, libc::SOL_PACKET, PACKET_TX_RING, &[0u32; 7]) }
}

/// Bytes of the first frame of the receive queue; 0 where there is none.
pub fn next_bytes(socket: BorrowedFd<'_>) -> usize {
    // `packet_ioctl` has it as SIOCINQ, which is the same number.
    rustix::io::ioctl_fionread(socket).map_or(0, |n| n as usize)
}

/// Takes the error that the socket has met since the last call.
pub fn take_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::sockopt::socket_error(socket)?.map_err(io::Error::from)
}

/// An interface, and a protocol as it stands in a frame.
fn address(index: u32, protocol: [u8; 2]) -> libc::sockaddr_ll {
    // SAFETY: a structure of integers: all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = u16::from_ne_bytes(protocol);
    address.sll_ifindex = index as i32;
    address
}

/// Binds to the interface of this index, for all protocols, or for sending only.
pub fn bind(socket: BorrowedFd<'_>, index: u32, receives: bool) -> io::Result<()> {
    let address = address(index, if receives { ETH_P_ALL.to_be_bytes() } else { [0; 2] });
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which lives until it returns.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Index of the interface that the socket is bound to; None once that is gone (`packet_notifier`
/// sets it to -1 then).
pub fn bound_to(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut address = address(0, [0; 2]);
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of the address.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) }).ok()?;
    u32::try_from(address.sll_ifindex).ok().filter(|i| *i > 0)
}

/// The interface takes frames for any address, as long as the socket lives and the interface is
/// there.
pub fn be_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    membership(socket, index, libc::PACKET_ADD_MEMBERSHIP)
}

/// Ends it again. That the interface is gone doesn't count as an error.
pub fn end_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    membership(socket, index, libc::PACKET_DROP_MEMBERSHIP)
}

fn membership(socket: BorrowedFd<'_>, index: u32, option: i32) -> io::Result<()> {
    // SAFETY: a structure of integers: all zeroes is a valid value.
    let mut request: libc::packet_mreq = unsafe { zeroed() };
    request.mr_ifindex = index as i32;
    request.mr_type = libc::PACKET_MR_PROMISC as u16;
    // SAFETY: a structure of integers without addresses.
    unsafe { set_to(socket, libc::SOL_PACKET, option, &request) }
}

/// Takes the number of frames that the socket had no room for since the last call.
pub fn take_drops(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let at = (&raw mut stats).cast();
    // SAFETY: the kernel writes at most `len` bytes of the value.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, at, &raw mut len)
    };
    check(done).ok().map(|_| stats.tp_drops)
}

/// Room for one control message: its header, and what the kernel tells of a frame.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives a frame without waiting: its length, were the buffer long enough, and its tag.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<Tag>)> {
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a structure of integers and pointers that may be null: all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the message points to the buffer and to the room for control messages, which live
    // until this returns.
    let n = unsafe {
        let (fd, at) = (socket.as_raw_fd() as usize, &raw mut message as usize);
        syscall::checked(libc::SYS_recvmsg, [fd, at, flags as usize, 0, 0, 0])
    }?;
    // SAFETY: the kernel has filled the message in, and its control messages lie in `control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or a whole header in `control`.
    while let Some(header) = unsafe { next.as_ref() } {
        let whole = header.cmsg_len >= size_of::<libc::cmsghdr>() + size_of::<libc::tpacket_auxdata>();
        if header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA && whole {
            // SAFETY: the message is long enough for the structure, which is made of integers.
            let data: libc::tpacket_auxdata =
                unsafe { libc::CMSG_DATA(next).cast::<libc::tpacket_auxdata>().read_unaligned() };
            let tag = Tag { protocol: data.tp_vlan_tpid, control: data.tp_vlan_tci };
            return Ok((n, (data.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(tag)));
        }
        // SAFETY: `next` is a header of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok((n, None))
}

/// Tells the kernel to look at the transmit ring, without waiting; `to`: index of the interface
/// that the socket is bound to, and the protocol of all frames there. Returns the bytes of the
/// frames that it took.
pub fn kick(socket: BorrowedFd<'_>, to: Option<(u32, [u8; 2])>) -> io::Result<usize> {
    let to = to.map(|(index, protocol)| address(index, protocol));
    let (at, len) = match &to {
        Some(to) => (std::ptr::from_ref(to), size_of::<libc::sockaddr_ll>() as libc::socklen_t),
        None => (std::ptr::null(), 0),
    };
    // SAFETY: the frames are in the ring; the address is none, or lives until the call returns.
    unsafe {
        let flags = libc::MSG_DONTWAIT as usize;
        syscall::checked(
            libc::SYS_sendto,
            [socket.as_raw_fd() as usize, 0, 0, flags, at as usize, len as usize],
        )
    }
}

/// The same without an address, by a write(2) of nothing. It waits if the socket blocks.
pub fn kick_by_write(socket: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: the frames are in the ring, and no other byte is read.
    unsafe { syscall::checked(libc::SYS_write, [socket.as_raw_fd() as usize, 0, 0, 0, 0, 0]) }
}

/// Sends each of `frames` as a datagram in one sendmmsg(2), without waiting. Returns how many the
/// kernel took. `messages` is kept to save its allocation.
pub fn send_many<'a>(
    socket: BorrowedFd<'_>,
    frames: impl Iterator<Item = &'a [u8]>,
    messages: &mut Messages,
) -> io::Result<usize> {
    messages.clear();
    for f in frames {
        messages.push([libc::iovec { iov_base: f.as_ptr().cast_mut().cast(), iov_len: f.len() }]);
    }
    // SAFETY: the lists name frames that are borrowed until this returns.
    let sent = unsafe { messages.send(socket, 0) }.map_err(io::Error::from_raw_os_error);
    // No pointer outlives the borrow.
    messages.clear();
    sent
}

/// Sends one frame, without waiting.
pub fn send(socket: BorrowedFd<'_>, frame: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `frame` until it returns.
    unsafe {
        let (at, flags) = (frame.as_ptr() as usize, libc::MSG_DONTWAIT as usize);
        syscall::checked(libc::SYS_sendto, [socket.as_raw_fd() as usize, at, frame.len(), flags, 0, 0])
    }
}

//! Packet sockets (packet(7)): their calls, each behind a safe function, and the memory of their
//! rings. No call keeps a pointer after it returns.
//!
//! # Errors
//! Those of the system calls.

mod geometry;
mod receive;
mod slots;
mod transmit;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::plain::PlainData;
use crate::socket::{Messages, attach_filter, messages, set_int, values};

pub use geometry::{Geometry, GeometryError, MAX_FRAME_BYTES, MAX_RING_BYTES, MAX_SLOTS, Version};
pub use receive::{Arrived, SLOT_BYTES, SLOTS, Slots};
pub use transmit::{Status, TransmitRing};

/// Options of include/uapi/linux/if_packet.h.
const PACKET_VERSION: i32 = 10;
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
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
    set_int(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
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
    values::PACKET_RX_RING.set(socket, &request)
}

/// Gives the socket, which has no ring yet, a transmit ring.
pub fn set_transmit_ring(socket: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<()> {
    set_int(socket, libc::SOL_PACKET, PACKET_VERSION, geometry.version().number())?;
    values::PACKET_TX_RING.set(socket, &geometry.request())
}

/// Takes the socket's transmit ring away, if it has one. EBUSY: a process maps it, or the kernel
/// still has frames of it.
pub fn end_transmit_ring(socket: BorrowedFd<'_>) -> io::Result<()> {
    values::PACKET_TX_RING.set(socket, &PlainData::zeroed())
}

/// An interface, and a protocol as it stands in a frame.
fn address(index: u32, protocol: [u8; 2]) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: u16::from_ne_bytes(protocol),
        sll_ifindex: index as i32,
        ..PlainData::zeroed()
    }
}

/// Binds to the interface of this index, for all protocols, or for sending only.
pub fn bind(socket: BorrowedFd<'_>, index: u32, receives: bool) -> io::Result<()> {
    values::bind(socket, &address(index, if receives { ETH_P_ALL.to_be_bytes() } else { [0; 2] }))
}

/// Index of the interface that the socket is bound to; None once that is gone (`packet_notifier`
/// sets it to -1 then).
pub fn bound_to(socket: BorrowedFd<'_>) -> Option<u32> {
    let address: libc::sockaddr_ll = values::bound_address(socket).ok()?;
    u32::try_from(address.sll_ifindex).ok().filter(|i| *i > 0)
}

/// The interface takes frames for any address, as long as the socket lives and the interface is
/// there.
pub fn be_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    values::PACKET_ADD_MEMBERSHIP.set(socket, &membership(index))
}

/// Ends it again. That the interface is gone doesn't count as an error.
pub fn end_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    values::PACKET_DROP_MEMBERSHIP.set(socket, &membership(index))
}

fn membership(index: u32) -> libc::packet_mreq {
    libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        ..PlainData::zeroed()
    }
}

/// Takes the number of frames that the socket had no room for since the last call.
pub fn take_drops(socket: BorrowedFd<'_>) -> Option<u32> {
    values::PACKET_STATISTICS.get(socket).ok().map(|stats| stats.tp_drops)
}

/// Receives a frame without waiting: its length, were the buffer long enough, and its tag.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<Tag>)> {
    let mut tag = None;
    let len = messages::receive_with_control(socket, buffer, |mut control| {
        let about = control.find(|message| message.kind == (libc::SOL_PACKET, libc::PACKET_AUXDATA));
        let about = about.and_then(|message| libc::tpacket_auxdata::read(message.data));
        let tagged = about.filter(|about| about.tp_status & libc::TP_STATUS_VLAN_VALID != 0);
        tag = tagged.map(|about| Tag { protocol: about.tp_vlan_tpid, control: about.tp_vlan_tci });
    })?;
    Ok((len, tag))
}

/// Tells the kernel to look at the transmit ring, without waiting; `to`: index of the interface
/// that the socket is bound to, and the protocol of all frames there. Returns the bytes of the
/// frames that it took.
pub fn kick(socket: BorrowedFd<'_>, to: Option<(u32, [u8; 2])>) -> io::Result<usize> {
    let kicked = match to {
        Some((index, protocol)) => messages::send_nothing_to(socket, &address(index, protocol)),
        None => messages::send_nothing(socket),
    };
    kicked.map_err(io::Error::from_raw_os_error)
}

/// The same without an address, by a write(2) of nothing. It waits if the socket blocks.
pub fn kick_by_write(socket: BorrowedFd<'_>) -> io::Result<usize> {
    messages::write_nothing(socket).map_err(io::Error::from_raw_os_error)
}

/// Sends each of `frames` as a datagram in one sendmmsg(2), without waiting. Returns how many the
/// kernel took. `messages` is kept to save its allocation.
pub fn send_many<'a>(
    socket: BorrowedFd<'_>,
    frames: impl Iterator<Item = &'a [u8]>,
    messages: &mut Messages,
) -> io::Result<usize> {
    messages.send_slices(socket, frames).map_err(io::Error::from_raw_os_error)
}

/// Sends one frame, without waiting.
pub fn send(socket: BorrowedFd<'_>, frame: &[u8]) -> io::Result<usize> {
    messages::send_bytes(socket, frame)
}

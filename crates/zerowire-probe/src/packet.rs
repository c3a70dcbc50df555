//! AF_PACKET with rings shared with the kernel (Documentation/networking/packet_mmap.rst).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::errno;
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::packet::{self, Geometry, Version, set_ring, set_transmit_ring};
use zerowire_sys::socket::set_int;

/// Bytes of a virtio-net header, num_buffers included (virtio 1.3 §5.1.6).
const HEADER_BYTES: i32 = 12;

/// A ring of one block: slots, the bytes of each, and those of a frame in it.
const SLOTS: usize = 32;
const SLOT_BYTES: usize = 2048;
const FRAME_BYTES: usize = 1514;

pub(super) fn check(todo: &mut Todo) {
    let names = ["send.packet_ring", "send: AF_PACKET TX_RING", "packet ring"];
    todo.add(Subject::new(Group::Send, &[Job::Send], names), || translate(make_ring()));
    let names = ["net.packet_port", "net: packet port", "packet ports"];
    todo.add(Subject::new(Group::Net, &[Job::Net], names), || translate_port(make_port()));
}

/// Where the attempt stopped.
#[derive(Clone, Copy, Debug)]
enum PacketStage {
    Socket(i32),
    Header(i32),
    Ring(i32),
}

fn raw_socket() -> Result<OwnedFd, PacketStage> {
    packet::socket().map_err(|e| PacketStage::Socket(errno::number(e)))
}

/// Makes a transmit ring on a socket bound to no interface and no protocol, so that no frame passes
/// it.
fn make_ring() -> Result<(), PacketStage> {
    let socket = raw_socket()?;
    let ring = || -> io::Result<()> {
        let geometry = Geometry::new(SLOTS, FRAME_BYTES, Version::V3);
        set_transmit_ring(socket.as_fd(), &geometry.map_err(io::Error::other)?)
    };
    ring().map_err(|e| PacketStage::Ring(errno::number(e)))
}

/// Makes a socket with virtio-net headers and a receive ring, bound to nothing as well.
fn make_port() -> Result<(), PacketStage> {
    let socket = raw_socket()?;
    let set = |option, value| set_int(&socket, libc::SOL_PACKET, option, value);
    set(libc::PACKET_VNET_HDR_SZ, HEADER_BYTES).map_err(|e| PacketStage::Header(errno::number(e)))?;
    set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)
        .and_then(|()| set_ring(socket.as_fd(), SLOTS * SLOT_BYTES, SLOT_BYTES, SLOTS))
        .map_err(|e| PacketStage::Ring(errno::number(e)))
}

/// Packet sockets are refused.
fn no_socket(e: i32, lost: &str) -> Finding {
    match e {
        libc::EPERM | libc::EACCES => Finding::missing(errno::said("socket refused", e), lost).remedy(
            "Grant CAP_NET_RAW: root, 'setcap cap_net_raw+ep PROGRAM', or --cap-add NET_RAW for a container.",
        ),
        _ => Finding::missing(errno::said("no AF_PACKET socket", e), lost)
            .remedy("Load the module ('modprobe af_packet'), or boot a kernel with CONFIG_PACKET."),
    }
}

fn translate_port(made: Result<(), PacketStage>) -> Finding {
    let lost = "No port packet:IF; taps are not touched by this.";
    match made {
        Ok(()) => Finding::ok(
            "packet socket with virtio-net headers and a receive ring made",
            "A VM can be on any Ethernet interface (--port packet:IF), with offloads.",
        ),
        Err(PacketStage::Socket(e)) => no_socket(e, lost),
        Err(PacketStage::Header(e)) => {
            Finding::missing(errno::said("12-byte virtio-net headers refused", e), lost)
                .remedy("Boot Linux 6.3 or newer (PACKET_VNET_HDR_SZ).")
        }
        Err(PacketStage::Ring(e)) => Finding::degraded(
            errno::said("receive ring refused", e),
            "Each frame to a guest is read by a call or a place in a batch (receive=socket).",
        )
        .remedy("Free memory, or raise the container's memory limit."),
    }
}

fn translate(made: Result<(), PacketStage>) -> Finding {
    let lost = "Raw frames can't be sent on an interface; taps are not touched by this.";
    match made {
        Ok(()) => Finding::ok(
            "TPACKET_V3 transmit ring of 64 KiB made",
            "Raw frames built in the ring leave without a copy through most NICs (a veth copies).",
        ),
        Err(PacketStage::Socket(e) | PacketStage::Header(e)) => no_socket(e, lost),
        Err(PacketStage::Ring(e @ libc::ENOMEM)) => {
            Finding::degraded(errno::said("no memory for a ring", e), "Each frame is copied once.")
                .remedy("Free memory, or raise the container's memory limit.")
        }
        Err(PacketStage::Ring(e)) => {
            Finding::degraded(errno::said("ring refused", e), "Each frame is copied once.")
                .remedy("Boot Linux 4.11 or newer (transmit rings of version 3).")
        }
    }
}

#[cfg(test)]
mod tests;

//! A packet socket bound to an interface: what the ring and the plain socket have in common. It
//! knows the MTU and says what an error number means.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::OpenError;
use super::options::PacketOptions;
use crate::send::frame::{ETHERNET_HEADER_BYTES, FrameError};
use zerowire_sys::socket::set_int;
use zerowire_sys::{netdevice, packet as sys};
use zerowire_wire::ethernet::{self, TAG_BYTES as VLAN_TAG_BYTES};
use zerowire_wire::vnet::VnetHeader;

/// Where the kernel leaves the MTU to this process, it is read again this often.
const MTU_EVERY: Duration = Duration::from_millis(50);

/// How to make the kernel look at a ring.
#[derive(Clone, Copy)]
enum Kick {
    /// sendto(2) to the interface and the protocol of the frames, which begin with an Ethernet
    /// header.
    Address,
    /// sendto(2) without an address.
    Plain,
    /// write(2), which can name no interface.
    Write,
}

pub(super) struct PacketLink {
    socket: Arc<OwnedFd>,
    pub(super) interface: String,
    pub(super) mtu: usize,
    index: u32,
    kick: Kick,
    mtu_read: Instant,
    /// True: frames may go with offload.
    pub(super) offload: bool,
}

impl PacketLink {
    /// A socket with the options, not bound yet.
    pub(super) fn new(interface: &str, options: &PacketOptions) -> Result<Self, OpenError> {
        let socket = sys::socket().map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { cause },
            _ => OpenError::system(interface, "socket")(cause),
        })?;
        let missing = |cause| OpenError::NoInterface { interface: interface.to_owned(), cause };
        let index = netdevice::index(&socket, interface).map_err(missing)?;
        let mtu = netdevice::mtu(&socket, interface).map_err(missing)?;
        let is_ethernet = netdevice::is_ethernet(&socket, interface).map_err(missing)?;
        let kick = if is_ethernet { Kick::Address } else { Kick::Plain };
        configure(socket.as_fd(), options)?;
        let (interface, offload) = (interface.to_owned(), options.offload);
        Ok(Self { socket: Arc::new(socket), interface, mtu, index, kick, mtu_read: Instant::now(), offload })
    }

    /// A socket that another process has [configured](configure) and bound to the interface of this
    /// number. It does not block, and sends by calls that name no interface.
    pub(super) fn take_over(
        socket: Arc<OwnedFd>,
        interface: &str,
        index: u32,
        options: &PacketOptions,
    ) -> Result<Self, OpenError> {
        let missing = |cause| OpenError::NoInterface { interface: interface.to_owned(), cause };
        let mtu = netdevice::mtu(&socket, interface).map_err(missing)?;
        let (interface, offload) = (interface.to_owned(), options.offload);
        Ok(Self { socket, interface, mtu, index, kick: Kick::Write, mtu_read: Instant::now(), offload })
    }

    pub(super) fn bind(&self) -> Result<(), OpenError> {
        sys::bind(self.socket.as_fd(), self.index, false).map_err(OpenError::system(&self.interface, "bind"))
    }

    /// Tells the kernel to look at the transmit ring. All frames there have the EtherType `all`, if
    /// that is known.
    pub(super) fn kick(&self, all: Option<u16>) -> io::Result<usize> {
        let socket = self.socket.as_fd();
        match self.kick {
            Kick::Address => sys::kick(socket, all.map(|protocol| (self.index, protocol.to_be_bytes()))),
            Kick::Plain => sys::kick(socket, None),
            Kick::Write => sys::kick_by_write(socket),
        }
    }

    /// The call that [`Self::kick`] makes.
    pub(super) fn kick_call(&self) -> &'static str {
        if matches!(self.kick, Kick::Write) { "write" } else { "sendto" }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes of the longest frame without a VLAN tag.
    #[inline]
    pub(super) fn longest(&self) -> usize {
        self.mtu + ETHERNET_HEADER_BYTES
    }

    /// Checks a frame of `len` bytes that would be frame `number`; its bytes are not needed yet.
    #[inline]
    pub(super) fn check(
        &mut self,
        number: u64,
        len: usize,
        capacity: usize,
        header: &VnetHeader,
    ) -> Result<(), FrameError> {
        let usual = ETHERNET_HEADER_BYTES..=capacity.min(self.longest());
        if usual.contains(&len) && *header == VnetHeader::NONE {
            return Ok(());
        }
        self.check_rules(number, len, capacity, header)
    }

    fn check_rules(
        &mut self,
        number: u64,
        len: usize,
        capacity: usize,
        header: &VnetHeader,
    ) -> Result<(), FrameError> {
        if len < ETHERNET_HEADER_BYTES {
            return Err(FrameError::TooShort { frame_bytes: len });
        }
        header.check(len).map_err(|e| FrameError::BadOffload { frame_bytes: len, rule: e.to_string() })?;
        if !self.offload && *header != VnetHeader::NONE {
            let rule = "this sender has no virtio-net headers: open it with the option `offload`".to_owned();
            return Err(FrameError::BadOffload { frame_bytes: len, rule });
        }
        let wire_bytes = header.longest_segment(len);
        if wire_bytes > self.longest() + VLAN_TAG_BYTES {
            // It may have been raised since.
            self.read_mtu();
            if wire_bytes > self.longest() + VLAN_TAG_BYTES {
                return Err(self.too_long(number, wire_bytes));
            }
        }
        if len > capacity {
            return Err(FrameError::TooLong { frame_bytes: len, slot_bytes: capacity });
        }
        Ok(())
    }

    /// Checks a built frame whose longest segment is `wire_bytes`: beyond the MTU by a VLAN tag
    /// only if it has one (`packet_extra_vlan_len_allowed`).
    #[inline]
    pub(super) fn check_tag(
        &mut self,
        number: u64,
        wire_bytes: usize,
        ethertype: u16,
    ) -> Result<(), FrameError> {
        if wire_bytes > self.longest() && ethertype != ethernet::TAG {
            self.read_mtu();
            if wire_bytes > self.longest() {
                return Err(self.too_long(number, wire_bytes));
            }
        }
        Ok(())
    }

    /// Reads the MTU again now and then. With virtio-net headers a ring takes frames of any length,
    /// and a socket segments of any length (`tpacket_snd` and `packet_snd`,
    /// net/packet/af_packet.c).
    pub(super) fn refresh_mtu(&mut self) {
        if self.mtu_read.elapsed() >= MTU_EVERY {
            self.read_mtu();
            self.mtu_read = Instant::now();
        }
    }

    fn read_mtu(&mut self) {
        // An interface that is gone gives its own error when frames are handed over.
        let name = netdevice::name(&self.socket, self.index);
        if let Ok(mtu) = name.and_then(|name| netdevice::mtu(&self.socket, &name)) {
            self.mtu = mtu;
        }
    }

    pub(super) fn too_long(&self, number: u64, frame_bytes: usize) -> FrameError {
        FrameError::LongerThanMtu {
            interface: self.interface.clone(),
            number,
            frame_bytes,
            mtu_bytes: self.mtu,
        }
    }

    /// The error of a frame that the kernel refused and that the ring dropped from its order.
    pub(super) fn refused(
        &mut self,
        number: u64,
        slot: usize,
        frame_bytes: usize,
        cause: io::Error,
    ) -> FrameError {
        self.read_mtu();
        if cause.raw_os_error() == Some(libc::EMSGSIZE) && frame_bytes > self.longest() {
            return self.too_long(number, frame_bytes);
        }
        FrameError::Refused { interface: self.interface.clone(), number, slot, frame_bytes, cause }
    }

    /// The error of a call that handed nothing over.
    pub(super) fn error(&self, call: &'static str, cause: io::Error, frames: usize) -> FrameError {
        let interface = self.interface.clone();
        match cause.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV) => FrameError::Gone { interface, frames },
            Some(libc::ENETDOWN) => FrameError::Down { interface, frames },
            _ => FrameError::System { interface, call, cause },
        }
    }
}

/// Has a socket, which has no ring, do what the options ask.
pub(super) fn configure(socket: BorrowedFd<'_>, options: &PacketOptions) -> Result<(), OpenError> {
    let switches = [
        (options.has_headers(), sys::PACKET_VNET_HDR, "PACKET_VNET_HDR (offload, copy_up_to)"),
        (options.bypass_queue, sys::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS (bypass_queue)"),
        (options.skip_refused, sys::PACKET_LOSS, "PACKET_LOSS (skip_refused)"),
    ];
    for (on, number, option) in switches {
        if on {
            set_int(socket, libc::SOL_PACKET, number, 1)
                .map_err(|cause| OpenError::Option { option, cause })?;
        }
    }
    Ok(())
}

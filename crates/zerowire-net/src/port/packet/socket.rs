//! Packet sockets of whole frames on an interface, with virtio-net headers (packet(7),
//! net/packet/af_packet.c).
//!
//! **What the kernel does to tags.** Before any packet socket sees a received frame, the kernel
//! takes its outer VLAN tag out (`skb_vlan_untag`, net/core/skbuff.c). It keeps the tag beside the
//! frame: read(2) alone can't tell a frame of one VLAN from one of another. So there are two kinds
//! of sockets, each with a filter in the kernel. One gets frames without a tag. The other one gets
//! the rest, each with its tag ([`PacketSocket::recv_tagged`]). On the way out a tag is just bytes
//! of the frame.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::ioctl_fionread;
use thiserror::Error;
use zerowire_sys::socket::set_int;
use zerowire_sys::{netdevice, packet as sys};

use super::handed::{HEADER_BYTES, PacketVerb};
use crate::port::{PortKeeper, kept};

pub use zerowire_sys::packet::{Arrived, SLOT_BYTES, SLOTS, Slots, Tag};

/// Bytes that a socket may have in the kernel each way: some dozens of the longest frames, or some
/// thousand short ones. Its default would be two of the longest.
const BUFFER_BYTES: i32 = 4 << 20;

/// Which received frames a socket gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Those without a VLAN tag.
    Untagged,
    /// Those whose tag the kernel keeps apart.
    Tagged,
    /// None.
    Nothing,
}

/// Why a packet port can't be had. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The user or the unit may not open packet sockets.
    #[error(
        "packet port on interface {interface}: not permitted ({cause}): run as root, or grant CAP_NET_RAW \
         ('setcap cap_net_raw+ep PROGRAM'; in a unit the drop-in packet.conf)"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// This network namespace has no interface of this name.
    #[error("no interface {interface} in this network namespace: 'ip link' lists those that there are")]
    NoInterface {
        /// The name.
        interface: String,
    },
    /// The loopback interface.
    #[error(
        "interface {interface} is a loopback interface, where no guest has a place: give an Ethernet interface, or one end of \
         a veth ('ip link add zw0 type veth peer name zw1')"
    )]
    Loopback {
        /// The name.
        interface: String,
    },
    /// An interface of another kind: its frames have no Ethernet header.
    #[error(
        "interface {interface} is no Ethernet interface (ARPHRD type {kind}): its frames have no Ethernet header (tun, \
         WireGuard and the like); give one that has, or a tap"
    )]
    NotEthernet {
        /// The name.
        interface: String,
        /// include/uapi/linux/if_arp.h
        kind: u16,
    },
    /// The kernel is too old.
    #[error(
        "packet port on interface {interface}: the kernel has no virtio-net headers of {header_bytes} bytes on packet sockets \
         ({cause}): it needs Linux 6.3 (PACKET_VNET_HDR_SZ); give tap:NAME and a bridge, or xdp:IF"
    )]
    Kernel {
        /// The interface.
        interface: String,
        /// Bytes of the header.
        header_bytes: usize,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The interface was deleted, and another one has its name.
    #[error("interface {interface} is another one than before")]
    Another {
        /// The name.
        interface: String,
    },
    /// What the process says that has opened the sockets.
    #[error("{0}")]
    Keeper(String),
    /// A system call failed for another reason.
    #[error("packet port on interface {interface}: {call} failed: {cause}")]
    System {
        /// The interface.
        interface: String,
        /// What was tried.
        call: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl PacketError {
    /// What is against a guest on an interface whose frames have headers of this kind (`ARPHRD_…`,
    /// include/uapi/linux/if_arp.h).
    pub fn of_kind(interface: &str, kind: u16) -> Option<Self> {
        let interface = interface.to_owned();
        match kind {
            libc::ARPHRD_ETHER => None,
            libc::ARPHRD_LOOPBACK => Some(Self::Loopback { interface }),
            kind => Some(Self::NotEthernet { interface, kind }),
        }
    }
}

/// Whether frames can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// They can.
    Up,
    /// It is down.
    Down,
    /// It was deleted, or moved to another network namespace.
    Gone,
}

/// One socket. It does not block. A clone is another handle of it.
#[derive(Clone, Debug)]
pub struct PacketSocket {
    fd: Arc<OwnedFd>,
    interface: String,
    frames: Frames,
    /// The number of the interface, and who has opened the socket for this process: another one,
    /// which does what changes it.
    pub(super) handed: Option<(u32, Arc<dyn PortKeeper>)>,
}

impl PacketSocket {
    /// A socket in this thread's network namespace that gets `frames`, not bound yet. Frames have
    /// virtio-net headers of `header_bytes` (10 or 12) in front of them both ways.
    ///
    /// # Errors
    /// [`PacketError`] per cause; none about the interface, whose name is only noted.
    pub fn open(interface: &str, frames: Frames, header_bytes: usize) -> Result<Self, PacketError> {
        let named = || interface.to_owned();
        let system = |call| move |cause| PacketError::System { interface: named(), call, cause };
        let fd = sys::socket().map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EAFNOSUPPORT) => {
                PacketError::NotPermitted { interface: named(), cause }
            }
            _ => PacketError::System { interface: named(), call: "socket", cause },
        })?;
        let tagged = frames == Frames::Tagged;
        if frames != Frames::Nothing {
            sys::filter_by_tag(fd.as_fd(), tagged).map_err(system("SO_ATTACH_FILTER"))?;
        }
        let set = |option, value, name| set_int(&fd, libc::SOL_PACKET, option, value).map_err(system(name));
        // A port doesn't tap the wire: what this host sends there is not for the guest.
        set(libc::PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING")?;
        if tagged {
            set(libc::PACKET_AUXDATA, 1, "PACKET_AUXDATA")?;
        }
        let this = Self { fd: Arc::new(fd), interface: named(), frames, handed: None };
        this.set_header_bytes(header_bytes)?;
        Ok(this)
    }

    /// One for frames without a tag, and one for those with one, with large buffers.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub(super) fn open_both(interface: &str) -> Result<(Self, Self), PacketError> {
        let open = |frames| Self::open(interface, frames, HEADER_BYTES);
        let (untagged, tagged) = (open(Frames::Untagged)?, open(Frames::Tagged)?);
        if let Some(warning) = untagged.enlarge_buffers() {
            tracing::warn!("{warning}");
        }
        let _ = tagged.enlarge_buffers();
        Ok((untagged, tagged))
    }

    /// One that another process has opened, for an interface with a number.
    pub(super) fn handed(
        fd: OwnedFd,
        interface: &str,
        frames: Frames,
        by: (u32, Arc<dyn PortKeeper>),
    ) -> Self {
        Self { fd: Arc::new(fd), interface: interface.to_owned(), frames, handed: Some(by) }
    }

    /// Has the process that opened it carry out a verb, which is for all sockets of the port: the
    /// one for tagged frames asks for nothing. None where this process has opened it.
    pub(super) fn by_keeper(&self, verb: PacketVerb) -> Option<Result<(), String>> {
        let (_, keeper) = self.handed.as_ref()?;
        if self.frames == Frames::Tagged {
            return Some(Ok(()));
        }
        Some(kept::ask(&**keeper, &verb, &[]).map(|((), _)| ()))
    }

    /// Another length of the virtio-net header, 10 or 12 bytes.
    ///
    /// # Errors
    /// [`PacketError::Kernel`]
    pub fn set_header_bytes(&self, header_bytes: usize) -> Result<(), PacketError> {
        if let Some(done) = self.by_keeper(PacketVerb::HeaderBytes(header_bytes)) {
            return done.map_err(PacketError::Keeper);
        }
        let interface = self.interface.clone();
        set_int(&self.fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR_SZ, header_bytes as i32)
            .map_err(|cause| PacketError::Kernel { interface, header_bytes, cause })
    }

    /// Lets more wait in the kernel than a socket usually may. Without CAP_NET_ADMIN the system's
    /// limits hold; the text says what that means.
    pub fn enlarge_buffers(&self) -> Option<String> {
        let set = |option| set_int(&self.fd, libc::SOL_SOCKET, option, BUFFER_BYTES);
        let mut short = false;
        for (force, ask) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if set(force).is_err() {
                let _ = set(ask);
                short = true;
            }
        }
        short.then(|| {
            format!(
                "interface {}: without CAP_NET_ADMIN net.core.rmem_max and wmem_max bound what may wait in the kernel: bursts of \
                 long frames may be dropped; grant it, or raise them to {BUFFER_BYTES}",
                self.interface
            )
        })
    }

    /// Looks the interface up by its name, and has the socket receive and send there; all of the
    /// interface's frames, whatever address they are for. It may be bound already, to one that is
    /// gone.
    ///
    /// # Errors
    /// [`PacketError`] per cause.
    pub fn bind(&self) -> Result<(), PacketError> {
        if let Some(done) = self.by_keeper(PacketVerb::Bind) {
            return done.map_err(PacketError::Keeper);
        }
        let named = || self.interface.clone();
        let system = |call| move |cause| PacketError::System { interface: named(), call, cause };
        let missing = |_| PacketError::NoInterface { interface: named() };
        let index = netdevice::index(&self.fd, &self.interface).map_err(missing)?;
        let kind = netdevice::hardware_kind(&self.fd, &self.interface).map_err(system("SIOCGIFHWADDR"))?;
        PacketError::of_kind(&self.interface, kind).map_or(Ok(()), Err)?;
        let receives = self.frames != Frames::Nothing;
        // First, so that a socket that is bound gets all that it is to get.
        if receives {
            sys::be_promiscuous(self.fd.as_fd(), index).map_err(system("PACKET_ADD_MEMBERSHIP"))?;
        }
        sys::bind(self.fd.as_fd(), index, receives).map_err(system("bind"))
    }

    /// Has the socket be bound to nothing: its interface counts as gone.
    pub fn unbind(&self) {
        // It fails for sockets without a protocol only where the descriptor is none.
        let _ = sys::bind(self.fd.as_fd(), 0, false);
    }

    /// What the interface is called now that it is bound to; None where that is gone.
    pub fn name(&self) -> Option<String> {
        let index = match &self.handed {
            Some((index, _)) => *index,
            None => sys::bound_to(self.fd.as_fd())?,
        };
        netdevice::name(&self.fd, index).ok()
    }

    /// Where the interface stands that the socket is bound to.
    pub fn state(&self) -> InterfaceState {
        let mut name = self.name();
        let flags = loop {
            let flags = name.as_ref().and_then(|name| netdevice::flags(&self.fd, name).ok());
            // It was asked by name, and may have got another one since it was asked for that.
            let now = self.name();
            if now == name {
                break flags;
            }
            name = now;
        };
        match flags {
            None => InterfaceState::Gone,
            Some(f) if f & libc::IFF_UP == 0 => InterfaceState::Down,
            Some(_) => InterfaceState::Up,
        }
    }

    /// The MTU of the interface that it is bound to, bytes; None where that is gone.
    pub fn mtu(&self) -> Option<usize> {
        netdevice::mtu(&self.fd, &self.name()?).ok()
    }

    /// Frames that the kernel dropped since this was asked last, for which the socket had no room.
    pub fn missed(&self) -> u32 {
        sys::take_drops(self.fd.as_fd()).unwrap_or(0)
    }

    /// Takes the next frame of a socket for tagged ones, its virtio-net header in front, and its
    /// tag. The number is how many bytes of `buffer` the frame took. A frame that was cut would
    /// have taken more than `buffer` has, and the number says so. None while no frame waits.
    ///
    /// # Errors
    /// ENETDOWN: the interface went down or away. EINVAL: a frame whose offloads have no virtio-net
    /// header was thrown away.
    pub fn recv_tagged(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<Tag>)>> {
        match sys::receive(self.fd.as_fd(), buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other.map(Some),
        }
    }

    /// Has frames come by a ring, with virtio-net headers of `header_bytes`, the socket's length.
    /// What waits in the socket is lost: call this before it is bound.
    ///
    /// # Errors
    /// The kernel has no memory for it, or no room for its mapping.
    pub fn open_slots(&self, header_bytes: usize) -> io::Result<Slots> {
        match self.by_keeper(PacketVerb::ReceiveRing(true)) {
            Some(done) => done.map_err(io::Error::other)?,
            None => return Slots::open(self.fd.as_fd(), header_bytes),
        }
        Slots::map(self.fd.as_fd(), header_bytes)
    }

    /// Has frames come by the socket again. What waits in the ring, or with it, is lost.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn close_slots(&self, slots: Slots) -> io::Result<()> {
        drop(slots);
        match self.by_keeper(PacketVerb::ReceiveRing(false)) {
            Some(done) => done.map_err(io::Error::other),
            None => Slots::close(self.fd.as_fd()),
        }
    }

    /// Whether a frame waits in the socket's receive queue.
    pub fn has_queued(&self) -> bool {
        // SIOCINQ of a packet socket, which is the same number.
        ioctl_fionread(&self.fd).is_ok_and(|bytes| bytes > 0)
    }

    /// What frames pass by, as a file.
    pub(super) fn file(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// Sends a frame of this process's own, without offloads, to the interface that it is bound to.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let bytes = [&[0; HEADER_BYTES][..], frame].concat();
        rustix::io::write(&self.fd, &bytes)?;
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

//! A socket: one queue of one interface, four rings.
//!
//! The socket owns its rings and holds a handle of the memory. Dropping it unmaps the rings and
//! closes it; the kernel lets go of the queue some milliseconds later
//! (Documentation/networking/af_xdp.rst, net/xdp/xsk.c).

mod bind;
mod options;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::XdpOptionsFlags;

pub(super) use self::bind::bind_to;
use self::bind::{bind_claimed, map, raise_budget, set_sizes};
pub use self::options::{Mode, RingSizes, SocketOptions};
use super::error::XdpError;
use super::interface::Interface;
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::Umem;
use crate::socket::messages;

/// Pieces that a frame can have in copy mode: a head and `MAX_SKB_FRAGS` (17) pages. The kernel
/// drops frames of more, yet completes them.
pub const MAX_PIECES: usize = 18;

/// Pieces that a frame can have whatever the driver is: one that takes no head of its own
/// (virtio-net) has 17.
pub const SAFE_PIECES: usize = 17;

/// Frames that the kernel threw away, and rings that ran empty (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received frames dropped: no chunk in the fill ring, or longer than a chunk.
    pub receive_dropped: u64,
    /// Received frames dropped since the chunk was invalid.
    pub receive_invalid: u64,
    /// Descriptors of the transmit ring that were invalid ([`Socket::transmit`]).
    pub transmit_invalid: u64,
    /// Received frames dropped since the receive ring was full.
    pub receive_full: u64,
    /// Times that the fill ring was empty.
    pub fill_empty: u64,
    /// Times that the transmit ring was empty.
    pub transmit_empty: u64,
}

/// A bound socket. One thread uses it at a time.
#[derive(Debug)]
pub struct Socket {
    // The rings go before the descriptor: a queue is busy as long as one of its rings is mapped.
    fill: Producer<u64>,
    completion: Consumer<u64>,
    receive: Option<Consumer<Descriptor>>,
    transmit: Option<Producer<Descriptor>>,
    socket: Arc<OwnedFd>,
    umem: Umem,
    interface: Interface,
    queue: u32,
    zero_copy: bool,
    /// True: this process has neither sendto(2) nor recvfrom(2).
    confined: bool,
}

impl Socket {
    /// Binds a queue. The first socket on a UMEM has its own registration; further ones, on other
    /// queues or interfaces, share it (`XDP_SHARED_UMEM`) and have its mode. The memory stays
    /// registered where the queue is busy.
    ///
    /// # Errors
    /// Per cause: [`XdpError::NoInterface`], [`XdpError::Down`], [`XdpError::NoQueue`],
    /// [`XdpError::Busy`], [`XdpError::NoZeroCopy`], [`XdpError::Value`], [`XdpError::Memlock`].
    pub fn bind(umem: &Umem, options: &SocketOptions) -> Result<Self, XdpError> {
        Self::bind_to(umem, Interface::open(&options.interface)?, options)
    }

    /// The same for an interface that is known. The name in the options is not looked at.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_to(umem: &Umem, interface: Interface, options: &SocketOptions) -> Result<Self, XdpError> {
        options.rings.check()?;
        // A socket that can't be bound is closed, but where the queue is busy: then it waits for
        // the next bind with its rings.
        let claim = umem.claim(&interface, options)?;
        let fresh = claim.socket();
        if !claim.has_rings() {
            set_sizes(fresh, options)?;
        }
        let call =
            |call| move |e: Errno| XdpError::system(format!("interface {}", options.interface), call, e);
        let at = sockopt::xdp_mmap_offsets(fresh).map_err(call("getsockopt(XDP_MMAP_OFFSETS)"))?;
        let rings = options.rings;
        let (number, piece) = (size_of::<u64>(), size_of::<Descriptor>());
        let offset = libc::XDP_UMEM_PGOFF_FILL_RING;
        let mut fill: Producer<u64> = map(fresh, &at.fr, rings.fill, number, offset, Producer::new)?;
        fill.take_back(|_| ());
        for chunk in &options.first_chunks {
            fill.push(*chunk);
        }
        fill.publish();
        if let Err(e) = bind_claimed(umem, &claim, &interface, options) {
            if let XdpError::Busy { .. } = e {
                umem.give_back(claim, rings);
            }
            return Err(e);
        }
        let socket = Arc::new(claim.into_socket());
        let completion = {
            let offset = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
            map(&socket, &at.cr, rings.completion, number, offset, Consumer::new)?
        };
        let receive = match rings.receive {
            0 => None,
            n => Some(map(&socket, &at.rx, n, piece, libc::XDP_PGOFF_RX_RING as u64, Consumer::new)?),
        };
        let transmit = match rings.transmit {
            0 => None,
            n => Some(map(&socket, &at.tx, n, piece, libc::XDP_PGOFF_TX_RING as u64, Producer::new)?),
        };
        let zero_copy = sockopt::xdp_options(&*socket)
            .map_err(call("getsockopt(XDP_OPTIONS)"))?
            .contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        umem.bound(&socket, interface.index(), options.queue);
        raise_budget(&socket, rings.transmit);
        Ok(Self {
            fill,
            completion,
            receive,
            transmit,
            socket,
            umem: umem.clone(),
            interface,
            queue: options.queue,
            zero_copy,
            confined: umem.maker().is_confined(),
        })
    }

    /// Whether the driver really sends from and receives into the memory (`XDP_OPTIONS_ZEROCOPY`).
    #[inline]
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// The memory.
    #[inline]
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Name of the interface, as it was given.
    pub fn interface(&self) -> &str {
        self.interface.name()
    }

    /// The queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// MTU of the interface now, bytes without the Ethernet header.
    ///
    /// # Errors
    /// ENODEV: the interface is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        self.interface.mtu()
    }

    /// Whether the interface is up, and whether frames can leave it (carrier).
    ///
    /// # Errors
    /// ENODEV: the interface is gone.
    pub fn up_and_running(&self) -> io::Result<(bool, bool)> {
        self.interface.up_and_running()
    }

    /// Chunks for frames to receive.
    #[inline]
    pub fn fill(&mut self) -> &mut Producer<u64> {
        &mut self.fill
    }

    /// Pieces that were sent.
    #[inline]
    pub fn completion(&mut self) -> &mut Consumer<u64> {
        &mut self.completion
    }

    /// Received pieces; None without that ring.
    #[inline]
    pub fn receive(&mut self) -> Option<&mut Consumer<Descriptor>> {
        self.receive.as_mut()
    }

    /// Pieces to send; None without that ring.
    ///
    /// A descriptor is invalid if its length is 0 or more than a chunk, or if it leaves the memory.
    /// With aligned chunks, it is also invalid outside one chunk. It drops the whole frame and ends
    /// the call. Linux 6.18 completes the frame, older kernels don't.
    #[inline]
    pub fn transmit(&mut self) -> Option<&mut Producer<Descriptor>> {
        self.transmit.as_mut()
    }

    /// Asks the kernel to send what was published. Needed when [`Producer::needs_wakeup`] says so.
    ///
    /// # Errors
    /// EAGAIN: not all was taken yet, call again. EBUSY: one frame was dropped by the interface,
    /// and is completed; call again for the others. ENOBUFS: no memory, call again later. ENETDOWN:
    /// the interface is down. ENXIO: it is gone.
    #[inline]
    pub fn wake_transmit(&self) -> io::Result<()> {
        let sent = match self.confined {
            true => messages::write_nothing(&*self.socket),
            false => messages::send_nothing(&*self.socket),
        };
        sent.map(drop).map_err(io::Error::from_raw_os_error)
    }

    /// Asks the kernel to look at the fill ring. Needed when [`Producer::needs_wakeup`] of it says
    /// so.
    ///
    /// # Errors
    /// ENETDOWN: the interface is down. ENXIO: it is gone.
    #[inline]
    pub fn wake_receive(&self) -> io::Result<()> {
        let received = match self.confined {
            true => messages::receive_no_list(&*self.socket),
            false => messages::receive_nothing(&*self.socket),
        };
        match received {
            Ok(()) | Err(libc::EAGAIN) => Ok(()),
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// What the kernel counted since the socket was bound.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let s = sockopt::xdp_statistics(&*self.socket)?;
        Ok(Statistics {
            receive_dropped: s.rx_dropped,
            receive_invalid: s.rx_invalid_descs,
            transmit_invalid: s.tx_invalid_descs,
            receive_full: s.rx_ring_full.unwrap_or(0),
            fill_empty: s.rx_fill_ring_empty_descs.unwrap_or(0),
            transmit_empty: s.tx_ring_empty_descs.unwrap_or(0),
        })
    }
}

impl Drop for Socket {
    /// When the descriptor is dropped, that closes it: no other socket's bind holds it.
    fn drop(&mut self) {
        self.umem.closes(&self.socket);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

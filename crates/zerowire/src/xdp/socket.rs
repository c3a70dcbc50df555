//! A socket: one queue of one interface, four rings.
//!
//! The socket owns its rings and holds a handle of the memory. Dropping it unmaps the rings and closes it; the kernel
//! lets go of the queue some milliseconds later (Documentation/networking/af_xdp.rst, net/xdp/xsk.c).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpRingOffset,
};
use rustix::net::{RecvFlags, SendFlags};

use super::error::XdpError;
use super::interface::Interface;
use super::memory::Mapping;
use super::ring::{Consumer, Descriptor, Layout, Producer};
use super::umem::{Claim, Umem};

/// Pieces that a frame can have in copy mode: a head and `MAX_SKB_FRAGS` (17) pages. The kernel drops frames of more, yet
/// completes them.
pub const MAX_PIECES: usize = 18;

/// Pieces that a frame can have whatever the driver is: one that takes no head of its own (virtio-net) has 17.
pub const SAFE_PIECES: usize = 17;

/// `XDP_MAX_TX_SKB_BUDGET` (include/uapi/linux/if_xdp.h, since Linux 6.17): frames that one call sends in copy mode.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// The budget without that option (`TX_BATCH_SIZE`, net/xdp/xsk.c), and the lowest that it takes.
const DEFAULT_TX_BUDGET: u32 = 32;

/// Which mode a queue is bound in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy where the driver can, else copy.
    #[default]
    Auto,
    /// One copy, the kernel's: works on any interface.
    Copy,
    /// None; an error where the driver can't.
    ZeroCopy,
}

/// Entries of the rings: powers of two. Fill and completion rings are always there; receive and transmit rings can be
/// left out with 0, but not both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Chunks waiting for received frames.
    pub fill: u32,
    /// Pieces that were sent.
    pub completion: u32,
    /// Pieces that were received.
    pub receive: u32,
    /// Pieces to send.
    pub transmit: u32,
}

impl Default for RingSizes {
    /// 2048 each.
    fn default() -> Self {
        Self { fill: 2048, completion: 2048, receive: 2048, transmit: 2048 }
    }
}

/// More entries than this take more memory than the kernel gives in one piece for descriptors of 16 bytes.
const MAX_ENTRIES: u32 = 1 << 20;

impl RingSizes {
    fn check(&self) -> Result<(), XdpError> {
        let rings = [
            ("the fill ring", self.fill, false),
            ("the completion ring", self.completion, false),
            ("the receive ring", self.receive, true),
            ("the transmit ring", self.transmit, true),
        ];
        for (name, size, optional) in rings {
            let fine = (size.is_power_of_two() && size <= MAX_ENTRIES) || (optional && size == 0);
            if !fine {
                let rule = format!("take a power of two up to {MAX_ENTRIES} entries");
                return Err(XdpError::Value { name, value: size.into(), rule });
            }
        }
        if self.receive == 0 && self.transmit == 0 {
            let rule = "take a receive or a transmit ring, or both".into();
            return Err(XdpError::Value { name: "the receive ring", value: 0, rule });
        }
        Ok(())
    }
}

/// How a socket is bound.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: String,
    /// Number of its queue, from 0.
    pub queue: u32,
    /// Copy or not. Further sockets on one UMEM have the mode of the first.
    pub mode: Mode,
    /// The kernel says when it needs a system call (`XDP_USE_NEED_WAKEUP`). In copy mode sending always needs one.
    pub need_wakeup: bool,
    /// Frames can have several pieces (`XDP_USE_SG`, since Linux 6.6).
    pub multi_buffer: bool,
    /// Entries of the rings.
    pub rings: RingSizes,
    /// Chunks that are in the fill ring before the queue is bound, at most as many as it has entries; their addresses are the
    /// caller's to answer for. In zero-copy mode a driver may take chunks when it is bound and then only when frames come,
    /// so that a queue that is bound without any receives none.
    pub first_chunks: Vec<u64>,
    /// How long to wait for the kernel to let go of a queue whose socket was closed (EBUSY). Measured: 2 to 15 ms.
    pub busy_timeout: Duration,
}

impl SocketOptions {
    /// Queue 0, mode auto, wake-ups on demand, frames of one piece, 2048 entries a ring, 500 ms for a busy queue.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: 0,
            mode: Mode::Auto,
            need_wakeup: true,
            multi_buffer: false,
            rings: RingSizes::default(),
            first_chunks: Vec::new(),
            busy_timeout: Duration::from_millis(500),
        }
    }
}

/// Frames that the kernel threw away, and rings that ran empty (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received frames dropped: no chunk in the fill ring, or longer than a chunk.
    pub receive_dropped: u64,
    /// Received frames dropped since the chunk was invalid.
    pub receive_invalid: u64,
    /// Descriptors of the transmit ring that were invalid ([`Socket::check_piece`]).
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
}

impl Socket {
    /// Binds a queue. The first socket on a UMEM has its own registration; further ones, on other queues or interfaces,
    /// share it (`XDP_SHARED_UMEM`) and have its mode.
    ///
    /// # Errors
    /// Per cause: [`XdpError::NoInterface`], [`XdpError::Down`], [`XdpError::NoQueue`], [`XdpError::Busy`],
    /// [`XdpError::NoZeroCopy`], [`XdpError::Value`], [`XdpError::Memlock`].
    pub fn bind(umem: &Umem, options: &SocketOptions) -> Result<Self, XdpError> {
        options.rings.check()?;
        let interface = Interface::open(&options.interface)?;
        // A socket that can't be bound is closed: the kernel wouldn't take lengths of rings for it a second time.
        let claim = umem.claim(&interface, options)?;
        let fresh = match &claim {
            Claim::Registered(socket) | Claim::Shares(socket, _) => socket,
        };
        set_sizes(fresh, options)?;
        let call =
            |call| move |e: Errno| XdpError::system(format!("interface {}", options.interface), call, e);
        let at = sockopt::xdp_mmap_offsets(fresh).map_err(call("getsockopt(XDP_MMAP_OFFSETS)"))?;
        let rings = options.rings;
        let (number, piece) = (size_of::<u64>(), size_of::<Descriptor>());
        let offset = libc::XDP_UMEM_PGOFF_FILL_RING;
        let mut fill: Producer<u64> = map(fresh, &at.fr, rings.fill, number, offset, Producer::new)?;
        for chunk in &options.first_chunks {
            fill.push(*chunk);
        }
        fill.publish();
        bind_claimed(&claim, &interface, options)?;
        let socket = match claim {
            Claim::Registered(socket) | Claim::Shares(socket, _) => Arc::new(socket),
        };
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
        })
    }

    /// Whether the driver really sends from and receives into the memory (`XDP_OPTIONS_ZEROCOPY`).
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// The memory.
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
    /// An invalid descriptor (length 0 or more than a chunk, not within the memory or, with aligned chunks, not within one
    /// chunk) drops the whole frame and ends the call; Linux 6.18 completes it, older kernels don't. So check first:
    /// [`check_piece`](Self::check_piece).
    #[inline]
    pub fn transmit(&mut self) -> Option<&mut Producer<Descriptor>> {
        self.transmit.as_mut()
    }

    /// Checks a piece as the kernel does (`xskq_cons_is_valid_desc`, net/xdp/xsk_queue.h).
    ///
    /// # Errors
    /// [`XdpError::Value`] with what is wrong.
    pub fn check_piece(&self, piece: &Descriptor) -> Result<(), XdpError> {
        let options = self.umem.options();
        let chunk = u64::from(options.chunk_bytes);
        let len = u64::from(piece.len);
        if len == 0 || len > chunk {
            let rule = format!("take 1 to {chunk} bytes (a chunk)");
            return Err(XdpError::Value { name: "the length of a piece", value: len, rule });
        }
        let start = if options.unaligned { super::address::plain(piece.address) } else { piece.address };
        self.umem.range(start, piece.len as usize)?;
        if !options.unaligned && start % chunk + len > chunk {
            let rule = format!("{len} bytes from there on cross the end of a chunk ({chunk} bytes)");
            return Err(XdpError::Value { name: "an address", value: start, rule });
        }
        Ok(())
    }

    /// Asks the kernel to send what was published. Needed when [`Producer::needs_wakeup`] says so.
    ///
    /// # Errors
    /// EAGAIN: not all was taken yet, call again. EBUSY: one frame was dropped by the interface, and is completed; call
    /// again for the others. ENOBUFS: no memory, call again later. ENETDOWN: the interface is down. ENXIO: it is gone.
    #[inline]
    pub fn wake_transmit(&self) -> io::Result<()> {
        rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT).map(drop).map_err(io::Error::from)
    }

    /// Asks the kernel to look at the fill ring. Needed when [`Producer::needs_wakeup`] of it says so.
    ///
    /// # Errors
    /// ENETDOWN: the interface is down. ENXIO: it is gone.
    #[inline]
    pub fn wake_receive(&self) -> io::Result<()> {
        match rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// What the kernel counted since the socket was bound.
    ///
    /// # Errors
    /// Those of getsockopt.
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

    /// Bytes that frames may take in the kernel while they are on their way (`SO_SNDBUF`): best effort.
    pub(super) fn ask_send_buffer(&self, bytes: usize) {
        if sockopt::set_socket_send_buffer_size_force(&*self.socket, bytes).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&*self.socket, bytes);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn map<R>(
    socket: &OwnedFd,
    at: &XdpRingOffset,
    size: u32,
    entry_bytes: usize,
    offset: u64,
    make: impl FnOnce(Mapping, Layout, u32) -> Option<R>,
) -> Result<R, XdpError> {
    // Before Linux 5.4 there were no flags, which the rules of wake-ups stand on.
    let old = || XdpError::system("rings", "getsockopt(XDP_MMAP_OFFSETS)", Errno::OPNOTSUPP);
    let flags = at.flags.ok_or_else(old)? as usize;
    let layout = Layout {
        producer: at.producer as usize,
        consumer: at.consumer as usize,
        flags,
        entries: at.desc as usize,
    };
    let len = layout.entries.saturating_add(size as usize * entry_bytes);
    let mapping = Mapping::of_socket(socket.as_fd(), len, offset)
        .map_err(|e| XdpError::system(format!("a ring of {size} entries"), "mmap", e))?;
    make(mapping, layout, size).ok_or_else(old)
}

fn set_sizes(socket: &OwnedFd, options: &SocketOptions) -> Result<(), XdpError> {
    let rings = options.rings;
    let sized = || -> Result<(), Errno> {
        sockopt::set_xdp_umem_fill_ring_size(socket, rings.fill)?;
        sockopt::set_xdp_umem_completion_ring_size(socket, rings.completion)?;
        if rings.receive > 0 {
            sockopt::set_xdp_rx_ring_size(socket, rings.receive)?;
        }
        if rings.transmit > 0 {
            sockopt::set_xdp_tx_ring_size(socket, rings.transmit)?;
        }
        Ok(())
    };
    sized().map_err(|e| XdpError::system(format!("rings of {rings:?}"), "setsockopt", e))
}

fn bind_claimed(claim: &Claim, interface: &Interface, options: &SocketOptions) -> Result<(), XdpError> {
    let socket = match claim {
        Claim::Registered(socket) | Claim::Shares(socket, _) => socket,
    };
    let start = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        let error = match try_bind(claim, socket, interface, options) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        let waited = start.elapsed();
        if error != Errno::BUSY || waited >= options.busy_timeout {
            return Err(translate(error, interface, options, waited));
        }
        std::thread::sleep(pause.min(options.busy_timeout - waited));
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn try_bind(
    claim: &Claim,
    socket: &OwnedFd,
    interface: &Interface,
    options: &SocketOptions,
) -> Result<(), Errno> {
    let mut flags = SocketAddrXdpFlags::empty();
    if let Claim::Shares(_, other) = claim {
        // The kernel refuses any other flag here: mode and wake-ups are those of the other socket.
        let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface.index(), options.queue);
        return rustix::net::bind(
            socket,
            &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: other.as_fd() },
        );
    }
    flags.set(SocketAddrXdpFlags::XDP_COPY, options.mode == Mode::Copy);
    flags.set(SocketAddrXdpFlags::XDP_ZEROCOPY, options.mode == Mode::ZeroCopy);
    flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, options.need_wakeup);
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, options.multi_buffer);
    rustix::net::bind(socket, &SocketAddrXdp::new(flags, interface.index(), options.queue))
}

fn translate(error: Errno, interface: &Interface, options: &SocketOptions, waited: Duration) -> XdpError {
    let name = interface.name().to_owned();
    let queue = options.queue;
    let queues = interface.queues();
    match error {
        Errno::NODEV => XdpError::NoInterface { interface: name },
        Errno::NETDOWN => XdpError::Down { interface: name },
        Errno::BUSY => XdpError::Busy { interface: name, queue, waited },
        Errno::OPNOTSUPP if options.mode == Mode::ZeroCopy => {
            XdpError::NoZeroCopy { interface: name, queue, multi_buffer: options.multi_buffer }
        }
        Errno::INVAL if queues.is_none_or(|n| queue >= n) && queue > 0 => {
            XdpError::NoQueue { interface: name, queue, queues }
        }
        e => XdpError::system(format!("interface {name}, queue {queue}, mode {:?}", options.mode), "bind", e),
    }
}

/// Lets one call send as many frames as the transmit ring holds. Kernels before 6.17 don't know the option, and take as
/// many calls as they need.
fn raise_budget(socket: &OwnedFd, budget: u32) {
    if budget <= DEFAULT_TX_BUDGET {
        return;
    }
    // SAFETY: the kernel reads a number of four bytes.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            MAX_TX_SKB_BUDGET,
            (&raw const budget).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
}

//! The steps of binding a socket: rings, the bind itself, what went wrong with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpRingOffset};

use crate::map::Mapping;
use crate::socket::set_int;

use super::super::ring::Layout;
use super::super::umem::{Claim, Umem};
use super::{Interface, Mode, SocketOptions, XdpError};

/// `XDP_MAX_TX_SKB_BUDGET` (include/uapi/linux/if_xdp.h, since Linux 6.17): frames that one call
/// sends in copy mode.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// The budget without that option (`TX_BATCH_SIZE`, net/xdp/xsk.c), and the lowest that it takes.
const DEFAULT_TX_BUDGET: u32 = 32;

pub(super) fn map<R>(
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
    let mapping = Mapping::ring(socket, offset, len)
        .map_err(|e| XdpError::system(format!("a ring of {size} entries"), "mmap", e))?;
    make(mapping, layout, size).ok_or_else(old)
}

pub(super) fn set_sizes(socket: &OwnedFd, options: &SocketOptions) -> Result<(), XdpError> {
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

pub(super) fn bind_claimed(
    umem: &Umem,
    claim: &Claim,
    interface: &Interface,
    options: &SocketOptions,
) -> Result<(), XdpError> {
    let socket = claim.socket();
    let start = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        let done = try_bind(umem, claim, socket, interface, options);
        let Err(XdpError::Busy { .. }) = done else { return done };
        let waited = start.elapsed();
        if waited >= options.busy_timeout {
            return Err(translate(Errno::BUSY, interface, options, waited));
        }
        std::thread::park_timeout(pause.min(options.busy_timeout - waited));
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn try_bind(
    umem: &Umem,
    claim: &Claim,
    socket: &OwnedFd,
    interface: &Interface,
    options: &SocketOptions,
) -> Result<(), XdpError> {
    let bind = |other: Option<BorrowedFd<'_>>| umem.maker().bind(socket.as_fd(), other, interface, options);
    let Claim::Shares(_, other) = claim else { return bind(None) };
    let shared = umem.with_other(other, |other| bind(Some(other.as_fd())));
    // With the other one went the registration: as busy, until the memory is claimed again.
    shared.unwrap_or_else(|| Err(translate(Errno::BUSY, interface, options, Duration::ZERO)))
}

/// Binds a socket; with `other` it shares the registration of that one.
pub(crate) fn bind_to(
    socket: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
    interface: &Interface,
    options: &SocketOptions,
) -> Result<(), XdpError> {
    let at = |flags| SocketAddrXdp::new(flags, interface.index(), options.queue);
    let bound = if let Some(shared_umem_fd) = other {
        // The kernel refuses any other flag here: mode and wake-ups are those of the other socket.
        let addr = at(SocketAddrXdpFlags::XDP_SHARED_UMEM);
        rustix::net::bind(socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
    } else {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_COPY, options.mode == Mode::Copy);
        flags.set(SocketAddrXdpFlags::XDP_ZEROCOPY, options.mode == Mode::ZeroCopy);
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, options.multi_buffer);
        rustix::net::bind(socket, &at(flags))
    };
    bound.map_err(|e| translate(e, interface, options, Duration::ZERO))
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

/// Lets one call send as many frames as the transmit ring holds. Kernels before 6.17 don't know the
/// option, and take as many calls as they need.
pub(super) fn raise_budget(socket: &OwnedFd, budget: u32) {
    if budget <= DEFAULT_TX_BUDGET {
        return;
    }
    let _ = set_int(socket, libc::SOL_XDP, MAX_TX_SKB_BUDGET, budget as i32);
}

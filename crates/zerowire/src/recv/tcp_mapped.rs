//! `TCP_ZEROCOPY_RECEIVE` (include/uapi/linux/tcp.h, Linux 4.18): the kernel maps pages of received segments into the
//! program, where they are whole and alone in their page; the rest is copied as in [`Plain`](super::plain::Plain).
//!
//! Memory: the pool has a second area of the same length for *windows*. A window belongs to a slot. Before a slot is used a
//! mapping of the connection's socket is put in place of its window (`mmap` of a TCP socket, read-only), and a call then
//! puts pages in. They stay as they are until the next call for the same window, which is after the slot has come back.
//! The pages are the kernel's: it never maps those of files (net/ipv4/tcp.c, `can_map_frag`).
//!
//! A mapping keeps its socket open, even when all descriptors are closed. So windows of connections that go are taken off,
//! at once or when their leases come back.

use super::ConnectionId;
use super::core::{Core, Placed};
use super::{Arrival, RecvError};
use crate::area::Area;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The pool's area of windows.
pub(super) const WINDOWS: usize = 1;
/// `TCP_ZEROCOPY_RECEIVE`.
const TCP_ZEROCOPY_RECEIVE: i32 = 35;

/// The first fields of `struct tcp_zerocopy_receive`. With no more than these the kernel leaves a socket's pending error
/// to the next `recvmsg`.
#[repr(C)]
#[derive(Debug, Default)]
struct Request {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
}

/// What a call gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Bytes that were lent.
    pub(super) bytes: usize,
    /// Bytes behind them that have to be copied; 0: none, or nobody knows.
    pub(super) to_copy: usize,
}

/// What lies in a slot's window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The connection whose socket is mapped there.
    of: Option<ConnectionId>,
    /// A lease has its pages. A slot whose lease has bytes that were copied leaves its window unused.
    lent: bool,
    /// The connection is gone; the lease of its pages is not back.
    orphan: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Windows {
    windows: Box<[Window]>,
    /// By place: connections whose socket can't be mapped (not TCP).
    unmappable: Vec<bool>,
    /// Windows of connections that are gone, whose leases are not back.
    orphans: usize,
    bytes: usize,
    area: Area,
}

impl Windows {
    /// For the pool of this core. An error when the system can't map a TCP socket.
    pub(super) fn new(core: &Core) -> Result<Self, RecvError> {
        let area = core.pool.area(WINDOWS).ok_or(RecvError::NotAvailable("tcp-mapped"))?.clone();
        let windows = vec![Window::default(); core.holdings.slots()].into();
        let this = Self { windows, unmappable: Vec::new(), orphans: 0, bytes: core.buffer_bytes, area };
        let call = RecvError::system("mapping a TCP socket (TCP_ZEROCOPY_RECEIVE, Linux 4.18)");
        this.try_one().map_err(call)?;
        Ok(this)
    }

    /// Whether a lease that comes back lets go of a socket.
    pub(super) fn has_orphans(&self) -> bool {
        self.orphans > 0
    }

    fn try_one(&self) -> io::Result<()> {
        use rustix::net::{AddressFamily, SocketType, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)
            .or_else(|_| socket(AddressFamily::INET6, SocketType::STREAM, None))?;
        self.put(0, Some(socket.as_raw_fd()))?;
        self.put(0, None)
    }

    /// Maps `socket`, or memory that can't be read, in place of a window.
    fn put(&self, slot: u32, socket: Option<RawFd>) -> io::Result<()> {
        let at = self.area.base().wrapping_add(slot as usize * self.bytes);
        let (protection, flags) = match socket {
            Some(_) => (libc::PROT_READ, libc::MAP_SHARED),
            None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE),
        };
        // SAFETY: slots are below the number of the area's buffers, so that the range lies in the area of windows, which is
        // used for nothing else; the callers see to it that no lease has the slot.
        let result = unsafe {
            libc::mmap(at.cast(), self.bytes, protection, flags | libc::MAP_FIXED, socket.unwrap_or(-1), 0)
        };
        if result == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if socket.is_some() {
            // A child process would keep the socket open. Failing leaves it so.
            // SAFETY: the range was just mapped, and the advice changes nothing in this process.
            let _ = unsafe { libc::madvise(at.cast(), self.bytes, libc::MADV_DONTFORK) };
        }
        Ok(())
    }

    /// A connection was put at `place`.
    pub(super) fn add(&mut self, place: u32) {
        if self.unmappable.len() <= place as usize {
            self.unmappable.resize(place as usize + 1, false);
        }
        self.unmappable[place as usize] = false;
    }

    /// The connection goes: its socket is let go of where nothing is lent.
    pub(super) fn remove(&mut self, id: ConnectionId) {
        for slot in 0..self.windows.len() as u32 {
            if self.windows[slot as usize].of == Some(id) {
                self.let_go(slot);
            }
        }
    }

    /// The connection of this window goes. False: the lease that has it keeps the socket open.
    fn let_go(&mut self, slot: u32) -> bool {
        let window = &mut self.windows[slot as usize];
        if !window.lent {
            self.detach(slot);
            return true;
        }
        self.orphans += usize::from(!std::mem::replace(&mut window.orphan, true));
        false
    }

    /// A lease has come back.
    pub(super) fn returned(&mut self, slot: u32) {
        let Some(window) = self.windows.get_mut(slot as usize) else { return };
        window.lent = false;
        if window.orphan {
            self.detach(slot);
        }
    }

    /// The receiver goes. Where leases keep a socket open, closing it would tell the peer nothing, which then might write and
    /// wait for ever: the connection is reset.
    pub(super) fn close(&mut self, core: &Core) {
        for slot in 0..self.windows.len() as u32 {
            let Some(id) = self.windows[slot as usize].of else { continue };
            if !self.let_go(slot)
                && let Some(connection) = core.connections.get(id.place as usize).filter(|c| c.id == id)
                && let Some(socket) = &connection.socket
            {
                let _ = rustix::net::connect_unspec(socket);
            }
        }
    }

    /// No lease has the window.
    fn detach(&mut self, slot: u32) {
        self.orphans -= usize::from(std::mem::take(&mut self.windows[slot as usize]).orphan);
        // Failing, by want of memory, means that the socket stays open until the area goes.
        let _ = self.put(slot, None);
    }

    /// Maps what can be mapped of the connection at `place`, `limit` bytes at most, and lends it.
    pub(super) fn receive(
        &mut self,
        core: &mut Core,
        out: &mut Vec<Arrival>,
        place: u32,
        limit: usize,
    ) -> Mapped {
        let nothing = Mapped::default();
        let Some(fd) = core.fd(place) else { return nothing };
        let length = self.bytes.min(limit);
        if self.unmappable.get(place as usize).is_none_or(|u| *u) || length < rustix::param::page_size() {
            return nothing;
        }
        let Some(slot) = core.holdings.take() else { return nothing };
        if !self.attach(core, slot, place, fd) {
            core.holdings.untake(slot);
            return nothing;
        }
        let offset = slot as usize * self.bytes;
        let address = self.area.base().wrapping_add(offset) as u64;
        let mut request = Request { address, length: length as u32, recv_skip_hint: 0 };
        let mut len = size_of::<Request>() as libc::socklen_t;
        core.called();
        // SAFETY: the request lives across the call, and its length is given. The window is a mapping of this socket, the
        // slot was just taken, so that nobody reads the pages that are replaced.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::IPPROTO_TCP,
                TCP_ZEROCOPY_RECEIVE,
                (&raw mut request).cast(),
                &raw mut len,
            )
        };
        let bytes = (request.length as usize).min(self.bytes);
        if result != 0 || bytes == 0 {
            core.holdings.untake(slot);
            // EIO: the end, which recvmsg tells as well. Other errors are told by it, too.
            let to_copy = if result == 0 { request.recv_skip_hint as usize } else { 0 };
            return Mapped { bytes: 0, to_copy };
        }
        // SAFETY: the kernel has mapped so many bytes in the slot's window, and changes nothing there before the next call
        // for it, which needs the slot.
        unsafe { core.deliver(out, place, slot, (WINDOWS, offset, bytes), Placed::Mapped) };
        self.windows[slot as usize].lent = core.holdings.is_lent(slot);
        Mapped { bytes, to_copy: request.recv_skip_hint as usize }
    }

    /// Puts the socket's mapping into the window of a slot that was just taken.
    fn attach(&mut self, core: &mut Core, slot: u32, place: u32, fd: RawFd) -> bool {
        let Some(id) = core.connections.get(place as usize).map(|c| c.id) else { return false };
        if self.windows[slot as usize].of == Some(id) {
            return true;
        }
        core.called();
        if self.put(slot, Some(fd)).is_ok() {
            self.windows[slot as usize] = Window { of: Some(id), ..Window::default() };
            return true;
        }
        // What was mapped there may be gone.
        self.detach(slot);
        self.unmappable[place as usize] = true;
        false
    }
}

/// The areas: buffers for what is copied, and windows.
pub(super) fn areas(options: &super::Options) -> Result<Box<[Area]>, RecvError> {
    let page = rustix::param::page_size();
    let super::Options { buffer_bytes, buffers, pages, .. } = *options;
    if !buffer_bytes.is_multiple_of(page) {
        return Err(RecvError::NotPages { bytes: buffer_bytes, page });
    }
    let area = |pages| Area::new(crate::area::AreaOptions { buffer_bytes, buffers, pages });
    Ok([area(pages)?, area(crate::area::Pages::Normal)?].into())
}

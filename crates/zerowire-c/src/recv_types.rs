//! The types of the receivers' interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use zerowire::area::Pages;
use zerowire::recv::{Arrival, Flush, RecvBackend, RecvOptions, What, ZeroCopied};

use crate::area::ZW_HUGE_PAGES;
use crate::arguments::null;
use crate::failure::{Failure, wrong};
use crate::recv_shared::RecvDmabuf;

/// A way to receive: ZW_RECV_MULTISHOT where io_uring is allowed, else ZW_RECV_PLAIN.
/// zw_receiver_path says which and why.
pub const ZW_RECV_AUTO: u32 = 0u32;
/// A way to receive: io_uring's multishot receive into buffers of the receiver (Linux 6.1).
pub const ZW_RECV_MULTISHOT: u32 = 1u32;
/// A way to receive: epoll_wait and recvmsg.
pub const ZW_RECV_PLAIN: u32 = 2u32;
/// A way to receive: io_uring's zero-copy receive on a queue of an interface (Linux 6.15).
pub const ZW_RECV_QUEUE: u32 = 3u32;
/// A way to receive: the same without a device; the kernel copies (Linux 7.1).
pub const ZW_RECV_NO_DEVICE: u32 = 4u32;

/// Flag of a receiver: without a device the refill ring is handed over only when a receive found no
/// buffer, and not when half of the buffers wait there.
pub const ZW_RECV_LAZY_FLUSH: u32 = 2u32;
/// Flag of a receiver: zero-copy receive with completions of 16 bytes where that is enough (Linux
/// 6.18).
pub const ZW_RECV_MIXED: u32 = 4u32;
/// Flag of a receiver: zero-copy receive with the refill ring in memory of the kernel, and not of
/// this process.
pub const ZW_RECV_KERNEL_RING: u32 = 8u32;
/// A gather_us: nothing is gathered, for programs that wait for each answer.
pub const ZW_RECV_GATHER_NOTHING: u32 = 0xffff_ffffu32;

/// A kind of arrival: bytes.
pub const ZW_ARRIVAL_DATA: u32 = 1u32;
/// A kind of arrival: the peer sends no more.
pub const ZW_ARRIVAL_END: u32 = 2u32;
/// A kind of arrival: receiving on this connection failed, see error. Nothing more comes of it. A
/// datagram socket goes on after an ICMP answer to a datagram that was sent earlier: ECONNREFUSED,
/// EMSGSIZE (path MTU discovery), EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENONET, ENOPROTOOPT,
/// EPROTO, EACCES.
pub const ZW_ARRIVAL_FAILED: u32 = 3u32;
/// A kind of arrival: the connection is new, it was accepted from listener. Comes before all else
/// of it.
pub const ZW_ARRIVAL_ACCEPTED: u32 = 4u32;

/// What zw_receiver_zero_copied says: zero_copied_bytes of the ledger is the exact number.
pub const ZW_ZERO_COPIED_EXACT: c_int = 0i32;
/// The same: zero_copied_bytes is the most that it can be. The kernel counts what it copies of a
/// frame's fragments, but not what it copies from beside the headers (headers too long, no header
/// split).
pub const ZW_ZERO_COPIED_AT_MOST: c_int = 1i32;
/// The same: nobody knows, they are all bytes. The kernel counts no copies (before Linux 7.2).
pub const ZW_ZERO_COPIED_UNKNOWN: c_int = 2i32;

/// How a receiver works. Set size, and leave at 0 what you don't want to choose: 0 is the default
/// of each field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceiverOptions {
    /// sizeof(struct zw_receiver_options). Later versions append fields.
    pub size: libc::size_t,
    /// ZW_RECV_...
    pub backend: u32,
    /// ZW_HUGE_PAGES: the memory is of huge pages. ZW_RECV_LAZY_FLUSH, ZW_RECV_MIXED,
    /// ZW_RECV_KERNEL_RING: for ZW_RECV_QUEUE and ZW_RECV_NO_DEVICE, the others have no use for
    /// them. Several are combined by |.
    pub flags: u32,
    /// Bytes of a buffer, a multiple of 64 from 64 to 2^30; longer datagrams are cut to it. 0:
    /// 65536.
    pub buffer_bytes: libc::size_t,
    /// Buffers, 2 to 32768: all that can be held and filled at a time. 0: 256.
    pub buffers: libc::size_t,
    /// Buffers that one connection's leases may hold before it has to wait. 0: a quarter of them.
    pub share: libc::size_t,
    /// Buffers that wait to be filled, at most. 0: a quarter of them.
    pub depth: libc::size_t,
    /// Connections at a time. 0: 65536.
    pub max_connections: libc::size_t,
    /// Entries of io_uring's completion queue. 0: 2048.
    pub completions: u32,
    /// ZW_RECV_QUEUE: the number of the queue.
    pub queue: u32,
    /// ZW_RECV_QUEUE: the name of the interface. NULL otherwise.
    pub interface: *const c_char,
    /// Microseconds that a wait may last beyond the first arrival to gather more, while all
    /// connections send in bulk: fewer wake-ups for the same bytes. 0: 160. ZW_RECV_GATHER_NOTHING:
    /// not at all.
    pub gather_us: u32,
    /// ZW_RECV_QUEUE: bytes of a buffer to ask the driver for, a power of two, a page or
    /// more (Linux 7.0, some drivers; above a page with ZW_HUGE_PAGES). 0: a page.
    pub rx_buf_len: u32,
    /// ZW_RECV_QUEUE: the area is this DMA buffer as a whole (zw_dmabuf_new, Linux 6.16);
    /// buffer_bytes is of no meaning then, and buffers only for share and depth. It stays yours.
    /// NULL: memory of this process. With other ways: -EINVAL.
    pub dmabuf: *const RecvDmabuf,
}

/// What came of a connection. With ZW_ARRIVAL_DATA it holds a buffer of the receiver: give it back
/// with zw_arrival_release, once, in any order, by any thread, also after the receiver was closed.
/// The struct may be moved and copied; its copies stand for one buffer, and releasing a second one
/// is -ESTALE.
///
/// It has no size of its own, since it stands in arrays: calls take that of an element. Later
/// versions append fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvArrival {
    /// The connection, as zw_receiver_add gave it.
    pub connection: u64,
    /// ZW_ARRIVAL_ACCEPTED: the listener, as zw_receiver_listen gave it; 0 otherwise.
    pub listener: u64,
    /// ZW_ARRIVAL_...
    pub kind: u32,
    /// ZW_ARRIVAL_FAILED: an errno; 0 otherwise.
    pub error: i32,
    /// The bytes, which stay as they are until the buffer is given back. Don't write there.
    pub data: *const c_void,
    /// Their number; 0 for an empty datagram.
    pub length: libc::size_t,
    /// The library's: which buffer it is, and which use of it; 0: none is held. A copy of the
    /// struct has the same.
    pub token: u64,
}

/// Bytes of the first version of `struct zw_arrival`: elements of an array are never shorter.
pub(crate) const ARRIVAL_LEAST: usize = 48;

/// What happened besides bytes, since the receiver was made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvEvents {
    /// sizeof(struct zw_recv_events), set by you: no more is written. Later versions append fields.
    pub size: libc::size_t,
    /// Receives that found no buffer. Nothing is lost; the connections wait.
    pub out_of_buffers: u64,
    /// Times a connection waited since its leases held its share.
    pub paused: u64,
    /// ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE: arrivals that the kernel copied.
    pub copied: u64,
    /// Times that io_uring's completion queue was full.
    pub overflows: u64,
    /// Buffers that came back.
    pub refills: u64,
    /// Receives that were started (io_uring).
    pub armed: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Times that accepting stopped at max_connections.
    pub accept_pauses: u64,
    /// System calls, all of them.
    pub system_calls: u64,
    /// ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE: times that the kernel told by a completion of its own that
    /// it copied or found no buffer (Linux 7.2).
    pub notices: u64,
}

/// For C.
pub(crate) fn zero_copied(is: ZeroCopied) -> c_int {
    match is {
        ZeroCopied::Exact => ZW_ZERO_COPIED_EXACT,
        ZeroCopied::AtMost => ZW_ZERO_COPIED_AT_MOST,
        ZeroCopied::Unknown => ZW_ZERO_COPIED_UNKNOWN,
    }
}

impl RecvArrival {
    /// An arrival as C sees it. Its bytes, if it has some, are held as `token`.
    pub(crate) fn of(arrival: &Arrival, token: u64) -> Self {
        let mut told = Self {
            connection: arrival.connection.into(),
            listener: 0,
            kind: ZW_ARRIVAL_DATA,
            error: 0,
            data: std::ptr::null(),
            length: 0,
            token,
        };
        match &arrival.what {
            What::Data(lease) if lease.is_empty() => {}
            What::Data(lease) => (told.data, told.length) = (lease.as_ptr().cast(), lease.len()),
            What::End => told.kind = ZW_ARRIVAL_END,
            What::Failed(e) => {
                (told.kind, told.error) = (ZW_ARRIVAL_FAILED, e.raw_os_error().unwrap_or(libc::EIO));
            }
            What::Accepted(listener) => {
                (told.kind, told.listener) = (ZW_ARRIVAL_ACCEPTED, (*listener).into());
            }
        }
        told
    }
}

const _: () = assert!(size_of::<RecvArrival>() == ARRIVAL_LEAST);

/// What the options mean, with what their pointers stand for.
pub(crate) fn options(
    o: &ReceiverOptions,
    interface: Option<&CStr>,
    dmabuf: Option<&RecvDmabuf>,
) -> Result<RecvOptions, Failure> {
    let mut options = RecvOptions::default();
    options.backend = match o.backend {
        ZW_RECV_AUTO => RecvBackend::Auto,
        ZW_RECV_MULTISHOT => RecvBackend::Multishot,
        ZW_RECV_PLAIN => RecvBackend::Plain,
        ZW_RECV_QUEUE => {
            let Some(name) = interface else { return Err(null("interface")) };
            let name = name.to_string_lossy().into_owned();
            RecvBackend::Queue { interface: name, queue: o.queue }
        }
        ZW_RECV_NO_DEVICE => RecvBackend::NoDevice,
        n => return wrong(format!("backend {n}: use ZW_RECV_AUTO (0) to ZW_RECV_NO_DEVICE (4)")),
    };
    let has = |flag: u32| o.flags & flag != 0;
    if has(!(ZW_HUGE_PAGES | ZW_RECV_LAZY_FLUSH | ZW_RECV_MIXED | ZW_RECV_KERNEL_RING)) {
        return wrong(format!(
            "flags {:#x}: there are ZW_HUGE_PAGES (1), ZW_RECV_LAZY_FLUSH (2), ZW_RECV_MIXED (4), ZW_RECV_KERNEL_RING (8)",
            o.flags
        ));
    }
    options.pages = if has(ZW_HUGE_PAGES) { Pages::Huge } else { Pages::Normal };
    options.zcrx.flush = if has(ZW_RECV_LAZY_FLUSH) { Flush::Lazy } else { Flush::Eager };
    options.zcrx.mixed = has(ZW_RECV_MIXED);
    options.zcrx.kernel_ring = has(ZW_RECV_KERNEL_RING);
    options.zcrx.dmabuf = dmabuf.map(|d| d.0.clone());
    options.zcrx.rx_buf_len = (o.rx_buf_len != 0).then_some(o.rx_buf_len);
    options.gather = match o.gather_us {
        0 => options.gather,
        ZW_RECV_GATHER_NOTHING => Duration::ZERO,
        us => Duration::from_micros(us.into()),
    };
    let chosen = |n: usize| (n != 0).then_some(n);
    options.buffer_bytes = chosen(o.buffer_bytes).unwrap_or(options.buffer_bytes);
    options.buffers = chosen(o.buffers).unwrap_or(options.buffers);
    options.share = chosen(o.share);
    options.depth = chosen(o.depth);
    options.max_connections = chosen(o.max_connections).unwrap_or(options.max_connections);
    if o.completions != 0 {
        options.completions = o.completions;
    }
    Ok(options)
}

#[cfg(test)]
mod tests;

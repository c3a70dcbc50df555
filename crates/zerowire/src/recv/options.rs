//! How a receiver works.

#[cfg(feature = "zcrx")]
use super::ZcrxOptions;
use crate::area::Pages;
use std::time::Duration;
use zerowire_wire::setters;

/// Which system calls receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RecvBackend {
    /// The best that this kernel and user allow: [`RecvBackend::Multishot`], else
    /// [`RecvBackend::Plain`]. [`Receiver::path`](super::Receiver::path) says what was chosen and
    /// why.
    #[default]
    Auto,
    /// io_uring zero-copy receive on one queue of a network interface: the NIC places the payload
    /// in the area (Documentation/networking/iou-zcrx.rst).
    Queue {
        /// The interface's name.
        interface: String,
        /// The number of its receive queue.
        queue: u32,
    },
    /// io_uring zero-copy receive without a device (`ZCRX_REG_NODEV`, Linux 7.1): the kernel copies
    /// into the area.
    NoDevice,
    /// io_uring multishot receive into provided buffers, with bundles where the kernel has them
    /// (Linux 6.1; bundles: 6.10).
    Multishot,
    /// `epoll_wait` and `recvmsg`: every kernel and container.
    Plain,
}

/// How a receiver works. `RecvOptions::default()`: the best back end, 256 buffers of 64 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvOptions {
    /// Which system calls receive.
    pub backend: RecvBackend,
    /// Length of a buffer in bytes, 64 to 1 GiB, a multiple of 64. A datagram that is longer is cut
    /// to it. For zero-copy receive only the product with [`RecvOptions::buffers`] counts, see
    /// [`ZcrxOptions`].
    pub buffer_bytes: usize,
    /// Number of buffers, 2 to 32768: all that the program can hold and the kernel can fill at a
    /// time.
    pub buffers: usize,
    /// The pages of the area.
    pub pages: Pages,
    /// Buffers that one connection's leases may hold before the receiver stops receiving on it,
    /// until it holds three quarters of them. `None`: a quarter of the buffers. The kernel may
    /// already have filled up to [`RecvOptions::depth`] more.
    pub share: Option<usize>,
    /// The most buffers that wait to be filled at a time ([`RecvBackend::Multishot`]). The receiver
    /// uses fewer, since those that were given back a moment ago are still in the cache. It uses
    /// 512 KiB of them, and more only while several connections want more. `None`: a quarter of the
    /// buffers.
    pub depth: Option<usize>,
    /// Connections at a time, at most.
    pub max_connections: usize,
    /// Entries of io_uring's completion queue. When it is too short, the kernel keeps completions
    /// on its own list, which costs system calls and loses nothing.
    pub completions: u32,
    /// While bulk data comes: how long a wait may last beyond the first arrival to gather more. The
    /// program then wakes less often for the same bytes. Zero: never.
    ///
    /// A receiver gathers after a call to the kernel that brought 64 KiB or more. It does so only
    /// while all connections that have sent something send in bulk. An open connection whose
    /// arrivals are shorter than 4 KiB on average stops it, however seldom it sends.
    /// [`RecvBackend::Multishot`] gathers from Linux 6.12 on, [`RecvBackend::Plain`] always. Data
    /// behind such a call can be late by this time and the thread's timer slack (usually 50 µs,
    /// prctl(2) PR_SET_TIMERSLACK). Programs that exchange long messages in turns and wait for each
    /// set it to zero. `Events::gathered` counts the waits.
    pub gather: Duration,
    /// What only zero-copy receive has.
    #[cfg(feature = "zcrx")]
    pub zcrx: ZcrxOptions,
}

impl Default for RecvOptions {
    fn default() -> Self {
        Self {
            backend: RecvBackend::Auto,
            buffer_bytes: 64 << 10,
            buffers: 256,
            pages: Pages::Normal,
            share: None,
            depth: None,
            max_connections: 65536,
            completions: 2048,
            gather: Duration::from_micros(160),
            #[cfg(feature = "zcrx")]
            zcrx: ZcrxOptions::default(),
        }
    }
}

impl RecvOptions {
    setters! {
        backend: RecvBackend,
        buffer_bytes: usize,
        buffers: usize,
        pages: Pages,
        share: Option<usize>,
        depth: Option<usize>,
        max_connections: usize,
        completions: u32,
        gather: Duration,
        #[cfg(feature = "zcrx")]
        zcrx: ZcrxOptions,
    }
}

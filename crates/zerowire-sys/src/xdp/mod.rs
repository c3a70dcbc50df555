//! AF_XDP: whole frames between a program's memory and one queue of an interface, without the
//! kernel's network stack (Documentation/networking/af_xdp.rst).
//!
//! * [`Umem`]: memory that is registered with the kernel: the program's own, or the caller's (a
//!   guest's RAM).
//! * [`Socket`]: a bound queue, with its four rings ([`Producer`], [`Consumer`]): fill and receive,
//!   transmit and completion.
//! * [`address`]: addresses of unaligned chunks, and the cookie that comes back with them.
//! * [`program`]: the XDP program that steers received frames to sockets.
//!
//! In copy mode, which every interface has, the kernel copies each frame once; in zero-copy mode
//! the interface reads and writes the memory itself. [`Socket::zero_copy`] says which one runs.

pub mod address;
mod error;
mod interface;
pub mod program;
mod ring;
mod socket;
mod umem;

pub use error::XdpError;
pub use interface::Interface;
pub use ring::{Consumer, Descriptor, Entry, Producer};
pub use socket::{MAX_PIECES, Mode, RingSizes, SAFE_PIECES, Socket, SocketOptions, Statistics};
pub use umem::{
    KERNEL_HEADROOM_BYTES, MIN_CHUNK_BYTES, OwnSockets, SocketMaker, Umem, UmemOptions, locked_memory_limit,
    read_limit_for_good,
};

/// Requests of a process that uses sockets which another one has opened: questions about
/// interfaces, by another socket, and about its own pages. None of them changes anything.
pub const IOCTLS: &[u32] = &[
    libc::FIONBIO as u32,
    libc::SIOCGIFINDEX as u32,
    libc::SIOCGIFNAME as u32,
    libc::SIOCGIFMTU as u32,
    libc::SIOCGIFFLAGS as u32,
    crate::pages::SCAN_REQUEST,
];

/// Whether AF_XDP sockets can be had, by this kernel and this process: one is opened and closed.
///
/// # Errors
/// [`XdpError::NotPermitted`], [`XdpError::Unsupported`], [`XdpError::System`].
pub fn check_available() -> Result<(), XdpError> {
    umem::new_socket().map(drop)
}

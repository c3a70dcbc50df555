//! Sockets: options, what is charged to them, and messages over lists of memory. No call here
//! waits.

pub mod error_queue;
pub(crate) mod messages;
mod peer;
pub(crate) mod values;
pub mod vsock;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt;

use crate::ioctl;

pub use messages::{Message, Messages, Received, peek_message, receive, send, send_parts, send_range};
pub use peer::{peer_groups, peer_owner};
pub use values::{attach_filter, get_int, peer_process, set_int};

/// Entries of a list at most: what a system call takes (`UIO_MAXIOV`, include/uapi/linux/uio.h).
pub const MAX_IOV: usize = 1024;

/// Indices of `SO_MEMINFO` (include/uapi/linux/sock_diag.h).
const SK_MEMINFO_WMEM_ALLOC: usize = 2;
const SK_MEMINFO_SNDBUF: usize = 3;
const SK_MEMINFO_WMEM_QUEUED: usize = 5;
const SK_MEMINFO_OPTMEM: usize = 6;

/// Lets `bytes` be on their way out of a socket (SO_SNDBUF). Without CAP_NET_ADMIN
/// net.core.wmem_max bounds it.
pub fn ask_send_buffer(socket: impl AsFd, bytes: usize) {
    if sockopt::set_socket_send_buffer_size_force(&socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(&socket, bytes);
    }
}

/// Binds a socket to the interface of this number, for good where CAP_NET_RAW is missing.
///
/// # Errors
/// ENODEV: the interface does not exist.
pub fn bind_to_interface(socket: impl AsFd, index: u32) -> io::Result<()> {
    let index = i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// The number that tells the socket's network namespace from all others.
pub fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    values::NETNS_COOKIE.get(socket)
}

/// The option by which a unix socket takes descriptors or not (Linux 6.16,
/// include/uapi/asm-generic/socket.h).
pub const SO_PASSRIGHTS: i32 = 83;

/// Has the kernel refuse descriptors that a peer sends to this unix socket: the peer gets EPERM.
/// The sockets that it accepts inherit that. A kernel before 6.16 sends them all the same.
///
/// # Errors
/// Those of setsockopt(2), as for other kinds of sockets.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    match set_int(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

/// Whether a message of no bytes is none: nothing that has bytes waits, and the sender has ended.
/// Empty messages right before the end look the same.
pub fn has_ended(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let waits = rustix::io::ioctl_fionread(&socket).unwrap_or(0);
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A call that fails says of no end: the next look finds it.
    waits == 0 && poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// The file that a unix socket is bound to, wherever it is by now, as a descriptor of O_PATH
/// (SIOCUNIXFILE, linux/un.h). Needs CAP_NET_ADMIN.
///
/// # Errors
/// Those of ioctl(2).
pub fn bound_file(socket: impl AsFd) -> io::Result<OwnedFd> {
    ioctl::SIOCUNIXFILE.open(socket, 0)
}

/// What is charged to a socket (SO_MEMINFO), bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charges([u32; 9]);

impl Charges {
    /// Asks the socket.
    #[inline]
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        values::MEMINFO.get(socket).map(Self)
    }

    /// Memory of what is on its way out.
    #[inline]
    pub fn sending(&self) -> u32 {
        self.0[SK_MEMINFO_WMEM_ALLOC]
    }

    /// The send buffer: what [`Charges::sending`] may be.
    #[inline]
    pub fn send_buffer(&self) -> u32 {
        self.0[SK_MEMINFO_SNDBUF]
    }

    /// Memory of what a stream has queued.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.0[SK_MEMINFO_WMEM_QUEUED]
    }

    /// Memory of options, filters, and notifications that nobody has read.
    #[inline]
    pub fn options(&self) -> u32 {
        self.0[SK_MEMINFO_OPTMEM]
    }
}

/// Connects to AF_UNSPEC, which resets a TCP connection and empties its queue (tcp_disconnect,
/// net/ipv4/tcp.c). The socket stays open.
pub fn disconnect(socket: impl AsFd) -> io::Result<()> {
    let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    values::connect(socket, &unspecified)
}

/// Bytes that were sent and not taken yet (SIOCOUTQ). For a stream, these are the bytes that the
/// peer has not acknowledged or read; else the memory that messages use.
///
/// # Errors
/// Those of ioctl(2), where the socket does not say.
#[inline]
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    ioctl::TIOCOUTQ.of(socket, 0).map(|n| n.max(0) as usize)
}

//! AF_VSOCK sockets (Linux `include/uapi/linux/vm_sockets.h`), for programs in a guest.

use std::fs::File;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, accept_with, bind, connect, listen, socket_with};

use super::{PATIENCE, VsockKind, limit};

/// Any address of this machine's.
pub const ANY: u32 = libc::VMADDR_CID_ANY;

/// Connection requests that wait to be accepted; beyond, the kernel refuses them.
const BACKLOG: i32 = 2048;

/// `SO_VM_SOCKETS_CONNECT_TIMEOUT_NEW`: a connect gives up after 2 s without it.
const CONNECT_TIMEOUT: libc::c_int = 8;

/// `SO_VM_SOCKETS_BUFFER_SIZE`: what the kernel keeps unread, and what it lets be under way to the
/// peer.
const BUFFER_SIZE: libc::c_int = 0;

/// `IOCTL_VM_SOCKETS_GET_LOCAL_CID`, `_IO(7, 0xb9)`.
const GET_LOCAL_CID: libc::Ioctl = 0x7b9;

/// The address of an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The machine: 2 is the host.
    pub cid: u32,
    /// The port.
    pub port: u32,
}

// SAFETY: `with_sockaddr` passes a whole sockaddr_vm that lives during the call, and
// its size.
unsafe impl SocketAddrArg for Address {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        let address = libc::sockaddr_vm {
            svm_family: libc::AF_VSOCK as libc::sa_family_t,
            svm_reserved1: 0,
            svm_port: self.port,
            svm_cid: self.cid,
            svm_zero: [0; 4],
        };
        f((&raw const address).cast(), size_of::<libc::sockaddr_vm>() as SocketAddrLen)
    }
}

/// Connects.
///
/// # Errors
/// Nobody listens there, or the kernel has no AF_VSOCK.
pub fn connect_to(address: Address, kind: VsockKind) -> Result<OwnedFd> {
    connect_with(address, kind, 0)
}

/// As [`connect_to`], with a buffer of `buffer` bytes; 0 leaves it as it is.
///
/// # Errors
/// As [`connect_to`].
pub fn connect_with(address: Address, kind: VsockKind, buffer: u64) -> Result<OwnedFd> {
    let socket = new_socket(kind)?;
    if buffer > 0 {
        set_option(&socket, libc::AF_VSOCK, BUFFER_SIZE, &buffer).context("set the buffer's size")?;
    }
    set_connect_timeout(&socket, PATIENCE)?;
    connect(&socket, &address)
        .with_context(|| format!("connect to CID {} port {}", address.cid, address.port))?;
    limit(&socket)?;
    Ok(socket)
}

/// Listens on a port.
///
/// # Errors
/// The port is in use, or the kernel has no AF_VSOCK.
pub fn listen_on(port: u32, kind: VsockKind) -> Result<OwnedFd> {
    let socket = new_socket(kind)?;
    bind(&socket, &Address { cid: ANY, port }).with_context(|| format!("bind port {port}"))?;
    listen(&socket, BACKLOG).with_context(|| format!("listen on port {port}"))?;
    Ok(socket)
}

/// Takes the next connection.
///
/// # Errors
/// The system call fails.
pub fn accept_from(listener: impl AsFd) -> Result<OwnedFd> {
    let socket = loop {
        match accept_with(&listener, SocketFlags::CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.context("accept")?,
        }
    };
    limit(&socket)?;
    Ok(socket)
}

/// The address of this machine.
///
/// # Errors
/// This machine has no vsock device.
pub fn local_cid() -> Result<u32> {
    let device = File::open("/dev/vsock").context("open /dev/vsock")?;
    let mut cid = 0_u32;
    // SAFETY: the request writes one 32-bit number to its argument, which lives here.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_LOCAL_CID, &raw mut cid) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("ask for the CID");
    }
    Ok(cid)
}

fn new_socket(kind: VsockKind) -> Result<OwnedFd> {
    socket_with(AddressFamily::VSOCK, kind.socket_type(), SocketFlags::CLOEXEC, None)
        .with_context(|| format!("an AF_VSOCK {} socket", kind.word()))
}

fn set_connect_timeout(socket: &OwnedFd, limit: Duration) -> Result<()> {
    let time = libc::timeval { tv_sec: limit.as_secs() as libc::time_t, tv_usec: 0 };
    set_option(socket, libc::AF_VSOCK, CONNECT_TIMEOUT, &time).context("set the limit of connect")
}

/// Sets a socket option that rustix does not know.
pub(crate) fn set_option<T: Copy>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> std::io::Result<()> {
    // SAFETY: the value lives during the call and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

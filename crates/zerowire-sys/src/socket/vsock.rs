//! AF_VSOCK sockets of the kernel (vsock(7)). rustix has no address type for them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::values;

fn address(cid: u32, port: u32) -> libc::sockaddr_vm {
    libc::sockaddr_vm {
        svm_family: libc::AF_VSOCK as libc::sa_family_t,
        svm_reserved1: 0,
        svm_port: port,
        svm_cid: cid,
        svm_zero: [0; 4],
    }
}

/// A stream socket without an address.
pub fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sets how much credit the other side has, bytes.
pub fn set_credit(socket: impl AsFd, bytes: u64) -> io::Result<()> {
    // The most comes first: the size must be within it (net/vmw_vsock/af_vsock.c,
    // vsock_update_buffer_size).
    values::VSOCK_BUFFER_MAX_SIZE.set(&socket, &bytes)?;
    values::VSOCK_BUFFER_SIZE.set(&socket, &bytes)
}

/// Connects to `port` of `cid`.
pub fn connect(socket: impl AsFd, cid: u32, port: u32) -> io::Result<()> {
    values::connect(socket, &address(cid, port))
}

/// Binds a socket to `port` of every CID that this machine has.
pub fn bind(socket: impl AsFd, port: u32) -> io::Result<()> {
    values::bind(socket, &address(libc::VMADDR_CID_ANY, port))
}

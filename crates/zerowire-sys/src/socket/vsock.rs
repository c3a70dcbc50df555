//! AF_VSOCK sockets of the kernel (vsock(7)). rustix has no address type for them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::check;

/// Credit of a connection, and the most that a program may request
/// (include/uapi/linux/vm_sockets.h); libc lacks them.
const SO_VM_SOCKETS_BUFFER_SIZE: i32 = 0;
const SO_VM_SOCKETS_BUFFER_MAX_SIZE: i32 = 2;

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
    let fd = socket.as_fd().as_raw_fd();
    let len = size_of::<u64>() as libc::socklen_t;
    // The most comes first: the size must be within it (net/vmw_vsock/af_vsock.c,
    // vsock_update_buffer_size).
    for option in [SO_VM_SOCKETS_BUFFER_MAX_SIZE, SO_VM_SOCKETS_BUFFER_SIZE] {
        // SAFETY: the kernel reads the number, which holds no address.
        check(unsafe { libc::setsockopt(fd, libc::AF_VSOCK, option, (&raw const bytes).cast(), len) })?;
    }
    Ok(())
}

/// Connects to `port` of `cid`.
pub fn connect(socket: impl AsFd, cid: u32, port: u32) -> io::Result<()> {
    let address = address(cid, port);
    let len = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the kernel reads a whole sockaddr_vm, which lives during the call.
    check(unsafe { libc::connect(socket.as_fd().as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Binds a socket to `port` of every CID that this machine has.
pub fn bind(socket: impl AsFd, port: u32) -> io::Result<()> {
    let address = address(libc::VMADDR_CID_ANY, port);
    let len = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: as in `connect`.
    check(unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

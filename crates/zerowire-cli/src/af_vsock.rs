//! AF_VSOCK sockets of the kernel (vsock(7)): what a program in a guest uses. rustix has no address type for them.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Credit of a connection, and the most that may be asked for (include/uapi/linux/vm_sockets.h); libc lacks them.
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

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context("no AF_VSOCK here: in a guest load vmw_vsock_virtio_transport; on the host name --uds PATH")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A stream to `port` of `cid`, with `credit` bytes of credit for the other side (0: the kernel's) and a low-water mark.
pub fn connect(cid: u32, port: u32, credit: u32, lowat: u32) -> Result<OwnedFd> {
    let socket = socket()?;
    if credit > 0 {
        let context = || format!("-v {credit}: the kernel refuses this much credit");
        // The most comes first: the size must be within it (net/vmw_vsock/af_vsock.c, vsock_update_buffer_size).
        for option in [SO_VM_SOCKETS_BUFFER_MAX_SIZE, SO_VM_SOCKETS_BUFFER_SIZE] {
            set_option(socket.as_fd(), libc::AF_VSOCK, option, &u64::from(credit).to_ne_bytes())
                .with_context(context)?;
        }
    }
    let address = address(cid, port);
    // SAFETY: the pointer is to a whole sockaddr_vm that lives during the call, of the length that is given.
    let result = unsafe {
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_vm>() as u32)
    };
    check(result).with_context(|| {
        format!("no connection to CID {cid}, port {port}: does the server listen, with the same port?")
    })?;
    set_lowat(socket.as_fd(), lowat)?;
    Ok(socket)
}

/// A socket that listens on `port`.
pub fn listen(port: u32) -> Result<OwnedFd> {
    let socket = socket()?;
    let address = address(libc::VMADDR_CID_ANY, port);
    // SAFETY: as in `connect`.
    let result = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_vm>() as u32)
    };
    check(result).with_context(|| format!("port {port} can't be had: choose another one with -p"))?;
    rustix::net::listen(&socket, 1).context("listen")?;
    Ok(socket)
}

/// Sets SO_RCVLOWAT: the bytes that make the socket readable.
pub fn set_lowat(socket: BorrowedFd<'_>, lowat: u32) -> Result<()> {
    let value = i32::try_from(lowat).unwrap_or(i32::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &value.to_ne_bytes())
        .with_context(|| format!("-r {lowat}: the kernel refuses this low-water mark"))
}

fn set_option(socket: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes at the pointer, which live during the call.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as u32)
    })
}

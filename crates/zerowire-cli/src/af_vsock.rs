//! AF_VSOCK sockets of the kernel (vsock(7)): what a program in a guest uses.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use zerowire_sys::socket::{set_int, vsock};

fn socket() -> Result<OwnedFd> {
    vsock::stream()
        .context("no AF_VSOCK here: in a guest load vmw_vsock_virtio_transport; on the host name --uds PATH")
}

/// A stream to `port` of `cid`, with `credit` bytes of credit for the other side (0: the kernel's)
/// and a low-water mark.
pub fn connect(cid: u32, port: u32, credit: u32, lowat: u32) -> Result<OwnedFd> {
    let socket = socket()?;
    if credit > 0 {
        vsock::set_credit(&socket, credit.into())
            .with_context(|| format!("-v {credit}: the kernel refuses this much credit"))?;
    }
    vsock::connect(&socket, cid, port).with_context(|| {
        format!("no connection to CID {cid}, port {port}: does the server listen, with the same port?")
    })?;
    set_lowat(&socket, lowat)?;
    Ok(socket)
}

/// A socket that listens on `port`.
pub fn listen(port: u32) -> Result<OwnedFd> {
    let socket = socket()?;
    vsock::bind(&socket, port)
        .with_context(|| format!("port {port} can't be had: choose another one with -p"))?;
    rustix::net::listen(&socket, 1).context("listen")?;
    Ok(socket)
}

/// Sets SO_RCVLOWAT: the bytes that make the socket readable.
pub fn set_lowat(socket: impl AsFd, lowat: u32) -> Result<()> {
    let value = i32::try_from(lowat).unwrap_or(i32::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value)
        .with_context(|| format!("-r {lowat}: the kernel refuses this low-water mark"))
}

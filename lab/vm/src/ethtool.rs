//! What the program ethtool sets, for the tests: it is not on every machine.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use crate::netns::Netns;

/// `ETHTOOL_STXCSUM`, `SIOCETHTOOL` (include/uapi/linux/ethtool.h, sockios.h).
const SET_TRANSMIT_CHECKSUM: u32 = 0x17;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// struct ifreq, with the address of a command and its value.
#[repr(C)]
struct IfRequest {
    name: [u8; 16],
    value: *mut [u32; 2],
    rest: [u64; 2],
}

/// As `ethtool -K NAME tx off`: what goes out through the interface has whole checksums and is not
/// longer than the MTU.
///
/// # Errors
/// The interface doesn't exist, or it can't do that.
pub fn finish_checksums(namespace: &Netns, name: &str) -> Result<()> {
    ensure!(name.len() < 16, "'{name}' is too long for an interface");
    namespace.inside(|| {
        let mut value = [SET_TRANSMIT_CHECKSUM, 0];
        let mut request = IfRequest { name: [0; 16], value: &raw mut value, rest: [0; 2] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        let socket = UdpSocket::bind("127.0.0.1:0").context("a socket")?;
        // SAFETY: the kernel reads the request and the two words that it points to, both alive
        // until the call returns.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        ensure!(done == 0, "ethtool -K {name} tx off: {}", std::io::Error::last_os_error());
        Ok(())
    })
}

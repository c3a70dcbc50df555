//! An interface that takes frames for any address, for who has its frames by other means than a packet socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::sys;

/// Keeps an interface promiscuous as long as it lives. The kernel counts who wants that, and undoes it when the socket is closed,
/// however the process ends, or when the interface goes (`packet_flush_mclist`, `packet_notifier`, net/packet/af_packet.c).
#[derive(Debug)]
pub struct Promiscuous {
    /// Without a protocol and bound to nothing: no frame reaches it.
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Of the interface with this number in this thread's network namespace.
    ///
    /// # Errors
    /// EPERM: no CAP_NET_RAW; EAFNOSUPPORT: no packet sockets here; ENODEV: the interface is gone.
    pub fn hold(index: u32) -> io::Result<Self> {
        let socket = sys::socket()?;
        sys::be_promiscuous(socket.as_fd(), index)?;
        Ok(Self { _socket: socket })
    }
}

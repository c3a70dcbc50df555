//! An interface that takes frames for any address, for who has its frames by other means than a
//! packet socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use zerowire_sys::packet as sys;

/// Keeps an interface promiscuous as long as it lives. The kernel counts who wants that. It undoes
/// it when the socket is closed, however the process ends, or when the interface goes
/// (`packet_flush_mclist`, `packet_notifier`, net/packet/af_packet.c).
#[derive(Debug)]
pub struct Promiscuous {
    /// Without a protocol and bound to nothing: no frame reaches it.
    socket: OwnedFd,
    index: u32,
}

impl Promiscuous {
    /// Of the interface with this number in this thread's network namespace.
    ///
    /// # Errors
    /// EPERM: no CAP_NET_RAW; EAFNOSUPPORT: no packet sockets here; ENODEV: the interface is gone.
    pub fn hold(index: u32) -> io::Result<Self> {
        let socket = sys::socket()?;
        sys::be_promiscuous(socket.as_fd(), index)?;
        Ok(Self { socket, index })
    }
}

impl Drop for Promiscuous {
    /// Does not leave it to the end of the socket, for two reasons. A process that is being started
    /// has a copy of the descriptor for a moment, and the socket lives as long. And an interface
    /// that is on its way to another network namespace would stay promiscuous there.
    /// `packet_release` takes the socket from the list that `packet_notifier` goes through, and
    /// waits for the move to end. It then does not find the interface any more. This waits as well,
    /// with the socket in the list.
    fn drop(&mut self) {
        // An interface that is gone is not an error. Other failures are left to the end of the
        // socket.
        let _ = sys::end_promiscuous(self.socket.as_fd(), self.index);
    }
}

//! What every way of sending asks of a connection and does to it.

use super::super::kind::{SocketFamily, SocketKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use zerowire_sys::socket::{self, Charges, get_int, unsent};

/// A TCP connection that has ended (include/net/tcp_states.h).
const TCP_CLOSE: u8 = 7;

/// Bytes that may still be charged to the socket's send buffer.
pub(in crate::send) fn send_room(socket: &OwnedFd) -> io::Result<usize> {
    let charges = Charges::of(socket)?;
    Ok(charges.send_buffer().saturating_sub(charges.sending()) as usize)
}

/// Whether a TCP connection ended before the peer's kernel had acknowledged all bytes. The kernel
/// keeps its error (SO_ERROR) for a program that reads from the socket, and for which a reset would
/// otherwise look like the peer's orderly end.
pub(in crate::send) fn ended_early(socket: impl AsFd, kind: SocketKind) -> io::Result<bool> {
    Ok(kind.kind == SocketFamily::Tcp && unsent(&socket)? > 0 && has_ended(&socket)?)
}

/// Whether a TCP connection has ended.
fn has_ended(socket: impl AsFd) -> io::Result<bool> {
    // `tcpi_state`, the first byte of `struct tcp_info`. The kernel reads it before it takes the
    // socket's lock (tcp_get_info, net/ipv4/tcp.c). A reset gives memory back under that lock, and
    // changes the state after that. The first call waits for it, the second reads the new state.
    let state = || get_int(&socket, libc::IPPROTO_TCP, libc::TCP_INFO).map(|info| info.to_ne_bytes()[0]);
    state()?;
    Ok(state()? == TCP_CLOSE)
}

/// What makes a socket ready that is polled for nothing: ERR, HUP, or neither.
pub(in crate::send) fn troubles(socket: impl AsFd) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) => Ok(fds[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(e) => Err(e.into()),
    }
}

/// The error of a socket with these troubles that no call has returned. EPIPE: its connection has
/// ended. As [`ended_early`] says, the kernel then keeps the error for a program that reads.
///
/// A connection that both sides have shut down hangs up while the peer still reads what was sent.
/// Over TCP its state tells that from the end. Elsewhere it has not ended while something is lent.
pub(in crate::send) fn untold(
    socket: impl AsFd,
    kind: SocketKind,
    troubles: PollFlags,
    is_lent: bool,
) -> io::Result<Option<Errno>> {
    let hangs_up = troubles.contains(PollFlags::HUP);
    let has_ended = match kind.kind {
        SocketFamily::Tcp => has_ended(&socket)?,
        _ if hangs_up && is_lent => return Ok(None),
        _ => hangs_up,
    };
    if has_ended { Ok(Some(Errno::PIPE)) } else { Ok(rustix::net::sockopt::socket_error(socket)?.err()) }
}

/// Resets a stream's connection, so that the kernel lets go of what is lent soon.
pub(in crate::send) fn reset(socket: &OwnedFd, kind: SocketKind) {
    match kind.kind {
        SocketFamily::Tcp => {
            // The notifications can still be read.
            let _ = socket::disconnect(socket);
        }
        SocketFamily::Vsock | SocketFamily::Unix => {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        SocketFamily::Udp | SocketFamily::Other => {}
    }
}

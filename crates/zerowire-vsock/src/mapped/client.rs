//! Programs that ask for mapped connections, and what is said with them over `UDS.map`.

use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use zerowire_wire::mapped::{DESCRIPTORS, MAX_REGIONS, MapOptions, MapReply, MapRequest, REQUEST_LEN};

use super::quota::MapClaim;
use crate::packet::Kind;
use crate::socket::{receive_bytes, send_bytes, unread};

/// A program at the control socket.
#[derive(Debug)]
pub struct MapClient {
    /// Its socket.
    pub socket: OwnedFd,
    /// Whose program it is (SO_PEERCRED).
    pub user: u32,
    /// What it is about.
    pub stage: Stage,
    /// Tells it from others in the same place.
    pub tenant: u32,
}

/// How far a program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not said what it wants.
    Asking {
        /// Until then it has time.
        deadline: Instant,
    },
    /// It takes the connections that the guest makes to this port.
    Listening {
        /// The port.
        port: u32,
        /// Their type.
        kind: Kind,
        /// How they are mapped.
        options: MapOptions,
    },
}

/// A program that waits for the guest's answer. If none comes before this is dropped, the program
/// hears so.
#[derive(Debug)]
pub struct AskedFor {
    /// Its control socket; None once it was answered.
    pub control: Option<OwnedFd>,
    /// How the connection is mapped.
    pub options: MapOptions,
    /// Its wait has timed out.
    pub timed_out: bool,
    /// Its end of the connection's socket.
    pub theirs: Option<OwnedFd>,
    /// What the connection takes of the VM's quota; None once its windows have it.
    pub claim: Option<MapClaim>,
}

impl Drop for AskedFor {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            let (errno, text) = if self.timed_out {
                (libc::ETIMEDOUT, "the guest did not answer within 10 s")
            } else {
                (
                    libc::ECONNREFUSED,
                    "the guest refused the connection, does not run, has too many (--max-connections) or no messages",
                )
            };
            let _ = send_reply(&control, &MapReply::error(errno as u16, text), &[]);
        }
    }
}

/// Why a connection is not handed over yet ([`is_crowded`]).
pub const CROWDED: &str = "too many descriptors of this user are under way in sockets: raise the limit of open files \
                           ('ulimit -n', or LimitNOFILE= in a unit)";

/// Whether descriptors could not be sent since this user has as many under way in sockets as it
/// may: later they may.
pub fn is_crowded(e: &io::Error) -> bool {
    Errno::from_io_error(e) == Some(Errno::TOOMANYREFS)
}

/// Sends a reply, and descriptors with it, without waiting. WouldBlock says that the socket has no
/// room; see [`is_crowded`], too.
pub fn send_reply(socket: &OwnedFd, reply: &MapReply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = reply.to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS + MAX_REGIONS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// What the kernel takes of a socket's room for one reply at most, bytes (its sk_buff takes 1280).
const REPLY_NEEDS: usize = 4096;

/// Sends a connection's reply, with the table of guest memory behind it unless that is empty. Both
/// or none: WouldBlock and [`is_crowded`] say that the program was told nothing.
pub fn send_connection(
    socket: &OwnedFd,
    reply: &MapReply,
    descriptors: &[BorrowedFd<'_>],
    table: &[u8],
) -> io::Result<()> {
    if table.is_empty() {
        return send_reply(socket, reply, descriptors);
    }
    // The kernel takes a message as long as any room is left before it (sock_alloc_send_pskb).
    let room = rustix::net::sockopt::socket_send_buffer_size(socket)?;
    if unread(socket) + REPLY_NEEDS >= room {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    send_reply(socket, reply, descriptors)?;
    // Whoever has the reply and not this is out of step for good.
    send_bytes(socket, table).map(drop).map_err(io::Error::other)
}

/// Takes a request if one is there: None where nothing has come yet, an empty error text where the
/// program has left.
pub fn receive_request(socket: &OwnedFd) -> Result<Option<MapRequest>, String> {
    // One byte more than is due shows a message that is too long.
    let mut bytes = [0u8; REQUEST_LEN + 1];
    match receive_bytes(socket, &mut bytes, RecvFlags::empty()) {
        Ok(0) => Err(String::new()),
        Ok(n) => MapRequest::from_bytes(&bytes[..n]).map(Some),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(_) => Err(String::new()),
    }
}

#[cfg(test)]
mod tests;

//! A netlink socket: one question at a time, and the whole answer.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, sendto, socket_with,
};

use super::error::NetlinkError;
use super::message::{ACK, DUMP, INTERRUPTED, MessageBody, NetlinkMessages, question};

/// Room for one datagram. Of a list the kernel makes none above 32 KiB (NLMSG_GOODSIZE,
/// `netlink_dump`). A single answer is as long as its attributes, each below 64 KiB.
const ROOM_BYTES: usize = 128 << 10;
/// The kernel answers at once; this only keeps a fault from becoming a hang.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to ask for a list, if it changes while the kernel makes it.
const TRIES: usize = 4;

/// How much to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// One thing.
    One,
    /// All that there are.
    All,
}

/// A socket to the kernel.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    room: Vec<u8>,
}

impl Socket {
    /// `protocol`: `None` for route netlink.
    pub(super) fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let system = |e| NetlinkError::system("a netlink socket", e);
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(system)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE)).map_err(system)?;
        Ok(Self { fd, sequence: 0, room: vec![0; ROOM_BYTES] })
    }

    /// Asks; the parts of the answer, without the 16 bytes of their headers. `what` is for
    /// messages.
    pub(super) fn ask(
        &mut self,
        what: &'static str,
        kind: u16,
        extent: Extent,
        body: &[u8],
    ) -> Result<Vec<Vec<u8>>, NetlinkError> {
        for _ in 0..TRIES {
            let (parts, is_whole) = self.ask_once(what, kind, extent, body)?;
            if is_whole {
                return Ok(parts);
            }
        }
        Err(NetlinkError::system(what, io::Error::from_raw_os_error(libc::EAGAIN)))
    }

    fn ask_once(
        &mut self,
        what: &'static str,
        kind: u16,
        extent: Extent,
        body: &[u8],
    ) -> Result<(Vec<Vec<u8>>, bool), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        // A list ends with a message of its own; an acknowledgement follows a single answer,
        // because the request asks for it.
        let flags = if extent == Extent::All { DUMP } else { ACK };
        let bytes = question(kind, flags, sequence, body);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &bytes, SendFlags::empty(), &kernel).map_err(|e| NetlinkError::system(what, e))?;
        let mut parts = Vec::new();
        let mut is_whole = true;
        loop {
            for message in NetlinkMessages::new(self.receive(what)?) {
                let message = message.map_err(|e| e.of(what))?;
                // What came late to an earlier question.
                if message.sequence != sequence {
                    continue;
                }
                is_whole &= message.flags & INTERRUPTED == 0;
                match message.body {
                    MessageBody::Data(part) => parts.push(part.to_vec()),
                    MessageBody::Nothing => {}
                    MessageBody::End(0) => return Ok((parts, is_whole)),
                    MessageBody::End(errno) => {
                        return Err(NetlinkError::system(what, io::Error::from_raw_os_error(errno)));
                    }
                }
            }
        }
    }

    /// The next datagram of the kernel; others' are passed over.
    fn receive(&mut self, what: &'static str) -> Result<&[u8], NetlinkError> {
        let len = loop {
            let (_, len, from) = match recvfrom(&self.fd, &mut self.room[..], RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result.map_err(|e| NetlinkError::system(what, e))?,
            };
            let port = from.and_then(|a| SocketAddrNetlink::try_from(a).ok()).map(|a| a.pid());
            if port == Some(0) {
                break len;
            }
        };
        self.room.get(..len).ok_or(NetlinkError::Malformed { what, why: "a datagram above 128 KiB" })
    }
}

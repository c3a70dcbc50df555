//! Sockets of a packet port that one process opens for another one, its child, which serves them.
//!
//! ```text
//!  opens, filters, binds, sets options             verbs             reads and writes frames,
//!  (PacketSockets::open, carry_out)         ◀──────────────────      maps the rings
//! ```
//!
//! The child makes none of the calls by which a packet socket gets to other frames: it binds
//! nothing and sets no option. Whoever gets a socket from it finds a filter that passes frames of
//! this one interface and can't be taken off. So other sockets are opened for an interface that was
//! deleted and made again, and another child gets them.
//!
//! A packet socket sends to any interface that a message names. The child's system calls name none:
//! its sockets have numbers from [`FIRST_NUMBER`] on, and sendmsg(2) is there for lower ones. A
//! front end that works with the child can send it a socket back, which gets a lower number then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use zerowire::packet::PacketRing;
use zerowire_sys::{netdevice, packet as sys};

use super::frame_ring::options;
use super::outbound::is_wanted;
use super::{Frames, PacketError, PacketSocket, PacketSpec, Slots};
use crate::port::{PortKeeper, kept};

/// Bytes of the virtio-net header that sockets have at first.
pub(super) const HEADER_BYTES: usize = 12;

/// Numbers of the sockets in the process that serves them: from this one on. The usual limit of
/// open files allows them.
pub(super) const FIRST_NUMBER: u32 = 1000;

/// Frames that wait in a socket at most: no more are thrown away.
const MOST_WAITING: usize = 65_536;

/// What a child asks of the process that has opened its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PacketVerb {
    /// Another guest comes: the sockets that get frames are bound to nothing and have none, there
    /// are no packet rings but one whose frames are not sent yet, and headers have 12 bytes.
    Begin,
    /// They get the frames of the interface.
    Bind,
    /// Their headers have this many bytes.
    HeaderBytes(usize),
    /// Untagged frames come by a ring, or no more.
    ReceiveRing(bool),
    /// Frames go by a new packet ring, until the next guest comes or none is there.
    TransmitRing,
    /// No guest is there. Nobody waits for an answer.
    End,
}

/// What the child can't find out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketPortFacts {
    /// The number of the interface whose frames the sockets may get; 0 without one.
    pub index: u32,
    /// Why frames of the guest go by no ring; None where they are to.
    pub no_ring: Option<String>,
}

/// The sockets of one packet port.
#[derive(Debug)]
pub struct PacketSockets {
    interface: String,
    pub(super) facts: PacketPortFacts,
    pub(super) untagged: PacketSocket,
    pub(super) tagged: PacketSocket,
    /// To ask by and to send by; it reads nothing.
    pub(super) control: PacketSocket,
    /// For frames of the guest that go by a ring; it reads nothing.
    pub(super) ring: PacketSocket,
}

impl PacketSockets {
    /// Opens them for a child.
    ///
    /// # Errors
    /// [`PacketError`] per cause.
    pub fn open(spec: &PacketSpec) -> Result<Self, PacketError> {
        match Self::open_or_wait(spec)? {
            (_, Some(missing)) => Err(missing),
            (this, None) => Ok(this),
        }
    }

    /// The same for an interface that may be gone. They get nothing then, and the error says so.
    ///
    /// # Errors
    /// Those of opening sockets.
    pub fn open_or_wait(spec: &PacketSpec) -> Result<(Self, Option<PacketError>), PacketError> {
        let interface = &spec.interface;
        let open = |frames| PacketSocket::open(interface, frames, HEADER_BYTES);
        let (untagged, tagged) = PacketSocket::open_both(interface)?;
        let (control, ring) = (open(Frames::Nothing)?, open(Frames::Nothing)?);
        let missing = control.bind().err();
        let index = sys::bound_to(control.as_fd()).unwrap_or(0);
        for (socket, of) in [
            (&untagged, Some((index, false))),
            (&tagged, Some((index, true))),
            (&control, None),
            (&ring, None),
        ] {
            sys::filter_for_good(socket.as_fd(), of).map_err(|cause| PacketError::System {
                interface: interface.clone(),
                call: "SO_LOCK_FILTER",
                cause,
            })?;
        }
        let facts = PacketPortFacts { index, no_ring: is_wanted(spec).err() };
        Ok((Self { interface: interface.clone(), facts, untagged, tagged, control, ring }, missing))
    }

    /// Goes on with sockets that another process has opened.
    ///
    /// # Errors
    /// This process may not have descriptors with numbers as high as that.
    pub fn take_over(
        interface: &str,
        facts: PacketPortFacts,
        sockets: [OwnedFd; 4],
        keeper: Arc<dyn PortKeeper>,
    ) -> io::Result<Self> {
        let high = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_NUMBER as i32);
        let [untagged, tagged, control, ring] = sockets.map(high);
        let handed = |fd, frames| PacketSocket::handed(fd, interface, frames, (facts.index, keeper.clone()));
        Ok(Self {
            interface: interface.to_owned(),
            untagged: handed(untagged?, Frames::Untagged),
            tagged: handed(tagged?, Frames::Tagged),
            control: handed(control?, Frames::Nothing),
            ring: handed(ring?, Frames::Nothing),
            facts,
        })
    }

    /// Has the process that opened them carry out a verb.
    pub(super) fn ask(&self, verb: PacketVerb) -> Result<(), PacketError> {
        self.control.by_keeper(verb).unwrap_or(Ok(())).map_err(PacketError::Keeper)
    }

    /// Tells that process that no guest is there.
    pub(super) fn end(&self) {
        if let Some((_, keeper)) = &self.control.handed {
            let _ = kept::text(&PacketVerb::End).map(|verb| keeper.tell(verb));
        }
    }

    /// What [`Self::take_over`] goes on with.
    pub fn parts(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = [&self.untagged, &self.tagged, &self.control, &self.ring];
        sockets.into_iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// The name that the interface has now.
    pub fn interface(&self) -> String {
        self.control.name().unwrap_or_else(|| self.interface.clone())
    }

    /// Whether the interface of that name is another one than these sockets are for.
    pub fn are_outdated(&self) -> bool {
        netdevice::index(&self.control, &self.interface).is_ok_and(|now| now != self.facts.index)
    }

    /// Carries out what the child asks.
    ///
    /// # Errors
    /// What the user reads.
    pub fn carry_out(&self, verb: PacketVerb) -> Result<(), String> {
        match verb {
            PacketVerb::Begin | PacketVerb::End => self.begin().map_err(|e| e.to_string()),
            PacketVerb::Bind => self.bind().map_err(|e| e.to_string()),
            PacketVerb::HeaderBytes(bytes @ (10 | 12)) => {
                self.set_header_bytes(bytes).map_err(|e| e.to_string())
            }
            PacketVerb::HeaderBytes(bytes) => Err(format!("headers of {bytes} bytes: there are 10 and 12")),
            PacketVerb::ReceiveRing(true) => Slots::set_up(self.untagged.as_fd()).map_err(|e| e.to_string()),
            PacketVerb::ReceiveRing(false) => Slots::close(self.untagged.as_fd()).map_err(|e| e.to_string()),
            // A child asks for none then.
            PacketVerb::TransmitRing if let Some(why) = &self.facts.no_ring => Err(why.clone()),
            PacketVerb::TransmitRing => {
                PacketRing::set_up(self.ring.as_fd(), &options()).map_err(|e| e.to_string())
            }
        }
    }

    fn begin(&self) -> Result<(), PacketError> {
        for socket in [&self.untagged, &self.tagged] {
            socket.unbind();
        }
        // One that has none says nothing of it. One whose frames are not sent stays until then.
        let _ = (Slots::close(self.untagged.as_fd()), PacketRing::remove(self.ring.as_fd()));
        for socket in [&self.untagged, &self.tagged] {
            let read =
                || rustix::net::recv(socket, &mut [0u8; 1][..], RecvFlags::DONTWAIT | RecvFlags::TRUNC);
            let _ = (0..MOST_WAITING).take_while(|_| read().is_ok()).count();
        }
        self.set_header_bytes(HEADER_BYTES)
    }

    fn set_header_bytes(&self, bytes: usize) -> Result<(), PacketError> {
        self.untagged.set_header_bytes(bytes)?;
        self.tagged.set_header_bytes(bytes)
    }

    /// Binds those that are not bound.
    fn bind(&self) -> Result<(), PacketError> {
        let interface = self.interface.clone();
        if self.are_outdated() {
            return Err(PacketError::Another { interface });
        }
        for socket in [&self.untagged, &self.tagged, &self.control, &self.ring] {
            if sys::bound_to(socket.as_fd()) != Some(self.facts.index) {
                socket.bind()?;
            }
        }
        Ok(())
    }
}

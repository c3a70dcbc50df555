//! Queues of an interface that one process has and another one, its child, moves frames on.
//!
//! ```text
//!  opens, binds, steers, looks at the       verbs        registers guest memory, maps and
//!  interface (XdpQueues)               ◀──────────────   moves the rings' frames (XdpAccess)
//! ```
//!
//! Without a child it is one process: the same verbs are calls then. A verb names a queue pair, and
//! no path, interface or queue. Descriptors come along: a socket with its answer, and with a verb
//! that is about one. So sockets belong to the child alone: what it closes is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zerowire_sys::netdevice;
use zerowire_sys::xdp::{Interface, Mode, Socket, SocketMaker, SocketOptions, XdpError};

use super::{XdpQueues, XdpSpec};
use crate::port::{LinkWatch, PortKeeper, kept};

/// What a child asks of the process that has the interface. The first number is a queue pair, from
/// 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XdpVerb {
    /// Which interface has the name. A socket that hears of it comes along.
    Find(usize),
    /// A socket that is not bound comes along.
    Open,
    /// Binds the socket that comes along to the pair's queue of the interface that it found last,
    /// in zero-copy mode or not. With a second socket it shares the registration of that.
    Bind(usize, bool),
    /// The interface takes frames for any address until the pair [releases](Self::Release) it.
    BePromiscuous(usize),
    /// Frames of the pair's queue come to the socket that comes along, if they have at most this
    /// many bytes. The answer is how many were too long before.
    Steer(usize, u32),
    /// They go to the host again.
    Unsteer(usize),
    /// Waits until no frame is on its way that was steered before.
    AwaitSteered,
    /// How many frames of the pair's queue were too long.
    TooLong(usize),
    /// The pair has no socket any more.
    Release(usize),
    /// Takes bytes of what may be pinned. The answer is how many.
    Pin {
        /// With fewer it fails.
        least_bytes: u64,
        /// As many are wanted.
        most_bytes: u64,
    },
    /// Gives as many bytes back.
    Unpin(u64),
    /// Sends a frame.
    Announce(Vec<u8>),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XdpAnswer {
    /// It was carried out.
    Done,
    /// The interface was found.
    Found(XdpFacts),
    /// How many there are.
    Number(u64),
}

/// What is known of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpFacts {
    /// Its number in the network namespace.
    pub index: u32,
    /// Whether its driver has a zero-copy mode, as far as that matters and can be told.
    pub has_zero_copy: bool,
    /// Why its device may not reach what it was promised, as far as that matters.
    pub distrust: Option<String>,
    /// Whether the kernel has its own copy of a frame once it has taken it from the AF_XDP ring.
    pub copies_at_once: bool,
}

/// Why a verb was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XdpRefusal {
    /// No interface has the name.
    NoInterface,
    /// The interface is down.
    Down,
    /// The queue has a socket.
    Busy,
    /// The driver has no zero-copy mode.
    NoZeroCopy,
    /// What the user reads.
    Other(String),
}

impl From<XdpError> for XdpRefusal {
    fn from(error: XdpError) -> Self {
        match error {
            XdpError::NoInterface { .. } => Self::NoInterface,
            XdpError::Down { .. } => Self::Down,
            XdpError::Busy { .. } => Self::Busy,
            XdpError::NoZeroCopy { .. } => Self::NoZeroCopy,
            XdpError::System { ref cause, .. } if is_gone(cause) => Self::NoInterface,
            other => Self::Other(other.to_string()),
        }
    }
}

/// Whether an error says that an interface is gone.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// An answer with the descriptors that come along.
pub type XdpReply = Result<(XdpAnswer, Vec<OwnedFd>), XdpRefusal>;

/// An answer as a text says it.
pub(super) type XdpOutcome = Result<XdpAnswer, XdpRefusal>;

/// Who has the interface.
#[derive(Clone, Debug)]
enum XdpHolder {
    /// This process.
    Own(Arc<XdpQueues>),
    /// Another one. This one is confined.
    Another(Arc<dyn PortKeeper>),
}

/// An interface that was found.
pub(super) struct FoundInterface {
    pub(super) interface: Interface,
    pub(super) facts: XdpFacts,
    /// Tells when it goes or changes.
    pub(super) watch: LinkWatch,
}

/// How those who move frames reach the interface. A clone is another handle.
#[derive(Clone, Debug)]
pub struct XdpAccess {
    /// The name of the interface, as it was given.
    pub(super) interface: String,
    /// The queue of the first pair.
    queue: u32,
    /// To ask the kernel by what the interface is called, and the like. It gets no message.
    pub(super) control: Arc<OwnedFd>,
    holder: XdpHolder,
}

impl XdpAccess {
    /// To queues of this process's own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(queues: Arc<XdpQueues>) -> io::Result<Self> {
        let control = queues.control.try_clone()?;
        Ok(Self::of(&queues.spec.clone(), control, XdpHolder::Own(queues)))
    }

    /// To those of another process, which gives this socket to ask by.
    pub fn take_over(spec: &XdpSpec, control: OwnedFd, keeper: Arc<dyn PortKeeper>) -> Self {
        Self::of(spec, control, XdpHolder::Another(keeper))
    }

    fn of(spec: &XdpSpec, control: OwnedFd, holder: XdpHolder) -> Self {
        Self { interface: spec.interface.clone(), queue: spec.queue, control: Arc::new(control), holder }
    }

    /// The MTU of the interface that has the name, bytes.
    pub(super) fn mtu(&self) -> io::Result<usize> {
        netdevice::mtu(&self.control, &self.interface)
    }

    /// Whether nobody answers any more. A refusal does no harm then.
    pub(super) fn is_over(&self) -> bool {
        matches!(&self.holder, XdpHolder::Another(keeper) if keeper.has_left())
    }

    /// Has who has the interface carry out a verb.
    pub(super) fn ask(
        &self,
        verb: XdpVerb,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(XdpAnswer, Vec<OwnedFd>), XdpError> {
        let queue = match verb {
            XdpVerb::Bind(pair, _) => self.queue + pair as u32,
            _ => self.queue,
        };
        let interface = || self.interface.clone();
        let reply = match &self.holder {
            XdpHolder::Own(queues) => queues.ask(verb, fds),
            XdpHolder::Another(keeper) => match kept::ask(&**keeper, &verb, fds) {
                Ok((answer, fds)) => XdpOutcome::map(answer, |answer| (answer, fds)),
                Err(text) => Err(XdpRefusal::Other(text)),
            },
        };
        reply.map_err(|refusal| match refusal {
            XdpRefusal::NoInterface => XdpError::NoInterface { interface: interface() },
            XdpRefusal::Down => XdpError::Down { interface: interface() },
            XdpRefusal::Busy => XdpError::Busy { interface: interface(), queue, waited: Default::default() },
            XdpRefusal::NoZeroCopy => {
                XdpError::NoZeroCopy { interface: interface(), queue, multi_buffer: false }
            }
            XdpRefusal::Other(text) => XdpError::Told(text),
        })
    }

    fn number(&self, verb: XdpVerb, fds: &[BorrowedFd<'_>]) -> Result<u64, XdpError> {
        match self.ask(verb, fds)? {
            (XdpAnswer::Number(number), _) => Ok(number),
            _ => Err(another_answer()),
        }
    }

    /// The interface that has the name.
    pub(super) fn find(&self, pair: usize) -> Result<FoundInterface, XdpError> {
        let (answer, fds) = self.ask(XdpVerb::Find(pair), &[])?;
        let (XdpAnswer::Found(facts), Some(watch)) = (answer, fds.into_iter().next()) else {
            return Err(another_answer());
        };
        Ok(FoundInterface { interface: self.known(facts.index)?, facts, watch: LinkWatch { socket: watch } })
    }

    /// The interface with this number.
    pub(super) fn known(&self, index: u32) -> Result<Interface, XdpError> {
        let control = self.control.try_clone();
        let control = control.map_err(|e| XdpError::system("a socket to ask by", "fcntl", e))?;
        Ok(Interface::known(&self.interface, index, control))
    }

    /// Has frames come to a socket. Returns how many were too long before.
    pub(super) fn steer(&self, pair: usize, socket: &Socket, longest_bytes: u32) -> Result<u64, XdpError> {
        self.number(XdpVerb::Steer(pair, longest_bytes), &[socket.as_fd()])
    }

    pub(super) fn too_long(&self, pair: usize) -> Option<u64> {
        self.number(XdpVerb::TooLong(pair), &[]).ok()
    }

    /// Takes bytes of what may be pinned: `most_bytes`, or what is left of the limit where the port
    /// does with a part (`pin=`).
    pub(super) fn pin(&self, least_bytes: u64, most_bytes: u64) -> Result<Pinned, XdpError> {
        let bytes = self.number(XdpVerb::Pin { least_bytes, most_bytes }, &[])?;
        Ok(Pinned { access: self.clone(), bytes })
    }
}

fn another_answer() -> XdpError {
    XdpError::Told("the answer is one to another question".to_owned())
}

impl SocketMaker for XdpAccess {
    fn open(&self) -> Result<OwnedFd, XdpError> {
        let (_, fds) = self.ask(XdpVerb::Open, &[])?;
        fds.into_iter().next().ok_or_else(another_answer)
    }

    fn bind(
        &self,
        socket: BorrowedFd<'_>,
        shared: Option<BorrowedFd<'_>>,
        _interface: &Interface,
        options: &SocketOptions,
    ) -> Result<(), XdpError> {
        let pair = options.queue.wrapping_sub(self.queue) as usize;
        let fds: Vec<_> = std::iter::once(socket).chain(shared).collect();
        self.ask(XdpVerb::Bind(pair, options.mode == Mode::ZeroCopy), &fds).map(drop)
    }

    fn is_confined(&self) -> bool {
        matches!(self.holder, XdpHolder::Another(_))
    }
}

/// A part of what may be pinned; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Pinned {
    access: XdpAccess,
    /// Bytes that may be pinned.
    pub(super) bytes: u64,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.access.ask(XdpVerb::Unpin(self.bytes), &[]);
    }
}

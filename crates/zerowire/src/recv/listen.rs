//! Listening sockets of a receiver: which of them accept connections, and what they gave. The back
//! ends accept. When the receiver has as many connections as it may, they stop, and connections
//! wait in the backlogs.
//!
//! A socket that was accepted and not added yet belongs to [`Listeners::accepted`]. A multishot
//! accept may take more than there is room for, since it is ended only after the fact. So it is
//! used while there is a lot of room ([`MANY_ROOM`]), else connections are accepted one by one.
//! What it takes beyond waits here, not in the backlog.

use super::ListenerId;
use super::core::SocketShape;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
#[cfg(feature = "uring")]
use zerowire_sys::uring::sqe::Entry;

/// User data of accepts of back ends that use a ring: this bit, and the listener's index.
pub(crate) const ACCEPT: u64 = 1 << 63;
/// A multishot accept is used while at least this many connections may still be added.
const MANY_ROOM: usize = 1024;
/// How long to wait after accepting failed for lack of descriptors or memory. Tests look at what is
/// so meanwhile, on machines that may be busy.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 2000 } else { 100 });

/// The request that the kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Nothing,
    One,
    Many,
}

#[derive(Debug)]
struct RecvListener {
    id: ListenerId,
    socket: OwnedFd,
    kind: SocketShape,
    asked: Asked,
    cancelled: bool,
    /// Not while it is being given back, nor after it failed for good.
    wanted: bool,
}

/// What a ring is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenStep {
    /// Start an accept on `fd`, of one connection or (`many`) of all that come.
    Accept {
        /// The listener's index, for the user data.
        index: u32,
        /// Its descriptor.
        fd: RawFd,
        /// Multishot.
        many: bool,
    },
    /// Cancel the accept of this listener.
    Cancel(u32),
}

#[cfg(feature = "uring")]
impl ListenStep {
    /// The ring's entry. `cancel` gives the user data of a cancellation, from that of the accept.
    pub(crate) fn entry(self, cancel: impl FnOnce(u64) -> u64) -> Entry {
        let (Self::Accept { index, .. } | Self::Cancel(index)) = self;
        let accept = ACCEPT | u64::from(index);
        match self {
            Self::Accept { fd, many, .. } => Entry::accept(fd, many, accept),
            Self::Cancel(_) => Entry::cancel(accept, cancel(accept)),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: Vec<Option<RecvListener>>,
    generation: u32,
    /// Sockets to add.
    accepted: VecDeque<(ListenerId, SocketShape, OwnedFd)>,
    /// Connections that may still be added, `accepted` included.
    room: usize,
    full: bool,
    /// Until when nothing is accepted.
    stalled: Option<Instant>,
    /// True: until then nothing is added either.
    is_adding_stalled: bool,
    /// Listeners that failed for good and whose failure was not returned yet, with the errno.
    failures: VecDeque<(ListenerId, i32)>,
}

impl Listeners {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    /// The index that the next listener gets.
    pub(super) fn vacant(&self) -> u32 {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len()) as u32
    }

    /// Takes a listening socket, at an index that is [vacant](Self::vacant).
    pub(super) fn put(&mut self, index: u32, socket: OwnedFd, kind: SocketShape) -> ListenerId {
        self.generation = self.generation.wrapping_add(1);
        let id = ListenerId { place: index, generation: self.generation };
        let listener =
            RecvListener { id, socket, kind, asked: Asked::Nothing, cancelled: false, wanted: true };
        match self.all.get_mut(index as usize) {
            Some(place) => *place = Some(listener),
            None => self.all.push(Some(listener)),
        }
        id
    }

    /// Where the listener is, if it is still here.
    pub(super) fn find(&self, id: ListenerId) -> Option<u32> {
        self.get(id.place).filter(|l| l.id == id).map(|_| id.place)
    }

    pub(super) fn take(&mut self, index: u32) -> Option<OwnedFd> {
        self.all.get_mut(index as usize)?.take().map(|l| l.socket)
    }

    /// The indices in use.
    pub(super) fn indices(&self) -> Vec<u32> {
        self.all.iter().flatten().map(|l| l.id.place).collect()
    }

    fn get(&self, index: u32) -> Option<&RecvListener> {
        self.all.get(index as usize)?.as_ref()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut RecvListener> {
        self.all.get_mut(index as usize)?.as_mut()
    }

    /// The listening socket.
    pub(crate) fn fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.get(index).map(|l| l.socket.as_fd())
    }

    /// Whether the kernel has an accept of this listener.
    pub(crate) fn is_asked(&self, index: u32) -> bool {
        self.get(index).is_some_and(|l| l.asked != Asked::Nothing)
    }

    /// Whether connections of this listener are wanted.
    pub(super) fn want(&mut self, index: u32, wanted: bool) {
        if let Some(listener) = self.get_mut(index) {
            listener.wanted = wanted;
        }
    }

    /// `room` more connections may be added. True: accepting stops just now because the room ran
    /// out.
    pub(super) fn set_room(&mut self, room: usize) -> bool {
        self.room = room;
        let was_full = self.full;
        self.full = self.room() == 0;
        self.full && !was_full && !self.is_empty()
    }

    /// Connections that may still be accepted.
    pub(crate) fn room(&self) -> usize {
        self.room.saturating_sub(self.accepted.len())
    }

    /// Whether a socket is there to be added: the turn is over.
    pub(crate) fn is_due(&self) -> bool {
        self.room > 0 && !self.is_adding_stalled && !self.accepted.is_empty()
    }

    pub(super) fn next_accepted(&mut self) -> Option<(ListenerId, SocketShape, OwnedFd)> {
        self.accepted.pop_front()
    }

    /// What was accepted could not be added for the moment.
    pub(super) fn put_back(&mut self, listener: ListenerId, kind: SocketShape, socket: OwnedFd) {
        self.accepted.push_front((listener, kind, socket));
        self.is_adding_stalled = true;
        self.stalled = Some(Instant::now() + RETRY);
    }

    /// A listener that failed, returned once.
    pub(super) fn failure(&mut self) -> Option<(ListenerId, io::Error)> {
        self.failures.pop_front().map(|(id, errno)| (id, io::Error::from_raw_os_error(errno)))
    }

    /// How long to wait at most, if the caller asked for `timeout`: until the next attempt to
    /// accept.
    pub(super) fn cap(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(at) = self.stalled else { return timeout };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            (self.stalled, self.is_adding_stalled) = (None, false);
            return timeout;
        }
        Some(timeout.map_or(left, |t| t.min(left)))
    }

    /// Whether to accept connections of this listener now.
    pub(crate) fn may_accept(&self, index: u32) -> bool {
        self.stalled.is_none() && self.room() > 0 && self.get(index).is_some_and(|l| l.wanted)
    }

    /// The next thing to do for a ring; it counts as done, unless [`Listeners::undo`] says
    /// otherwise.
    pub(crate) fn step(&mut self) -> Option<ListenStep> {
        let (room, is_stalled) = (self.room(), self.stalled.is_some());
        self.all.iter_mut().flatten().find_map(|l| {
            let target = match room {
                _ if is_stalled || !l.wanted => Asked::Nothing,
                0 => Asked::Nothing,
                MANY_ROOM.. => Asked::Many,
                _ => Asked::One,
            };
            let index = l.id.place;
            match l.asked {
                Asked::Nothing if target != Asked::Nothing => {
                    (l.asked, l.cancelled) = (target, false);
                    Some(ListenStep::Accept { index, fd: l.socket.as_raw_fd(), many: target == Asked::Many })
                }
                Asked::One if target != Asked::Nothing => None,
                asked if asked == target || l.cancelled => None,
                _ => {
                    l.cancelled = true;
                    Some(ListenStep::Cancel(index))
                }
            }
        })
    }

    /// The step could not be handed over.
    pub(crate) fn undo(&mut self, step: ListenStep) {
        let (ListenStep::Accept { index, .. } | ListenStep::Cancel(index)) = step;
        let Some(listener) = self.get_mut(index) else { return };
        match step {
            ListenStep::Accept { .. } => listener.asked = Asked::Nothing,
            ListenStep::Cancel(_) => listener.cancelled = false,
        }
    }

    /// A completion of the accept of listener `index`: a descriptor or a negative errno; `more`:
    /// the accept goes on. `own` takes the descriptor; it is called if the listener has requested
    /// an accept.
    pub(crate) fn completed(
        &mut self,
        index: u32,
        result: i32,
        more: bool,
        own: impl FnOnce(i32) -> OwnedFd,
    ) {
        let Some(listener) = self.get_mut(index).filter(|l| l.asked != Asked::Nothing) else { return };
        if !more {
            (listener.asked, listener.cancelled) = (Asked::Nothing, false);
        }
        match result {
            0.. => self.accept(index, own(result)),
            errno => self.refused(index, errno.wrapping_neg()),
        }
    }

    /// A connection of listener `index`.
    pub(crate) fn accept(&mut self, index: u32, socket: OwnedFd) {
        if let Some(listener) = self.get(index) {
            self.accepted.push_back((listener.id, listener.kind, socket));
        }
    }

    /// Accepting failed (accept(2), "Error handling": most errors are about one connection).
    pub(crate) fn refused(&mut self, index: u32, errno: i32) {
        match errno {
            libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ECONNABORTED => {}
            libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EFAULT => {
                if let Some(listener) = self.get_mut(index).filter(|l| l.wanted) {
                    listener.wanted = false;
                    let failed = (listener.id, errno);
                    self.failures.push_back(failed);
                }
            }
            // No descriptors or memory for a moment, or a filter: not at once again. What was
            // accepted before is added, since the program may close it.
            _ => self.stalled = Some(Instant::now() + RETRY),
        }
    }
}

#[cfg(test)]
mod tests;

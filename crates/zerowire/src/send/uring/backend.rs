//! One socket on a ring.

use super::EngineError;
use super::batch::{EntryBatch, Lane, submit};
use super::core::EngineState;
use super::engine::{Engine, EngineOptions, describe, make};
use super::straggle::Stragglers;
use crate::area::Area;
use crate::ledger::CopyReason;
use crate::send::backend::{Accepted, NoLoan};
use crate::send::kind::{SocketFamily, SocketKind};
use crate::send::open::UNTOLD_ON_VSOCK;
use crate::send::socket::connection::{reset, send_room};
use crate::send::{Payload, SendError, SendMode, SendOptions, SendWay, SocketError, Window};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerowire_sys::lock;

/// The ring of one sender, or one that others use, too.
enum Handle {
    Own(Box<EngineState>),
    Shared(Arc<Mutex<EngineState>>),
}

impl Handle {
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(&mut EngineState) -> R) -> R {
        match self {
            Self::Own(core) => f(core),
            Self::Shared(core) => f(&mut lock(core)),
        }
    }

    fn look<R>(&self, f: impl FnOnce(&EngineState) -> R) -> R {
        match self {
            Self::Own(core) => f(core),
            Self::Shared(core) => f(&lock(core)),
        }
    }
}

/// A sender's place on a ring, given up when this is dropped.
struct RingPlace {
    core: Handle,
    channel: u32,
    is_aborted: bool,
}

/// See the module.
pub(crate) struct UringBackend {
    /// Before the socket: the ring lets go of it first.
    place: RingPlace,
    socket: OwnedFd,
    kind: SocketKind,
    cannot_lend: Option<NoLoan>,
    capacity: usize,
    /// Kept from call to call.
    sent: Vec<Accepted>,
    /// For how long one call may wait for room for datagrams whose successors are out.
    patience: Duration,
    /// Notices to pass on to the window.
    notices: VecDeque<(u32, bool)>,
    /// True: the sender has got the error that the ring was closed.
    is_told: bool,
}

/// Where other threads use the engine, too, a wait keeps it for this long at a time.
const SHARED_WAIT: Duration = Duration::from_millis(1);
/// The most that a datagram is charged to the socket's buffer besides its bytes. It pays for the
/// kernel's packet and, for each piece, for the parts of its first and last page that hold none of
/// its bytes.
const CHARGE_BYTES: usize = 2048;
const CHARGE_PIECE_BYTES: usize = 2 * 4096;
/// Fewer datagrams than this go linked: asking for the buffer's room costs as much as the links.
const FEWEST_UNLINKED: usize = 3;
/// How long a call waits at most for room for datagrams whose successors are out. Such a call
/// doesn't wait by its nature, and the buffer had room for all of them a moment before.
const STRAGGLE: Duration = Duration::from_millis(100);

impl UringBackend {
    /// A socket with a ring of its own, which follows its sender to other threads.
    pub(crate) fn new(
        socket: OwnedFd,
        kind: SocketKind,
        options: &SendOptions,
        ring: &EngineOptions,
        areas: &[Area],
    ) -> Result<Self, SocketError<EngineError>> {
        let mut core = match make(ring, areas) {
            Ok(core) => core,
            Err(error) => return Err(SocketError { socket, error }),
        };
        core.follow_the_sender();
        // A stream is not: its end must go out when it is dropped, also by another thread.
        if kind.kind == SocketFamily::Udp {
            core.register_file(socket.as_raw_fd());
        }
        // The one that stands for the engine, which is this sender.
        core.users -= 1;
        Ok(Self::with(Handle::Own(Box::new(core)), socket, kind, options))
    }

    /// A socket on an engine.
    pub(crate) fn on(engine: &Engine, socket: OwnedFd, kind: SocketKind, options: &SendOptions) -> Self {
        Self::with(Handle::Shared(engine.core().clone()), socket, kind, options)
    }

    fn with(mut core: Handle, socket: OwnedFd, kind: SocketKind, options: &SendOptions) -> Self {
        let (channel, features, capacity) = core.with(|c| {
            c.users += 1;
            (c.book.attach(), c.facts.features, c.facts.submissions)
        });
        let cannot_lend = match kind.kind {
            _ if options.mode == SendMode::Copy => Some(NoLoan::asked()),
            SocketFamily::Unix => Some(NoLoan::unix()),
            _ if !features.sendmsg_zc => {
                Some(NoLoan::unsupported("this kernel has no SENDMSG_ZC (Linux 6.1 has)"))
            }
            SocketFamily::Vsock => Some(NoLoan::unsupported(UNTOLD_ON_VSOCK)),
            SocketFamily::Tcp | SocketFamily::Udp | SocketFamily::Other => None,
        };
        Self {
            place: RingPlace { core, channel, is_aborted: false },
            socket,
            kind,
            cannot_lend,
            capacity,
            sent: Vec::new(),
            patience: options.timeout.map_or(STRAGGLE, |patience| patience.min(STRAGGLE)),
            notices: VecDeque::new(),
            is_told: false,
        }
    }

    /// Ends it, and gives the socket back.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whether no area was refused.
    pub(crate) fn all_registered(&self) -> bool {
        self.place.core.look(|c| c.areas.refusal.is_none())
    }

    /// How many of `payloads` can go in one call without links.
    ///
    /// Linked entries (`IOSQE_IO_LINK`) are a promise: one that fails cancels those behind it. So
    /// what was taken is the first part of what was given, in order. Each link costs the kernel
    /// some 15 % of a send. Without links a datagram may fail and its successors go, which must not
    /// happen for reasons of every day. So the socket's buffer must have room for all of them. They
    /// must also be of one length, which is too long for all of them or for none. [`mend`] and
    /// [`Stragglers`] repair what still goes wrong in the middle (an ICMP error that the kernel
    /// reports to one of them). Only UDP, which promises no order.
    fn unlinked(&self, payloads: &[Payload], way: SendWay) -> usize {
        let [first, .., _] = payloads else { return 0 };
        if self.kind.kind != SocketFamily::Udp || payloads.len() < FEWEST_UNLINKED {
            return 0;
        }
        let (len, pieces) = (first.len(), first.segments().len());
        let alike = |p: &&Payload| p.len() == len && p.segments().len() <= pieces;
        let count = payloads.iter().take_while(alike).count();
        if count < FEWEST_UNLINKED {
            return 0;
        }
        let bytes = match way {
            SendWay::Copy => 2 * len,
            SendWay::Lend => len,
        };
        let room = send_room(&self.socket).unwrap_or(0);
        let fit = room / (CHARGE_BYTES + bytes + pieces * CHARGE_PIECE_BYTES);
        if fit < FEWEST_UNLINKED { 0 } else { count.min(fit) }
    }

    /// Several entries in one call, linked or not.
    fn submit_batch(
        &mut self,
        payloads: &[Payload],
        from: usize,
        way: SendWay,
        is_chain: bool,
        sent: &mut Vec<Accepted>,
    ) -> io::Result<()> {
        let to = Lane { socket: &self.socket, channel: self.place.channel };
        let batch = EntryBatch { payloads, from, way, is_chain, is_stream: self.kind.stream };
        self.place.core.with(|c| submit(c, to, batch, sent))
    }

    // What `AnyBackend` describes.

    pub(crate) fn submit(&mut self, payload: &Payload, from: usize, way: SendWay) -> io::Result<Accepted> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        let way = if self.cannot_lend.is_some() { SendWay::Copy } else { way };
        let mut result = self.submit_batch(std::slice::from_ref(payload), from, way, true, &mut sent);
        if way == SendWay::Lend
            && let Err(e) = &result
            && e.raw_os_error() == Some(libc::EOPNOTSUPP)
        {
            self.cannot_lend = Some(NoLoan::refused(self.kind.kind));
            result = self.submit_batch(std::slice::from_ref(payload), from, SendWay::Copy, true, &mut sent);
        }
        let first = sent.first().copied();
        self.sent = sent;
        // What was taken was taken, also if the ring failed then: the next call says so.
        match first {
            Some(sent) => Ok(sent),
            None => result.and(Err(io::Error::from_raw_os_error(libc::EIO))),
        }
    }

    pub(crate) fn submit_many(
        &mut self,
        payloads: &[Payload],
        way: SendWay,
        sent: &mut Vec<Accepted>,
    ) -> io::Result<()> {
        let way = if self.cannot_lend.is_some() { SendWay::Copy } else { way };
        let mut stragglers = Stragglers::new(self.patience);
        let mut rest = payloads;
        while !rest.is_empty() {
            let most = rest.len().min(self.capacity);
            let (count, is_chain) = match self.unlinked(&rest[..most], way) {
                0 => (most, true),
                count => (count, false),
            };
            let (batch, behind) = rest.split_at(count);
            let before = sent.len();
            let result = self.submit_batch(batch, 0, way, is_chain, sent);
            stragglers.send(&self.socket, batch, &mut sent[before..]);
            result?;
            rest = behind;
        }
        Ok(())
    }

    pub(crate) fn reap(&mut self, window: &mut Window) -> Result<(), SendError> {
        let (channel, notices) = (self.place.channel, &mut self.notices);
        let is_closed = self.place.core.with(|c| {
            c.reap();
            c.book.take_notices(channel, notices);
            c.pass_on();
            c.closed.is_some()
        });
        // Without the engine's lock: a program's `on_done` and its payloads' drop code may use the
        // engine's other senders. One at a time is taken off, so that none is lost if they panic.
        while let Some((id, copied)) = self.notices.pop_front() {
            if let Err(unknown) = window.notified(id, id, copied) {
                tracing::warn!(%unknown, "notification ignored");
            }
        }
        if is_closed && !std::mem::replace(&mut self.is_told, true) {
            return Err(SendError::Uring(self.place.core.look(describe)));
        }
        Ok(())
    }

    /// Whether a program waits for the engine, and relies on its senders to read what came.
    pub(crate) fn is_watched(&self) -> bool {
        self.place.core.look(EngineState::is_watched)
    }

    pub(crate) fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        if !room {
            self.place
                .core
                .with(|c| c.wait(if c.waits_alone() { timeout } else { timeout.min(SHARED_WAIT) }));
            return Ok(());
        }
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn recover(&mut self, _: &mut Window) -> io::Result<()> {
        // Notifications of io_uring are never lost: if the ring is closed, its end is waited for.
        self.place.core.with(|c| {
            // No sender is left that could enter the ring. Once it is closed it finishes by itself,
            // and the next reading reports this.
            if c.users == 0 && !c.is_own_thread() {
                c.give_up("its last sender is gone".to_owned());
            }
        });
        Ok(())
    }

    pub(crate) fn abort(&mut self) {
        if !std::mem::replace(&mut self.place.is_aborted, true) {
            self.place.core.with(|c| c.users -= 1);
        }
        reset(&self.socket, self.kind);
    }

    pub(crate) fn take_calls(&mut self) -> u64 {
        self.place.core.with(|c| std::mem::take(&mut c.counts.calls))
    }

    pub(crate) fn lends(&self) -> Result<(), NoLoan> {
        self.cannot_lend.clone().map_or(Ok(()), Err)
    }

    #[inline]
    pub(crate) fn lends_freely(&self) -> bool {
        // Its notifications carry no number of the socket's.
        true
    }

    pub(crate) fn copied_because(&self) -> CopyReason {
        self.cannot_lend.as_ref().map_or(CopyReason::Unsupported, |no| no.reason)
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn describe(&self) -> String {
        let ring = self.place.core.look(describe);
        match &self.cannot_lend {
            None => format!("SEND_ZC over {}; {ring}", self.kind.kind),
            Some(no) => format!("io_uring SEND over {}, copying: {}; {ring}", self.kind.kind, no.why),
        }
    }
}

impl Drop for RingPlace {
    fn drop(&mut self) {
        let (channel, is_aborted) = (self.channel, self.is_aborted);
        let owns = matches!(self.core, Handle::Own(_));
        self.core.with(|c| {
            c.book.detach(channel);
            c.disarm_watch();
            if owns {
                c.forget_file();
            }
            if !is_aborted {
                c.users -= 1;
            }
        });
    }
}

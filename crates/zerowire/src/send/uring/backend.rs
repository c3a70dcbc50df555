//! One socket on a ring.

use super::EngineError;
use super::core::Core;
use super::engine::{Engine, EngineOptions, describe, lock, make};
use super::message::Message;
use crate::area::Area;
use crate::send::backend::{Sent, Submit};
use crate::send::kind::{Kind, SocketKind};
use crate::send::socket::reset;
use crate::send::{Payload, SendError, Way, Window};
use crate::uring::sqe::{self, Loan, Target};
use io_uring::squeue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The ring of one sender, or one that others use, too.
enum Handle {
    Own(Box<Core>),
    Shared(Arc<Mutex<Core>>),
}

impl Handle {
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(&mut Core) -> R) -> R {
        match self {
            Self::Own(core) => f(core),
            Self::Shared(core) => f(&mut lock(core)),
        }
    }

    fn look<R>(&self, f: impl FnOnce(&Core) -> R) -> R {
        match self {
            Self::Own(core) => f(core),
            Self::Shared(core) => f(&lock(core)),
        }
    }
}

/// See the module.
pub(crate) struct UringBackend {
    core: Handle,
    channel: u32,
    socket: OwnedFd,
    kind: SocketKind,
    cannot_lend: Option<String>,
    is_aborted: bool,
    capacity: usize,
    /// Kept from call to call.
    sent: Vec<Sent>,
    /// Notices that the window is to be told of.
    notices: VecDeque<(u32, bool)>,
    /// The sender was told that the ring was closed.
    is_told: bool,
}

/// A stream takes at most this much lent memory in one call: pages that are no registered buffer's are charged to
/// RLIMIT_MEMLOCK for the whole call, also for what the socket's buffer then doesn't take.
const LENT_CALL_BYTES: usize = 1 << 20;
/// Where other threads use the engine, too, it is kept for so long at a time while waiting.
const SHARED_WAIT: Duration = Duration::from_millis(1);
/// An entry's length and result are 31 bits; a whole number of pages of any size.
const MAX_CALL_BYTES: usize = 1 << 30;

impl UringBackend {
    /// A socket with a ring of its own, which follows its sender to other threads.
    pub(crate) fn new(
        socket: OwnedFd,
        kind: SocketKind,
        lend: bool,
        options: &EngineOptions,
        areas: &[Area],
    ) -> Result<Self, (OwnedFd, EngineError)> {
        match make(options, areas) {
            Ok(mut core) => {
                core.may_move = true;
                let mut this = Self::with(Handle::Own(Box::new(core)), socket, kind, lend);
                // The one that stands for the engine, which is this sender.
                this.core.with(|c| c.users -= 1);
                Ok(this)
            }
            Err(e) => Err((socket, e)),
        }
    }

    /// A socket on an engine.
    pub(crate) fn on(engine: &Engine, socket: OwnedFd, kind: SocketKind, lend: bool) -> Self {
        Self::with(Handle::Shared(engine.core().clone()), socket, kind, lend)
    }

    fn with(mut core: Handle, socket: OwnedFd, kind: SocketKind, lend: bool) -> Self {
        let (channel, features, capacity) = core.with(|c| (c.attach(), c.features, c.capacity()));
        let cannot_lend = match kind.kind {
            _ if !lend => Some("copying was asked for".to_owned()),
            Kind::Unix => Some("unix sockets can't take lent memory".to_owned()),
            _ if !features.sendmsg_zc => Some("this kernel has no SENDMSG_ZC (Linux 6.1 has)".to_owned()),
            Kind::Tcp | Kind::Udp | Kind::Vsock | Kind::Other => None,
        };
        Self {
            core,
            channel,
            socket,
            kind,
            cannot_lend,
            is_aborted: false,
            capacity,
            sent: Vec::new(),
            notices: VecDeque::new(),
            is_told: false,
        }
    }

    /// A chain of entries in one call: an entry that fails cancels those behind it (`IOSQE_IO_LINK`), so that what was
    /// taken is the first part of what was given.
    fn submit_chain(
        &mut self,
        payloads: &[Payload],
        from: usize,
        way: Way,
        sent: &mut Vec<Sent>,
    ) -> io::Result<()> {
        let (socket, channel, stream) = (self.socket.as_raw_fd(), self.channel, self.kind.stream);
        let max = match way {
            Way::Lend if stream => LENT_CALL_BYTES,
            _ => MAX_CALL_BYTES,
        };
        self.core.with(|c| {
            c.begin()?;
            let mut messages = c.take_messages(payloads.len());
            let mut result = Ok(());
            let mut count = 0;
            for (payload, message) in payloads.iter().zip(&mut messages) {
                let total = message.fill(payload, from, max);
                if !stream && total < payload.len() - from {
                    result = Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
                    break;
                }
                let link = count + 1 < payloads.len();
                let built = entry(c, socket, message, if total == 0 { Way::Copy } else { way }, link);
                // SAFETY: the messages live until `settle` returned, and are leaked if it failed; the caller keeps the
                // payloads until the ids are back.
                if let Err(e) = unsafe { c.push(channel, built) } {
                    result = Err(e);
                    break;
                }
                count += 1;
            }
            if count > 0 {
                let (settled, before) = (c.settle(), sent.len());
                let taken = c.book.take_batch(sent);
                if settled.is_err() {
                    // What is in doubt counts as taken wholly.
                    for (s, m) in sent[before..].iter_mut().zip(&messages) {
                        s.bytes = s.bytes.min(m.pieces().iter().map(|p| p.iov_len).sum());
                    }
                    // The kernel may still read headers and vectors.
                    std::mem::forget(std::mem::take(&mut messages));
                }
                result = settled.and(taken).and(result);
            }
            c.put_messages(messages);
            result
        })
    }
}

/// The entry of one message.
fn entry(core: &Core, socket: RawFd, message: &mut Message, way: Way, link: bool) -> squeue::Entry {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let one = match message.pieces() {
        [piece] => Some((piece.iov_base.cast_const().cast::<u8>(), piece.iov_len as u32)),
        _ => None,
    };
    let report = core.features.report_usage;
    let loan = match way {
        Way::Copy => Loan::Copy,
        Way::Lend if one.is_some() || core.features.registered_vectors => core
            .areas
            .place_of(message.pieces())
            .map_or(Loan::Lend { report }, |buffer| Loan::LendRegistered { report, buffer }),
        Way::Lend => Loan::Lend { report },
    };
    let target = Target::Fd(socket);
    let entry = match one {
        Some((addr, len)) => sqe::send(target, loan, addr, len, FLAGS, 0),
        None => sqe::sendmsg(target, loan, message.header(), FLAGS, 0),
    };
    if link { entry.flags(squeue::Flags::IO_LINK) } else { entry }
}

impl Submit for UringBackend {
    fn submit(&mut self, payload: &Payload, from: usize, way: Way) -> io::Result<Sent> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        let way = if self.cannot_lend.is_some() { Way::Copy } else { way };
        let mut result = self.submit_chain(std::slice::from_ref(payload), from, way, &mut sent);
        if way == Way::Lend
            && let Err(e) = &result
            && e.raw_os_error() == Some(libc::EOPNOTSUPP)
        {
            self.cannot_lend = Some(format!("{} refuses lent memory (EOPNOTSUPP)", self.kind.kind));
            result = self.submit_chain(std::slice::from_ref(payload), from, Way::Copy, &mut sent);
        }
        let first = sent.first().copied();
        self.sent = sent;
        // What was taken was taken, also if the ring failed then: the next call says so.
        match first {
            Some(sent) => Ok(sent),
            None => result.and(Err(io::Error::from_raw_os_error(libc::EIO))),
        }
    }

    fn submit_many(&mut self, payloads: &[Payload], way: Way, sent: &mut Vec<Sent>) -> io::Result<()> {
        let way = if self.cannot_lend.is_some() { Way::Copy } else { way };
        let before = sent.len();
        for chunk in payloads.chunks(self.capacity) {
            if let Err(e) = self.submit_chain(chunk, 0, way, sent) {
                return if sent.len() == before { Err(e) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn reap(&mut self, window: &mut Window) -> Result<(), SendError> {
        let (channel, notices) = (self.channel, &mut self.notices);
        let is_closed = self.core.with(|c| {
            c.reap();
            c.book.take_notices(channel, notices);
            c.pass_on();
            c.closed().is_some()
        });
        // Without the engine's lock: a program's `on_done` and its payloads' drop code may use the engine's other senders.
        // One at a time is taken off, so that none is lost if they panic.
        while let Some((id, copied)) = self.notices.pop_front() {
            if let Err(unknown) = window.notified(id, id, copied) {
                tracing::warn!(%unknown, "notification ignored");
            }
        }
        if is_closed && !std::mem::replace(&mut self.is_told, true) {
            return Err(SendError::Uring(self.core.look(describe)));
        }
        Ok(())
    }

    fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        if !room {
            self.core.with(|c| c.wait(if c.waits_alone() { timeout } else { timeout.min(SHARED_WAIT) }));
            return Ok(());
        }
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // A notification makes room only where the socket becomes writable, too.
        match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn recover(&mut self, _: &mut Window) -> io::Result<()> {
        // Notifications of io_uring are never lost: if the ring is closed, its end is waited for.
        self.core.with(|c| {
            // Nobody is left who could ask the kernel: once the ring is closed it finishes by itself, and the next
            // reading tells.
            if c.users == 0 && !c.is_own_thread() {
                c.give_up("its last sender is gone".to_owned());
            }
        });
        Ok(())
    }

    fn abort(&mut self) {
        if !std::mem::replace(&mut self.is_aborted, true) {
            self.core.with(|c| c.users -= 1);
        }
        reset(&self.socket, self.kind);
    }

    fn take_calls(&mut self) -> u64 {
        self.core.with(|c| std::mem::take(&mut c.calls))
    }

    fn lends(&self) -> Result<(), String> {
        self.cannot_lend.clone().map_or(Ok(()), Err)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn describe(&self) -> String {
        let ring = self.core.look(describe);
        match &self.cannot_lend {
            None => format!("SEND_ZC over {}; {ring}", self.kind.kind),
            Some(why) => format!("io_uring SEND over {}, copying: {why}; {ring}", self.kind.kind),
        }
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        let (channel, is_aborted) = (self.channel, self.is_aborted);
        self.core.with(|c| {
            c.book.detach(channel);
            if !is_aborted {
                c.users -= 1;
            }
        });
    }
}

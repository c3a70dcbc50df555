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
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
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
}

/// A stream takes at most this much lent memory in one call: pages that are no registered buffer's are charged to
/// RLIMIT_MEMLOCK for the whole call, also for what the socket's buffer then doesn't take.
const LENT_CALL_BYTES: usize = 1 << 20;
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
        Self { core, channel, socket, kind, cannot_lend, is_aborted: false, capacity, sent: Vec::new() }
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
                // SAFETY: the messages live until `settle` returned; the caller keeps the payloads until the ids are back,
                // or until the ring is gone.
                if let Err(e) = unsafe { c.push(channel, built) } {
                    result = Err(e);
                    break;
                }
                count += 1;
            }
            if count > 0 {
                let settled = c.settle();
                let taken = c.book.take_batch(sent);
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
        result.and_then(|()| first.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO)))
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
        let channel = self.channel;
        self.core.with(|c| {
            let result = c.reap().map_err(SendError::system("io_uring_enter"));
            while let Some((id, copied)) = c.book.next_notice(channel) {
                if let Err(unknown) = window.notified(id, id, copied) {
                    tracing::warn!(%unknown, "notification ignored");
                }
            }
            result
        })
    }

    fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        if !room {
            return self.core.with(|c| c.wait(timeout));
        }
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT), PollFd::new(&self.socket, PollFlags::OUT)];
        let ring = self.core.with(|c| c.fd());
        let count = match ring {
            Some(fd) => {
                // SAFETY: the ring is closed by this back end only, or with it.
                fds[1] = PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN);
                2
            }
            None => 1,
        };
        match poll(&mut fds[..count], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn recover(&mut self, window: &mut Window) -> io::Result<()> {
        // Notifications of io_uring are never lost, unless the ring is closed.
        let is_gone = self.core.with(|c| {
            // Nobody is left who could ask the kernel: once the ring is closed it finishes by itself.
            if c.users == 0 && !c.is_own_thread() {
                c.give_up();
            }
            c.is_gone()
        });
        if is_gone {
            window.all_back();
        }
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

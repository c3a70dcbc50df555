//! Sends with socket calls: `send`, `sendmsg`, `sendmmsg`, and `MSG_ZEROCOPY` on TCP, UDP and
//! AF_VSOCK (Documentation/networking/msg_zerocopy.rst).
//!
//! The kernel numbers the calls with MSG_ZEROCOPY on a socket: 0, 1, 2, … [`super::numbers`] says
//! with which one a sender begins. A call that fails gives its number back, unless the packet was
//! already built when it failed (a firewall, a missing route). Then the number is used up, and its
//! notification is in the queue when the call returns. After a failed call the queue is therefore
//! read before the next number is given out.
//!
//! A call that makes several packets (fragments, segments) is an exception: those that were queued
//! before it failed keep its number for a while. The numbers behind it are unknown then, and
//! learned again. [`numbering`] keeps what is known of them.

pub(super) mod connection;
pub(super) mod errno;
mod notes;
mod numbering;

use self::connection::reset;
use self::errno::tells_of_full_queues;
use self::numbering::Numbering;
use super::backend::{Accepted, LENT_CALL_BYTES, NoLoan};
use super::kind::{SocketFamily, SocketKind};
use super::numbers::Claim;
use super::orphans;
use super::segment::longest_segment;
use super::{Notifications, Payload, SendError, SendMode, SendOptions, SendWay, SocketError, Window};
use crate::ledger::CopyReason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_cookie;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use zerowire_sys::socket::error_queue::BATCH;
use zerowire_sys::socket::{self, Charges, MAX_IOV, Message, Messages, get_int, set_int};

/// Messages in one `sendmmsg`.
const MAX_MESSAGES: usize = 64;
/// A socket with an error that nobody took is always ready: this long is slept instead of asking
/// again at once.
const DEAD_PAUSE: Duration = Duration::from_millis(1);

/// Arrays for the system calls, kept from call to call. They mean nothing between two calls.
#[derive(Default)]
struct Scratch {
    one: Message,
    messages: Messages,
}

/// A connected socket and what is known of it.
pub(crate) struct SocketBackend {
    socket: OwnedFd,
    kind: SocketKind,
    cannot_lend: Option<NoLoan>,
    /// The right to lend. `None`: nothing was ever lent.
    claim: Option<Claim>,
    /// SO_ZEROCOPY was on before.
    was_on: bool,
    notifications: Notifications,
    numbering: Numbering,
    /// What is left of senders that ended before on this socket; their ids lie before this one's.
    elders: Vec<Window>,
    calls: u64,
    /// The last reading found nothing.
    idle: bool,
    /// On AF_VSOCK: the kernel copied something of what came back and is not booked yet.
    copied_unbooked: bool,
    scratch: Scratch,
}

impl SocketBackend {
    /// Takes the socket; gives it back with an error.
    pub(super) fn new(
        socket: OwnedFd,
        kind: SocketKind,
        options: &SendOptions,
    ) -> Result<Self, SocketError<SendError>> {
        let mut this = Self {
            socket,
            kind,
            cannot_lend: None,
            claim: None,
            was_on: false,
            notifications: options.notifications,
            numbering: Numbering::unknown(),
            elders: Vec::new(),
            calls: 0,
            idle: false,
            copied_unbooked: false,
            scratch: Scratch::default(),
        };
        match (options.mode, kind.kind) {
            (SendMode::Copy, _) => this.cannot_lend = Some(NoLoan::asked()),
            (_, SocketFamily::Unix) => this.cannot_lend = Some(NoLoan::unix()),
            (_, SocketFamily::Other) => {
                let why = "only TCP, UDP and AF_VSOCK sockets take lent memory";
                this.cannot_lend = Some(NoLoan::unsupported(why));
            }
            (mode, SocketFamily::Tcp | SocketFamily::Udp | SocketFamily::Vsock) => {
                this.cannot_lend = this.prepare().err();
                if mode == SendMode::ZeroCopy
                    && this.cannot_lend.as_ref().is_some_and(|no| no.reason == CopyReason::SecondSender)
                {
                    return Err(SocketError { socket: this.socket, error: SendError::AlreadyLent });
                }
            }
        }
        Ok(this)
    }

    /// Claims the socket for lending.
    fn prepare(&mut self) -> Result<(), NoLoan> {
        let unnumbered = |e| NoLoan {
            reason: CopyReason::Numbering,
            why: format!("the socket can't be told from others (SO_COOKIE): {e}"),
        };
        let cookie = socket_cookie(&self.socket).map_err(unnumbered)?;
        if let Some((mut elder, window)) = orphans::take_over(cookie) {
            // The kernel still reads what a sender left that has ended. Its numbers go on here.
            std::mem::swap(&mut elder.socket, &mut self.socket);
            (elder.notifications, elder.calls) = (self.notifications, 0);
            elder.elders.push(window);
            let cannot_lend = elder.cannot_lend.clone();
            *self = elder;
            return cannot_lend.map_or(Ok(()), Err);
        }
        let Some((claim, first)) = Claim::take(cookie) else {
            return Err(NoLoan {
                reason: CopyReason::SecondSender,
                why: "another sender of this process lends on the same socket".to_owned(),
            });
        };
        let refuses = |e| NoLoan::unsupported(format!("{} refuses SO_ZEROCOPY: {e}", self.kind.kind));
        let was_on = get_int(&self.socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY);
        let on = was_on.and_then(|was_on| {
            set_int(&self.socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
            Ok(was_on != 0)
        });
        match on {
            Ok(was_on) => self.was_on = was_on,
            Err(e) => {
                claim.release(first);
                return Err(refuses(e));
            }
        }
        self.claim = Some(claim);
        // What is on tells that somebody else may have lent.
        if let Some(first) = first.filter(|_| !self.was_on && self.kind.kind != SocketFamily::Vsock) {
            self.numbering = Numbering::known(first);
        }
        Ok(())
    }

    /// The id of the first lent call.
    pub(super) fn next_id(&self) -> u32 {
        self.numbering.next_id()
    }

    /// Whether this is the socket with that cookie, and its number is known.
    pub(super) fn has_cookie(&self, cookie: u64) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.cookie == cookie)
    }

    /// What the kernel still holds of senders that ended before on this socket: payloads, and their
    /// bytes.
    pub(super) fn elders_hold(&self) -> (usize, usize) {
        self.elders.iter().fold((0, 0), |(n, bytes), w| (n + w.outstanding(), bytes + w.outstanding_bytes()))
    }

    /// Ends it, and gives the socket back. The kernel holds nothing any more.
    pub(super) fn into_socket(self) -> OwnedFd {
        if let Some(claim) = self.claim {
            let next = self.numbering.next_number();
            if !self.was_on && next.is_some() {
                // If it can't be set the next sender learns its numbers.
                let _ = set_int(&self.socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0);
            }
            claim.release(next);
        }
        self.socket
    }

    /// Whether a call may lend now. While the first number is unknown one call lends alone, at a
    /// time when the socket is charged for no notification. Then no notification is out, and the
    /// next one is the call's own.
    fn may_lend(&mut self) -> bool {
        if self.numbering.is_known() {
            return true;
        }
        if self.cannot_lend.is_some() || !self.numbering.may_try() {
            return false;
        }
        let is_free = Charges::of(&self.socket).is_ok_and(|charges| charges.options() == 0);
        // On AF_VSOCK numbers tell nothing: all is back when the socket is charged for none.
        if is_free && self.kind.kind == SocketFamily::Vsock {
            self.numbering.ignore_numbers();
        }
        is_free
    }

    /// A lent call failed whose payload has `len` bytes.
    #[cold]
    fn lent_call_failed(&mut self, errno: i32, len: usize) {
        if self.kind.kind != SocketFamily::Udp || errno == libc::EAGAIN {
            // A stream's failed calls give their numbers back, and so do those without room.
            return;
        }
        if errno == libc::ENOBUFS && !tells_of_full_queues(&self.socket) {
            // A limit of locked memory, which is met before there is a number.
            return;
        }
        let is_cut = get_int(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok_and(|n| n != 0);
        if is_cut || longest_segment(&self.socket).is_none_or(|longest| len > usize::from(longest)) {
            self.numbering.several_failed();
        } else {
            self.numbering.one_failed();
        }
    }

    fn flags(way: SendWay) -> i32 {
        match way {
            SendWay::Copy => 0,
            SendWay::Lend => libc::MSG_ZEROCOPY,
        }
    }

    fn max_bytes(&self, way: SendWay) -> usize {
        match way {
            SendWay::Lend if self.kind.stream => LENT_CALL_BYTES,
            _ => usize::MAX,
        }
    }

    #[inline]
    fn send_once(&mut self, payload: &Payload, from: usize, way: SendWay) -> Result<usize, i32> {
        self.calls += 1;
        let (flags, max) = (Self::flags(way), self.max_bytes(way));
        if let [segment] = payload.segments() {
            let len = payload.len().saturating_sub(from).min(max);
            // SAFETY: the kernel reads len bytes behind `from` of the segment. The caller keeps it
            // for the call, and after it for as long as AnyBackend says. The kernel checks the
            // addresses itself.
            return unsafe {
                socket::send_range(&self.socket, segment.as_ptr().wrapping_add(from), len, flags)
            };
        }
        if !self.kind.stream && payload.segments().len() > MAX_IOV {
            return Err(libc::EMSGSIZE);
        }
        payload.iovecs(from, max, MAX_IOV, &mut self.scratch.one.list);
        // SAFETY: as above.
        unsafe { socket::send(&self.socket, &self.scratch.one.list, flags) }
    }

    #[inline]
    fn take_id(&mut self, way: SendWay) -> Option<u32> {
        (way == SendWay::Lend).then(|| self.numbering.take_id())
    }

    /// Why a batch stopped. The kernel tells the error of the first call only.
    fn why_stopped(&self, done: Result<usize, i32>) -> i32 {
        match done {
            Err(errno) => errno,
            Ok(_) => match Charges::of(&self.socket) {
                Ok(charges) if charges.sending() >= charges.send_buffer() => libc::EAGAIN,
                _ => libc::EIO,
            },
        }
    }

    fn send_part(&mut self, payload: &Payload, from: usize, way: SendWay) -> Result<Accepted, i32> {
        loop {
            let errno = match self.send_once(payload, from, way) {
                Ok(bytes) => return Ok(Accepted { bytes, id: self.take_id(way), refused: None }),
                Err(errno) => errno,
            };
            if way == SendWay::Lend {
                self.lent_call_failed(errno, payload.len());
            }
            match errno {
                libc::EINTR if way == SendWay::Copy => {}
                // Not again before the queue was read: the call may have used its number up.
                libc::EINTR => return Err(libc::EAGAIN),
                _ => return Err(errno),
            }
        }
    }

    // What `AnyBackend` describes.

    #[inline]
    pub(super) fn submit(&mut self, payload: &Payload, from: usize, way: SendWay) -> io::Result<Accepted> {
        let way = if way == SendWay::Lend && !self.may_lend() { SendWay::Copy } else { way };
        let mut result = self.send_part(payload, from, way);
        if way == SendWay::Lend && result == Err(libc::EOPNOTSUPP) {
            // TLS in the kernel (SOL_TLS) refuses MSG_ZEROCOPY, though the socket takes
            // SO_ZEROCOPY.
            result = self.send_part(payload, from, SendWay::Copy);
            if result != Err(libc::EOPNOTSUPP) {
                self.cannot_lend = Some(NoLoan::refused(self.kind.kind));
            }
        }
        result.map_err(io::Error::from_raw_os_error)
    }

    pub(super) fn submit_many(
        &mut self,
        payloads: &[Payload],
        way: SendWay,
        sent: &mut Vec<Accepted>,
    ) -> io::Result<()> {
        if way == SendWay::Lend && !self.numbering.is_known() {
            // One alone learns the number.
            return Ok(());
        }
        let payloads = &payloads[..payloads.len().min(MAX_MESSAGES)];
        let Scratch { one, messages } = &mut self.scratch;
        messages.clear();
        for p in payloads {
            if p.segments().len() > MAX_IOV {
                break;
            }
            p.iovecs(0, usize::MAX, MAX_IOV, &mut one.list);
            messages.push(one.list.iter().copied());
        }
        let asked = messages.len();
        self.calls += 1;
        // SAFETY: the payloads are as in `send_once`.
        let done = unsafe { messages.send(&self.socket, Self::flags(way)) };
        if way == SendWay::Lend
            && let Some(refused) =
                payloads.get(done.unwrap_or(0)).filter(|_| done.map_or(true, |n| n < asked))
        {
            self.lent_call_failed(self.why_stopped(done), refused.len());
        }
        let taken = match done {
            Ok(taken) => taken,
            Err(libc::EINTR) => return Ok(()),
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        };
        for p in payloads.iter().take(taken) {
            let id = self.take_id(way);
            sent.push(Accepted { bytes: p.len(), id, refused: None });
        }
        Ok(())
    }

    pub(super) fn reap(&mut self, window: &mut Window) -> Result<(), SendError> {
        if self.claim.is_none() {
            // Nothing was ever lent. Sockets without an error queue (AF_UNIX, AF_VSOCK before Linux
            // 6.7) would take this for reading from the peer, whose end never comes to an end.
            self.idle = true;
            return Ok(());
        }
        let mut first_error = None;
        self.idle = true;
        loop {
            let is_more = match self.notifications {
                Notifications::EachOne => {
                    self.read_notes::<1>(window, &mut first_error)? && window.ids_out() > 0
                }
                Notifications::Batched => self.read_notes::<BATCH>(window, &mut first_error)?,
            };
            if !is_more {
                break;
            }
        }
        self.numbering.queue_was_read();
        if self.kind.kind == SocketFamily::Vsock {
            self.reap_vsock(window)?;
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(super) fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        let events = if room { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.socket, events)];
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let got = fds[0].revents();
        let dead = got.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if dead && self.idle && !(room && got.contains(PollFlags::OUT)) {
            std::thread::sleep(DEAD_PAUSE.min(timeout));
        }
        Ok(())
    }

    pub(super) fn recover(&mut self, window: &mut Window) -> io::Result<()> {
        if window.ids_out() == 0 && self.elders.is_empty() {
            return Ok(());
        }
        // Each call that lends is charged a notification's memory (optmem) until the notification
        // was read or thrown away. If nothing is charged and the queues are empty, the kernel holds
        // nothing, whoever took the notifications. Filters are charged there, too: on a socket with
        // one nothing is recovered.
        let charges = Charges::of(&self.socket)?;
        if charges.sending() == 0 && charges.queued() == 0 && charges.options() == 0 {
            self.numbering.end_trial();
            let payloads = window.all_back();
            let before: usize = self.elders.drain(..).map(|mut elder| elder.all_back()).sum();
            let payloads = payloads + before;
            tracing::warn!(payloads, "notifications are missing, but the socket holds nothing: taken back");
        }
        Ok(())
    }

    pub(super) fn abort(&mut self) {
        reset(&self.socket, self.kind);
    }

    #[inline]
    pub(super) fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }

    pub(super) fn lends(&self) -> Result<(), NoLoan> {
        self.cannot_lend.clone().map_or(Ok(()), Err)
    }

    #[inline]
    pub(super) fn lends_freely(&self) -> bool {
        self.numbering.is_known()
    }

    pub(super) fn copied_because(&self) -> CopyReason {
        self.cannot_lend.as_ref().map_or(CopyReason::Numbering, |no| no.reason)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn describe(&self) -> String {
        match &self.cannot_lend {
            None => format!("socket calls over {}, MSG_ZEROCOPY", self.kind.kind),
            Some(no) => format!("socket calls over {}, copying: {}", self.kind.kind, no.why),
        }
    }
}

#[cfg(test)]
mod tests;

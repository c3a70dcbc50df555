//! The sender: limits, tickets, the ledger and the choice, in front of a back end.

mod batch;
mod lending;
mod loans;
mod submit;
#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "testing")]
pub use testing::scribble;

use super::auto::Choice;
use super::backend::{Accepted, AnyBackend};
use super::close::{Close, CloseError, Closed};
use super::kind::SocketKind;
use super::open::open;
#[cfg(feature = "uring")]
use super::open::open_on;
use super::orphans::orphans;
use super::segment;
#[cfg(feature = "uring")]
use super::uring::Engine;
use super::{Completion, Notifications, Payload, Refused, SendError, SendOptions, SocketError, Ticket};
use super::{SendWay, Unfinished};
use crate::area::{Area, Lease};
use crate::ledger::{CopyReason, Counters};
use loans::{SendLoans, pause_for_others};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `MAX_SKB_FRAGS` (include/linux/skbuff.h) by default: the most pieces of a lent datagram.
const MAX_LENT_SEGMENTS: usize = 17;
/// Lent payloads between two readings of the notifications. A notification that is out is charged
/// to the socket (some 800 of the 131072 bytes of net.core.optmem_max, 20480 on older kernels). So
/// they are read well before the limit is reached.
const READ_EVERY: u32 = 32;

/// What keeps a payload from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// The socket's buffer.
    Room,
    /// A limit on what is lent.
    Limit,
}

/// A payload of which a stream took a part; it is the window's open one.
#[derive(Clone, Copy, Debug)]
struct PartSent {
    sent: usize,
    way: SendWay,
    reason: CopyReason,
}

/// Sends payloads over one connected socket. One thread uses it at a time.
///
/// Several senders may follow each other on one connection. They use duplicates of its descriptor
/// or the socket that [`into_socket`](Self::into_socket) gives back. Of several at a time only the
/// first lends. The others copy (ledger: `second_sender`), or are refused in
/// [`SendMode::ZeroCopy`]. Receiving on duplicates is fine.
///
/// While a sender lives, no other process may lend (`MSG_ZEROCOPY`) on its socket, or read the
/// socket's error queue. Nor may code of this process other than a sender. This matters over socket
/// calls: the kernel numbers all loans of a socket together, so memory could come back too early.
/// No sender can find this out in time; [`SendError::Foreign`] tells of it, but perhaps too late.
/// (Who lent before, and has turned SO_ZEROCOPY on for it, does no harm.)
///
/// Dropping a sender is [`Close::Abort`]. After `fork` only one of the two processes may use or
/// drop it. They share the connection, which an abort resets, and the child doesn't have a ring's
/// memory.
///
/// [`SendMode::ZeroCopy`]: super::SendMode::ZeroCopy
pub struct Sender {
    options: SendOptions,
    socket: SocketKind,
    loans: SendLoans,
    why: String,
    pending: Option<PartSent>,
    blocked: Blocked,
    /// A call has returned [`SendError::Disconnected`].
    told_of_end: bool,
    /// The next ticket when `poll` was called last.
    polled_at: Ticket,
    /// What a batch did, kept for its memory.
    sent: Vec<Accepted>,
}

impl Sender {
    /// Takes over a connected socket: TCP, UDP, AF_VSOCK, or any other that `send` works on, which
    /// can only copy.
    ///
    /// # Errors
    /// With each the socket comes back.
    ///
    /// * [`SendError::NotConnected`], [`SendError::Segments`]: the socket is not as it must be.
    /// * [`SendError::NoWindow`]: a limit of the options is 0.
    /// * [`SendError::AlreadyLent`]: [`SendMode::ZeroCopy`], and another sender lends on it.
    /// * [`SendError::Uring`]: io_uring was asked for and can't be used, or with
    ///   [`SendMode::ZeroCopy`] an area can't be registered.
    /// * [`SendError::System`]: a system call failed.
    ///
    /// [`SendMode::ZeroCopy`]: super::SendMode::ZeroCopy
    pub fn new(socket: OwnedFd, options: SendOptions) -> Result<Self, SocketError<SendError>> {
        Self::with_areas(socket, options, &[])
    }

    /// As [`Sender::new`], with areas whose buffers will be sent. With io_uring they are registered
    /// once, so their pages need not be pinned for each send.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn with_areas(
        socket: OwnedFd,
        options: SendOptions,
        areas: &[Area],
    ) -> Result<Self, SocketError<SendError>> {
        Self::open(socket, options, |socket, kind, options| open(socket, kind, options, areas))
    }

    /// As [`Sender::new`], on a ring that many senders share: ten thousand sockets need one ring,
    /// and one set of registered areas. `options.backend` is not looked at.
    ///
    /// # Errors
    /// As [`Sender::new`]; [`SendError::Uring`] when the engine belongs to another thread.
    #[cfg(feature = "uring")]
    pub fn on(
        engine: &Engine,
        socket: OwnedFd,
        options: SendOptions,
    ) -> Result<Self, SocketError<SendError>> {
        Self::open(socket, options, |socket, kind, options| open_on(engine, socket, kind, options))
    }

    fn open(
        socket: OwnedFd,
        options: SendOptions,
        open: impl FnOnce(
            OwnedFd,
            SocketKind,
            &SendOptions,
        ) -> Result<(AnyBackend, String), SocketError<SendError>>,
    ) -> Result<Self, SocketError<SendError>> {
        orphans();
        let kind = match check(&socket, &options) {
            Ok(kind) => kind,
            Err(error) => return Err(SocketError { socket, error }),
        };
        let (back, why) = open(socket, kind, &options)?;
        Ok(Self {
            loans: SendLoans::new(back, kind, &options),
            socket: kind,
            why,
            pending: None,
            blocked: Blocked::Room,
            told_of_end: false,
            polled_at: Ticket::new(0),
            sent: Vec::new(),
            options,
        })
    }

    /// Sends a payload: one datagram or message, or bytes of a stream. Waits for room (the socket's
    /// buffer, the limits) up to [`SendOptions::timeout`]. The payload is dropped when its memory
    /// is back, or on an error; [`try_send`] gives it back instead.
    ///
    /// On a stream the call returns when the socket has taken a part; the rest goes with the next
    /// calls of the sender.
    ///
    /// [`try_send`]: Sender::try_send
    ///
    /// # Errors
    /// [`SendError::TimedOut`] when there was no room for the time of [`SendOptions::timeout`].
    /// [`SendError::TooLong`] and the errors about segments are about this payload.
    /// [`SendError::Disconnected`], [`SendError::NoListener`] and [`SendError::Foreign`] may be
    /// about earlier ones. [`SendError::Locked`] with [`SendMode::ZeroCopy`] only.
    ///
    /// [`SendMode::ZeroCopy`]: super::SendMode::ZeroCopy
    #[inline]
    pub fn send(&mut self, payload: impl Into<Payload>) -> Result<Ticket, SendError> {
        let payload = payload.into();
        let turn = self.loans.turn(payload.len());
        let ticket = match self.attempt(payload, turn) {
            Ok(ticket) => ticket,
            Err(Refused { payload, error: SendError::WouldBlock { .. } }) => {
                self.send_waiting(payload, turn)?
            }
            Err(refused) => return Err(refused.error),
        };
        if self.options.notifications == Notifications::EachOne && self.loans.window.outstanding() > 0 {
            // Where frames are sent in the call itself it is there already.
            self.loans.reap_or_note();
            if self.loans.window.outstanding() > 0 {
                self.wait_for(ticket);
            }
        }
        Ok(ticket)
    }

    /// As [`Sender::send`], without waiting. A payload that is not taken comes back, with
    /// [`SendError::WouldBlock`] when the socket has no room. A stream may take a part of it. Then
    /// the rest is kept inside, and goes first with the next call (`try_send`, `poll`, `wait`).
    ///
    /// # Errors
    /// [`Refused`] has the payload. Its error is [`SendError::WouldBlock`], or one of
    /// [`Sender::send`]'s.
    #[inline]
    pub fn try_send(&mut self, payload: impl Into<Payload>) -> Result<Ticket, Refused> {
        let payload = payload.into();
        let turn = self.loans.turn(payload.len());
        self.attempt(payload, turn)
    }

    /// Sends several payloads in order, datagrams with few system calls (`sendmmsg`). What was sent
    /// is taken off the front of `payloads`; their tickets follow each other from
    /// [`Sender::next_ticket`] on. Waits as [`Sender::send`]. On an error what was not sent is
    /// still in `payloads`.
    ///
    /// With io_uring, which hands datagrams over together, the network stack may refuse a UDP
    /// datagram after it took later ones of the same call. Such a datagram is sent again, then
    /// behind those. If it is refused again, it counts as sent and lost (ledger: dropped). It is
    /// done at once, and the next call returns the error. The next call also returns the error of
    /// an ICMP answer to an earlier datagram, which the kernel reported to one in the middle. One
    /// error may stand for several.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_many(&mut self, payloads: &mut Vec<Payload>) -> Result<usize, SendError> {
        let all = payloads.len();
        let mut done = 0;
        let result = self.send_batches(payloads, &mut done);
        payloads.drain(..done);
        result.map(|()| all)
    }

    /// Changes [`SendOptions::segment_bytes`] from the next payload on; `None`: each payload is one
    /// datagram. The remedy for [`SendError::SegmentTooLong`] and [`SendError::SegmentsRefused`],
    /// where [`Payload::split`] cuts a payload that was refused.
    ///
    /// # Errors
    /// [`SendError::Segments`] on other sockets than UDP, and for 0 bytes.
    pub fn set_segment_bytes(&mut self, bytes: Option<u16>) -> Result<(), SendError> {
        match bytes {
            Some(bytes) => segment::set(self.loans.back.socket(), self.socket, bytes)?,
            None if self.options.segment_bytes.is_some() => segment::unset(self.loans.back.socket())?,
            None => {}
        }
        self.options.segment_bytes = bytes;
        self.loans.lending.set_segment_bytes(self.socket, bytes);
        Ok(())
    }

    /// Sends what waits, and reads the notifications that are there. Returns how many lent payloads
    /// came back since the last call. When none did, and nothing was sent since then either, it
    /// looks for an error of the socket, which costs a system call: a send tells one by itself. On
    /// an engine whose `watch` was called it costs a second one.
    ///
    /// # Errors
    /// Those of [`Sender::send`] about earlier payloads. [`SendError::Disconnected`], once, when
    /// the connection has ended, be it in order. Such a socket stays ready for those that poll it,
    /// and its error stays in it for a program that reads. When both sides have shut down, a TCP
    /// connection ends once the peer's kernel has acknowledged everything, others once all memory
    /// is back. POLLHUP comes earlier: [`Sender::wait_all`] sleeps until the memory is back.
    pub fn poll(&mut self) -> Result<usize, SendError> {
        self.progress()?;
        let next = self.next_ticket();
        let is_quiet = std::mem::replace(&mut self.polled_at, next) == next;
        if is_quiet && self.loans.came_back == 0 {
            self.loans.read_for_watch()?;
            self.look_for_error()?;
        }
        Ok(std::mem::take(&mut self.loans.came_back))
    }

    /// Waits until the memory of `ticket`'s payload is back.
    ///
    /// # Errors
    /// [`SendError::UnknownTicket`], [`SendError::TimedOut`], and those of [`Sender::poll`].
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), SendError> {
        if self.loans.window.is_done(ticket).is_none() {
            return Err(SendError::UnknownTicket(ticket));
        }
        self.wait_until(Some(timeout), |w| w.is_done(ticket) != Some(false))
    }

    /// Waits until everything that was given is sent, and all memory is back.
    ///
    /// Over TCP lent memory comes back when the peer's kernel has acknowledged it, or when the
    /// connection ends without that. A success means the first, unless an earlier call returned
    /// [`SendError::Disconnected`]. Only the peer can say whether its program has read the bytes.
    /// Copied bytes may still be on their way. On other sockets memory comes back once it has left,
    /// which says nothing of the peer.
    ///
    /// # Errors
    /// [`SendError::TimedOut`], and those of [`Sender::poll`]. [`SendError::Disconnected`], once,
    /// when a TCP connection ended before the peer had acknowledged everything.
    pub fn wait_all(&mut self, timeout: Duration) -> Result<(), SendError> {
        self.wait_until(Some(timeout), |w| w.outstanding() == 0)?;
        self.check_acknowledged()
    }

    /// Waits until the memory of one payload more is back; at once when none is out.
    ///
    /// # Errors
    /// [`SendError::TimedOut`], and those of [`Sender::poll`].
    pub fn wait_any(&mut self, timeout: Duration) -> Result<(), SendError> {
        let before = self.loans.window.outstanding();
        self.wait_until(Some(timeout), |w| before == 0 || w.outstanding() < before)
    }

    /// Waits for what kept [`try_send`](Sender::try_send) from taking a payload: room in the
    /// socket's buffer, or memory that comes back. At most for `timeout`, and often less: try
    /// again, it may be refused again.
    ///
    /// # Errors
    /// Those of [`Sender::poll`]; the end of `timeout` is none.
    pub fn wait_room(&mut self, timeout: Duration) -> Result<(), SendError> {
        match self.loans.pause(Instant::now(), Some(timeout), self.blocked == Blocked::Room) {
            Ok(()) | Err(SendError::TimedOut { .. }) => self.progress(),
            Err(e) => Err(e),
        }
    }

    /// Whether a stream has taken only a part of the last payload. The rest goes with the next
    /// calls of the sender. So a program that has nothing more to send calls [`poll`](Sender::poll)
    /// when the socket is writable.
    pub fn is_partly_sent(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether what waits (a payload that was refused, or the rest of one) waits for room in the
    /// socket's buffer. If not, a limit of what is lent holds it up: notifications end that.
    pub fn wants_room(&self) -> bool {
        self.blocked == Blocked::Room
    }

    /// The next range of tickets whose memory is back, in the order in which it came back. Reads
    /// nothing by itself: call [`Sender::poll`] first. Up to 65536 ranges are kept; a program that
    /// never asks loses the oldest.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.loans.window.next_completion()
    }

    /// Calls `f` with each payload whose memory is back, in place of dropping it: with its ticket,
    /// and whether it was copied. `f` runs inside the sender's calls. Payloads that had to be
    /// gathered into one buffer come as that buffer.
    pub fn on_done(&mut self, f: impl FnMut(Ticket, Payload, bool) + Send + 'static) {
        self.loans.window.on_done(Box::new(f));
    }

    /// The ticket that the next payload gets.
    pub fn next_ticket(&self) -> Ticket {
        self.loans.window.next_ticket()
    }

    /// Payloads that are lent, or that wait to be sent.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.loans.window.outstanding()
    }

    /// Their bytes.
    #[inline]
    pub fn outstanding_bytes(&self) -> usize {
        self.loans.window.outstanding_bytes()
    }

    /// The ledger. `frames` are payloads, counted when they are sent. Bytes of lent payloads are
    /// counted when they come back, since only then it is known whether the kernel copied them.
    pub fn counters(&self) -> Arc<Counters> {
        self.loans.counters.clone()
    }

    /// Sends what waits, waits until all memory is back, and gives the socket back: for a
    /// connection that stays open. The next sender on it goes on where this one ends.
    ///
    /// # Errors
    /// The sender comes back, with [`SendError::TimedOut`] or the first error about earlier
    /// payloads.
    pub fn into_socket(mut self, timeout: Duration) -> Result<OwnedFd, Unfinished> {
        if let Err(error) = self.drain_all(timeout) {
            return Err(Unfinished { sender: Box::new(self), error });
        }
        match std::mem::replace(&mut self.loans.back, AnyBackend::Gone).into_socket() {
            Some(socket) => Ok(socket),
            None => Err(Unfinished { sender: Box::new(self), error: SendError::NotConnected }),
        }
    }

    /// A free buffer of `area`. Waits for one, at most for `timeout` (`None`: as long as it takes),
    /// and reads notifications meanwhile: [`Area::lease`] alone never finds the buffers that this
    /// sender lent.
    ///
    /// # Errors
    /// [`SendError::TimedOut`]; [`SendError::NoFreeBuffer`] when the time is over and this sender
    /// has lent nothing; errors about earlier payloads.
    pub fn lease(&mut self, area: &Area, timeout: Option<Duration>) -> Result<Lease, SendError> {
        let mut start = None;
        loop {
            if let Some(lease) = area.lease() {
                return Ok(lease);
            }
            self.progress()?;
            if let Some(lease) = area.lease() {
                return Ok(lease);
            }
            let start = *start.get_or_insert_with(Instant::now);
            if self.loans.window.outstanding() > 0 {
                let room = self.pending.is_some() && self.blocked == Blocked::Room;
                self.loans.pause(start, timeout, room)?;
            } else {
                // All are with others: the program, another sender, or one that has ended.
                pause_for_others(start, timeout)?;
            }
        }
    }

    /// What runs and why, for people.
    pub fn path(&self) -> String {
        format!("{} ({})", self.loans.back.describe(), self.why)
    }

    /// In [`SendMode::Auto`](super::SendMode::Auto): what was chosen for each class of lengths, and
    /// why.
    pub fn choices(&self) -> Vec<Choice> {
        self.loans.lending.choices()
    }

    /// Ends the sender, and says what was left. That not all was back in time doesn't count as an
    /// error.
    ///
    /// # Errors
    /// With [`Close::Drain`] the first error about payloads that were on their way, beside what was
    /// left. As [`Sender::wait_all`], it tells of a TCP connection that ended too early. The sender
    /// has ended all the same.
    pub fn close(mut self, how: Close) -> Result<Closed, CloseError> {
        let drained = match how {
            Close::Drain(timeout) => self.drain(timeout),
            Close::Abort => Ok(()),
        };
        let closed = self.loans.end(self.pending.take().map(|p| p.sent));
        drained.map(|()| closed).map_err(|error| CloseError { closed, error })
    }
}

/// What kind of socket it is, which the options suit.
fn check(socket: &OwnedFd, options: &SendOptions) -> Result<SocketKind, SendError> {
    if options.max_lent == 0 {
        return Err(SendError::NoWindow);
    }
    let kind = SocketKind::of(socket)?;
    if let Some(bytes) = options.segment_bytes {
        segment::set(socket, kind, bytes)?;
    }
    Ok(kind)
}

/// The socket, for event loops. A program that calls [`Sender::send`] and [`Sender::wait`] doesn't
/// need it. Level-triggered polling works as follows:
///
/// * writable: after [`SendError::WouldBlock`], or while a part of a payload waits, call again. Ask
///   for it only while [`Sender::wants_room`]: under a limit a writable socket helps nothing, and a
///   loop would never sleep. Then wait for notifications;
/// * error or end (`POLLERR`, `POLLHUP`, which are always reported): over socket calls,
///   notifications are there, or an error, which [`Sender::poll`] returns;
/// * io_uring's notifications don't come by the socket: put the sender on an [`Engine`] and wait
///   for that, too.
///
/// Don't send on it, and don't read its error queue. A sender that lends over socket calls reads
/// the queue itself, and throws time stamps of sent packets (SO_TIMESTAMPING) away. Take those on a
/// socket of their own, or send by io_uring.
impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.loans.back.socket()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !matches!(self.loans.back, AnyBackend::Gone) {
            self.loans.end(self.pending.map(|p| p.sent));
        }
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender")
            .field("path", &self.path())
            .field("options", &self.options)
            .field("window", &self.loans.window)
            .finish_non_exhaustive()
    }
}

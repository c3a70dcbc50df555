//! Senders for C.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::Duration;

use zerowire::send::{self, Close, Payload, Segment, SendError, Ticket};

use crate::area::{SendArea, SendLease, lost};
use crate::arguments::{GivenFd, GivenOptions, NewHandle, Out, OwnedHandle, exported, kept};
use crate::failure::Failure;
use crate::guard::guard;
use crate::lent::Checks;
use crate::send_types::{SendClosed, SenderOptions, ZW_CLOSE_ABORT, ZW_CLOSE_DRAIN, options, segment_bytes};

/// Sends payloads over one connected socket.
#[derive(Debug)]
pub struct Sender {
    pub(crate) sender: send::Sender,
    checks: Option<Checks>,
    /// What went wrong behind a payload that was taken: told by the next call.
    late: Option<Failure>,
    /// Kept from call to call.
    payloads: Vec<Payload>,
}

/// Where C wants a ticket; NULL is allowed.
type TicketPlace<'call> = Option<&'call mut MaybeUninit<u32>>;
/// A lease that a sender takes, if it succeeds.
type SentLease = OwnedHandle<SendLease>;

impl Sender {
    /// The sender, unless there is something to tell.
    fn told(&mut self) -> Result<&mut send::Sender, Failure> {
        self.late.take().map_or(Ok(&mut self.sender), Err)
    }

    /// Submits a payload by `how`. An error means that it was not taken.
    fn submit(
        &mut self,
        payload: Payload,
        how: impl FnOnce(&mut send::Sender, Payload) -> Result<Ticket, SendError>,
    ) -> Result<u32, SendError> {
        let next = self.sender.next_ticket();
        if let Some(checks) = &self.checks {
            checks.lend(next.number(), &payload);
        }
        match how(&mut self.sender, payload) {
            Ok(ticket) => Ok(ticket.number()),
            Err(e) if self.sender.next_ticket() != next => {
                // ZW_NOTIFY_EACH_ONE: it was taken, and the wait behind it failed. Who got an error
                // would free it.
                self.late = Some(e.into());
                Ok(next.number())
            }
            Err(e) => {
                if let Some(checks) = &self.checks {
                    checks.forget(next.number());
                }
                Err(e)
            }
        }
    }

    fn give(&mut self, payload: Payload, now: bool, ticket: TicketPlace<'_>) -> Result<c_int, Failure> {
        self.told()?;
        let result = if now {
            self.submit(payload, |s, p| s.try_send(p).map_err(|refused| refused.error))
        } else {
            self.submit(payload, |s, p| s.send(p))
        };
        let number = match result {
            Ok(number) => number,
            // Asked for in a loop: no words are made.
            Err(e) if now && e.is_would_block() => return Ok(-libc::EAGAIN),
            Err(e) => return Err(e.into()),
        };
        ticket.map(|ticket| ticket.write(number));
        Ok(0)
    }

    fn give_lease(
        &mut self,
        mut lease: SentLease,
        now: bool,
        ticket: TicketPlace<'_>,
    ) -> Result<c_int, Failure> {
        // Two owners for the time of the call: a sender that refuses drops its own.
        let frozen = lease.get_mut().lease.take().ok_or_else(lost)?.freeze();
        let result = self.give(frozen.clone().into(), now, ticket);
        if matches!(result, Ok(0)) {
            drop(frozen);
            // The sender has its buffer.
            drop(lease.take());
        } else {
            lease.get_mut().lease = frozen.thaw().ok();
        }
        result
    }
}

exported! {
/// Makes a sender of a connected socket: TCP, UDP, AF_VSOCK; others can only copy. options NULL:
/// the defaults.
///
/// If it returns 0 the descriptor is the library's: zw_sender_close closes it,
/// zw_sender_into_socket gives it back. Its number may still be used to poll (POLLOUT: there is
/// room; POLLERR, POLLHUP: notifications have come over socket calls, or an error or the end of the
/// connection: call zw_sender_poll), to receive and to shut down. After an error it is still yours,
/// and open.
///
/// Several senders may follow each other on a connection, on duplicates of its descriptor or on
/// that of zw_sender_into_socket. Of several at a time only the first lends, and the others copy
/// (second_sender). While a sender lives, over socket calls, no other process and no other code may
/// lend (MSG_ZEROCOPY) on the same socket or read its error queue: memory could come back too
/// early.
///
/// A sender is used by one thread at a time; with io_uring always by the thread that made it. A
/// ring that many senders share is there in Rust only.
///
/// -EBADF, -ENOTCONN; -EINVAL: wrong options; -E2BIG: options of a later version; -EOPNOTSUPP: no
/// io_uring; -EBUSY: ZW_MODE_ZEROCOPY, and another sender lends on the socket.
fn zw_sender_new(fd: c_int, options: *const SenderOptions, sender: *mut *mut Sender) -> c_int
    = new_sender(fd, options, sender);

/// Sends a payload: one datagram or message, or bytes of a stream. Waits for room up to the
/// options' timeout. Returns 0, and the payload's ticket unless `ticket` is NULL.
///
/// The memory is lent from now on: don't change, reuse or free it until the ticket is done, which
/// zw_sender_wait or zw_sender_next_completion says. With ZW_CHECKED, and always in a debug build
/// of the library, checksums of the bytes are taken here and compared when the loan ends; if they
/// differ the process aborts, with the ticket and the offset on standard error. A failed call lends
/// nothing.
///
/// On a stream the call returns when the socket has taken a part; the rest goes with the next calls
/// of the sender (any send, zw_sender_poll, zw_sender_wait...), so call one of them when the socket
/// is writable again.
///
/// -ETIMEDOUT: no room in time. -EMSGSIZE: too long for a datagram. -ENOBUFS: ZW_MODE_ZEROCOPY and
/// a limit of locked memory; or a full queue of an interface, where IP_RECVERR is set
/// (zw_last_error tells them apart). -EPIPE, -ECONNRESET: the peer is gone. -ECONNREFUSED: nobody
/// listens, said of an earlier datagram.
fn zw_sender_send(sender: *mut Sender, data: *const c_void, length: libc::size_t, ticket: *mut u32) -> c_int
    = (|s: &mut Sender, p: Segment, t: TicketPlace<'_>| {
        s.give(p.into(), false, t)
    })(sender, [data, length], ticket);

/// As zw_sender_send, without waiting. -EAGAIN, without an error text: all room is taken, and
/// nothing was lent. zw_sender_wants_room says what to wait for.
fn zw_sender_try_send(
    sender: *mut Sender,
    data: *const c_void,
    length: libc::size_t,
    ticket: *mut u32
) -> c_int = (|s: &mut Sender, p: Segment, t: TicketPlace<'_>| {
    s.give(p.into(), true, t)
})(sender, [data, length], ticket);

/// As zw_sender_send, of several pieces as one payload. The array itself is the caller's again when
/// the call returns. A datagram of more than 17 pieces is gathered into one buffer, and counts as
/// copied (scattered).
fn zw_sender_sendv(
    sender: *mut Sender,
    pieces: *const libc::iovec,
    count: libc::size_t,
    ticket: *mut u32
) -> c_int = (|s: &mut Sender, p: Vec<Segment>, t: TicketPlace<'_>| {
    s.give(p.into(), false, t)
})(sender, [pieces, count], ticket);

/// As zw_sender_sendv, without waiting. -EAGAIN, without an error text: all room is taken.
fn zw_sender_try_sendv(
    sender: *mut Sender,
    pieces: *const libc::iovec,
    count: libc::size_t,
    ticket: *mut u32
) -> c_int = (|s: &mut Sender, p: Vec<Segment>, t: TicketPlace<'_>| {
    s.give(p.into(), true, t)
})(sender, [pieces, count], ticket);

/// Sends several payloads in order, each element one: datagrams with few system calls (sendmmsg).
/// Waits as zw_sender_send, and lends as it does. Returns how many were taken, from the first on;
/// fewer than `count`: the next call says what was wrong. Their tickets follow each other from
/// `*first` on (NULL is allowed).
fn zw_sender_send_many(
    sender: *mut Sender,
    payloads: *const libc::iovec,
    count: libc::size_t,
    first: *mut u32
) -> libc::ssize_t = send_many(sender, [payloads, count], first);

/// As zw_sender_send, of a lease. If it returns 0 the lease is the sender's, and the handle is
/// gone; the buffer goes back to its area when the kernel has done with it, and ZW_CHECKED watches
/// it until then. Otherwise the lease is still yours.
fn zw_sender_send_lease(sender: *mut Sender, lease: *mut SendLease, ticket: *mut u32) -> c_int
    = (|s: &mut Sender, l: SentLease, t: TicketPlace<'_>| s.give_lease(l, false, t))(sender, lease, ticket);

/// As zw_sender_send_lease, without waiting. -EAGAIN, without an error text: all room is taken, and
/// the lease is still yours.
fn zw_sender_try_send_lease(sender: *mut Sender, lease: *mut SendLease, ticket: *mut u32) -> c_int
    = (|s: &mut Sender, l: SentLease, t: TicketPlace<'_>| s.give_lease(l, true, t))(sender, lease, ticket);

/// As zw_area_lease, but waits for a free buffer, at most timeout_ms (negative: no limit), and
/// reads notifications meanwhile: the buffers that this sender lent come back by that. -ETIMEDOUT;
/// other errors: as zw_sender_poll.
fn zw_sender_lease(
    sender: *mut Sender,
    area: *const SendArea,
    timeout_ms: c_int,
    lease: *mut *mut SendLease
) -> c_int = lease_for(sender, area, timeout_ms, lease);

/// UDP: changes options.segment_bytes from the next payload on, 1 to 65535; 0: each payload is one
/// datagram. The way on where a send says that segments are too long for the path (-EMSGSIZE), or
/// that it can't cut at all (-EIO).
///
/// -EINVAL: no UDP socket, or a longer one.
fn zw_sender_set_segment_bytes(sender: *mut Sender, bytes: u32) -> c_int
    = (|s: &mut Sender, n: u32| Ok(s.sender.set_segment_bytes(segment_bytes(n)?)?))(sender, bytes);

/// The longest segment_bytes that the path of a connected UDP socket takes at the moment: its MTU
/// without the headers. The socket may be a sender's. -EBADF; -EINVAL: no UDP socket with a peer.
fn zw_longest_segment(fd: c_int) -> c_int = longest_segment(fd);

/// Sends what waits and reads the notifications that are there. Returns how many lent payloads came
/// back since the last call. When none did, and nothing was sent since then either, it looks for an
/// error of the socket, which costs a system call: a send tells one by itself.
///
/// Errors: as zw_sender_send, about earlier payloads. -EPIPE, once: the connection has ended, be it
/// in order. Its socket stays ready for those that poll it: close the sender. When both sides have
/// shut down, a TCP connection ends once the peer's kernel has acknowledged everything, others once
/// all memory is back. POLLHUP comes earlier: zw_sender_wait_all sleeps until the memory is back.
fn zw_sender_poll(sender: *mut Sender) -> c_int = (|s: &mut Sender| Ok(s.told()?.poll()?))(sender);

/// Whether what waits (a payload that was refused with -EAGAIN, or the rest of one) waits for room
/// in the socket's buffer: 1: poll the descriptor for POLLOUT. 0: a limit of what is lent holds it
/// up, and notifications end that: poll for POLLERR (socket calls), or call zw_sender_wait_any.
/// POLLOUT would be there at once then, again and again.
fn zw_sender_wants_room(sender: *mut Sender) -> c_int
    = (|s: &mut Sender| Ok(c_int::from(s.sender.wants_room())))(sender);

/// Waits until the ticket is done: its memory is yours again. At most timeout_ms; negative: no
/// limit; 0: only looks. -ETIMEDOUT; -EINVAL: no ticket of this sender.
fn zw_sender_wait(sender: *mut Sender, ticket: u32, timeout_ms: c_int) -> c_int
    = (|s: &mut Sender, t: u32, limit: Duration| {
        Ok(s.told()?.wait(Ticket::new(t), limit)?)
    })(sender, ticket, timeout_ms);

/// Waits until one payload more is done; returns at once if none is out. timeout_ms as in
/// zw_sender_wait; -ETIMEDOUT.
fn zw_sender_wait_any(sender: *mut Sender, timeout_ms: c_int) -> c_int
    = (|s: &mut Sender, limit: Duration| Ok(s.told()?.wait_any(limit)?))(sender, timeout_ms);

/// Waits until everything is sent, and all memory is back. timeout_ms as in zw_sender_wait;
/// -ETIMEDOUT. -EPIPE, once: a TCP connection ended before the peer's kernel had acknowledged
/// everything. 0 doesn't say that the peer's program has read it.
fn zw_sender_wait_all(sender: *mut Sender, timeout_ms: c_int) -> c_int
    = (|s: &mut Sender, limit: Duration| Ok(s.told()?.wait_all(limit)?))(sender, timeout_ms);

/// Ends the sender and closes the socket. The handle is gone, whatever is returned. NULL is
/// allowed.
///
/// ZW_CLOSE_DRAIN waits at most timeout_ms (negative: no limit), then does what ZW_CLOSE_ABORT
/// does. 0: drained, or aborted as asked for. -ETIMEDOUT: not everything was back; other errors: as
/// zw_sender_wait_all. `closed`, unless NULL, says in each of these cases what was left behind.
/// With a wrong closed.size (-EINVAL) ask zw_orphans.
///
/// If closed.kept is not 0 the kernel still reads memory of yours (frames in an interface's queue):
/// it must stay valid and unchanged until zw_orphans returns 0. If it is 0 all memory is yours.
/// Buffers of areas need no such care.
fn zw_sender_close(sender: *mut Sender, how: u32, timeout_ms: c_int, closed: *mut SendClosed) -> c_int
    = close_sender(sender, how, timeout_ms, closed);

/// Sends what waits, waits until all memory is back, at most timeout_ms (negative: no limit), and
/// gives the descriptor back, for a connection that stays open: returned, 0 or more. The handle is
/// gone then. The next sender on the connection goes on where this one ends.
///
/// After an error the sender is as it was. -ETIMEDOUT; other errors: as zw_sender_wait_all.
fn zw_sender_into_socket(sender: *mut Sender, timeout_ms: c_int) -> c_int = into_socket(sender, timeout_ms);

/// Payloads of senders that are closed which the kernel still holds; takes back those that it has
/// let go of.
fn zw_orphans() -> libc::size_t = orphans();
}

fn new_sender(
    fd: GivenFd,
    options: GivenOptions<'_, SenderOptions>,
    sender: NewHandle<'_, Sender>,
) -> Result<c_int, Failure> {
    let (asked, checked) = self::options(options.get())?;
    let areas: Vec<_> = options.areas()?.into_iter().map(|area| area.0.clone()).collect();
    let mut made = send::Sender::with_areas(fd.take(), asked, &areas).map_err(kept)?;
    let checks = checked.then(Checks::default);
    if let Some(checks) = checks.clone() {
        made.on_done(move |ticket, payload, _| checks.back(ticket.number(), &payload));
    }
    sender.put(Sender { sender: made, checks, late: None, payloads: Vec::new() });
    Ok(0)
}

fn send_many(
    sender: &mut Sender,
    payloads: Vec<Segment>,
    first: TicketPlace<'_>,
) -> Result<libc::ssize_t, Failure> {
    sender.told()?;
    let count = payloads.len();
    let next = sender.sender.next_ticket();
    sender.payloads.clear();
    sender.payloads.extend(payloads.into_iter().map(Payload::from));
    if let Some(checks) = &sender.checks {
        for (i, payload) in (0..).zip(&sender.payloads) {
            checks.lend(next.plus(i).number(), payload);
        }
    }
    let result = sender.sender.send_many(&mut sender.payloads);
    let done = sender.sender.next_ticket().since(next).max(0);
    sender.payloads.clear();
    if let Some(checks) = &sender.checks {
        for i in done as u32..count as u32 {
            checks.forget(next.plus(i).number());
        }
    }
    match result {
        Err(e) if done == 0 => return Err(e.into()),
        Err(e) => sender.late = Some(e.into()),
        Ok(_) => {}
    }
    first.map(|first| first.write(next.number()));
    Ok(done as libc::ssize_t)
}

fn lease_for(
    sender: &mut Sender,
    area: &SendArea,
    limit: Option<Duration>,
    lease: NewHandle<'_, SendLease>,
) -> Result<c_int, Failure> {
    lease.put(SendLease { lease: Some(sender.told()?.lease(&area.0, limit)?) });
    Ok(0)
}

fn longest_segment(fd: BorrowedFd<'_>) -> Result<c_int, Failure> {
    send::longest_segment(fd).map(c_int::from).ok_or_else(|| {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
        Failure::new(libc::EINVAL, format!("descriptor {fd} is no UDP socket with a peer: connect it first"))
    })
}

fn close_sender(
    sender: Option<OwnedHandle<Sender>>,
    how: u32,
    limit: Duration,
    closed: Result<Option<Out<'_, SendClosed>>, Failure>,
) -> Result<c_int, Failure> {
    let mut left = SendClosed { size: size_of::<SendClosed>(), aborted: 0, aborted_bytes: 0, kept: 0 };
    let mut result = Ok(0);
    if let Some(sender) = sender {
        let Sender { sender, late, .. } = *sender.take();
        let (how, wrong) = match how {
            ZW_CLOSE_DRAIN => (Close::Drain(limit), None),
            ZW_CLOSE_ABORT => (Close::Abort, None),
            n => {
                let text =
                    format!("{n} is no way to close, and was taken for ZW_CLOSE_ABORT; ZW_CLOSE_DRAIN is 0");
                (Close::Abort, Some(Failure::new(libc::EINVAL, text)))
            }
        };
        let (end, failure) = match sender.close(how) {
            Ok(end) => (end, None),
            Err(e) => (e.closed, Some(Failure::from(e.error))),
        };
        (left.aborted, left.aborted_bytes, left.kept) = (end.aborted, end.aborted_bytes, end.kept);
        let overdue = (how != Close::Abort && end.aborted > 0).then(|| {
            let text =
                format!("{} payloads ({} bytes) were not back in time", end.aborted, end.aborted_bytes);
            Failure::new(libc::ETIMEDOUT, text)
        });
        let late = late.filter(|_| how != Close::Abort);
        result = wrong.or(late).or(failure).or(overdue).map_or(Ok(0), Err);
    }
    match closed {
        Ok(Some(closed)) => closed.write(&left),
        Ok(None) => {}
        // It was closed all the same.
        Err(wrong) => return result.and(Err(wrong)),
    }
    result
}

fn into_socket(mut sender: OwnedHandle<Sender>, limit: Duration) -> Result<c_int, Failure> {
    sender.get_mut().told()?;
    // Put back below unless it is gone.
    let mut handle = sender.take();
    let Sender { sender: inner, checks, late, payloads } = *handle;
    match inner.into_socket(limit) {
        Ok(socket) => Ok(socket.into_raw_fd()),
        Err(send::Unfinished { sender, error }) => {
            *handle = Sender { sender: *sender, checks, late, payloads };
            // The same address as before.
            let _ = Box::into_raw(handle);
            Err(error.into())
        }
    }
}

fn orphans() -> Result<usize, Failure> {
    let mut left = usize::MAX;
    guard::<(), _>(|| {
        left = send::orphans().payloads;
        Ok(())
    });
    Ok(left)
}

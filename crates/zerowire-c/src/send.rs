//! Senders for C.
//!
//! SAFETY, for all functions: as src/handle.rs says; a sender is used by one thread at a time;
//! memory that is lent stays valid and unchanged as the header says.
#![allow(clippy::missing_safety_doc, reason = "the contract is the one above, and the header's")]

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::Duration;

use zerowire::send::{self, Close, Payload, SendError, Ticket};

use crate::area::{SendArea, SendLease, lost};
use crate::failure::Failure;
use crate::guard::{guard, guard_int};
use crate::handle::{Out, borrowed, each, gathered, get, get_mut, given, kept, make, open, sized, timeout};
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

impl Sender {
    fn told(&mut self) -> Result<(), Failure> {
        self.late.take().map_or(Ok(()), Err)
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

    /// # Safety
    /// `ticket` is NULL or valid for writes; the payload's memory as the header says.
    unsafe fn give(&mut self, payload: Payload, now: bool, ticket: *mut u32) -> Result<i32, Failure> {
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
        if !ticket.is_null() {
            // SAFETY: by this function's contract.
            unsafe { ticket.write(number) };
        }
        Ok(0)
    }
}

/// Makes a sender of a connected socket: TCP, UDP, AF_VSOCK; others can only copy. options NULL:
/// the defaults.
///
/// If it returns 0 the descriptor is the library's: zw_sender_close closes it,
/// zw_sender_into_socket gives it back. Its number may still be used to poll (POLLOUT: there is
/// room; POLLERR: with socket calls, notifications have come), to receive and to shut down. After
/// an error it is still yours, and open.
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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_new(
    fd: c_int,
    options: *const SenderOptions,
    sender: *mut *mut Sender,
) -> c_int {
    // SAFETY: by the module's contract; the descriptor is given away, and given back with an error.
    unsafe {
        make(sender, "sender", || {
            let asked = sized(options, "zw_sender_options")?;
            let (options, checked) = self::options(asked.as_ref())?;
            let (array, count) = asked.map_or((std::ptr::null(), 0), |o| (o.areas, o.area_count));
            let areas: Vec<_> =
                each(array, count, "an area")?.into_iter().map(|area| area.0.clone()).collect();
            let mut made = send::Sender::with_areas(given(fd)?, options, &areas).map_err(kept)?;
            let checks = checked.then(Checks::default);
            if let Some(checks) = checks.clone() {
                made.on_done(move |ticket, payload, _| checks.back(ticket.number(), &payload));
            }
            Ok(Sender { sender: made, checks, late: None, payloads: Vec::new() })
        })
    }
}

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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_send(
    sender: *mut Sender,
    data: *const c_void,
    length: libc::size_t,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| unsafe { get_mut(sender, "sender")?.give(borrowed(data, length)?.into(), false, ticket) })
}

/// As zw_sender_send, without waiting: -EAGAIN, without words, if there is no room; nothing was
/// lent then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_try_send(
    sender: *mut Sender,
    data: *const c_void,
    length: libc::size_t,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| unsafe { get_mut(sender, "sender")?.give(borrowed(data, length)?.into(), true, ticket) })
}

/// As zw_sender_send, of several pieces as one payload. The array itself is the caller's again when
/// the call returns. A datagram of more than 17 pieces is gathered into one buffer, and counts as
/// copied (scattered).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_sendv(
    sender: *mut Sender,
    pieces: *const libc::iovec,
    count: libc::size_t,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| unsafe { get_mut(sender, "sender")?.give(gathered(pieces, count)?.into(), false, ticket) })
}

/// As zw_sender_sendv, without waiting: -EAGAIN, without words, if there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_try_sendv(
    sender: *mut Sender,
    pieces: *const libc::iovec,
    count: libc::size_t,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| unsafe { get_mut(sender, "sender")?.give(gathered(pieces, count)?.into(), true, ticket) })
}

/// Sends several payloads in order, each element one: datagrams with few system calls (sendmmsg).
/// Waits as zw_sender_send, and lends as it does. Returns how many were taken, from the first on;
/// fewer than `count`: the next call says what was wrong. Their tickets follow each other from
/// `*first` on (NULL is allowed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_send_many(
    sender: *mut Sender,
    payloads: *const libc::iovec,
    count: libc::size_t,
    first: *mut u32,
) -> libc::ssize_t {
    guard(|| {
        // SAFETY: by the module's contract.
        let this = unsafe { get_mut(sender, "sender") }?;
        this.told()?;
        // SAFETY: by the module's contract.
        let segments = unsafe { gathered(payloads, count) }?;
        let next = this.sender.next_ticket();
        this.payloads.clear();
        this.payloads.extend(segments.into_iter().map(Payload::from));
        if let Some(checks) = &this.checks {
            for (i, payload) in (0..).zip(&this.payloads) {
                checks.lend(next.plus(i).number(), payload);
            }
        }
        let result = this.sender.send_many(&mut this.payloads);
        let done = this.sender.next_ticket().since(next).max(0);
        this.payloads.clear();
        if let Some(checks) = &this.checks {
            for i in done as u32..count as u32 {
                checks.forget(next.plus(i).number());
            }
        }
        match result {
            Err(e) if done == 0 => return Err(e.into()),
            Err(e) => this.late = Some(e.into()),
            Ok(_) => {}
        }
        if !first.is_null() {
            // SAFETY: not NULL, and by the module's contract.
            unsafe { first.write(next.number()) };
        }
        Ok(done.into())
    }) as libc::ssize_t
}

/// # Safety
/// As the module says.
unsafe fn give_lease(sender: *mut Sender, lease: *mut SendLease, now: bool, ticket: *mut u32) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let (sender, handle) = unsafe { (get_mut(sender, "sender")?, get_mut(lease, "lease")?) };
        // Two owners for the time of the call: a sender that refuses drops its own.
        let frozen = handle.lease.take().ok_or_else(lost)?.freeze();
        // SAFETY: the sender owns the memory that it is given; the rest is the module's contract.
        let result = unsafe { sender.give(frozen.clone().into(), now, ticket) };
        if matches!(result, Ok(0)) {
            drop(frozen);
            // SAFETY: made by `put`, and the sender has its buffer: the caller does not use it
            // again.
            drop(unsafe { Box::from_raw(lease) });
        } else {
            handle.lease = frozen.thaw().ok();
        }
        result
    })
}

/// As zw_sender_send, of a lease. If it returns 0 the lease is the sender's, and the handle is
/// gone; the buffer goes back to its area when the kernel has done with it, and ZW_CHECKED watches
/// it until then. Otherwise the lease is still yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_send_lease(
    sender: *mut Sender,
    lease: *mut SendLease,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe { give_lease(sender, lease, false, ticket) }
}

/// As zw_sender_send_lease, without waiting: -EAGAIN, without words, if there is no room; the lease
/// is still yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_try_send_lease(
    sender: *mut Sender,
    lease: *mut SendLease,
    ticket: *mut u32,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe { give_lease(sender, lease, true, ticket) }
}

/// As zw_area_lease, but waits for a free buffer, at most timeout_ms (negative: no limit), and
/// reads notifications meanwhile: the buffers that this sender lent come back by that. -ETIMEDOUT;
/// other errors: as zw_sender_poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_lease(
    sender: *mut Sender,
    area: *const SendArea,
    timeout_ms: c_int,
    lease: *mut *mut SendLease,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe {
        make(lease, "lease", || {
            let (this, area) = (get_mut(sender, "sender")?, get(area, "area")?);
            this.told()?;
            Ok(SendLease { lease: Some(this.sender.lease(&area.0, timeout(timeout_ms))?) })
        })
    }
}

/// UDP: changes options.segment_bytes from the next payload on, 1 to 65535; 0: each payload is one
/// datagram. The way on where a send says that segments are too long for the path (-EMSGSIZE), or
/// that it can't cut at all (-EIO).
///
/// -EINVAL: no UDP socket, or a longer one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_set_segment_bytes(sender: *mut Sender, bytes: u32) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let this = unsafe { get_mut(sender, "sender") }?;
        this.sender.set_segment_bytes(segment_bytes(bytes)?)?;
        Ok(0)
    })
}

/// The longest segment_bytes that the path of a connected UDP socket takes at the moment: its MTU
/// without the headers. The socket may be a sender's. -EBADF; -EINVAL: no UDP socket with a peer.
#[unsafe(no_mangle)]
pub extern "C" fn zw_longest_segment(fd: c_int) -> c_int {
    guard_int(|| {
        open(fd)?;
        // SAFETY: open, and the caller leaves it so during the call.
        let longest = send::longest_segment(unsafe { BorrowedFd::borrow_raw(fd) });
        longest.map(i32::from).ok_or_else(|| {
            Failure::new(
                libc::EINVAL,
                format!("descriptor {fd} is no UDP socket with a peer: connect it first"),
            )
        })
    })
}

/// Sends what waits and reads the notifications that are there. Returns how many lent payloads came
/// back since the last call. Makes no system call if nothing is lent and nothing waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_poll(sender: *mut Sender) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let this = unsafe { get_mut(sender, "sender") }?;
        this.told()?;
        Ok(i32::try_from(this.sender.poll()?).unwrap_or(i32::MAX))
    })
}

/// # Safety
/// As the module says.
unsafe fn waiting(
    sender: *mut Sender,
    timeout_ms: c_int,
    wait: impl FnOnce(&mut send::Sender, Duration) -> Result<(), SendError>,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let this = unsafe { get_mut(sender, "sender") }?;
        this.told()?;
        wait(&mut this.sender, timeout(timeout_ms).unwrap_or(Duration::MAX))?;
        Ok(0)
    })
}

/// Waits until the ticket is done: its memory is yours again. At most timeout_ms; negative: no
/// limit; 0: only looks. -ETIMEDOUT; -EINVAL: no ticket of this sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_wait(sender: *mut Sender, ticket: u32, timeout_ms: c_int) -> c_int {
    // SAFETY: by the module's contract.
    unsafe { waiting(sender, timeout_ms, |s, limit| s.wait(Ticket::new(ticket), limit)) }
}

/// Waits until one payload more is done; returns at once if none is out. timeout_ms as in
/// zw_sender_wait; -ETIMEDOUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_wait_any(sender: *mut Sender, timeout_ms: c_int) -> c_int {
    // SAFETY: by the module's contract.
    unsafe { waiting(sender, timeout_ms, |s, limit| s.wait_any(limit)) }
}

/// Waits until everything is sent, and all memory is back. timeout_ms as in zw_sender_wait;
/// -ETIMEDOUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_wait_all(sender: *mut Sender, timeout_ms: c_int) -> c_int {
    // SAFETY: by the module's contract.
    unsafe { waiting(sender, timeout_ms, |s, limit| s.wait_all(limit)) }
}

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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_close(
    sender: *mut Sender,
    how: u32,
    timeout_ms: c_int,
    closed: *mut SendClosed,
) -> c_int {
    guard_int(|| {
        let mut left = SendClosed { size: size_of::<SendClosed>(), aborted: 0, aborted_bytes: 0, kept: 0 };
        // SAFETY: by the module's contract.
        let out = (!closed.is_null()).then(|| unsafe { Out::new(closed, "closed", "zw_closed") }).transpose();
        let mut result = Ok(0);
        if !sender.is_null() {
            // SAFETY: made by `put`, and not used again by the module's contract.
            let Sender { sender, late, .. } = *unsafe { Box::from_raw(sender) };
            let limit = timeout(timeout_ms).unwrap_or(Duration::MAX);
            let (how, wrong) = match how {
                ZW_CLOSE_DRAIN => (Close::Drain(limit), None),
                ZW_CLOSE_ABORT => (Close::Abort, None),
                n => (
                    Close::Abort,
                    Some(Failure::new(
                        libc::EINVAL,
                        format!(
                            "{n} is no way to close, and was taken for ZW_CLOSE_ABORT; ZW_CLOSE_DRAIN is 0"
                        ),
                    )),
                ),
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
        match out {
            Ok(Some(out)) => out.write(&left),
            Ok(None) => {}
            // It was closed all the same.
            Err(wrong) => return result.and(Err(wrong)),
        }
        result
    })
}

/// Sends what waits, waits until all memory is back, at most timeout_ms (negative: no limit), and
/// gives the descriptor back, for a connection that stays open: returned, 0 or more. The handle is
/// gone then. The next sender on the connection goes on where this one ends.
///
/// After an error the sender is as it was. -ETIMEDOUT; other errors: as zw_sender_wait_all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_sender_into_socket(sender: *mut Sender, timeout_ms: c_int) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        unsafe { get_mut(sender, "sender") }?.told()?;
        // SAFETY: made by `put`; given up again below unless it is gone.
        let mut handle = unsafe { Box::from_raw(sender) };
        let Sender { sender: inner, checks, late, payloads } = *handle;
        match inner.into_socket(timeout(timeout_ms).unwrap_or(Duration::MAX)) {
            Ok(socket) => Ok(socket.into_raw_fd()),
            Err(send::Unfinished { sender, error }) => {
                *handle = Sender { sender: *sender, checks, late, payloads };
                // The same address as before.
                let _ = Box::into_raw(handle);
                Err(error.into())
            }
        }
    })
}

/// Payloads of senders that are closed which the kernel still holds; takes back those that it has
/// let go of.
#[unsafe(no_mangle)]
pub extern "C" fn zw_orphans() -> libc::size_t {
    let mut left = libc::size_t::MAX;
    guard(|| {
        left = send::orphans().payloads;
        Ok(0)
    });
    left
}

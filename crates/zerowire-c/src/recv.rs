//! Receivers for C.
//!
//! SAFETY, for all functions: as src/handle.rs says; a receiver is used by the thread that made it;
//! an arrival was written by this library, and one thread at a time uses it.
#![allow(clippy::missing_safety_doc, reason = "the contract is the one above, and the header's")]

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::thread::ThreadId;

use zerowire::recv::{self, Arrival, ConnectionId, ListenerId, RecvError, What};

use crate::failure::{Failure, wrong};
use crate::guard::{guard, guard_int};
use crate::handle::{
    Out, get, get_mut, given, kept, make, null, print, size_of_c, sized, timeout, write_sized,
};
use crate::held::{self, HeldTable};
use crate::recv_types::{
    self, ARRIVAL_LEAST, ReceiverOptions, RecvArrival, RecvEvents, ZW_RECV_QUEUE, zero_copied,
};
use crate::send_types::SendLedger;

/// Receives from many sockets.
#[derive(Debug)]
pub struct Receiver {
    pub(crate) receiver: recv::Receiver,
    thread: ThreadId,
    /// Where the buffers are that C holds.
    table: HeldTable,
    /// What came and was not asked for yet.
    waiting: VecDeque<Arrival>,
    /// Kept from call to call.
    batch: Vec<Arrival>,
}

impl Receiver {
    /// Of this thread.
    pub(crate) fn of(receiver: recv::Receiver) -> Self {
        let thread = std::thread::current().id();
        Self { receiver, thread, table: HeldTable::next(), waiting: VecDeque::new(), batch: Vec::new() }
    }
}

/// # Safety
/// As the module says, but for the thread.
pub(crate) unsafe fn own<'a>(receiver: *mut Receiver) -> Result<&'a mut Receiver, Failure> {
    // SAFETY: the thread never changes.
    if unsafe { get(receiver, "receiver") }?.thread != std::thread::current().id() {
        return Err(RecvError::WrongThread.into());
    }
    // SAFETY: this is the only thread that may use it.
    unsafe { get_mut(receiver, "receiver") }
}

/// Checks the bytes that C has for an arrival.
fn element(size: libc::size_t) -> Result<(), Failure> {
    size_of_c(size, ARRIVAL_LEAST, "zw_arrival", size_of::<RecvArrival>())?;
    if size.is_multiple_of(align_of::<RecvArrival>()) {
        return Ok(());
    }
    let text = format!("size {size}: an element has a multiple of {} bytes", align_of::<RecvArrival>());
    wrong(text)
}

/// # Safety
/// As src/handle.rs says; `size` is true.
pub(crate) unsafe fn receiver_options(from: *const ReceiverOptions) -> Result<recv::RecvOptions, Failure> {
    // SAFETY: by this function's contract.
    let Some(o) = (unsafe { sized(from, "zw_receiver_options") })? else {
        return Ok(recv::RecvOptions::default());
    };
    let is_named = o.backend == ZW_RECV_QUEUE && !o.interface.is_null();
    // SAFETY: a C string by this function's contract.
    let interface = is_named.then(|| unsafe { CStr::from_ptr(o.interface) });
    // SAFETY: NULL or a handle by this function's contract.
    recv_types::options(&o, interface, unsafe { o.dmabuf.as_ref() })
}

/// Makes a receiver. options NULL: the defaults. It is used by the thread that made it; others get
/// -EEXIST.
///
/// -EINVAL: wrong options; -E2BIG: options of a later version; -ENOMEM; -EOPNOTSUPP, -EPERM,
/// -ENODEV and others: the way to receive that was asked for is impossible here, and zw_last_error
/// says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_new(
    options: *const ReceiverOptions,
    receiver: *mut *mut Receiver,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe {
        make(receiver, "receiver", || Ok(Receiver::of(recv::Receiver::new(receiver_options(options)?)?)))
    }
}

/// Closes it and its sockets. Arrivals that are held stay valid. NULL is allowed. -EEXIST: another
/// thread made it; it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_close(receiver: *mut Receiver) -> c_int {
    guard_int(|| {
        if receiver.is_null() {
            return Ok(0);
        }
        // SAFETY: by the module's contract.
        unsafe { own(receiver) }?;
        // SAFETY: made by `put`, and the caller doesn't use it again.
        drop(unsafe { Box::from_raw(receiver) });
        Ok(0)
    })
}

/// Takes a connected stream socket, or a datagram socket, and gives its number among the receiver's
/// connections. If it returns 0 the descriptor is the library's, which closes it with the receiver;
/// zw_receiver_remove gives it back. After an error it is still yours, open and as it was.
///
/// -EBADF; -ENOTSOCK; -EMFILE: max_connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_add(receiver: *mut Receiver, fd: c_int, connection: *mut u64) -> c_int {
    guard_int(|| {
        if connection.is_null() {
            return Err(null("connection"));
        }
        // SAFETY: by the module's contract.
        let receiver = unsafe { own(receiver) }?;
        // SAFETY: the caller gives it away, and gets it back with an error.
        let id = receiver.receiver.add(unsafe { given(fd) }?).map_err(kept)?;
        // SAFETY: not NULL, and by the module's contract.
        unsafe { connection.write(id.into()) };
        Ok(0)
    })
}

/// Takes a listening socket: connections are accepted and added by themselves
/// (ZW_ARRIVAL_ACCEPTED). At max_connections accepting stops until one is removed; others wait in
/// the backlog. listener NULL is allowed.
///
/// If it returns 0 the descriptor is the library's, until zw_receiver_unlisten. After an error it
/// is still yours.
///
/// -EBADF; -EINVAL: it doesn't listen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_listen(receiver: *mut Receiver, fd: c_int, listener: *mut u64) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let receiver = unsafe { own(receiver) }?;
        // SAFETY: the caller gives it away, and gets it back with an error.
        let id = receiver.receiver.listen(unsafe { given(fd) }?).map_err(kept)?;
        if !listener.is_null() {
            // SAFETY: not NULL, and by the module's contract.
            unsafe { listener.write(id.into()) };
        }
        Ok(0)
    })
}

/// Gives a listening socket back: a descriptor, which is the caller's. -ENOENT: no such listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_unlisten(receiver: *mut Receiver, listener: u64) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { own(receiver) }?.receiver.unlisten(ListenerId::from(listener))?.into_raw_fd()))
}

/// Gives a connection's socket back: a descriptor, which is the caller's. What had been received
/// before is still given by zw_receiver_recv; the rest is still in the socket. Arrivals that are
/// held stay valid. -ENOENT: no such connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_remove(receiver: *mut Receiver, connection: u64) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { own(receiver) }?.receiver.remove(ConnectionId::from(connection))?.into_raw_fd()))
}

/// The descriptor of a connection, to send on it or to set options. It stays the receiver's.
/// -ENOENT: no such connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_socket(receiver: *mut Receiver, connection: u64) -> c_int {
    guard_int(|| {
        let id = ConnectionId::from(connection);
        // SAFETY: by the module's contract.
        let receiver = &unsafe { own(receiver) }?.receiver;
        Ok(receiver.socket(id).ok_or(RecvError::Unknown(id))?.as_raw_fd())
    })
}

/// Receives at most so many bytes more on a connection, and not a byte beyond; UINT64_MAX: no
/// limit. Set right after zw_receiver_add it holds from the first byte. -ENOENT: no such
/// connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_limit(receiver: *mut Receiver, connection: u64, bytes: u64) -> c_int {
    guard_int(|| {
        let limit = (bytes != u64::MAX).then_some(bytes);
        // SAFETY: by the module's contract.
        unsafe { own(receiver) }?.receiver.limit(ConnectionId::from(connection), limit)?;
        Ok(0)
    })
}

/// Waits for arrivals, at most timeout_ms (negative: no limit; 0: only looks), and writes up to
/// `count` of them. Returns how many; 0 after the time. Give each with ZW_ARRIVAL_DATA back: a
/// program that holds many makes its peers wait.
///
/// `size` is sizeof(struct zw_arrival), the bytes of an element. So many are written of each,
/// whatever the library's has; fields that the library does not know become 0.
///
/// An error is one of the receiver as a whole, or of a listener that failed; what happens to one
/// connection is an arrival. With an error nothing is lost: what arrived before it was given by
/// earlier calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_recv(
    receiver: *mut Receiver,
    arrivals: *mut RecvArrival,
    size: libc::size_t,
    count: libc::size_t,
    timeout_ms: c_int,
) -> libc::ssize_t {
    guard(|| {
        // SAFETY: by the module's contract.
        let this = unsafe { own(receiver) }?;
        if arrivals.is_null() || count == 0 {
            return wrong("arrivals is NULL, or has no elements");
        }
        element(size)?;
        if this.waiting.is_empty() {
            // With an error nothing came.
            this.receiver.recv(&mut this.batch, timeout(timeout_ms))?;
            this.waiting.extend(this.batch.drain(..));
        }
        let mut held = this.table.open();
        let mut n = 0;
        while n < count && held.has_room() {
            let Some(arrival) = this.waiting.pop_front() else { break };
            let mut told = RecvArrival::of(&arrival, 0);
            if let (What::Data(lease), false) = (arrival.what, told.data.is_null()) {
                told.token = held.keep(lease);
            }
            // SAFETY: below count, and by the module's contract.
            unsafe { write_sized(&told, arrivals.cast::<u8>().add(n * size), 0, size) };
            n += 1;
        }
        if n == 0 && !this.waiting.is_empty() {
            let text = "2^26 buffers are held: give some back, the arrivals wait";
            return Err(Failure::new(libc::ENOBUFS, text));
        }
        Ok(n as i64)
    }) as libc::ssize_t
}

/// Gives the buffers of `count` arrivals back, elements of `size` bytes: sizeof(struct zw_arrival).
/// Any thread. Their data is NULL, length and token 0 afterwards; those without a buffer, and those
/// that are so already, are passed over.
///
/// -ESTALE: copies of some were given back before. Nothing happened to these, all others were given
/// back. -EINVAL: `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_arrival_release(
    arrivals: *mut RecvArrival,
    size: libc::size_t,
    count: libc::size_t,
) -> c_int {
    guard_int(|| {
        element(size)?;
        let mut stale = None;
        for i in 0..if arrivals.is_null() { 0 } else { count } {
            // SAFETY: below count, and by the module's contract; no element is shorter than these
            // fields.
            let arrival = unsafe { &mut *arrivals.cast::<u8>().add(i * size).cast::<RecvArrival>() };
            let token = std::mem::take(&mut arrival.token);
            (arrival.data, arrival.length) = (std::ptr::null(), 0);
            if token != 0 && held::take(token).is_none() {
                stale = stale.or(Some((i, token)));
            }
        }
        stale.map_or(Ok(0), |(i, token)| {
            let text =
                format!("token {token:#x} of element {i}: a copy of this arrival was given back before");
            Err(Failure::new(libc::ESTALE, text))
        })
    })
}

/// Connections that were added or accepted and not removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_connections(receiver: *mut Receiver) -> libc::ssize_t {
    // SAFETY: by the module's contract.
    guard(|| Ok(unsafe { own(receiver) }?.receiver.connections() as i64)) as libc::ssize_t
}

/// The totals up to now, of what zw_receiver_recv gave or will give: payloads are arrivals with
/// bytes; zero-copied: placed by the NIC; copied: by the kernel. On a NIC's queue ask
/// zw_receiver_zero_copied how far that can be told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_ledger(receiver: *mut Receiver, ledger: *mut SendLedger) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(ledger, "ledger", "zw_ledger") }?;
        // SAFETY: by the module's contract.
        let totals = SendLedger::from(&unsafe { own(receiver) }?.receiver.counters().snapshot());
        out.write(&totals);
        Ok(0)
    })
}

/// How far zero_copied_bytes of zw_receiver_ledger can be believed: ZW_ZERO_COPIED_EXACT for all
/// ways but ZW_RECV_QUEUE, else ZW_ZERO_COPIED_AT_MOST or ZW_ZERO_COPIED_UNKNOWN. It stays the same
/// for the receiver's life.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_zero_copied(receiver: *mut Receiver) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(zero_copied(unsafe { own(receiver) }?.receiver.zero_copied())))
}

/// What happened besides bytes, up to events.size bytes of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_events(receiver: *mut Receiver, events: *mut RecvEvents) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(events, "events", "zw_recv_events") }?;
        // SAFETY: by the module's contract.
        let e = unsafe { own(receiver) }?.receiver.events();
        let told = RecvEvents {
            size: size_of::<RecvEvents>(),
            out_of_buffers: e.out_of_buffers,
            paused: e.paused,
            copied: e.copied,
            overflows: e.overflows,
            refills: e.refills,
            armed: e.armed,
            accepted: e.accepted,
            accept_pauses: e.accept_pauses,
            system_calls: e.system_calls,
            notices: e.notices,
        };
        out.write(&told);
        Ok(0)
    })
}

/// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
/// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_receiver_path(
    receiver: *mut Receiver,
    text: *mut c_char,
    size: libc::size_t,
) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { print(&own(receiver)?.receiver.path(), text, size) }))
}

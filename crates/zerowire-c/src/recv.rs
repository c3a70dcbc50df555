//! Receivers for C.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::thread::ThreadId;
use std::time::Duration;

use zerowire::recv::{self, Arrival, ConnectionId, RecvError, What};

use crate::arguments::{GivenFd, GivenOptions, NewHandle, Out, OwnedHandle, exported, kept};
use crate::arrays::{ArrivalArray, TextRoom};
use crate::failure::{Failure, wrong};
use crate::held::{self, HeldTable};
use crate::recv_types::{self, ReceiverOptions, RecvArrival, RecvEvents, ZW_RECV_QUEUE, zero_copied};
use crate::send_types::SendLedger;

/// Receives from many sockets.
#[derive(Debug)]
pub struct Receiver {
    /// The one that may use it.
    thread: ThreadId,
    inner: RefCell<OwnReceiver>,
}

/// What the thread of a receiver uses.
#[derive(Debug)]
pub(crate) struct OwnReceiver {
    pub(crate) receiver: recv::Receiver,
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
        let (table, waiting) = (HeldTable::next(), VecDeque::new());
        let inner = RefCell::new(OwnReceiver { receiver, table, waiting, batch: Vec::new() });
        Self { thread: std::thread::current().id(), inner }
    }

    /// The receiver, for its thread.
    pub(crate) fn own(&self) -> Result<RefMut<'_, OwnReceiver>, Failure> {
        if self.thread != std::thread::current().id() {
            return Err(RecvError::WrongThread.into());
        }
        // No call is made within another one.
        Ok(self.inner.borrow_mut())
    }
}

pub(crate) fn receiver_options(
    from: &GivenOptions<'_, ReceiverOptions>,
) -> Result<recv::RecvOptions, Failure> {
    let Some(o) = from.get() else { return Ok(recv::RecvOptions::default()) };
    let interface = if o.backend == ZW_RECV_QUEUE { from.interface() } else { None };
    recv_types::options(o, interface, from.dmabuf())
}

exported! {
/// Makes a receiver. options NULL: the defaults. It is used by the thread that made it; others get
/// -EEXIST.
///
/// -EINVAL: wrong options; -E2BIG: options of a later version; -ENOMEM; -EOPNOTSUPP, -EPERM,
/// -ENODEV and others: the way to receive that was asked for is impossible here, and zw_last_error
/// says why.
fn zw_receiver_new(options: *const ReceiverOptions, receiver: *mut *mut Receiver) -> c_int
    = new_receiver(options, receiver);

/// Closes it and its sockets. Arrivals that are held stay valid. NULL is allowed. -EEXIST: another
/// thread made it; it stays.
fn zw_receiver_close(receiver: *mut Receiver) -> c_int = close_receiver(receiver);

/// Takes a connected stream socket, or a datagram socket, and gives its number among the receiver's
/// connections. If it returns 0 the descriptor is the library's, which closes it with the receiver;
/// zw_receiver_remove gives it back. After an error it is still yours, open and as it was.
///
/// -EBADF; -ENOTSOCK; -EINVAL: it listens; -EMFILE: max_connections.
fn zw_receiver_add(receiver: *mut Receiver, fd: c_int, connection: *mut u64) -> c_int
    = add(receiver, fd, connection);

/// Takes a listening socket: connections are accepted and added by themselves
/// (ZW_ARRIVAL_ACCEPTED). At max_connections accepting stops until one is removed; others wait in
/// the backlog. listener NULL is allowed.
///
/// If it returns 0 the descriptor is the library's, until zw_receiver_unlisten. After an error it
/// is still yours.
///
/// ZW_RECV_PLAIN makes the socket non-blocking, and leaves it so: others may share the open file
/// description (dup, fork). Make it blocking only when no receiver has it.
///
/// -EBADF; -EINVAL: it doesn't listen.
fn zw_receiver_listen(receiver: *mut Receiver, fd: c_int, listener: *mut u64) -> c_int
    = listen(receiver, fd, listener);

/// Gives a listening socket back: a descriptor, which is the caller's. ZW_RECV_PLAIN gives it back
/// non-blocking. -ENOENT: no such listener.
fn zw_receiver_unlisten(receiver: *mut Receiver, listener: u64) -> c_int
    = (|r: &Receiver, id: u64| Ok(r.own()?.receiver.unlisten(id.into())?.into_raw_fd()))(receiver, listener);

/// Gives a connection's socket back: a descriptor, which is the caller's. What had been received
/// before is still given by zw_receiver_recv; the rest is still in the socket. Arrivals that are
/// held stay valid. -ENOENT: no such connection.
fn zw_receiver_remove(receiver: *mut Receiver, connection: u64) -> c_int
    = (|r: &Receiver, id: u64| Ok(r.own()?.receiver.remove(id.into())?.into_raw_fd()))(receiver, connection);

/// The descriptor of a connection, to send on it or to set options. It stays the receiver's.
/// -ENOENT: no such connection.
fn zw_receiver_socket(receiver: *mut Receiver, connection: u64) -> c_int = socket(receiver, connection);

/// Receives at most `bytes` more on a connection, and not a byte beyond; UINT64_MAX: no limit. Set
/// right after zw_receiver_add it holds from the first byte. -ENOENT: no such connection.
fn zw_receiver_limit(receiver: *mut Receiver, connection: u64, bytes: u64) -> c_int
    = limit(receiver, connection, bytes);

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
fn zw_receiver_recv(
    receiver: *mut Receiver,
    arrivals: *mut RecvArrival,
    size: libc::size_t,
    count: libc::size_t,
    timeout_ms: c_int
) -> libc::ssize_t = recv(receiver, [arrivals, size, count], timeout_ms);

/// Gives the buffers of `count` arrivals back, elements of `size` bytes: sizeof(struct zw_arrival).
/// Any thread. Their data is NULL, length and token 0 afterwards; those without a buffer, and those
/// that are so already, are passed over.
///
/// -ESTALE: copies of some were given back before. Nothing happened to these, all others were given
/// back. -EINVAL: `size`.
fn zw_arrival_release(arrivals: *mut RecvArrival, size: libc::size_t, count: libc::size_t) -> c_int
    = release([arrivals, size, count]);

/// Connections that were added or accepted and not removed.
fn zw_receiver_connections(receiver: *mut Receiver) -> libc::ssize_t
    = (|r: &Receiver| Ok(r.own()?.receiver.connections()))(receiver);

/// The totals up to now, of what zw_receiver_recv gave or will give: payloads are arrivals with
/// bytes; zero-copied: placed by the NIC; copied: by the kernel. On a NIC's queue ask
/// zw_receiver_zero_copied how far that can be told.
fn zw_receiver_ledger(receiver: *mut Receiver, ledger: *mut SendLedger) -> c_int = ledger(receiver, ledger);

/// How far zero_copied_bytes of zw_receiver_ledger can be believed: ZW_ZERO_COPIED_EXACT for all
/// ways but ZW_RECV_QUEUE, else ZW_ZERO_COPIED_AT_MOST or ZW_ZERO_COPIED_UNKNOWN. It stays the same
/// for the receiver's life.
fn zw_receiver_zero_copied(receiver: *mut Receiver) -> c_int
    = (|r: &Receiver| Ok(zero_copied(r.own()?.receiver.zero_copied())))(receiver);

/// What happened besides bytes, up to events.size bytes of the struct.
fn zw_receiver_events(receiver: *mut Receiver, events: *mut RecvEvents) -> c_int = events(receiver, events);

/// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
/// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
fn zw_receiver_path(receiver: *mut Receiver, text: *mut c_char, size: libc::size_t) -> c_int
    = (|r: &Receiver, text: TextRoom<'_>| Ok(text.print(&r.own()?.receiver.path())))(receiver, [text, size]);
}

fn new_receiver(
    options: GivenOptions<'_, ReceiverOptions>,
    receiver: NewHandle<'_, Receiver>,
) -> Result<c_int, Failure> {
    receiver.put(Receiver::of(recv::Receiver::new(receiver_options(&options)?)?));
    Ok(0)
}

fn close_receiver(receiver: Option<OwnedHandle<Receiver>>) -> Result<c_int, Failure> {
    if let Some(receiver) = receiver {
        drop(receiver.get().own()?);
        drop(receiver.take());
    }
    Ok(0)
}

fn add(receiver: &Receiver, fd: GivenFd, connection: &mut MaybeUninit<u64>) -> Result<c_int, Failure> {
    let id = receiver.own()?.receiver.add(fd.take()).map_err(kept)?;
    connection.write(id.into());
    Ok(0)
}

fn listen(
    receiver: &Receiver,
    fd: GivenFd,
    listener: Option<&mut MaybeUninit<u64>>,
) -> Result<c_int, Failure> {
    let id = receiver.own()?.receiver.listen(fd.take()).map_err(kept)?;
    listener.map(|listener| listener.write(id.into()));
    Ok(0)
}

fn socket(receiver: &Receiver, connection: u64) -> Result<c_int, Failure> {
    let id = ConnectionId::from(connection);
    Ok(receiver.own()?.receiver.socket(id).ok_or(RecvError::Unknown(id))?.as_raw_fd())
}

fn limit(receiver: &Receiver, connection: u64, bytes: u64) -> Result<c_int, Failure> {
    let limit = (bytes != u64::MAX).then_some(bytes);
    receiver.own()?.receiver.limit(ConnectionId::from(connection), limit)?;
    Ok(0)
}

fn recv(
    receiver: &Receiver,
    mut arrivals: ArrivalArray<'_>,
    limit: Option<Duration>,
) -> Result<libc::ssize_t, Failure> {
    let OwnReceiver { receiver, table, waiting, batch } = &mut *receiver.own()?;
    if arrivals.len() == 0 {
        return wrong("arrivals is NULL, or has no elements");
    }
    if waiting.is_empty() {
        // With an error nothing came.
        receiver.recv(batch, limit)?;
        waiting.extend(batch.drain(..));
    }
    let mut held = table.open();
    let mut n = 0;
    while n < arrivals.len() && held.has_room() {
        let Some(arrival) = waiting.pop_front() else { break };
        let mut told = RecvArrival::of(&arrival, 0);
        if let (What::Data(lease), false) = (arrival.what, told.data.is_null()) {
            told.token = held.keep(lease);
        }
        arrivals.write(n, &told);
        n += 1;
    }
    if n == 0 && !waiting.is_empty() {
        let text = "2^26 buffers are held: give some back, the arrivals wait";
        return Err(Failure::new(libc::ENOBUFS, text));
    }
    Ok(n as libc::ssize_t)
}

fn release(mut arrivals: ArrivalArray<'_>) -> Result<c_int, Failure> {
    let mut stale = None;
    for (i, arrival) in arrivals.iter_mut().enumerate() {
        let token = std::mem::take(&mut arrival.token);
        (arrival.data, arrival.length) = (std::ptr::null(), 0);
        if token != 0 && held::take(token).is_none() {
            stale = stale.or(Some((i, token)));
        }
    }
    stale.map_or(Ok(0), |(i, token)| {
        let text = format!("token {token:#x} of element {i}: a copy of this arrival was given back before");
        Err(Failure::new(libc::ESTALE, text))
    })
}

fn ledger(receiver: &Receiver, ledger: Out<'_, SendLedger>) -> Result<c_int, Failure> {
    ledger.write(&SendLedger::from(&receiver.own()?.receiver.counters().snapshot()));
    Ok(0)
}

fn events(receiver: &Receiver, events: Out<'_, RecvEvents>) -> Result<c_int, Failure> {
    let e = receiver.own()?.receiver.events();
    events.write(&RecvEvents {
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
    });
    Ok(0)
}

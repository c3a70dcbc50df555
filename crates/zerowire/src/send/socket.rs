//! Sending with socket calls: `send`, `sendmsg`, `sendmmsg`, and `MSG_ZEROCOPY` on TCP, UDP and AF_VSOCK
//! (Documentation/networking/msg_zerocopy.rst).
//!
//! The kernel numbers the calls with MSG_ZEROCOPY on a socket: 0, 1, 2, … A call that fails gives its number back,
//! unless the packet was already built when it failed (a firewall, a missing route): then the number is used up, and
//! its notification is in the queue when the call returns. After a failed call the queue is therefore read before the
//! next number is given out.

use super::backend::{Sent, Submit};
use super::errqueue::{self, BATCH, Note};
use super::kind::{Kind, SocketKind, set_int};
use super::{Notifications, Options, Payload, SendError, Way, Window};
use crate::syscall;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A stream takes at most this much lent memory in one call. More would gain nothing, and RLIMIT_MEMLOCK (8 MiB for
/// most users) is charged for the whole call, also for what the socket's buffer then doesn't take.
const LENT_CALL_BYTES: usize = 1 << 20;
/// `UIO_MAXIOV` (include/uapi/linux/uio.h): the most pieces in one call.
const MAX_SEGMENTS: usize = 1024;
/// Messages in one `sendmmsg`.
const MAX_MESSAGES: usize = 64;
/// `SO_MEMINFO` (include/uapi/asm-generic/socket.h).
const SO_MEMINFO: i32 = 55;
/// Indices of `SO_MEMINFO` (include/uapi/linux/sock_diag.h).
const SK_MEMINFO_WMEM_ALLOC: usize = 2;
const SK_MEMINFO_SNDBUF: usize = 3;
const SK_MEMINFO_WMEM_QUEUED: usize = 5;
const SK_MEMINFO_OPTMEM: usize = 6;
const SK_MEMINFO_VARS: usize = 9;
/// A socket with an error that nobody took is always ready: this long is slept instead of asking again at once.
const DEAD_PAUSE: Duration = Duration::from_millis(1);

/// Arrays for the system calls, kept from call to call. They mean nothing between two calls.
#[derive(Default)]
struct Scratch {
    iovecs: Vec<libc::iovec>,
    piece: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers are written and used within one call of a method that has the whole back end for itself.
unsafe impl Send for Scratch {}

/// A connected socket and what is known of it.
pub(crate) struct SocketBackend {
    socket: OwnedFd,
    kind: SocketKind,
    cannot_lend: Option<String>,
    each_one: bool,
    next_id: u32,
    /// Lent calls that failed since the queue was read.
    failed: u32,
    /// Somebody else lends on this socket: the numbers mean nothing any more.
    foreign: bool,
    calls: u64,
    /// The last reading found nothing.
    idle: bool,
    optmem_before: u32,
    /// On AF_VSOCK: the kernel copied something of what came back and is not booked yet.
    copied_unbooked: bool,
    scratch: Scratch,
}

impl SocketBackend {
    pub(super) fn new(
        socket: OwnedFd,
        kind: SocketKind,
        options: &Options,
        lend: bool,
    ) -> Result<Self, SendError> {
        let cannot_lend = if !lend {
            Some("copying was asked for".to_owned())
        } else {
            match set_int(&socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1) {
                Ok(()) => None,
                Err(e) => Some(match kind.kind {
                    Kind::Unix => "unix sockets can't take lent memory".to_owned(),
                    k => format!("{k} refuses SO_ZEROCOPY: {e}"),
                }),
            }
        };
        let mut this = Self {
            socket,
            kind,
            cannot_lend,
            each_one: options.notifications == Notifications::EachOne,
            next_id: 0,
            failed: 0,
            foreign: false,
            calls: 0,
            idle: false,
            optmem_before: 0,
            copied_unbooked: false,
            scratch: Scratch::default(),
        };
        if this.cannot_lend.is_none() {
            this.optmem_before =
                this.meminfo().map_err(SendError::system("getsockopt(SO_MEMINFO)"))?[SK_MEMINFO_OPTMEM];
        }
        Ok(this)
    }

    fn meminfo(&self) -> io::Result<[u32; SK_MEMINFO_VARS]> {
        meminfo(&self.socket)
    }

    fn fd(&self) -> usize {
        self.socket.as_raw_fd() as usize
    }

    fn flags(way: Way) -> i32 {
        let lend = match way {
            Way::Copy => 0,
            Way::Lend => libc::MSG_ZEROCOPY,
        };
        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | lend
    }

    fn max_bytes(&self, way: Way) -> usize {
        match way {
            Way::Lend if self.kind.stream => LENT_CALL_BYTES,
            _ => usize::MAX,
        }
    }

    #[inline]
    fn send_once(&mut self, payload: &Payload, from: usize, way: Way) -> Result<usize, i32> {
        self.calls += 1;
        let (flags, max) = (Self::flags(way) as usize, self.max_bytes(way));
        if let [segment] = payload.segments() {
            let len = payload.len().saturating_sub(from).min(max);
            // SAFETY: the kernel reads len bytes behind `from` of the segment, which the caller keeps for the call, and
            // after it for as long as Submit says; the kernel checks the addresses itself.
            return unsafe {
                let at = segment.as_ptr() as usize + from;
                syscall::call(libc::SYS_sendto, [self.fd(), at, len, flags, 0, 0])
            };
        }
        if !self.kind.stream && payload.segments().len() > MAX_SEGMENTS {
            return Err(libc::EMSGSIZE);
        }
        payload.iovecs(from, max, MAX_SEGMENTS, &mut self.scratch.iovecs);
        // SAFETY: all zeroes is a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.scratch.iovecs.as_mut_ptr();
        header.msg_iovlen = self.scratch.iovecs.len();
        // SAFETY: as above; the header and its array live for the call.
        unsafe { syscall::call(libc::SYS_sendmsg, [self.fd(), &raw const header as usize, flags, 0, 0, 0]) }
    }

    fn take_id(&mut self, way: Way) -> Option<u32> {
        if way == Way::Copy {
            return None;
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        Some(id)
    }

    /// One call on AF_VSOCK may use several numbers: the kernel begins a new packet, with the next number, when credit comes
    /// in the middle of the call (vsock_connectible_sendmsg, net/vmw_vsock/af_vsock.c), and doesn't say so. Numbers
    /// therefore tell nothing of a single payload; all are back when the socket is charged for no notification. Nothing else
    /// tells how many a call used: the peer's credit can't be asked for, and what the socket is charged changes while
    /// notifications join in its queue. A number that was guessed too low would give memory back that is still read.
    fn reap_vsock(&mut self, window: &mut Window) -> Result<(), SendError> {
        if window.ids_out() == 0 {
            return Ok(());
        }
        let info = self.meminfo().map_err(SendError::system("getsockopt(SO_MEMINFO)"))?;
        if info[SK_MEMINFO_OPTMEM] <= self.optmem_before {
            window.all_back_as(std::mem::take(&mut self.copied_unbooked));
        }
        Ok(())
    }

    /// What a notification means for the numbers: the part of it that names ids of ours.
    fn ours(&mut self, lo: u32, hi: u32) -> Result<Option<(u32, u32)>, SendError> {
        if self.foreign {
            return Ok(None);
        }
        let beyond = hi.wrapping_sub(self.next_id).wrapping_add(1) as i32;
        if beyond <= 0 {
            return Ok(Some((lo, hi)));
        }
        if beyond as u32 > self.failed {
            self.foreign = true;
            self.cannot_lend = Some("another handle of this socket lends memory".to_owned());
            return Err(SendError::Foreign { lo, hi });
        }
        self.failed -= beyond as u32;
        let next = self.next_id;
        self.next_id = hi.wrapping_add(1);
        Ok((lo.wrapping_sub(next) as i32 <= -1).then(|| (lo, next.wrapping_sub(1))))
    }
}

impl SocketBackend {
    /// Reads up to `N` messages of the error queue, and tells the window. Whether there may be more.
    #[inline]
    fn read_notes<const N: usize>(
        &mut self,
        window: &mut Window,
        first_error: &mut Option<SendError>,
    ) -> Result<bool, SendError> {
        let mut notes = [None; N];
        let mut n = 0;
        let read = errqueue::read::<N>(self.socket.as_fd(), |note| {
            if let Some(slot) = notes.get_mut(n) {
                *slot = Some(note);
                n += 1;
            }
        })
        .map_err(SendError::system("recvmmsg(MSG_ERRQUEUE)"))?;
        self.idle &= read == 0;
        for note in notes.into_iter().flatten() {
            let told = match note {
                Note::Back { copied, .. } if self.kind.kind == Kind::Vsock => {
                    self.copied_unbooked |= copied;
                    Ok(())
                }
                Note::Back { lo, hi, copied } => self.ours(lo, hi).map(|ours| {
                    if let Some(Err(unknown)) = ours.map(|(lo, hi)| window.notified(lo, hi, copied)) {
                        tracing::warn!(%unknown, "notification ignored");
                    }
                }),
                Note::Error { errno } => Err(from_errno(errno)),
            };
            if let Err(e) = told {
                first_error.get_or_insert(e);
            }
        }
        Ok(read == N)
    }
}

impl Submit for SocketBackend {
    #[inline]
    fn submit(&mut self, payload: &Payload, from: usize, way: Way) -> io::Result<Sent> {
        loop {
            let errno = match self.send_once(payload, from, way) {
                Ok(bytes) => return Ok(Sent { bytes, id: self.take_id(way), refused: None }),
                Err(errno) => errno,
            };
            if way == Way::Lend {
                self.failed = self.failed.saturating_add(1);
            }
            match errno {
                libc::EINTR if way == Way::Copy => {}
                // Not again before the queue was read: the call may have used its number up.
                libc::EINTR => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                _ => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    fn submit_many(&mut self, payloads: &[Payload], way: Way, sent: &mut Vec<Sent>) -> io::Result<()> {
        let payloads = &payloads[..payloads.len().min(MAX_MESSAGES)];
        let fd = self.fd();
        let Scratch { iovecs, piece, messages } = &mut self.scratch;
        iovecs.clear();
        messages.clear();
        for p in payloads {
            if p.segments().len() > MAX_SEGMENTS {
                break;
            }
            p.iovecs(0, usize::MAX, MAX_SEGMENTS, piece);
            iovecs.extend_from_slice(piece);
            // SAFETY: all zeroes is a valid mmsghdr.
            let mut m: libc::mmsghdr = unsafe { std::mem::zeroed() };
            m.msg_hdr.msg_iovlen = piece.len();
            messages.push(m);
        }
        let mut at = iovecs.as_mut_ptr();
        for m in &mut *messages {
            m.msg_hdr.msg_iov = at;
            at = at.wrapping_add(m.msg_hdr.msg_iovlen);
        }
        let asked = messages.len();
        self.calls += 1;
        // SAFETY: the headers and the array that they point into live for the call; the payloads as in `send_once`.
        let done = unsafe {
            let (at, flags) = (messages.as_mut_ptr() as usize, Self::flags(way) as usize);
            syscall::call(libc::SYS_sendmmsg, [fd, at, asked, flags, 0, 0])
        };
        if way == Way::Lend && done.map_or(true, |n| n < asked) {
            self.failed = self.failed.saturating_add(1);
        }
        let taken = match done {
            Ok(taken) => taken,
            Err(libc::EINTR) => return Ok(()),
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        };
        for p in payloads.iter().take(taken) {
            let id = self.take_id(way);
            sent.push(Sent { bytes: p.len(), id, refused: None });
        }
        Ok(())
    }

    fn reap(&mut self, window: &mut Window) -> Result<(), SendError> {
        if self.cannot_lend.is_some() && !self.foreign {
            // Nothing was ever lent. Sockets without an error queue (AF_UNIX, AF_VSOCK before Linux 6.7) would take this for
            // reading from the peer, whose end never comes to an end.
            self.idle = true;
            return Ok(());
        }
        let mut first_error = None;
        self.idle = true;
        loop {
            let is_more = match self.each_one {
                true => self.read_notes::<1>(window, &mut first_error)? && window.ids_out() > 0,
                false => self.read_notes::<BATCH>(window, &mut first_error)?,
            };
            if !is_more {
                break;
            }
        }
        self.failed = 0;
        if self.kind.kind == Kind::Vsock {
            self.reap_vsock(window)?;
        }
        first_error.map_or(Ok(()), Err)
    }

    fn wait(&mut self, room: bool, timeout: Duration) -> io::Result<()> {
        let events = if room { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.socket, events)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let got = fds[0].revents();
        let dead = got.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if dead && self.idle && !(room && got.contains(PollFlags::OUT)) {
            std::thread::sleep(DEAD_PAUSE.min(Duration::new(timeout.tv_sec as u64, timeout.tv_nsec as u32)));
        }
        Ok(())
    }

    fn recover(&mut self, window: &mut Window) -> io::Result<()> {
        if window.ids_out() == 0 {
            return Ok(());
        }
        // Each call that lends is charged a notification's memory (optmem) until that was read or thrown away; together
        // with empty queues it says that the kernel holds nothing, whoever took the notifications. (Filters are charged
        // there, too: a program that detaches one from the socket must do so before it makes the sender.)
        let info = self.meminfo()?;
        if info[SK_MEMINFO_WMEM_ALLOC] == 0
            && info[SK_MEMINFO_WMEM_QUEUED] == 0
            && info[SK_MEMINFO_OPTMEM] <= self.optmem_before
        {
            let payloads = window.all_back();
            tracing::warn!(payloads, "notifications are missing, but the socket holds nothing: taken back");
        }
        Ok(())
    }

    fn abort(&mut self) {
        reset(&self.socket, self.kind);
    }

    #[inline]
    fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }

    fn lends(&self) -> Result<(), String> {
        self.cannot_lend.clone().map_or(Ok(()), Err)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn describe(&self) -> String {
        match &self.cannot_lend {
            None => format!("socket calls over {}, MSG_ZEROCOPY", self.kind.kind),
            Some(why) => format!("socket calls over {}, copying: {why}", self.kind.kind),
        }
    }
}

fn meminfo(socket: &OwnedFd) -> io::Result<[u32; SK_MEMINFO_VARS]> {
    let mut info = [0u32; SK_MEMINFO_VARS];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: info is valid for writes of len bytes for the call.
    let r = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

/// Bytes that may still be charged to the socket's send buffer.
pub(super) fn send_room(socket: &OwnedFd) -> io::Result<usize> {
    let info = meminfo(socket)?;
    Ok(info[SK_MEMINFO_SNDBUF].saturating_sub(info[SK_MEMINFO_WMEM_ALLOC]) as usize)
}

/// Resets a stream's connection, so that the kernel lets go of what is lent soon.
pub(super) fn reset(socket: &OwnedFd, kind: SocketKind) {
    match kind.kind {
        Kind::Tcp => {
            // Connecting to AF_UNSPEC resets a TCP connection and empties its queue (tcp_disconnect,
            // net/ipv4/tcp.c), and leaves the socket open, so that the notifications can still be read.
            let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
            // SAFETY: the address is valid for reads of its length for the call.
            unsafe {
                libc::connect(
                    socket.as_raw_fd(),
                    &raw const unspecified,
                    size_of::<libc::sockaddr>() as libc::socklen_t,
                )
            };
        }
        Kind::Vsock | Kind::Unix => {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        Kind::Udp | Kind::Other => {}
    }
}

/// Whether an error may be that of an earlier datagram, which an ICMP answer told of (`icmp_err_convert`,
/// net/ipv4/icmp.c; net/ipv6/icmp.c). The kernel tells it to one call, whatever that sends, and forgets it.
pub(super) fn is_of_an_earlier(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
    )
}

/// The error that an errno of a socket stands for.
pub(super) fn from_errno(errno: i32) -> SendError {
    let source = io::Error::from_raw_os_error(errno);
    match errno {
        libc::EPIPE | libc::ECONNRESET | libc::ETIMEDOUT | libc::ENOTCONN | libc::ECONNABORTED => {
            SendError::Disconnected(source)
        }
        libc::ECONNREFUSED => SendError::NoListener,
        // Told by io_uring_enter only.
        libc::EEXIST => SendError::Uring(super::uring::EngineError::WrongThread.to_string()),
        _ => SendError::System { call: "send", source },
    }
}

#[cfg(test)]
mod tests;

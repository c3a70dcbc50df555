//! SIGINT and SIGTERM while sending, and the end of the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketType, ipproto, sockopt};
use zerowire::send::SendError;
use zerowire_cli::{lock, logging};
use zerowire_sys::socket;

use crate::stop::TransferStop;

/// Bytes of the peer that one call reads, and calls before sending goes on.
const REPLY_BYTES: usize = 64 << 10;
const REPLIES_AT_ONCE: usize = 16;
/// How long a peer that has everything may take to close its side.
pub const LINGER: Duration = Duration::from_secs(2);
/// How often to look at the end of the data what the peer has taken, at first and at last.
const END_TICK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// The signals, and the socket that the first one cuts. None: there is nothing to tell yet, and it
/// ends the process.
pub struct SendStop {
    stop: TransferStop,
    cut: Arc<Mutex<Option<OwnedFd>>>,
}

/// A socket whose connection a signal ends, so that a send that waits for the peer ends, too.
pub struct Watched {
    stop: TransferStop,
    socket: OwnedFd,
    /// True: the socket is a stream, and the peer may still send.
    may_reply: bool,
    /// Bytes that the peer has sent, and that were dropped.
    pub replied_bytes: u64,
    /// An error of the connection that reading has taken.
    error: Option<Errno>,
}

impl SendStop {
    /// Blocks the signals and waits for them. Call this before other threads are started. Until a
    /// socket is [watched](Self::watch) a signal ends the program: opening a pipe and connecting
    /// may take for ever.
    pub fn start() -> Result<Self> {
        let cut = Arc::<Mutex<Option<OwnedFd>>>::default();
        let at_signal = cut.clone();
        let first = move |number| match &*lock(&at_signal) {
            Some(socket) => end_connection(socket),
            None => {
                logging::say(&format!("zerowire: stopped by signal {number} before anything was sent"));
                std::process::exit(128 + number);
            }
        };
        Ok(Self { stop: TransferStop::start(&[libc::SIGINT, libc::SIGTERM], first, || ())?, cut })
    }

    /// From now on a signal ends sending on `socket`, with a summary.
    pub fn watch(self, socket: impl AsFd) -> Result<Watched> {
        let duplicate = || socket.as_fd().try_clone_to_owned().context("the socket can't be duplicated");
        let socket = duplicate()?;
        let mut watched =
            Watched { stop: self.stop, socket, may_reply: false, replied_bytes: 0, error: None };
        watched.may_reply = watched.is_stream();
        *lock(&self.cut) = Some(duplicate()?);
        Ok(watched)
    }
}

impl Watched {
    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        self.stop.signal()
    }

    fn is_stream(&self) -> bool {
        sockopt::socket_type(&self.socket).is_ok_and(|kind| kind == SocketType::STREAM)
    }

    /// Whether [`drop_replies`](Self::drop_replies) may find something.
    pub fn may_reply(&self) -> bool {
        self.may_reply
    }

    /// Reads what the peer has sent, and drops it. A peer that answers while it receives, such as
    /// an echo server, takes nothing more when nobody reads its answers. True: there was something.
    pub fn drop_replies(&mut self) -> bool {
        let before = self.replied_bytes;
        for _ in 0..REPLIES_AT_ONCE {
            // Where the connection is gone reading would take its error from who looks for that.
            let ready = self.may_reply.then(|| self.poll(Duration::ZERO).ok()).flatten();
            if !ready.is_some_and(|r| r.contains(PollFlags::IN) && !r.contains(PollFlags::HUP)) {
                break;
            }
            self.read_reply();
        }
        self.replied_bytes > before
    }

    /// Waits for bytes of the peer, or for its end.
    fn poll(&self, limit: Duration) -> rustix::io::Result<PollFlags> {
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as _ };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).map(|_| fds[0].revents())
    }

    fn read_reply(&mut self) {
        match rustix::net::recv(&self.socket, &mut [0; REPLY_BYTES], RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.may_reply = false,
            Ok((count, _)) => self.replied_bytes += count as u64,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => {
                self.may_reply = false;
                self.error = Some(e);
            }
        }
    }

    /// Tells the peer of a stream that no more will come, and waits until it has taken everything
    /// and closed. What it says until then is dropped: to close with unread bytes would reset the
    /// connection, and could cost the peer the last of the data. A peer may take nothing for
    /// `patience` (None: for ever, as while memory is lent), and has [`LINGER`] to close.
    ///
    /// # Errors
    /// The connection is gone, or the peer has taken nothing for `patience` and lacks something.
    pub fn end_of_data(&mut self, patience: Option<Duration>) -> Result<()> {
        // A signal's reset must not find the end of the data sent.
        if !self.is_stream() || self.signal().is_some() {
            return Ok(());
        }
        if let Err(e) = rustix::net::shutdown(&self.socket, Shutdown::Write) {
            // The kernel's own reason goes before.
            self.look_for_error()?;
            return Err(SendError::Disconnected(e.into()).into());
        }
        let (mut begin, mut least) = (Instant::now(), self.untaken());
        while self.signal().is_none() {
            // A reset gives memory back, too, and a copy may lie in the socket.
            self.look_for_error()?;
            let untaken = self.untaken();
            if untaken < least {
                (begin, least) = (Instant::now(), untaken);
            }
            if untaken == 0 && !self.may_reply {
                break;
            }
            // A unix socket's bytes are with the peer, which can still read them.
            let is_with_peer = untaken == 0 || self.is_unix();
            let limit = if is_with_peer { LINGER } else { patience.unwrap_or(Duration::MAX) };
            let Some(left) = limit.checked_sub(begin.elapsed()) else {
                ensure!(
                    is_with_peer,
                    "the peer took nothing for {} s at the end, and has not acknowledged the last {untaken} bytes: \
                     give it more time (--timeout SECONDS), or leave the option out",
                    limit.as_secs_f64()
                );
                break;
            };
            // The longer it takes, the less often.
            let tick = left.min((begin.elapsed() / 8).clamp(END_TICK[0], END_TICK[1]));
            if !self.may_reply {
                // The socket is ready for good.
                std::thread::sleep(tick);
            } else if self.poll(tick).is_ok_and(|ready| !ready.is_empty()) {
                self.read_reply();
            }
        }
        if self.signal().is_none() {
            sockopt::set_socket_linger(&self.socket, None).context("SO_LINGER")?;
        }
        Ok(())
    }

    /// Bytes that the peer of a stream has not taken; of a unix socket, the memory that they use.
    fn untaken(&self) -> usize {
        // Over TCP the end of the data counts as a byte. A peer that lacks only that has all data.
        let end = usize::from(is_tcp(&self.socket));
        socket::unsent(&self.socket).map_or(0, |bytes| bytes.saturating_sub(end))
    }

    fn is_unix(&self) -> bool {
        sockopt::socket_domain(&self.socket).is_ok_and(|family| family == AddressFamily::UNIX)
    }

    /// Returns the error of a stream that no call of the sender returned.
    fn look_for_error(&mut self) -> Result<(), SendError> {
        // Without ERR the kernel would tell of an ICMP answer after which TCP goes on.
        let is_told = self.poll(Duration::ZERO).is_ok_and(|ready| ready.contains(PollFlags::ERR));
        let asked = is_told.then(|| sockopt::socket_error(&self.socket).and_then(|told| told).err());
        let error = self.error.take().or(asked.flatten());
        error.map_or(Ok(()), |e| Err(SendError::Disconnected(e.into())))
    }
}

/// A TCP connection is reset if it is closed before its [end](Watched::end_of_data), also where
/// this process is killed.
pub fn reset_at_close(socket: &OwnedFd) -> Result<()> {
    if is_tcp(socket) {
        sockopt::set_socket_linger(socket, Some(Duration::ZERO)).context("SO_LINGER")?;
    }
    Ok(())
}

/// Ends a connection for a signal. A peer over TCP gets a reset, so that it does not take what has
/// come for all; one over a unix socket or AF_VSOCK sees the end of the data.
fn end_connection(socket: &OwnedFd) {
    if !(is_tcp(socket) && socket::disconnect(socket).is_ok()) {
        // An error means that the connection is gone already.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

fn is_tcp(socket: &OwnedFd) -> bool {
    sockopt::socket_protocol(socket).is_ok_and(|protocol| protocol == Some(ipproto::TCP))
}

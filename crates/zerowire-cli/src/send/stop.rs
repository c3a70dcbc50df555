//! SIGINT and SIGTERM while sending, and the end of the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use zerowire_cli::{lock, logging};
use zerowire_sys::socket;

use crate::signals::Signals;

/// Bytes of the peer that one call reads, and calls before sending goes on.
const REPLY_BYTES: usize = 64 << 10;
const REPLIES_AT_ONCE: usize = 16;

/// Signals, which a thread of their own waits for.
pub struct SendStop {
    signal: Arc<AtomicU8>,
    /// What a signal shuts down. None: there is nothing to tell yet, and a signal ends the process.
    cut: Arc<Mutex<Option<OwnedFd>>>,
}

/// A socket that a signal shuts down, so that a send that waits for the peer ends.
pub struct Watched {
    signal: Arc<AtomicU8>,
    socket: OwnedFd,
    /// True: the socket is a stream, and the peer may still send.
    may_reply: bool,
    /// Bytes that the peer has sent, and that were dropped.
    pub replied_bytes: u64,
}

impl SendStop {
    /// Blocks the signals and waits for them. Call this before other threads are started. Until a
    /// socket is [watched](Self::watch) a signal ends the program: opening a pipe and connecting
    /// may take for ever. The second signal ends it at any time.
    pub fn start() -> Result<Self> {
        let signals = Signals::block(&[libc::SIGINT, libc::SIGTERM]).context("signals can't be blocked")?;
        let stop = Self { signal: Arc::default(), cut: Arc::default() };
        let (told, cut) = (stop.signal.clone(), stop.cut.clone());
        let wait = move || {
            while let Ok(next) = signals.wait(None) {
                let Some(number) = next else { continue };
                let cut = lock(&cut);
                let Some(socket) = &*cut else {
                    logging::say(&format!("zerowire: stopped by signal {number} before anything was sent"));
                    std::process::exit(128 + number);
                };
                if told.swap(u8::try_from(number).unwrap_or(u8::MAX), Ordering::SeqCst) != 0 {
                    // Something hangs, such as a pipe for the summary that nobody reads.
                    std::process::exit(128 + number);
                }
                // An error means that the connection is gone already.
                let _ = rustix::net::shutdown(socket, Shutdown::Both);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
        Ok(stop)
    }

    /// From now on a signal ends sending on `socket`, with a summary.
    pub fn watch(self, socket: &OwnedFd) -> Result<Watched> {
        let duplicate = || socket.as_fd().try_clone_to_owned().context("the socket can't be duplicated");
        let mut watched =
            Watched { signal: self.signal, socket: duplicate()?, may_reply: false, replied_bytes: 0 };
        watched.may_reply = watched.is_stream();
        *lock(&self.cut) = Some(duplicate()?);
        Ok(watched)
    }
}

impl Watched {
    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|n| *n != 0)
    }

    /// Whether bytes that were taken may still be lost without another call's error.
    pub fn is_stream(&self) -> bool {
        rustix::net::sockopt::socket_type(&self.socket)
            .is_ok_and(|kind| kind == rustix::net::SocketType::STREAM)
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
            Err(_) => self.may_reply = false,
        }
    }

    /// Tells the peer that no more will come, and drops what it says until it closes, at most for
    /// `limit`. To close with unread bytes would reset the connection, and could cost the peer the
    /// last of the data. So the time begins anew while the peer answers and has not got everything.
    pub fn end_of_data(&mut self, limit: Duration) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let mut begin = Instant::now();
        while self.may_reply && self.signal().is_none() {
            let Some(left) = limit.checked_sub(begin.elapsed()) else { return };
            match self.poll(left.min(Duration::from_millis(100))) {
                Ok(ready) if ready.is_empty() => continue,
                Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return,
            }
            let before = self.replied_bytes;
            self.read_reply();
            if self.replied_bytes > before && socket::unsent(&self.socket).is_ok_and(|bytes| bytes > 0) {
                begin = Instant::now();
            }
        }
    }
}

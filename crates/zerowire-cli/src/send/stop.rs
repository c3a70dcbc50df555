//! SIGINT and SIGTERM while sending, and the end of the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;

use crate::signals::Signals;

/// Signals that are blocked, to be waited for by a thread of its own.
pub struct Stop(Signals);

/// A socket that a signal shuts down, so that a send that waits for the peer ends.
pub struct Watched {
    signal: Arc<AtomicU8>,
    socket: OwnedFd,
}

impl Stop {
    /// Blocks the signals. To be called before threads are started.
    pub fn prepare() -> Result<Self> {
        Ok(Self(Signals::block(&[libc::SIGINT, libc::SIGTERM]).context("signals can't be blocked")?))
    }

    /// From now on a signal ends sending on `socket`.
    pub fn watch(self, socket: &OwnedFd) -> Result<Watched> {
        let duplicate = || socket.as_fd().try_clone_to_owned().context("the socket can't be duplicated");
        let signal = Arc::new(AtomicU8::new(0));
        let (told, cut) = (signal.clone(), duplicate()?);
        let wait = move || {
            let number = loop {
                match self.0.wait(None) {
                    Ok(Some(number)) => break number,
                    Ok(None) => {}
                    Err(_) => return,
                }
            };
            told.store(u8::try_from(number).unwrap_or(u8::MAX), Ordering::SeqCst);
            // An error means that the connection is gone already.
            let _ = rustix::net::shutdown(&cut, Shutdown::Both);
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
        Ok(Watched { signal, socket: duplicate()? })
    }
}

impl Watched {
    /// The signal that came.
    pub fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|n| *n != 0)
    }

    /// Tells the peer that no more will come, and reads away what it says until it closes, at most for `limit`: closing
    /// with unread bytes would reset the connection, and could cost the peer the last of the data.
    pub fn end_of_data(&self, limit: Duration) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let is_stream = rustix::net::sockopt::socket_type(&self.socket)
            .is_ok_and(|kind| kind == rustix::net::SocketType::STREAM);
        let begin = Instant::now();
        let mut scrap = [0; 4096];
        while is_stream && self.signal().is_none() {
            let Some(left) = limit.checked_sub(begin.elapsed()) else { return };
            let tick = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: left.min(Duration::from_millis(100)).as_nanos() as _,
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return,
            }
            match rustix::net::recv(&self.socket, &mut scrap, rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return,
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

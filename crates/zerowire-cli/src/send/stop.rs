//! SIGINT and SIGTERM while sending, and the end of the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use zerowire_cli::{lock, logging};

use crate::signals::Signals;

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
}

impl SendStop {
    /// Blocks the signals and waits for them. Call this before other threads are started. Until a
    /// socket is [watched](Self::watch) a signal ends the program: opening a pipe and connecting
    /// may take for ever.
    pub fn start() -> Result<Self> {
        let signals = Signals::block(&[libc::SIGINT, libc::SIGTERM]).context("signals can't be blocked")?;
        let stop = Self { signal: Arc::default(), cut: Arc::default() };
        let (told, cut) = (stop.signal.clone(), stop.cut.clone());
        let wait = move || {
            let number = loop {
                match signals.wait(None) {
                    Ok(Some(number)) => break number,
                    Ok(None) => {}
                    Err(_) => return,
                }
            };
            let cut = lock(&cut);
            let Some(socket) = &*cut else {
                logging::say(&format!("zerowire: stopped by signal {number} before anything was sent"));
                std::process::exit(128 + number);
            };
            told.store(u8::try_from(number).unwrap_or(u8::MAX), Ordering::SeqCst);
            // An error means that the connection is gone already.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("no thread for signals")?;
        Ok(stop)
    }

    /// From now on a signal ends sending on `socket`, with a summary.
    pub fn watch(self, socket: &OwnedFd) -> Result<Watched> {
        let duplicate = || socket.as_fd().try_clone_to_owned().context("the socket can't be duplicated");
        let watched = Watched { signal: self.signal, socket: duplicate()? };
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

    /// Tells the peer that no more will come, and reads away what it says until it closes, at most
    /// for `limit`. To close with unread bytes would reset the connection, and could cost the peer
    /// the last of the data.
    pub fn end_of_data(&self, limit: Duration) {
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return;
        }
        let is_stream = self.is_stream();
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

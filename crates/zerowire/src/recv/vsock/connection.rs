//! A connection: the ring of windows, taking one, and waiting for the next.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::core::{MappedState, View};
use super::error::{Error, system};
use super::handshake::{self, MapParts};
use super::lease::WindowLease;
use super::options::{MappedKind, MappedOptions};
use super::read::Cursor;
use super::wait::MapSockets;
use crate::ledger::{Counters, Totals};
use zerowire_sys::lock;
use zerowire_wire::doorbell::{awake, sleep_check};
use zerowire_wire::mapped::{MapOp, MapOptions, POLL_DATA, POLL_END, POLL_NOTHING};

/// What [`MappedConnection::dequeue`] found.
#[derive(Debug)]
#[must_use = "dropping a window gives it back"]
pub enum Dequeued {
    /// The next window. Dropping it gives it back.
    Window(WindowLease),
    /// Nothing is published: spin on [`MappedConnection::poll_value`], or
    /// [`MappedConnection::wait`].
    NotYet,
    /// No more data will come: the guest has ended its sending, and this is behind its last byte.
    /// Further calls say the same.
    End,
}

/// A connection with a guest, whose payload arrives in mapped memory.
///
/// Methods take `&self`, and any thread may call them; windows are given out in the order of the
/// stream. Dropping it closes the connection; leases stay valid.
#[derive(Debug)]
pub struct MappedConnection {
    pub(super) core: Arc<MappedState>,
    pub(super) state: Mutex<ReadState>,
    pub(super) sockets: MapSockets,
    pub(super) nonblocking: AtomicBool,
    /// True: the program has ended its receiving.
    pub(super) reads_no_more: AtomicBool,
    path: PathBuf,
    /// Written under the lock of `state` only, but for `system_calls`, which the one thread that
    /// waits writes.
    pub(super) ledger: Counters,
    kind: MappedKind,
    host_port: u32,
    guest_port: u32,
}

#[derive(Debug)]
pub(super) struct ReadState {
    /// The window that the daemon publishes next.
    next: u32,
    view: Option<Arc<View>>,
    /// A window that `read` has begun.
    pub(super) cursor: Option<Cursor>,
}

/// Connects to a port of the guest and waits until a program there has accepted, or the daemon
/// gives up (10 s).
///
/// `path` is the daemon's `UDS.map`: what `zerowire vsock --uds` has, with `.map` appended.
///
/// # Errors
/// [`Error::NoDaemon`], [`Error::NotPermitted`], [`Error::Path`], [`Error::Version`],
/// [`Error::NoAnswer`] and [`Error::Disconnected`] are about the daemon. [`Error::Refused`] and
/// [`Error::TimedOut`] are about the guest, [`Error::InvalidOptions`] is about the options. Also
/// [`Error::Status`], [`Error::BrokenHandshake`] and [`Error::System`].
pub fn connect(path: &Path, port: u32, options: &MappedOptions) -> Result<MappedConnection, Error> {
    let (socket, answer) = handshake::ask(path, MapOp::Connect, port, options)?;
    MappedConnection::new(handshake::parts(answer, &socket, path)?, path, options.kind)
}

impl MappedConnection {
    pub(super) fn new(parts: MapParts, path: &Path, kind: MappedKind) -> Result<Self, Error> {
        let core = Arc::new(parts.core);
        let view = Arc::new(View::new(Arc::clone(&core))?);
        Ok(Self {
            core,
            state: Mutex::new(ReadState { next: 0, view: Some(view), cursor: None }),
            sockets: MapSockets::new(parts.ready, parts.socket)?,
            nonblocking: AtomicBool::new(false),
            reads_no_more: AtomicBool::new(false),
            path: path.to_owned(),
            ledger: Counters::default(),
            kind,
            host_port: parts.host_port,
            guest_port: parts.guest_port,
        })
    }

    /// Takes the next published window, without a system call.
    ///
    /// # Errors
    /// [`Error::Held`] if the ring has come round to a window that is still held;
    /// [`Error::HalfRead`] after a read that left a part of one. [`Error::CutShort`] in place of
    /// the end if something is missing before it. Also [`Error::NotMapped`] and
    /// [`Error::BrokenWindow`].
    pub fn dequeue(&self) -> Result<Dequeued, Error> {
        let mut state = lock(&self.state);
        if let Some(cursor) = &state.cursor {
            return Err(Error::HalfRead { left: cursor.left });
        }
        let found = self.take(&mut state)?;
        if let Dequeued::Window(window) = &found {
            self.ledger.frames.add(window.packet_count() as u64);
            self.ledger.zero_copied_frames.add(window.packet_count() as u64);
            self.ledger.zero_copied_bytes.add(window.len());
        }
        Ok(found)
    }

    pub(super) fn take(&self, state: &mut ReadState) -> Result<Dequeued, Error> {
        let view = state.view.as_ref().ok_or(Error::NotMapped)?;
        let window = state.next;
        let windows = self.core.options.windows;
        let mut slot = self.core.slot(window);
        if slot.held {
            return Err(Error::Held { window, windows });
        }
        match view.poll_value(window) {
            // There may have been no free window for the mark of the end.
            POLL_NOTHING if self.is_over() && view.poll_value(window) == POLL_NOTHING => Ok(Dequeued::End),
            POLL_NOTHING => Ok(Dequeued::NotYet),
            POLL_END if view.is_cut_short(window) => Err(Error::CutShort { port: self.guest_port }),
            POLL_END => Ok(Dequeued::End),
            POLL_DATA => {
                let bytes = view.entries(window, &mut slot.entries)?;
                let entries = std::mem::take(&mut slot.entries);
                slot.held = true;
                state.next = (window + 1) % windows;
                Ok(Dequeued::Window(WindowLease::new(Arc::clone(view), window, entries, bytes)))
            }
            other => Err(Error::BrokenWindow { window, what: format!("poll_value {other:#x}") }),
        }
    }

    /// Whether the program reads no more, and the daemon's end is closed.
    fn is_over(&self) -> bool {
        self.reads_no_more.load(Ordering::Relaxed) && self.is_hung_up().is_ok_and(|gone| gone)
    }

    fn view(&self) -> Result<Arc<View>, Error> {
        lock(&self.state).view.clone().ok_or(Error::NotMapped)
    }

    fn next_poll_value(&self) -> Result<u32, Error> {
        let state = lock(&self.state);
        let view = state.view.as_ref().ok_or(Error::NotMapped)?;
        if self.core.slot(state.next).held {
            return Err(Error::Held { window: state.next, windows: self.core.options.windows });
        }
        Ok(view.poll_value(state.next))
    }

    /// The state of the window that comes next, to spin on without a system call (`POLL_*` of
    /// zerowire-wire). 0: nothing; 1: data; `u32::MAX`: no more data will come. 0 also if the
    /// window is still held, or the connection is not mapped.
    #[inline]
    pub fn poll_value(&self) -> u32 {
        self.next_poll_value().unwrap_or(POLL_NOTHING)
    }

    /// Removes the connection's mapping; leases keep theirs. The daemon goes on until the windows
    /// are full.
    ///
    /// # Errors
    /// [`Error::NotMapped`].
    pub fn unmap(&self) -> Result<(), Error> {
        lock(&self.state).view.take().map(drop).ok_or(Error::NotMapped)
    }

    /// Maps again, after [`Self::unmap`]. Nothing is lost: the next window is the one that would
    /// have been next.
    ///
    /// # Errors
    /// [`Error::AlreadyMapped`]; [`Error::System`] when mmap(2) fails.
    pub fn map(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.view.is_some() {
            return Err(Error::AlreadyMapped);
        }
        state.view = Some(Arc::new(View::new(Arc::clone(&self.core))?));
        Ok(())
    }

    /// Sleeps until [`Self::dequeue`] has something to say (a window, or the end): true. False if
    /// `timeout` passes first; None waits without a limit. Makes no system call if there is
    /// something already.
    ///
    /// One thread at a time can wait for a connection.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Held`] (the next window is not given back).
    /// [`Error::Disconnected`]: the daemon is gone and nothing is left to dequeue.
    /// [`Error::System`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if self.next_poll_value()? != POLL_NOTHING {
                return Ok(true);
            }
            if self.arm()? {
                return Ok(true);
            }
            let (woken, hangup) = self.sockets.sleep(deadline);
            self.ledger.system_calls.add(1);
            self.disarm()?;
            if self.next_poll_value()? != POLL_NOTHING {
                return Ok(true);
            }
            if hangup {
                let is_over = self.reads_no_more.load(Ordering::Relaxed);
                return if is_over { Ok(true) } else { Err(Error::Disconnected { path: self.path.clone() }) };
            }
            if !woken? {
                return Ok(false);
            }
        }
    }

    /// Tells the daemon to make [`AsFd::as_fd`] readable with the next window. Returns true if
    /// there is something already; then it is not armed: dequeue, and don't sleep.
    ///
    /// An event loop calls this when [`Self::dequeue`] says that there is nothing yet, and
    /// [`Self::disarm`] when the descriptor is readable. While it is not armed the daemon makes no
    /// system call for this connection. When the descriptor is readable, there is nothing, and
    /// [`Self::is_hung_up`] is true, then the daemon is gone.
    ///
    /// # Errors
    /// [`Error::NotMapped`].
    pub fn arm(&self) -> Result<bool, Error> {
        let view = self.view()?;
        Ok(!sleep_check(view.program_sleeps(), || {
            // An error is something to look at, too.
            !self.next_poll_value().is_ok_and(|value| value == POLL_NOTHING)
        }))
    }

    /// Takes [`Self::arm`] back, and makes the descriptor not readable again.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::System`].
    pub fn disarm(&self) -> Result<(), Error> {
        let view = self.view()?;
        awake(view.program_sleeps());
        self.sockets.clear()
    }

    /// Whether the daemon's end of the connection is closed. Windows that are published, and the
    /// mark of the end, are still there to dequeue.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn is_hung_up(&self) -> Result<bool, Error> {
        self.sockets.is_hung_up()
    }

    /// What the daemon agreed to; it may have less credit than was asked for.
    pub fn options(&self) -> &MapOptions {
        &self.core.options
    }

    /// Stream or messages.
    pub fn kind(&self) -> MappedKind {
        self.kind
    }

    /// The port that this program has at the guest's side.
    pub fn host_port(&self) -> u32 {
        self.host_port
    }

    /// The guest's port.
    pub fn guest_port(&self) -> u32 {
        self.guest_port
    }

    /// What this program received: windows that were dequeued count as not copied, by this program;
    /// what [`std::io::Read`] took as copied, because it was asked for. Frames are packets, system
    /// calls those that waited.
    pub fn ledger(&self) -> Totals {
        self.ledger.snapshot()
    }

    /// Whether reads and writes return [`std::io::ErrorKind::WouldBlock`] in place of waiting.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_nonblocking(&self, on: bool) -> Result<(), Error> {
        rustix::io::ioctl_fionbio(&self.sockets.stream, on).map_err(system("FIONBIO (the socket)"))?;
        self.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }
}

impl AsFd for MappedConnection {
    /// For poll and epoll: readable after [`MappedConnection::arm`] when the daemon has published,
    /// and when the daemon is gone. Don't read from it or write to it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}

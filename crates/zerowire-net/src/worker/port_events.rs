//! The descriptors of a port in a worker's epoll set.
//!
//! When the kernel frees a packet that was sent, it goes through the socket's watchers, whatever
//! they wait for (net/core/sock.c, `sock_def_write_space`). An epoll set costs about a tenth of a
//! frame on a port that sends by its own socket. So a path that has its received frames in memory
//! takes its descriptor out of the set while it sends a lot. The worker then looks at the port in
//! each turn instead. Before the worker sleeps, it puts the descriptor in again, and what came
//! meanwhile wakes it at once.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::states::PortWatch;
use super::{TAG_EVENTS, TAG_PORT, TAG_WAKE};

/// The port is watched for one event at a time, and again only when it was found empty. So frames
/// that arrive while the guest has no buffers wake nobody.
const PORT_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// Other descriptors are watched edge-triggered.
const EDGES: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// Turns with frames to send since the last sleep, until the port is not watched any more. So what
/// answers now and then pays for no further system calls.
const SENDING_TURNS: u32 = 8;

/// The epoll set of a worker, and what is known of its port.
#[derive(Debug)]
pub(super) struct PortEvents {
    /// The queue pair's number.
    pair: usize,
    /// The set.
    pub(super) epoll: OwnedFd,
    /// Whether the port may have frames.
    pub(super) port: PortWatch,
    /// Turns with frames to send since the last sleep.
    sends: u32,
}

impl PortEvents {
    /// A set with the descriptor that says that commands have come.
    pub(super) fn new(pair: usize, wake: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(TAG_WAKE), EDGES)?;
        Ok(Self { pair, epoll, port: PortWatch::Ready, sends: 0 })
    }

    /// Watches a port's descriptor from now on.
    pub(super) fn add(&self, port: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(port) = port else { return Ok(()) };
        Ok(epoll::add(&self.epoll, port, EventData::new_u64(TAG_PORT), PORT_EVENTS)?)
    }

    /// A turn had frames to send. Returns whether the port should be [taken out](Self::take_out).
    #[inline]
    pub(super) fn sent(&mut self) -> bool {
        if self.port.is_unwatched() {
            return false;
        }
        self.sends += 1;
        self.sends >= SENDING_TURNS
    }

    /// The port gives no events from now on.
    #[cold]
    pub(super) fn take_out(&mut self, port: Option<BorrowedFd<'_>>) {
        self.sends = 0;
        if let Some(port) = port
            && epoll::delete(&self.epoll, port).is_ok()
        {
            self.port.take_out();
        }
    }

    /// The worker is about to sleep: the port gives events.
    pub(super) fn put_in(&mut self, port: Option<BorrowedFd<'_>>) {
        self.sends = 0;
        if self.port.put_in()
            && let Err(e) = self.add(port)
        {
            self.watches_no_port(&e);
        }
    }

    /// Asks for the next event of the port; one that has frames already gives it at once.
    pub(super) fn ask(&mut self, port: Option<BorrowedFd<'_>>) {
        if let Some(port) = port
            && let Err(e) = epoll::modify(&self.epoll, port, EventData::new_u64(TAG_PORT), PORT_EVENTS)
        {
            self.watches_no_port(&e.into());
        }
    }

    /// The path has another descriptor; epoll forgot the one before when that was closed. Or the
    /// same one is another interface's: a tap that was gone when it was added tells epoll nothing
    /// (drivers/net/tun.c, `tun_chr_poll`). `events` becomes readable on events other than frames.
    #[cold]
    pub(super) fn renew(&mut self, port: Option<BorrowedFd<'_>>, events: Option<BorrowedFd<'_>>) {
        if let Some(port) = port {
            // Another descriptor is not there.
            let _ = epoll::delete(&self.epoll, port);
        }
        if let Err(e) = self.add(port) {
            tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
        }
        self.port = PortWatch::Ready;
        if let Some(events) = events
            && let Err(e) = epoll::add(&self.epoll, events, EventData::new_u64(TAG_EVENTS), EDGES)
        {
            tracing::error!("queue pair {}: events of the port can't be watched: {e}", self.pair);
        }
    }

    /// The port gives no events: its frames are found when something else wakes this thread.
    #[cold]
    fn watches_no_port(&mut self, e: &io::Error) {
        tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
        self.port.set_ready();
    }
}

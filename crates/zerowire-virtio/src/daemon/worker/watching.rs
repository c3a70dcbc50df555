//! The port in the worker's epoll set.
//!
//! A packet that was sent goes through the socket's watchers when the kernel frees it, whatever they wait for (net/core/sock.c,
//! `sock_def_write_space`): an epoll set costs about a tenth of a frame on a port that sends by its own socket. So while a path
//! that has its received frames in memory sends a lot, its descriptor is taken out, and looked at in each turn instead. Before the
//! worker sleeps it is put in again, and what came meanwhile wakes at once.

use rustix::event::epoll;

use super::{PORT_EVENTS, PortWatch, TAG_EVENTS, TAG_PORT, Worker, watch};
use crate::daemon::path::Path;

/// Turns with frames to send since the last sleep, until the port is not watched any more: what answers now and then
/// pays for no further system calls.
const SENDING_TURNS: u32 = 8;

impl<P: Path> Worker<P> {
    /// A turn had frames to send.
    #[inline]
    pub(super) fn note_sending(&mut self) {
        if P::POSTS_AHEAD && !self.port.is_unwatched() {
            self.sends += 1;
            if self.sends >= SENDING_TURNS {
                self.take_port_out();
            }
        }
    }

    #[cold]
    fn take_port_out(&mut self) {
        self.sends = 0;
        if let Some(port) = self.path.port()
            && epoll::delete(&self.epoll, port).is_ok()
        {
            self.port.take_out();
        }
    }

    /// The worker is about to sleep.
    pub(super) fn put_port_in(&mut self) {
        self.sends = 0;
        if !self.port.put_in() {
            return;
        }
        let Some(port) = self.path.port() else { return };
        if let Err(e) = epoll::add(&self.epoll, port, epoll::EventData::new_u64(TAG_PORT), PORT_EVENTS) {
            tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
            // Its frames are found when something else wakes this thread.
            self.port.set_ready();
        }
    }

    /// Asks for the next event of the port; one that has frames already gives it at once.
    pub(super) fn watch_port(&mut self) {
        let Some(port) = self.path.port() else { return };
        if let Err(e) = epoll::modify(&self.epoll, port, epoll::EventData::new_u64(TAG_PORT), PORT_EVENTS) {
            tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
            // Its frames are found when something else wakes this thread.
            self.port.set_ready();
        }
    }

    /// The path has another descriptor; epoll forgot the one before when that was closed.
    #[cold]
    pub(super) fn watch_new_port(&mut self) {
        if let Some(port) = self.path.port()
            && let Err(e) = epoll::add(&self.epoll, port, epoll::EventData::new_u64(TAG_PORT), PORT_EVENTS)
        {
            tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
        }
        self.port = PortWatch::Ready;
        if let Some(events) = self.path.events()
            && let Err(e) = watch(&self.epoll, events, TAG_EVENTS)
        {
            tracing::error!("queue pair {}: events of the port can't be watched: {e}", self.pair);
        }
        self.describe();
    }
}

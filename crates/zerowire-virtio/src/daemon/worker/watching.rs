//! When the port's descriptor is watched.
//!
//! A packet that was sent goes through the socket's watchers when the kernel frees it, whatever they wait for (net/core/sock.c,
//! `sock_def_write_space`): an epoll set costs about a tenth of a frame on a port that sends by its own socket. So while a path
//! that has its received frames in memory sends a lot, its descriptor is taken out, and looked at in each turn instead. Before the
//! worker sleeps it is put in again, and what came meanwhile wakes at once.

use rustix::event::epoll;

use super::{PORT_EVENTS, TAG_PORT, Worker};
use crate::daemon::path::Path;

/// Turns with frames to send since the last sleep, until the port is not watched any more: what answers now and then
/// pays for no further system calls.
const SENDING_TURNS: u32 = 8;

/// Whether the port is in the epoll set.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// Taken out, because of the sender.
    out: bool,
    turns: u32,
}

impl Watching {
    /// The port is not watched: the receive side has to look by itself.
    #[inline]
    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// A descriptor of the port was put in.
    pub(super) fn put_in(&mut self) {
        self.out = false;
    }
}

impl<P: Path> Worker<P> {
    /// A turn had frames to send.
    #[inline]
    pub(super) fn note_sending(&mut self) {
        if P::POSTS_AHEAD && !self.watching.out {
            self.watching.turns += 1;
            if self.watching.turns >= SENDING_TURNS {
                self.take_port_out();
            }
        }
    }

    #[cold]
    fn take_port_out(&mut self) {
        self.watching.turns = 0;
        if let Some(port) = self.path.port() {
            self.watching.out = epoll::delete(&self.epoll, port).is_ok();
        }
    }

    /// The worker is about to sleep.
    pub(super) fn put_port_in(&mut self) {
        self.watching.turns = 0;
        if !std::mem::take(&mut self.watching.out) {
            return;
        }
        let Some(port) = self.path.port() else { return };
        if let Err(e) = epoll::add(&self.epoll, port, epoll::EventData::new_u64(TAG_PORT), PORT_EVENTS) {
            tracing::error!("queue pair {}: the port can't be watched: {e}", self.pair);
            // Its frames are found when something else wakes this thread.
            self.port_ready = true;
        }
    }
}

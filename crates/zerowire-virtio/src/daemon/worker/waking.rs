//! What wakes a worker: drivers, the port, time.
//!
//! A packet that was sent goes through the socket's watchers when the kernel frees it, whatever
//! they wait for (net/core/sock.c, `sock_def_write_space`): an epoll set costs about a tenth of a
//! frame on a port that sends by its own socket. So while a path that has its received frames in
//! memory sends a lot, its descriptor is taken out, and looked at in each turn instead. Before the
//! worker sleeps it is put in again, and what came meanwhile wakes at once.

use std::time::Duration;

use rustix::event::epoll;

use super::{PORT_EVENTS, PortWatch, TAG_EVENTS, TAG_PORT, TAG_RECEIVE, TAG_TRANSMIT, Worker, watch};
use crate::daemon::metadata::MetadataDetour;
use crate::daemon::path::{Path, Side};
use crate::net::receive::SETTLE_AFTER;

/// How long a worker has slept before it lets go of memory that bursts have touched.
pub(super) const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Turns with frames to send since the last sleep, until the port is not watched any more: what
/// answers now and then pays for no further system calls.
const SENDING_TURNS: u32 = 8;

impl<P: Path> Worker<P> {
    /// Asks the drivers for notifications before sleeping. Returns whether there is work after all.
    pub(super) fn arm_rings(&mut self) -> bool {
        let mut work = false;
        let mut error = None;
        let counters = &self.shared.pairs[self.pair];
        if let Some(side) = self.transmit.as_mut().filter(|s| s.host().is_drained()) {
            match side.host_mut().ring.arm() {
                Ok(more) => work |= more,
                Err(e) => {
                    side.fail(&mut self.path, &counters.transmit);
                    error = Some(e);
                }
            }
        }
        if let Some(side) = self.receive.as_mut().filter(|s| s.host().is_active() && self.rx.is_short()) {
            let ring = &mut side.host_mut().ring;
            match ring.arm_for(self.rx.wanted(ring.size())) {
                Ok(true) => {
                    self.rx.posted();
                    if P::POSTS_AHEAD {
                        self.port.set_ready();
                    }
                    work |= self.port.is_ready() || self.rx.has_frame();
                }
                Ok(false) => {}
                Err(e) => {
                    side.fail(&mut self.path, &counters.receive);
                    error = Some(e);
                }
            }
        }
        if let Some(e) = error {
            self.failed(&e);
        }
        if work && let Some(side) = self.transmit.as_mut().filter(|s| s.host().is_sound()) {
            side.host_mut().ring.disarm();
        }
        work
    }

    /// How long to sleep at most; None without bound.
    pub(super) fn idle_time(&mut self) -> Option<Duration> {
        let trim = (!self.trimmed).then_some(TRIM_AFTER);
        let receives = self.receive.as_ref().is_some_and(|s| s.host().is_active());
        let can_answer = receives && !self.rx.is_short();
        let metadata = match &mut self.detour {
            Some(MetadataDetour::Service(s)) if can_answer => s.delay(),
            _ => None,
        };
        let patience = (receives && self.rx.is_patient()).then_some(SETTLE_AFTER);
        [trim, metadata, patience, self.path.sleep_at_most()].into_iter().flatten().min()
    }

    pub(super) fn trim(&mut self) {
        if !self.trimmed {
            self.trimmed = true;
            if let Some(side) = &mut self.transmit {
                side.trim();
            }
            if let Some(side) = &mut self.receive {
                side.trim();
            }
        }
    }

    /// What epoll tells of.
    pub(super) fn take_event(&mut self, token: u64) {
        match token {
            TAG_PORT => self.port.set_ready(),
            TAG_EVENTS => self.path.notice(),
            TAG_TRANSMIT => {
                self.shared.pairs[self.pair].transmit.kicks.add(1);
                // A broken ring may lie in memory that is gone.
                if let Some(side) = self.transmit.as_mut().filter(|s| s.host().is_sound()) {
                    side.host_mut().ring.disarm();
                }
            }
            TAG_RECEIVE => {
                self.shared.pairs[self.pair].receive.kicks.add(1);
                self.rx.posted();
                if P::POSTS_AHEAD {
                    self.port.set_ready();
                }
                if let Some(side) = self.receive.as_mut().filter(|s| s.host().is_sound()) {
                    side.host_mut().ring.disarm();
                }
            }
            _ => {}
        }
    }

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

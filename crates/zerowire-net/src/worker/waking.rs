//! What wakes a worker: drivers, the port, time.

use std::time::{Duration, Instant};

use super::side::{Direction, Side};
use super::{TAG_EVENTS, TAG_PORT, TAG_RECEIVE, TAG_TRANSMIT, Worker};
use crate::metadata::MetadataDetour;
use crate::port::PortPath;
use crate::receive::{Inlet, SETTLE_AFTER};

/// How long a worker has slept before it lets go of memory that bursts have touched.
pub(super) const TRIM_AFTER: Duration = Duration::from_secs(1);

impl<P: PortPath> Worker<P> {
    /// Asks the drivers for notifications before sleeping. Returns whether there is work after all.
    pub(super) fn arm_rings(&mut self) -> bool {
        let mut work = false;
        let mut error = None;
        let counters = self.report.counters();
        // While the limit holds the guest up, it need not tell of more.
        let takes = !self.limits.transmit.is_waiting();
        if let Some(side) = self.transmit.as_mut().filter(|s| takes && s.host().is_drained()) {
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
                    if P::Inlet::POSTS_AHEAD {
                        self.events.port.set_ready();
                    }
                    work |= self.events.port.is_ready() || self.rx.has_frame();
                }
                Ok(false) => {}
                Err(e) => {
                    side.fail(&mut self.path, &counters.receive);
                    error = Some(e);
                }
            }
        }
        if let Some(e) = error {
            self.report.ring_broke(&e);
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
        let transmits = self.transmit.as_ref().is_some_and(|s| s.host().is_drained());
        let limiters = self.report.limiters();
        let limits = [
            self.limits.transmit.nap(&limiters.transmit, Instant::now).filter(|_| transmits),
            self.limits.receive.nap(&limiters.receive, Instant::now).filter(|_| receives),
        ];
        let limit = limits.into_iter().flatten().min();
        let patience = (receives && self.rx.is_patient()).then_some(SETTLE_AFTER);
        [trim, metadata, patience, limit, self.path.sleep_at_most()].into_iter().flatten().min()
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
            TAG_PORT => self.events.port.set_ready(),
            TAG_EVENTS => self.path.notice(),
            TAG_TRANSMIT => {
                self.report.kicked(Direction::Transmit);
                // A broken ring may lie in memory that is gone.
                if let Some(side) = self.transmit.as_mut().filter(|s| s.host().is_sound()) {
                    side.host_mut().ring.disarm();
                }
            }
            TAG_RECEIVE => {
                self.report.kicked(Direction::Receive);
                self.rx.posted();
                if P::Inlet::POSTS_AHEAD {
                    self.events.port.set_ready();
                }
                if let Some(side) = self.receive.as_mut().filter(|s| s.host().is_sound()) {
                    side.host_mut().ring.disarm();
                }
            }
            _ => {}
        }
    }
}

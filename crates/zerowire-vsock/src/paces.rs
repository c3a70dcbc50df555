//! How a VM's rings keep to its limits.
//!
//! Packets of the guest beyond its limit stay in its transmit ring. Payload for the guest stays in
//! the unix sockets: its connections wait in a list ([`Lists::limited`](crate::lists::Lists)).
//! Packets without payload go to the guest all the same, so that its own sending is not held up.

use std::time::{Duration, Instant};

use zerowire_vhost::limit::{LimitPace, Limiters, Meter};

/// How a VM's rings keep to its limits.
#[derive(Debug, Default)]
pub(super) struct Paces {
    pub transmit: LimitPace,
    pub receive: LimitPace,
}

impl Paces {
    /// A turn of the transmit ring begins, which has packets: what may be taken. None if they wait.
    #[inline]
    pub fn begin_transmit(&mut self, limiters: &Limiters, now: impl FnOnce() -> Instant) -> Option<Meter> {
        let Some(allowed) = self.transmit.begin(&limiters.transmit, now) else {
            return Some(Meter::default());
        };
        let meter = Meter::new(allowed);
        if !meter.has_room() {
            self.transmit.hold(&limiters.transmit);
            return None;
        }
        Some(meter)
    }

    /// The thread is about to sleep: how long it may because of the limits, None if nothing waits.
    /// A `starved` guest is not waited for: its buffers wake the thread.
    pub fn nap(&mut self, limiters: &Limiters, starved: bool, now: impl Fn() -> Instant) -> Option<Duration> {
        let receive = self.receive.nap(&limiters.receive, &now).filter(|_| !starved);
        [self.transmit.nap(&limiters.transmit, &now), receive].into_iter().flatten().min()
    }
}

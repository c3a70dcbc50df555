//! Patience that ends.

use std::time::{Duration, Instant};

use super::Switch;
use super::connect::DIAL_AGAIN;
use crate::vsock::clock::Clock;
use crate::vsock::connection::{End, Windowing};
use crate::vsock::packet::Op;
use crate::vsock::protocol::Phase;
use crate::vsock::vm::MAX_RESETS;

/// How often deadlines are looked at, while there are any.
const SCAN_EVERY: Duration = Duration::from_secs(1);

/// What time it is for the connections of a group, and when their deadlines are looked at.
#[derive(Debug, Default)]
pub(in crate::vsock) struct Timers {
    pub clock: Clock,
    /// None where there are no deadlines.
    scan_at: Option<Instant>,
}

impl Timers {
    /// Now.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Deadlines are looked at after this time at the latest.
    pub fn look_after(&mut self, after: Duration) {
        let at = self.now() + after;
        self.scan_at = Some(self.scan_at.map_or(at, |old| old.min(at)));
    }
}

impl Switch {
    /// Looks at deadlines if it is time. Returns when it will be time again.
    pub fn scan(&mut self) -> Option<Duration> {
        let at = self.io.timers.scan_at?;
        let now = self.io.timers.now();
        if now < at {
            return Some(at - now);
        }
        self.io.timers.scan_at = None;
        let mut waiting = false;
        for v in 0..self.vms.len() {
            waiting |= self.scan_handshakes(v, now);
            waiting |= self.scan_connections(v, now);
            waiting |= self.scan_map_clients(v, now);
            self.scan_gate(v, now);
            // Programs that could not be accepted for lack of descriptors.
            self.vms[v].listeners().for_each(|l| l.called = true);
        }
        if waiting {
            self.io.timers.look_after(SCAN_EVERY);
        }
        self.io.timers.scan_at.map(|at| at.saturating_duration_since(now))
    }

    fn scan_handshakes(&mut self, v: usize, now: Instant) -> bool {
        let vm = &mut self.vms[v];
        let mut waiting = false;
        for h in &mut vm.doors.handshakes {
            if h.as_ref().is_some_and(|h| h.deadline <= now) {
                vm.counters.bad_handshakes.add(1);
                *h = None;
            }
            waiting |= h.is_some();
        }
        waiting
    }

    /// A guest takes neither what waits for it nor the reset behind it: its place is free for
    /// others. While few others wait, the reset does so without a place, for a guest that was
    /// stopped for a while.
    fn give_up_reset(&mut self, v: usize, slot: u32) {
        if self.vms[v].resets.len() < MAX_RESETS / 2 {
            let header = self.header(v, slot, Op::Rst, 0, 0);
            self.vms[v].resets.push_back(header);
        }
        self.end_of(v, slot);
        self.remove(v, slot);
    }

    fn scan_connections(&mut self, v: usize, now: Instant) -> bool {
        let mut waiting = false;
        // One try a program: many connections that wait for the same one must not take the thread's time.
        let mut full = Vec::new();
        for slot in 0..self.vms[v].connections.slots() {
            self.ask_again(v, slot, now);
            let Some(c) = self.connection(v, slot) else { continue };
            let Some(until) = c.protocol.until() else { continue };
            if until > now {
                waiting = true;
                if matches!(c.end, End::Dialing) {
                    let program = (c.key.peer_port, c.kind);
                    self.io.timers.look_after(DIAL_AGAIN);
                    if !full.contains(&program) && !self.dial(v, slot, false) {
                        full.push(program);
                    }
                }
                continue;
            }
            match c.protocol.phase() {
                Phase::Asked { .. } => self.refuse_asked(v, slot),
                Phase::Offered { .. } => {
                    if let Some(Windowing::Asked(asked)) = c.mapped().map(|m| &mut m.windows) {
                        asked.timed_out = true;
                    }
                    self.vms[v].counters.refused.add(1);
                    self.abort(v, slot);
                }
                Phase::Open { .. } => self.abort(v, slot),
                Phase::Resetting { .. } => self.give_up_reset(v, slot),
                Phase::Draining { .. } => {
                    self.end_of(v, slot);
                    self.remove(v, slot);
                }
            }
        }
        waiting
    }
}

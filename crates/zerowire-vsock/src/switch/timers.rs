//! Patience that ends.

use std::time::{Duration, Instant};

use super::connect::{DIAL_AGAIN, dial, refuse_asked};
use super::current::Current;
use super::fate::apply;
use super::{Io, Rest, gate, map_clients, split};
use crate::connection::{End, Windowing};
use crate::packet::{Kind, Op};
use crate::protocol::{Fate, Phase};
use crate::vm::{GroupVm, MAX_RESETS};

/// How often the thread checks deadlines, while there are any.
const SCAN_EVERY: Duration = Duration::from_secs(1);

/// How long the thread does something else for each connection that it has looked at. A look takes
/// less than a twentieth of this, so that thousands of connections don't take the thread's time.
const REST: Duration = Duration::from_micros(2);

/// What time it is for the connections of a group, and when the thread checks their deadlines.
/// Tests and fuzz targets can let time pass without waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    #[cfg(feature = "testing")]
    passed: Duration,
    /// None where there are no deadlines.
    scan_at: Option<Instant>,
    /// The thread doesn't check them before this time.
    rests_until: Option<Instant>,
}

impl Timers {
    /// Now.
    #[cfg(not(feature = "testing"))]
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// Now, and what was let pass.
    #[cfg(feature = "testing")]
    pub fn now(&self) -> Instant {
        Instant::now() + self.passed
    }

    /// Lets time pass.
    #[cfg(feature = "testing")]
    pub fn pass(&mut self, time: Duration) {
        self.passed += time;
    }

    /// The thread checks deadlines after this time at the latest.
    pub fn look_after(&mut self, after: Duration) {
        let at = self.now() + after;
        self.scan_at = Some(self.scan_at.map_or(at, |old| old.min(at)));
    }

    /// Called after a look at `looks` connections.
    fn rest_after(&mut self, looks: u32) {
        self.rests_until = Some(self.now() + REST * looks);
    }

    /// When the thread checks deadlines next.
    fn next_look(&self) -> Option<Instant> {
        self.scan_at.map(|at| self.rests_until.map_or(at, |rest| rest.max(at)))
    }
}

/// What came of tries in one look at all connections: one try a program, so that many connections
/// that wait for the same one don't take the thread's time.
#[derive(Default)]
struct DialRound {
    /// Programs whose backlogs are full, or that are being tried.
    full: Vec<(u32, Kind)>,
    has_dialled: bool,
}

/// Looks at deadlines if it is time. Returns when it will be time again.
pub(super) fn scan(vms: &mut [GroupVm], io: &mut Io) -> Option<Duration> {
    let at = io.timers.next_look()?;
    let now = io.timers.now();
    if now < at {
        return Some(at - now);
    }
    io.timers.scan_at = None;
    let mut waiting = false;
    for v in 0..vms.len() {
        let Some((vm, mut rest)) = split(vms, io, v) else { break };
        waiting |= scan_handshakes(vm, now);
        waiting |= scan_connections(vm, now, &mut rest);
        waiting |= map_clients::scan(vm, now);
        gate::scan(vm, now, &mut rest.io.timers);
        // Programs that could not be accepted for lack of descriptors.
        vm.doors.listening.iter_mut().for_each(|l| l.called = true);
    }
    if waiting {
        io.timers.look_after(SCAN_EVERY);
    }
    io.timers.rest_after(vms.iter().map(|vm| vm.connections.slots()).sum());
    io.timers.next_look().map(|at| at.saturating_duration_since(now))
}

fn scan_handshakes(vm: &mut GroupVm, now: Instant) -> bool {
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

/// A guest takes neither what waits for it nor the reset behind it: its place is free for others.
/// While few others wait, the reset does so without a place, for a guest that was stopped for a
/// while.
fn give_up_reset(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) {
    if vm.resets.len() < MAX_RESETS / 2
        && let Some(mut at) = vm.current(slot)
    {
        let header = at.header(Op::Rst, &mut rest.others);
        vm.resets.push_back(header);
    }
    apply(vm, slot, Fate::Gone, rest);
}

fn scan_connections(vm: &mut GroupVm, now: Instant, rest: &mut Rest<'_>) -> bool {
    let (mut waiting, mut dialing) = (false, false);
    let mut round = DialRound::default();
    for slot in 0..vm.connections.slots() {
        let Some(mut at) = vm.current(slot) else { continue };
        ask_again(&mut at, now, &mut rest.io.timers);
        let Some(until) = at.c.protocol.until() else { continue };
        if until > now {
            waiting = true;
            if matches!(at.c.end, End::Dialing) {
                dialing |= dial_again(vm, slot, &mut round, rest.io);
            }
            continue;
        }
        let fate = match at.c.protocol.phase() {
            Phase::Asked { .. } => {
                refuse_asked(vm, slot, &mut rest.io.timers);
                Fate::Stays
            }
            Phase::Offered { .. } => {
                if let Some(Windowing::Asked(asked)) = at.c.mapped().map(|m| &mut m.windows) {
                    asked.timed_out = true;
                }
                at.counters.refused.add(1);
                Fate::Broken
            }
            Phase::Open { .. } => Fate::Broken,
            Phase::Resetting { .. } => {
                give_up_reset(vm, slot, rest);
                Fate::Stays
            }
            Phase::Draining { .. } => Fate::Gone,
        };
        apply(vm, slot, fate, rest);
    }
    if dialing {
        rest.io.timers.look_after(DIAL_AGAIN);
    }
    waiting
}

/// Tries a host program again whose backlog was full, unless it had its turn in this round. Returns
/// whether it waits for another try.
fn dial_again(vm: &mut GroupVm, slot: u32, round: &mut DialRound, io: &mut Io) -> bool {
    let Some(c) = vm.connections.get(slot) else { return false };
    let program @ (port, kind) = (c.key.peer_port, c.kind);
    // This comes first: thousands may wait for it.
    if round.full.contains(&program) {
        return true;
    }
    if vm.doors.connector.is_asked(vm.connections.place(slot)) {
        return false;
    }
    if vm.doors.connector.is_tried(port, kind) {
        round.full.push(program);
    } else if !round.has_dialled || vm.doors.connector.has_room() {
        round.has_dialled = true;
        if !dial(vm, slot, false, io) {
            round.full.push(program);
        }
    }
    true
}

/// Asks a guest again whether it has read packets, if it is time.
fn ask_again(at: &mut Current<'_>, now: Instant, timers: &mut Timers) {
    let Some((due, left)) = at.c.protocol.ask_again(now) else { return };
    if due {
        at.mark_ready();
    }
    timers.look_after(left);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_many_connections_are_rare() {
        let mut timers = Timers::default();
        let began = Instant::now();
        timers.rest_after(10_000);
        assert_eq!(timers.next_look(), None, "nothing to look at");
        timers.look_after(Duration::ZERO);
        let rest = timers.next_look().expect("a look") - began;
        assert!(rest >= Duration::from_millis(20), "{rest:?}");
        // Whoever wants a look sooner waits as well.
        timers.look_after(Duration::ZERO);
        assert_eq!(timers.next_look().map(|at| at - began), Some(rest));
    }

    #[test]
    fn looks_at_few_connections_come_when_they_are_due() {
        let mut timers = Timers::default();
        timers.rest_after(1);
        timers.look_after(SCAN_EVERY);
        assert_eq!(timers.next_look(), timers.scan_at);
    }
}

//! Patience that ends.

use std::time::{Duration, Instant};

use super::connect::{dial, refuse_asked};
use super::current::Current;
use super::fate::apply;
use super::{Io, Rest, gate, map_clients, split};
use crate::connection::{End, Windowing};
use crate::packet::{Kind, Op};
use crate::protocol::{Fate, Phase};
use crate::vm::{GroupVm, MAX_RESETS};

/// How often the thread checks deadlines, while there are any.
const SCAN_EVERY: Duration = Duration::from_secs(1);

/// How soon the device tries host programs again whose backlogs are full.
const DIAL_AGAIN: Duration = Duration::from_millis(5);

/// The same for each connection that waits. A look at one takes less than a tenth of this, so that
/// thousands of them don't take the thread's time.
const DIAL_A_CONNECTION: Duration = Duration::from_micros(2);

/// How late the device tries them at the latest.
const DIAL_LATEST: Duration = Duration::from_millis(20);

/// What time it is for the connections of a group, and when the thread checks their deadlines.
/// Tests and fuzz targets can let time pass without waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    #[cfg(feature = "testing")]
    passed: Duration,
    /// None where there are no deadlines.
    scan_at: Option<Instant>,
    /// When the thread tries host programs again; None where there are none.
    dial_at: Option<Instant>,
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

    /// The thread tries host programs again, for which `waiting` connections wait. One that begins
    /// to wait later waits for the same moment.
    pub fn dial_again(&mut self, waiting: u32) {
        let at = self.now() + dial_pause(waiting);
        self.dial_at.get_or_insert(at);
    }

    /// When the thread looks at all connections next.
    fn next_look(&self) -> Option<Instant> {
        [self.scan_at, self.dial_at].into_iter().flatten().min()
    }
}

/// How long programs have peace for which `waiting` connections wait.
fn dial_pause(waiting: u32) -> Duration {
    (DIAL_A_CONNECTION * waiting).clamp(DIAL_AGAIN, DIAL_LATEST)
}

/// What came of tries in one look at a VM's connections: one try a program, so that many that wait
/// for the same one don't take the thread's time.
#[derive(Default)]
struct DialRound {
    /// Programs that had their try, or whose answers are under way.
    tried: Vec<(u32, Kind)>,
    /// A backlog was full, or a question could not be asked.
    has_failed: bool,
    /// Connections that wait for another try.
    waiting: u32,
}

/// Looks at deadlines if it is time. Returns when it will be time again.
pub(super) fn scan(vms: &mut [GroupVm], io: &mut Io) -> Option<Duration> {
    let at = io.timers.next_look()?;
    let now = io.timers.now();
    if now < at {
        return Some(at - now);
    }
    (io.timers.scan_at, io.timers.dial_at) = (None, None);
    let (mut waiting, mut dialling) = (false, 0);
    for v in 0..vms.len() {
        let Some((vm, mut rest)) = split(vms, io, v) else { break };
        waiting |= scan_handshakes(vm, now);
        let round = scan_connections(vm, now, &mut rest, &mut waiting);
        dialling += round.waiting;
        waiting |= map_clients::scan(vm, now);
        gate::scan(vm, now, &mut rest.io.timers);
        // Programs that could not be accepted for lack of descriptors.
        vm.doors.listening.iter_mut().for_each(|l| l.called = true);
    }
    if waiting {
        io.timers.look_after(SCAN_EVERY);
    }
    if dialling > 0 {
        io.timers.dial_again(dialling);
    }
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

fn scan_connections(vm: &mut GroupVm, now: Instant, rest: &mut Rest<'_>, waiting: &mut bool) -> DialRound {
    let mut round = DialRound::default();
    for slot in 0..vm.connections.slots() {
        let Some(mut at) = vm.current(slot) else { continue };
        ask_again(&mut at, now, &mut rest.io.timers);
        let Some(until) = at.c.protocol.until() else { continue };
        if until > now {
            *waiting = true;
            if matches!(at.c.end, End::Dialing) && dial_again(vm, slot, &mut round, rest.io) {
                round.waiting += 1;
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
    round
}

/// Tries a host program again whose backlog was full, unless it had its try in this round. Returns
/// whether the connection waits for another one.
fn dial_again(vm: &mut GroupVm, slot: u32, round: &mut DialRound, io: &mut Io) -> bool {
    let Some(c) = vm.connections.get(slot) else { return false };
    let program @ (port, kind) = (c.key.peer_port, c.kind);
    // This comes first: thousands may wait for it.
    if round.tried.contains(&program) {
        return true;
    }
    if vm.doors.connector.is_asked(vm.connections.place(slot)) {
        return false;
    }
    if vm.doors.connector.is_tried(port, kind) {
        round.tried.push(program);
    } else if (!round.has_failed || vm.doors.connector.has_room()) && !dial(vm, slot, false, io) {
        round.has_failed = true;
        round.tried.push(program);
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
    fn the_more_connections_wait_the_later_programs_are_tried_again() {
        assert_eq!([0, 1, 2500].map(dial_pause), [DIAL_AGAIN; 3]);
        assert_eq!(dial_pause(7000), Duration::from_millis(14));
        assert_eq!([10_000, u32::MAX].map(dial_pause), [DIAL_LATEST; 2]);
    }

    #[test]
    fn who_waits_for_a_program_waits_for_the_same_moment_as_others() {
        let mut timers = Timers::default();
        timers.dial_again(7000);
        let at = timers.next_look();
        timers.dial_again(1);
        assert_eq!(timers.next_look(), at);
        // Deadlines don't.
        timers.look_after(Duration::ZERO);
        assert!(timers.next_look() < at);
    }
}

//! Drives the device without its thread: for property tests and fuzz targets, behind the feature
//! `testing`.
//!
//! [`Harness`] is the group's loop, one look at a time. [`Guest`] is a driver that writes any chain
//! into its rings and checks that each comes back once. [`Scene`] plays a byte string: a hostile
//! guest and its host programs beside another VM, whose traffic must not notice. [`play_mapped`]
//! plays one as hostile programs with mapped receive beside other connections of the same VM.
//! [`Program`] is such a program, as hostile or as sound as its caller, and [`Flow`] the guest's
//! end of a connection.

mod flow;
mod guest;
mod honest;
mod mapped;
mod program;
mod scene;
mod sound;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zerowire_vhost::answer::{Reply, one_answer};
use zerowire_vhost::host::mailbox::{Mailbox, mailbox};
use zerowire_vhost::host::turns::{TurnLoop, Turns};
use zerowire_vhost::host::{At, RingSetup, RingState, command};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::serve::SocketAccess;

use super::super::connection::{End, Windowing};
use super::super::connector::{HostConnector, OwnSockets, PathConnector};
use super::super::doors::{HostSide, HostSockets, MAX_CLIENTS, MAX_HANDSHAKES};
use super::super::vm::MAX_RESETS;
use super::{Command, EVENTS, Event, GroupCommand, GroupVm, Loop, RX_QUEUE, Review, Switch, TX_QUEUE, Watch};
use crate::mapped::MapPolicy;
use crate::{Limits, VsockCounters, VsockLimits, VsockTotals};
pub use flow::Flow;
pub use guest::{Guest, Layout, RING_SIZE};
pub use honest::bytes;
pub use mapped::play_mapped;
pub use program::{Answer, Mapped, Next, Program, Window};
pub use scene::{Scene, play};

/// More resets than [`MAX_RESETS`] may wait by what one batch adds.
const RESETS_SLACK: usize = 64;

/// The longest message of a host program, bytes.
const MESSAGE_BYTES: usize = 1 << 20;

/// The device of a group of VMs.
pub struct Harness {
    inner: Loop,
    turns: TurnLoop<GroupCommand>,
    counters: Vec<Arc<VsockCounters>>,
    limits: VsockLimits,
    // Kept open: a loop whose senders are gone ends.
    _commands: Mailbox<Command>,
}

impl Harness {
    /// VMs with these CIDs, all in one group; the host's sockets are `dir/CID`.
    pub fn new(dir: &Path, cids: &[u64], limits: VsockLimits) -> io::Result<Self> {
        Self::with_map(dir, cids, limits, &MapPolicy::default())
    }

    /// As [`Self::new`], with other rules for mapped connections.
    pub fn with_map(dir: &Path, cids: &[u64], limits: VsockLimits, map: &MapPolicy) -> io::Result<Self> {
        let (commands, queue, wake) = mailbox()?;
        let watch = Watch::new()?;
        watch.add(&wake, Event::Wake)?;
        let counters: Vec<_> = cids.iter().map(|_| Arc::new(VsockCounters::default())).collect();
        let mut switch = Switch::new(watch);
        let mut map = map.clone();
        map.complete(cids.len(), limits.max_connections);
        for (place, (cid, counters)) in cids.iter().zip(&counters).enumerate() {
            let (name, groups) = (format!("vm{cid}"), vec!["all".to_owned()]);
            let path = dir.join(cid.to_string());
            let sockets = HostSockets::bind(&path, &SocketAccess::default()).map_err(io::Error::other)?;
            let connector = HostConnector::Paths(PathConnector::new(&path, OwnSockets::default()));
            let host = HostSide { sockets, connector, map_policy: map.clone() };
            switch.join(place, GroupVm::new(&name, *cid, host, groups, limits, counters.clone()))?;
        }
        let inner = Loop::new(switch, Review::new()?, true);
        let turns = TurnLoop::new(queue, wake, EVENTS);
        Ok(Self { inner, turns, counters, limits, _commands: commands })
    }

    /// The front end of a VM sets its memory.
    pub fn set_memory(&mut self, vm: usize, memory: Arc<GuestMemory>) {
        self.carry_out(|reply| Command::Memory { vm, memory, reply });
        self.turns.linger(Loop::LINGER);
    }

    /// Starts both rings of a guest.
    pub fn start(&mut self, vm: usize, guest: &Guest) -> Result<(), String> {
        for queue in [RX_QUEUE, TX_QUEUE] {
            self.start_at(vm, guest, queue, guest.ring(queue).1)?;
        }
        Ok(())
    }

    fn start_at(&mut self, vm: usize, guest: &Guest, queue: u16, base: u16) -> Result<(), String> {
        let (addresses, _, kick) = guest.ring(queue);
        self.turns.linger(Loop::LINGER);
        command::start(
            &mut self.inner,
            At { vm, queue },
            RingSetup {
                queue,
                size: guest::RING_SIZE,
                addresses,
                base,
                // The guest here takes an element for each chain.
                acked: super::super::offered(true),
                state: RingState::Enabled,
                log_at: None,
                inflight: None,
                kick: Arc::new(kick),
                call: Some(guest.call(queue)),
                err: None,
            },
        )
    }

    /// Stops a ring and lets it go on where it was, as a front end does that pauses its VM.
    pub fn pause(&mut self, vm: usize, guest: &Guest, queue: u16) -> Result<(), String> {
        match self.stop(vm, queue) {
            Some(base) => self.start_at(vm, guest, queue, base),
            None => Ok(()),
        }
    }

    /// Sets what a VM may send and receive in a second.
    pub fn limit(&self, vm: usize, rates: Limits) {
        self.counters[vm].limiters.set(rates);
    }

    /// Lets time pass for the device, without waiting for it.
    pub fn pass(&mut self, time: Duration) {
        self.inner.switch.io.timers.pass(time);
    }

    /// Descriptors of a VM's transmit ring that programs have.
    pub fn lent(&self, vm: usize) -> usize {
        self.inner.switch.vms[vm].loans.descriptors
    }

    /// Stops a ring.
    pub fn stop(&mut self, vm: usize, queue: u16) -> Option<u16> {
        command::stop(&mut self.inner, At { vm, queue })
    }

    /// The front end of a VM leaves.
    pub fn leave(&mut self, vm: usize) {
        self.carry_out(|reply| Command::Left { vm, reply });
    }

    fn carry_out(&mut self, make: impl FnOnce(Reply<()>) -> Command) {
        let _ = command::carry_out(&mut self.inner, make(one_answer().0));
    }

    /// Whether a guest's packets wait until it takes resets.
    pub fn is_held_up(&self, vm: usize) -> bool {
        self.inner.switch.vms[vm].resets.len() >= MAX_RESETS
    }

    /// Whether a ring runs and the guest broke no rule of it.
    pub fn is_sound(&self, vm: usize, queue: u16) -> bool {
        let vm = &self.inner.switch.vms[vm];
        match queue {
            RX_QUEUE => vm.rings.rx.as_ref().is_some_and(|r| r.queue.is_sound()),
            _ => vm.rings.tx.as_ref().is_some_and(|t| t.is_sound()),
        }
    }

    /// What a VM's device has counted.
    pub fn totals(&self, vm: usize) -> VsockTotals {
        self.counters[vm].snapshot()
    }

    /// One look at everything, without sleeping. Returns whether there may be more to do.
    pub fn turn(&mut self) -> bool {
        let more = self.turn_unchecked();
        self.check();
        more
    }

    /// As [`Self::turn`], the device's work alone: what that allocates can be counted.
    pub fn turn_unchecked(&mut self) -> bool {
        self.turns.step(&mut self.inner, Some(Duration::ZERO))
    }

    /// Turns until nothing is left to do. Panics where that never comes.
    pub fn rest(&mut self) {
        for _ in 0..100_000 {
            self.turns.rest();
            if !self.turn() {
                return;
            }
        }
        panic!("the device finds something to do for ever");
    }

    /// How long the limits of VMs let the thread sleep; None where nothing waits for one.
    pub fn nap(&mut self) -> Option<Duration> {
        self.inner.nap()
    }

    /// Connections that a VM's device keeps, those that drain included.
    pub fn connections(&self, vm: usize) -> usize {
        self.inner.switch.vms[vm].connections.len()
    }

    /// Bytes that wait for a guest and for its host programs.
    pub fn held_bytes(&mut self, vm: usize) -> usize {
        let table = &mut self.inner.switch.vms[vm].connections;
        let mut sum = 0;
        for slot in 0..table.slots() {
            let Some(c) = table.get(slot) else { continue };
            sum += c.held.as_ref().map_or(0, |h| h.len());
            sum += c.held_for_program().map_or(0, |h| h.len());
        }
        sum
    }

    /// Panics where the device keeps more than it may, or its tables contradict each other.
    fn check(&mut self) {
        let most = self.limits.buffer_bytes as usize;
        for v in 0..self.inner.switch.vms.len() {
            let vm = &mut self.inner.switch.vms[v];
            assert!(vm.resets.len() < MAX_RESETS + RESETS_SLACK, "{} resets wait", vm.resets.len());
            assert!(vm.doors.handshakes.len() <= MAX_HANDSHAKES, "{} handshakes", vm.doors.handshakes.len());
            let (open, slots) = (vm.connections.len(), vm.connections.slots());
            assert!(open <= self.limits.max_connections, "{open} connections");
            let ready = vm.lists.ready.len();
            assert!(ready <= slots as usize, "{ready} entries for {slots} slots");
            assert!(vm.doors.map_clients.len() <= MAX_CLIENTS, "{} programs ask", vm.doors.map_clients.len());
            let size = vm.rings.transmit_size();
            let in_all = vm.loans.descriptors;
            assert!(in_all <= size / 2, "{in_all} of {size} descriptors are lent");
            let (mut lent, mut mapped) = (0, 0);
            let mut siblings = Vec::new();
            for slot in 0..slots {
                let place = vm.connections.place(slot);
                let Some(c) = vm.connections.get(slot) else { continue };
                let waits = c.held.as_ref().map_or(0, |h| h.len());
                let buffer = c.protocol.from.buffer as usize;
                assert!(waits <= most.max(MESSAGE_BYTES), "{waits} bytes wait for the guest");
                let for_program = c.held_for_program().map_or(0, |h| h.len());
                assert!(for_program <= buffer, "{for_program} bytes wait for the host program");
                if let Some(end) = c.mapped() {
                    mapped += u64::from(!matches!(end.windows, Windowing::Without));
                    if let Some(direct) = end.windows.live().and_then(|w| w.direct.as_mut()) {
                        let is_known = vm.lists.lenders.contains(slot);
                        assert!(direct.lent == 0 || is_known, "a lender nobody knows of");
                        lent += direct.descriptors();
                    }
                }
                if let End::Sibling { vm, place: far } = c.end {
                    assert!(waits <= most, "{waits} bytes of a sibling wait");
                    siblings.push((place, vm, far));
                }
            }
            assert_eq!(lent, vm.loans.descriptors, "descriptors that are lent, by the windows and in all");
            let used = &vm.counters.mapped;
            assert_eq!(mapped, used.connections(), "mapped connections, by the table and the quota");
            let most = vm.doors.map_policy.max_connections.unwrap_or(usize::MAX) as u64;
            assert!(mapped <= most, "{mapped} mapped connections");
            assert!(used.bytes() <= vm.doors.map_policy.max_total_bytes, "{} bytes of windows", used.bytes());
            for (place, vm, far) in siblings {
                let end = self.inner.switch.vms[vm].connections.at(far).map(|c| &c.end);
                let back = matches!(end, Some(End::Sibling { vm, place: p }) if *vm == v && *p == place);
                assert!(back, "a connection's sibling does not know it: {end:?}");
            }
        }
    }
}

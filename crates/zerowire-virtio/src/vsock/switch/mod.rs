//! Moves packets: from the guests' rings to unix sockets and other guests' rings, and back.
//!
//! One thread owns a whole group, so that a packet from one guest to another needs no lock. Each VM has a bounded turn.

mod connect;
mod events;
mod host;
mod map_clients;
mod mapped;
mod messages;
mod receive;
mod sibling;
mod timers;
mod to_host;
mod transmit;
mod watch;

use std::io;

use zerowire::ledger::DropReason;

use self::timers::Timers;
use self::to_host::Run;
use super::connection::{Connection, End};
use super::mapped::Lent;
use super::packet::{Header, Op};
use super::protocol::{CLOSE_PATIENCE, Fate, LINGER};
use super::queues::Packet;
use super::vm::GroupVm;
use crate::memory::Segment;
use crate::ring::RingError;

pub(super) use events::Gate;
#[cfg(feature = "testing")]
pub(super) use map_clients::MAX_CLIENTS;
pub(super) use watch::{Event, Watch, token};

/// All VMs of a group.
pub(super) struct Switch {
    pub vms: Vec<GroupVm>,
    pub io: Io,
}

/// What the VMs of a group share: they have one thread.
#[derive(Debug)]
pub(super) struct Io {
    pub watch: Watch,
    pub timers: Timers,
    scratch: Scratch,
    /// Whose payload came last in a batch, if a host program gets it: VM and slot.
    last_sender: Option<(usize, u32)>,
}

/// Lists that turns begin with empty, so that they need not allocate.
#[derive(Debug)]
struct Scratch {
    packets: Vec<Packet>,
    segments: Vec<Segment>,
    /// Payload that is being collected.
    run: Run,
    iov: Vec<libc::iovec>,
    /// For what is beyond a guest's buffer of a message that was expected to fit one.
    beyond: Vec<u8>,
    /// Chains that come back.
    back: Vec<Lent>,
    /// Where in the guest's memory the last address was found.
    hint: usize,
}

impl Scratch {
    fn new() -> Self {
        Self {
            packets: Vec::with_capacity(transmit::MAX_BATCH),
            segments: Vec::with_capacity(1024),
            run: Run::with_room(),
            iov: Vec::with_capacity(2048),
            beyond: Vec::new(),
            back: Vec::with_capacity(transmit::MAX_BATCH),
            hint: 0,
        }
    }
}

impl Switch {
    pub fn new(mut vms: Vec<GroupVm>, watch: Watch) -> io::Result<Self> {
        for (i, vm) in vms.iter_mut().enumerate() {
            vm.id.index = i;
            watch.add(&vm.doors.map_listening.socket, Event::MapListener { vm: i })?;
            for l in &vm.doors.listening {
                watch.add(&l.socket, Event::Listener { vm: i, kind: l.kind })?;
            }
        }
        let io = Io { watch, timers: Timers::default(), scratch: Scratch::new(), last_sender: None };
        Ok(Self { vms, io })
    }

    /// Shows the guests what was used in this turn, and notifies them.
    pub fn publish(&mut self) {
        for vm in &mut self.vms {
            vm.rings.publish(&vm.counters);
        }
    }

    /// Whether the one that sent last has used up its credit, so that nothing more comes from it before the host program has
    /// read: looking for more would only keep that program waiting, if this CPU is its.
    pub fn guest_must_wait(&mut self) -> bool {
        self.io
            .last_sender
            .is_some_and(|(v, slot)| self.connection(v, slot).is_some_and(|c| c.protocol.from.is_used_up()))
    }

    /// The header of a packet for the guest of a connection; its credit fields count as told.
    fn header(&mut self, v: usize, slot: u32, op: Op, len: u32, flags: u32) -> Header {
        let cid = self.vms[v].id.cid;
        self.follow_sibling(v, slot);
        let Some(c) = self.vms[v].connections.get(slot) else { return Header::default() };
        let (key, kind) = (c.key, c.kind);
        let news = c.protocol.from.untold() > 0;
        let credit = c.protocol.tell();
        // The guest may wait for the rest, which has yet to leave the socket or the windows.
        if news && c.uncredited() > 0 {
            self.vms[v].mark_quiet(slot);
        }
        Header {
            src_cid: key.peer_cid,
            dst_cid: cid,
            src_port: key.peer_port,
            dst_port: key.port,
            len,
            kind: kind as u16,
            op: op as u16,
            flags,
            buf_alloc: credit.0,
            fwd_cnt: credit.1,
        }
    }

    /// Ends a connection whose guest broke a rule, or whose other end did: nothing that waits is delivered.
    fn abort(&mut self, v: usize, slot: u32) {
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        if c.protocol.is_draining() {
            // Its guest has ended it, and may have given its ports to another one.
            self.end_of(v, slot);
            return self.remove(v, slot);
        }
        c.held = None;
        self.vms[v].counters.resets.add(1);
        self.reset(v, slot);
        self.end_of(v, slot);
    }

    /// The connection is over: its guest gets RST behind what waits for it, if it takes that within
    /// a while.
    fn reset(&mut self, v: usize, slot: u32) {
        let now = self.io.timers.now();
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        if c.protocol.reset(now) {
            // Who receives no more makes no room for what waits, and would wait for the reset behind it.
            if c.protocol.guest().receives_no_more() {
                c.held = None;
            }
            self.io.timers.look_after(CLOSE_PATIENCE);
        }
        self.vms[v].mark_ready(slot);
    }

    /// Lets go of a connection's other end: a host program sees its socket closed, a sibling is reset.
    fn end_of(&mut self, v: usize, slot: u32) {
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        if let Some(mapped) = c.mapped() {
            mapped.cut_held();
        }
        c.end_windows();
        if let Some(windows) = c.mapped().and_then(|mapped| mapped.take_windows()) {
            self.let_go(v, windows);
        }
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        if let End::Sibling { vm, place } = std::mem::replace(&mut c.end, End::Gone)
            && let Some(other) = self.vms[vm].connections.at(place)
        {
            other.end = End::Gone;
            other.sibling_ends();
            self.reset(vm, place.slot);
        }
    }

    /// Does what a connection asks for.
    fn apply(&mut self, v: usize, slot: u32, fate: Fate) {
        match fate {
            Fate::Stays => {}
            Fate::Lingers => self.io.timers.look_after(LINGER),
            Fate::Drains => {
                self.vms[v].connections.forget_name(slot);
                self.io.timers.look_after(LINGER);
            }
            Fate::Resets => {
                self.reset(v, slot);
                self.end_of(v, slot);
            }
            Fate::Gone => {
                self.end_of(v, slot);
                self.remove(v, slot);
            }
        }
    }

    /// Takes a connection out. Its other end was let go of before.
    fn remove(&mut self, v: usize, slot: u32) {
        if let Some(c) = self.vms[v].connections.remove(slot)
            && c.counted
        {
            self.vms[v].counters.closed.add(1);
        }
    }

    /// Both sides agreed.
    fn count_opened(vm: &mut GroupVm, slot: u32) {
        if let Some(c) = vm.connections.get(slot)
            && !std::mem::replace(&mut c.counted, true)
        {
            vm.counters.opened.add(1);
        }
    }

    /// Ends all connections of a VM whose driver begins anew or is gone. What it sent before still goes to host programs.
    pub fn drop_connections(&mut self, v: usize) {
        for slot in 0..self.vms[v].connections.slots() {
            self.guest_ended(v, slot);
        }
        let vm = &mut self.vms[v];
        vm.lists.ready.clear();
        vm.lists.quiet.clear();
        vm.resets.clear();
        vm.doors.handshakes.clear();
    }

    /// A ring of this VM broke a rule.
    #[cold]
    pub fn ring_failed(&mut self, v: usize, error: &RingError) {
        let vm = &mut self.vms[v];
        let text = format!("{}: {error}", vm.id.name);
        // The text goes first: who sees the count finds the text that belongs to it.
        vm.counters.set_error(error.to_string());
        vm.counters.ring_errors.add(1);
        tracing::error!("{text}; this queue is stopped until the driver resets it");
    }

    fn dropped(&self, v: usize, reason: DropReason) {
        self.vms[v].counters.transmit.dropped(reason);
    }

    fn connection(&mut self, v: usize, slot: u32) -> Option<&mut Connection> {
        self.vms[v].connections.get(slot)
    }
}

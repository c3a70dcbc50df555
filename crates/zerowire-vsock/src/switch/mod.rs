//! Moves packets: from the guests' rings to unix sockets and other guests' rings, and back.
//!
//! ```text
//!  guest --transmit--> to_host: runs of payload --> a host program's socket
//!            |   |        \-----> mapped ---------> a host program's windows
//!            |   \-> sibling ---------------------> another guest's buffers
//!            \-> connect, fate: connections begin and end
//!  guest <--receive--- messages, streams ---------- a host program's socket
//! ```
//!
//! One thread owns a whole group, so that a packet from one guest to another needs no lock. Each VM
//! has a bounded turn. It borrows that VM, and the [`Rest`] of the group: the other VMs, and what
//! all share. Within a turn a connection is found once, as [`Current`], and handed on. The VM owns
//! its rings and the memory that they lie in. Segments of a turn point into that memory and do not
//! outlive the turn.

mod connect;
mod current;
mod fate;
mod gate;
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
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use zerowire_vhost::limit::Meter;
use zerowire_vhost::memory::Segment;

pub(super) use self::current::Current;
pub(super) use self::gate::Gate;
pub(super) use self::mapped::{take_back_all, wait_for_chains};
use self::timers::Timers;
use self::to_host::Run;
pub(super) use self::watch::{Event, Watch, token};
use super::connection::VsockConnection;
use super::mapped::DirectChain;
use super::queues::TxPacket;
use super::table::SlotKey;
use super::vm::GroupVm;

/// All VMs of a group.
pub(super) struct Switch {
    /// By their places. A [vacant](GroupVm::vacant) one stands where a VM has left.
    pub vms: Vec<GroupVm>,
    pub io: Io,
}

/// What the VMs of a group share: they have one thread.
pub(super) struct Io {
    pub watch: Watch,
    pub timers: Timers,
    scratch: Scratch,
    /// What may go to the guest in this turn.
    meter: Meter,
    /// Whose payload came last in a batch, if a host program gets it: VM and slot.
    last_sender: Option<(usize, u32)>,
}

/// Lists that turns begin with empty, so that they need not allocate.
struct Scratch {
    packets: Vec<TxPacket>,
    segments: Vec<Segment>,
    /// Payload that is being collected.
    run: Run,
    iov: Vec<libc::iovec>,
    /// For what is beyond a guest's buffer of a message that was expected to fit one.
    beyond: Vec<u8>,
    /// Chains that come back.
    back: Vec<DirectChain>,
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
    /// Without VMs yet.
    pub fn new(watch: Watch) -> Self {
        let (timers, scratch) = (Timers::default(), Scratch::new());
        let io = Io { watch, timers, scratch, meter: Meter::default(), last_sender: None };
        Self { vms: Vec::new(), io }
    }

    /// A VM joins at a place that none has.
    pub fn join(&mut self, place: usize, mut vm: GroupVm) -> io::Result<()> {
        vm.id.index = place;
        for l in &vm.doors.listening {
            self.io.watch.add(&l.socket, Event::Listener { vm: place, door: l.door })?;
        }
        if self.vms.len() <= place {
            self.vms.resize_with(place + 1, GroupVm::vacant);
        }
        self.vms[place] = vm;
        Ok(())
    }

    /// The VM at a place leaves: its connections end, and its sockets go. Its rings have stopped.
    /// The others keep their places, by which events and connections name them.
    pub fn leave(&mut self, place: usize) {
        self.with(place, fate::end_connections);
        if let Some(vm) = self.vms.get_mut(place) {
            *vm = GroupVm::vacant();
        }
    }

    /// A VM, and the rest of the group.
    fn at(&mut self, v: usize) -> Option<(&mut GroupVm, Rest<'_>)> {
        split(&mut self.vms, &mut self.io, v)
    }

    /// A VM's turn: packets both ways, and what waits for it. Returns whether there was anything to
    /// do.
    pub fn turn(&mut self, v: usize) -> bool {
        let Some((vm, mut rest)) = self.at(v) else { return false };
        let mut busy = mapped::reclaim(vm, &mut rest);
        busy |= transmit::send_turn(vm, &mut rest);
        busy |= receive::receive_turn(vm, &mut rest);
        busy |= gate::tell_reset(vm, rest.io);
        busy |= host::take_callers(vm, rest.io);
        busy
    }

    /// Shows the guests what was used in this turn, and notifies them.
    pub fn publish(&mut self) {
        for vm in &mut self.vms {
            vm.rings.publish(&vm.counters);
        }
    }

    /// Whether the connection that sent last has used up its credit. Nothing more comes from it
    /// before the host program has read. A further look would only keep that program waiting, if
    /// this CPU is its.
    pub fn guest_must_wait(&mut self) -> bool {
        self.io.last_sender.is_some_and(|(v, slot)| {
            self.vms[v].connections.get(slot).is_some_and(|c| c.protocol.from.is_used_up())
        })
    }

    /// Whether a guest has credit that it was not told of, or a program data.
    pub fn has_quiet(&self) -> bool {
        self.vms.iter().any(|vm| !vm.lists.quiet.is_empty())
    }

    /// Nothing has happened for a while: see [`transmit::review_quiet`]. Returns whether there are
    /// any such connections.
    pub fn review_quiet(&mut self) -> bool {
        let mut any = false;
        for v in 0..self.vms.len() {
            any |= self.at(v).is_some_and(|(vm, mut rest)| transmit::review_quiet(vm, &mut rest));
        }
        any
    }

    /// Looks at deadlines if it is time. Returns when it will be time again.
    pub fn scan(&mut self) -> Option<Duration> {
        timers::scan(&mut self.vms, &mut self.io)
    }

    /// A host program, or its connection, has news.
    pub fn event(&mut self, event: Event, flags: EventFlags) {
        match event {
            Event::Wake | Event::Review | Event::Kick { .. } => {}
            Event::Listener { vm, door } => self.with(vm, |vm, rest| host::called(vm, door, rest.io)),
            Event::Handshake { vm, place } => self.with(vm, |vm, rest| host::handshake(vm, place, rest.io)),
            Event::Connection { vm, place } => {
                self.with(vm, |vm, rest| host::socket_event(vm, place, flags, rest));
            }
            Event::Released { vm, place } => self.with(vm, |vm, rest| mapped::released(vm, place, rest)),
            Event::MapClient { vm, place } => {
                self.with(vm, |vm, rest| map_clients::heard(vm, place, rest.io));
            }
        }
    }

    /// Another process was asked for the connection of this event, and has answered.
    pub fn answered(&mut self, event: Event, outcome: io::Result<OwnedFd>) {
        if let Event::Connection { vm, place } = event {
            self.with(vm, |vm, rest| connect::answered(vm, place, outcome, rest.io));
        }
    }

    fn with(&mut self, v: usize, does: impl FnOnce(&mut GroupVm, &mut Rest<'_>)) {
        if let Some((vm, mut rest)) = self.at(v) {
            does(vm, &mut rest);
        }
    }

    /// Ends all connections of a VM whose driver begins anew or is gone. What it sent before still
    /// goes to host programs.
    pub fn drop_connections(&mut self, v: usize) {
        self.with(v, fate::drop_connections);
    }

    /// A VM's session goes on here, and its connections were another process's.
    pub fn taken_up(&mut self, v: usize) {
        self.with(v, |vm, _| gate::taken_up(vm));
    }

    /// A driver goes on whose connections, if `lost`, nobody here knows.
    pub fn set_gate(&mut self, v: usize, lost: bool) {
        gate::set(&mut self.vms[v], lost, &mut self.io.timers);
    }
}

/// What a VM does not own: the others of its group, and what all of them share.
pub(super) struct Rest<'a> {
    others: Others<'a>,
    io: &'a mut Io,
}

/// The other VMs of a group.
pub(super) struct Others<'a> {
    before: &'a mut [GroupVm],
    after: &'a mut [GroupVm],
}

impl Others<'_> {
    /// A VM by its place in the group; None if that is the VM whose others these are.
    fn get(&mut self, vm: usize) -> Option<&mut GroupVm> {
        match vm.checked_sub(self.before.len()) {
            None => self.before.get_mut(vm),
            Some(0) => None,
            Some(n) => self.after.get_mut(n - 1),
        }
    }

    /// A connection of another VM, if it is still the same.
    fn connection(&mut self, vm: usize, place: SlotKey) -> Option<&mut VsockConnection> {
        self.get(vm)?.connections.at(place)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut GroupVm> {
        self.before.iter_mut().chain(self.after.iter_mut())
    }
}

/// One VM of a group, and the rest.
fn split<'a>(vms: &'a mut [GroupVm], io: &'a mut Io, v: usize) -> Option<(&'a mut GroupVm, Rest<'a>)> {
    let (before, rest) = vms.split_at_mut_checked(v)?;
    let (vm, after) = rest.split_first_mut()?;
    Some((vm, Rest { others: Others { before, after }, io }))
}

#[cfg(test)]
mod tests;

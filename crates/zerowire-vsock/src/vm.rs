//! One VM of a group: its rings, its connections, its sockets.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use zerowire::ledger::DropReason;
use zerowire_capture::CaptureInterface;
use zerowire_vhost::ring::{RingAddresses, RingError};
use zerowire_wire::mapped::MapOptions;

use super::capture::PacketCapture;
use super::connection::VsockConnection;
use super::doors::{Doors, HostSide};
use super::lists::Lists;
use super::loans::Loans;
use super::mapped::MapClaim;
use super::names::ConnectionNames;
use super::paces::Paces;
use super::packet::{HOST_CID, Header, Kind, Op};
use super::request_rate::RequestRate;
use super::rings::VmRings;
use super::switch::{Current, Gate};
use super::table::{SlotKey, Table};
use super::{F_SEQPACKET, RX_QUEUE, TX_QUEUE, VsockCounters, VsockLimits};

/// Resets of no connection that wait for receive buffers at most. At this number the guest's own
/// packets wait, too.
pub(super) const MAX_RESETS: usize = 1024;

/// Who a VM is.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// Its place in the group.
    pub index: usize,
    pub name: String,
    pub cid: u64,
    groups: Vec<String>,
}

impl Identity {
    /// Whether the two may reach each other.
    pub fn shares_group(&self, other: &Self) -> bool {
        self.groups.iter().any(|g| other.groups.contains(g))
    }
}

/// A ring of a VM broke a rule.
#[cold]
pub(super) fn ring_failed(id: &Identity, counters: &VsockCounters, error: &RingError) {
    let text = format!("{}: {error}", id.name);
    // The text goes first: who sees the count finds the text that belongs to it.
    counters.set_error(error.to_string());
    counters.ring_errors.add(1);
    tracing::error!("{text}; this queue is stopped until the driver resets it");
}

/// One VM of a group.
#[derive(Debug)]
pub(crate) struct GroupVm {
    pub(super) id: Identity,
    pub(super) limits: VsockLimits,
    pub(super) request_rate: RequestRate,
    pub(super) paces: Paces,
    pub(super) counters: Arc<VsockCounters>,
    pub(super) doors: Doors,
    pub(super) loans: Loans,
    pub(super) rings: VmRings,
    /// Whether connections may begin: the driver may know of some that it had elsewhere.
    pub(super) gate: Gate,
    pub(super) connections: Table,
    /// Their names, for a process that goes on if this one dies.
    pub(super) names: ConnectionNames,
    pub(super) lists: Lists,
    /// Resets of no connection.
    pub(super) resets: VecDeque<Header>,
    /// Where the transmit ring was, when it was stopped: connections go on if it is started there.
    pub(super) resume: Option<(RingAddresses, u16)>,
}

impl GroupVm {
    pub(crate) fn new(
        name: &str,
        cid: u64,
        host: HostSide,
        groups: Vec<String>,
        limits: VsockLimits,
        counters: Arc<VsockCounters>,
    ) -> Self {
        let id = Identity { index: 0, name: name.to_owned(), cid, groups };
        Self::with_doors(id, Doors::new(host), limits, counters)
    }

    /// What stands in a place that no VM has: nobody reaches it, and it has no sockets.
    pub(super) fn vacant() -> Self {
        Self::with_doors(Identity::default(), Doors::none(), VsockLimits::default(), Arc::default())
    }

    fn with_doors(id: Identity, doors: Doors, limits: VsockLimits, counters: Arc<VsockCounters>) -> Self {
        Self {
            id,
            limits,
            request_rate: RequestRate::new(limits.request_rate),
            paces: Paces::default(),
            counters,
            doors,
            loans: Loans::default(),
            rings: VmRings::new(),
            gate: Gate::Open,
            connections: Table::default(),
            names: ConnectionNames::default(),
            lists: Lists::default(),
            resets: VecDeque::new(),
            resume: None,
        }
    }

    /// With ports of host programs that begin elsewhere than another process's: a reset that is
    /// under way from before a restart meets no new connection.
    pub(crate) fn with_random_ports(mut self) -> Self {
        self.connections.skip_ports(RandomState::new().build_hasher().finish() as u32);
        self
    }

    /// With these names of connections.
    pub(crate) fn with_names(mut self, names: ConnectionNames) -> Self {
        self.names = names;
        self
    }

    /// With a session that goes on here: programs that connect wait for it.
    pub(crate) fn awaiting_session(mut self) -> Self {
        self.doors.await_session = true;
        self
    }

    /// With packets that go to a capture as well.
    pub(crate) fn with_capture(mut self, interface: Option<&CaptureInterface>) -> Self {
        self.rings.capture = interface.map(PacketCapture::new);
        self
    }

    /// Whether the guest's driver runs.
    pub(super) fn is_running(&self) -> bool {
        self.rings.are_running()
    }

    /// The driver has kicked.
    pub(super) fn kicked(&mut self, queue: u16) {
        if queue == TX_QUEUE {
            self.counters.transmit.kicks.add(1);
            self.rings.kicked = true;
            // A broken ring may lie in memory that is gone.
            if let Some(tx) = self.rings.tx.as_mut().filter(|t| t.is_sound()) {
                tx.ring.disarm();
            }
        } else if queue == RX_QUEUE {
            self.counters.receive.kicks.add(1);
            self.rings.state.feed();
            if let Some(rx) = self.rings.rx.as_mut().filter(|r| r.queue.is_sound()) {
                rx.queue.ring.disarm();
            }
        }
    }

    /// Whether there is a place for a connection with this peer.
    pub(super) fn has_place(&self, peer_cid: u64) -> bool {
        let (table, limits) = (&self.connections, &self.limits);
        table.len() < limits.max_connections
            && (peer_cid == HOST_CID
                || (table.of_peer(peer_cid) < limits.of_peer() && table.of_siblings < limits.of_siblings()))
    }

    /// Takes what a mapped connection needs of the VM's quota. The error says which bound is in the
    /// way, and what to do.
    pub(super) fn claim_map(&self, options: &MapOptions) -> Result<MapClaim, String> {
        let policy = &self.doors.map_policy;
        let most = policy.max_connections.unwrap_or(self.limits.max_connections);
        MapClaim::new(&self.counters, options, most, policy.max_total_bytes)
    }

    /// A mapped connection is refused for this reason; the log says so once a minute at most.
    pub(super) fn refuse_map(&mut self, why: &str, now: Instant) {
        self.counters.mapped.refused.add(1);
        let next = "the next ones are counted in mapped_refused, and not told for a minute";
        if self.doors.map_refusals.is_due(now) {
            tracing::warn!("{}: a mapped connection is refused: {why}; {next}", self.id.name);
        }
    }

    /// A mapped connection waits for its next try for this reason. The log says so now and then.
    pub(super) fn delay_map(&mut self, why: &str, now: Instant) {
        if self.doors.map_delays.is_due(now) {
            tracing::warn!("{}: a mapped connection waits, and is tried again: {why}", self.id.name);
        }
    }

    /// Whether the driver takes connections of this type: messages are a feature (virtio 1.3
    /// §5.10.3).
    pub(super) fn takes(&self, kind: Kind) -> bool {
        kind == Kind::Stream || self.rings.tx.as_ref().is_some_and(|t| t.acked & F_SEQPACKET != 0)
    }

    /// The connection in a slot.
    #[inline]
    pub(super) fn current(&mut self, slot: u32) -> Option<Current<'_>> {
        self.parts(slot).map(|(at, ..)| at)
    }

    /// The connection in a slot, if it is still the same.
    #[inline]
    pub(super) fn current_at(&mut self, place: SlotKey) -> Option<Current<'_>> {
        self.parts_at(place).map(|(at, ..)| at)
    }

    /// The connection in a slot, with what it uses of the VM's rings.
    #[inline]
    pub(super) fn parts(&mut self, slot: u32) -> Option<(Current<'_>, &mut VmRings, &mut Loans)> {
        let Self { id, limits, counters, connections, lists, rings, loans, .. } = self;
        let (place, c) = connections.tenant(slot)?;
        Some((Current { place, c, lists, id, limits, counters }, rings, loans))
    }

    /// As [`Self::parts`], if the connection is still the same.
    #[inline]
    pub(super) fn parts_at(&mut self, place: SlotKey) -> Option<(Current<'_>, &mut VmRings, &mut Loans)> {
        self.parts(place.slot).filter(|(at, ..)| at.place == place)
    }

    /// A packet of the guest is dropped.
    pub(super) fn dropped(&self, reason: DropReason) {
        self.counters.transmit.dropped(reason);
    }

    /// A ring of this VM broke a rule.
    #[cold]
    pub(super) fn ring_failed(&self, error: &RingError) {
        ring_failed(&self.id, &self.counters, error);
    }

    /// Nobody takes what the guest asks for.
    pub(super) fn turn_down(&mut self, h: &Header) {
        self.counters.refused.add(1);
        self.refuse(h);
    }

    /// Answers a packet of no connection by RST, unless it is one.
    pub(super) fn answer_stranger(&mut self, h: &Header) {
        if h.op != Op::Rst as u16 {
            self.counters.resets.add(1);
            self.refuse(h);
        }
    }

    /// Answers a packet of no connection by RST.
    fn refuse(&mut self, h: &Header) {
        self.resets.push_back(Header {
            src_cid: h.dst_cid,
            dst_cid: h.src_cid,
            src_port: h.dst_port,
            dst_port: h.src_port,
            kind: h.kind,
            op: Op::Rst as u16,
            ..Header::default()
        });
    }

    /// Resets the connections that a process before had.
    pub(super) fn reset_lost(&mut self) {
        let resets = self.names.reset_lost(self.id.cid);
        self.counters.resets.add(resets.len() as u64);
        self.resets.extend(resets);
    }

    /// Puts a connection in; one of the same name must have been removed.
    pub(super) fn insert(&mut self, connection: VsockConnection) -> SlotKey {
        let (kind, key) = (connection.kind, connection.key);
        let place = self.connections.insert(connection);
        self.names.enter(place.slot, kind, &key);
        self.lists.make_room(place.slot);
        place
    }

    /// Puts a connection into the list of those that may have something for the guest.
    #[inline]
    pub(super) fn mark_ready(&mut self, slot: u32) {
        if self.connections.has(slot) {
            self.lists.ready.push(slot);
        }
    }
}

//! One VM of a group: its rings, its connections, its sockets.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use zerowire_wire::mapped::MapOptions;

use super::connection::Connection;
use super::doors::{Doors, FileId, Listening};
use super::lists::Lists;
use super::loans::Loans;
use super::mapped::{MapClaim, MapPolicy};
use super::packet::{HOST_CID, Header, Kind};
use super::request_rate::RequestRate;
use super::rings::Rings;
use super::switch::Gate;
use super::table::{Place, Table};
use super::{F_SEQPACKET, VsockCounters, VsockLimits};
use crate::daemon::{ListenError, SocketAccess};
use crate::ring::RingAddresses;

/// Resets of no connection that wait for receive buffers; with so many the guest's own packets wait, too.
pub(super) const MAX_RESETS: usize = 1024;

/// Who a VM is.
#[derive(Debug)]
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

/// One VM of a group.
#[derive(Debug)]
pub(crate) struct GroupVm {
    pub(super) id: Identity,
    pub(super) limits: VsockLimits,
    pub(super) request_rate: RequestRate,
    pub(super) counters: Arc<VsockCounters>,
    pub(super) doors: Doors,
    pub(super) loans: Loans,
    pub(super) rings: Rings,
    /// Whether connections may begin: the driver may know of some that it had elsewhere.
    pub(super) gate: Gate,
    pub(super) connections: Table,
    pub(super) lists: Lists,
    /// Resets of no connection.
    pub(super) resets: VecDeque<Header>,
    /// Where the transmit ring was, when it was stopped: connections go on if it is started there.
    pub(super) resume: Option<(RingAddresses, u16)>,
}

impl GroupVm {
    /// Binds the host's sockets, with these rights: `uds` for streams, `uds.seqpacket` for
    /// messages, `uds.map`.
    pub(crate) fn new(
        name: &str,
        cid: u64,
        (uds, access): (&Path, &SocketAccess),
        groups: Vec<String>,
        limits: VsockLimits,
        counters: Arc<VsockCounters>,
    ) -> Result<Self, ListenError> {
        let doors = Doors::bind(uds, access)?;
        Ok(Self {
            id: Identity { index: 0, name: name.to_owned(), cid, groups },
            limits,
            request_rate: RequestRate::new(limits.request_rate),
            counters,
            doors,
            loans: Loans::default(),
            rings: Rings::new(),
            gate: Gate::Open,
            connections: Table::default(),
            lists: Lists::default(),
            resets: VecDeque::new(),
            resume: None,
        })
    }

    /// With ports of host programs that begin elsewhere than another process's: a reset that is
    /// under way from before a restart meets no new connection.
    pub(crate) fn with_random_ports(mut self) -> Self {
        self.connections.skip_ports(RandomState::new().build_hasher().finish() as u32);
        self
    }

    /// With other rules for mapped connections.
    pub(crate) fn with_map_policy(mut self, policy: MapPolicy) -> Self {
        self.doors.map_policy = policy;
        self
    }

    /// Refuses the guest connections to these sockets.
    pub(crate) fn set_own_sockets(&mut self, own: Arc<HashSet<FileId>>) {
        self.doors.set_own_sockets(own);
    }

    /// Whether the guest's driver runs.
    pub(super) fn is_running(&self) -> bool {
        self.rings.are_running()
    }

    /// Whether there is a place for a connection with this peer.
    pub(super) fn has_place(&self, peer_cid: u64) -> bool {
        let (table, limits) = (&self.connections, &self.limits);
        table.len() < limits.max_connections
            && (peer_cid == HOST_CID
                || (table.of_peer(peer_cid) < limits.of_peer() && table.of_siblings() < limits.of_siblings()))
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
        self.counters.mapped_refused.add(1);
        if self.doors.map_refusals.is_due(now) {
            tracing::warn!(
                "{}: a mapped connection is refused: {why}; the next ones are counted in mapped_refused, and not told for a \
                 minute",
                self.id.name
            );
        }
    }

    /// Whether the driver takes connections of this type: messages are a feature (virtio 1.3
    /// §5.10.3).
    pub(super) fn takes(&self, kind: Kind) -> bool {
        kind == Kind::Stream || self.rings.tx.as_ref().is_some_and(|t| t.acked() & F_SEQPACKET != 0)
    }

    /// All sockets at which host programs connect.
    pub(super) fn listeners(&mut self) -> impl Iterator<Item = &mut Listening> {
        self.doors.listeners()
    }

    /// Puts a connection in; one of the same name must have been removed.
    pub(super) fn insert(&mut self, connection: Connection) -> Place {
        let place = self.connections.insert(connection);
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

    /// Puts a connection into the list of those whose credit is looked at once nothing has happened
    /// for a while.
    #[inline]
    pub(super) fn mark_quiet(&mut self, slot: u32) {
        if self.connections.has(slot) {
            self.lists.quiet.push(slot);
        }
    }
}

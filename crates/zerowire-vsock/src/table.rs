//! The connections of a VM.

use std::collections::HashMap;

use super::connection::VsockConnection;
use super::packet::{HOST_CID, Header};

/// What names a connection of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// The guest's port.
    pub port: u32,
    /// The other end's CID.
    pub peer_cid: u64,
    /// The other end's port.
    pub peer_port: u32,
}

impl ConnectionKey {
    /// Of the connection that a packet of the guest belongs to.
    #[inline]
    pub fn of(h: &Header) -> Self {
        Self { port: h.src_port, peer_cid: h.dst_cid, peer_port: h.dst_port }
    }
}

/// A slot of the table, and which of its tenants is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotKey {
    /// Index of the slot.
    pub slot: u32,
    /// Counts the slot's tenants, 24 bits.
    pub tenant: u32,
}

/// Bits of a slot's tenant count.
const TENANT_MASK: u32 = (1 << 24) - 1;

#[derive(Debug, Default)]
struct Slot {
    tenant: u32,
    connection: Option<VsockConnection>,
}

/// Ports that host programs get begin here, above those that people choose.
const FIRST_HOST_PORT: u32 = 1 << 30;

/// The table.
#[derive(Debug)]
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: HashMap<ConnectionKey, u32>,
    /// Connections with each other guest that has some, by its CID.
    of_peer: HashMap<u64, usize>,
    /// Connections with all other guests.
    pub of_siblings: usize,
    /// The port of the next host program that connects.
    next_port: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            of_peer: HashMap::new(),
            of_siblings: 0,
            next_port: FIRST_HOST_PORT,
        }
    }
}

impl Table {
    /// Connections, those that drain included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Connections with another guest.
    pub fn of_peer(&self, cid: u64) -> usize {
        self.of_peer.get(&cid).copied().unwrap_or(0)
    }

    /// Puts a connection in; one of the same name must have been removed.
    pub fn insert(&mut self, connection: VsockConnection) -> SlotKey {
        let key = connection.key;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].connection = Some(connection);
                slot
            }
            None => {
                self.slots.push(Slot { connection: Some(connection), ..Slot::default() });
                self.slots.len() as u32 - 1
            }
        };
        self.by_key.insert(key, slot);
        if key.peer_cid != HOST_CID {
            *self.of_peer.entry(key.peer_cid).or_default() += 1;
            self.of_siblings += 1;
        }
        SlotKey { slot, tenant: self.slots[slot as usize].tenant }
    }

    /// The connection of this name.
    pub fn find(&self, key: &ConnectionKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// A name for the connection of a host program to the guest's `port`.
    pub fn host_port(&mut self, port: u32) -> ConnectionKey {
        loop {
            let key = ConnectionKey { port, peer_cid: HOST_CID, peer_port: self.next_port };
            self.next_port =
                self.next_port.checked_add(1).filter(|p| *p < u32::MAX).unwrap_or(FIRST_HOST_PORT);
            if !self.is_taken(&key) {
                return key;
            }
        }
    }

    /// Host programs get their ports from another place on.
    pub fn skip_ports(&mut self, random: u32) {
        self.next_port = FIRST_HOST_PORT + random % (u32::MAX - FIRST_HOST_PORT);
    }

    /// Whether a name is taken.
    pub fn is_taken(&self, key: &ConnectionKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// The connection in a slot.
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&mut VsockConnection> {
        self.slots.get_mut(slot as usize)?.connection.as_mut()
    }

    /// As [`Self::get`], with the slot's tenant.
    #[inline]
    pub fn tenant(&mut self, slot: u32) -> Option<(SlotKey, &mut VsockConnection)> {
        let Slot { tenant, connection } = self.slots.get_mut(slot as usize)?;
        Some((SlotKey { slot, tenant: *tenant }, connection.as_mut()?))
    }

    /// The connection in a slot, if it is still the same.
    #[inline]
    pub fn at(&mut self, place: SlotKey) -> Option<&mut VsockConnection> {
        let slot = self.slots.get_mut(place.slot as usize)?;
        if slot.tenant != place.tenant {
            return None;
        }
        slot.connection.as_mut()
    }

    /// The place of a slot's tenant.
    pub fn place(&self, slot: u32) -> SlotKey {
        SlotKey { slot, tenant: self.slots.get(slot as usize).map_or(0, |s| s.tenant) }
    }

    /// Frees the name for another connection; this one stays in its slot.
    pub fn forget_name(&mut self, slot: u32) {
        if let Some(Slot { connection: Some(c), .. }) = self.slots.get(slot as usize)
            && self.by_key.get(&c.key) == Some(&slot)
        {
            self.by_key.remove(&c.key);
        }
    }

    /// Takes a connection out.
    pub fn remove(&mut self, slot: u32) -> Option<VsockConnection> {
        self.forget_name(slot);
        let place = self.slots.get_mut(slot as usize)?;
        let connection = place.connection.take()?;
        place.tenant = (place.tenant + 1) & TENANT_MASK;
        self.free.push(slot);
        let cid = connection.key.peer_cid;
        if let Some(count) = self.of_peer.get_mut(&cid) {
            *count -= 1;
            if *count == 0 {
                self.of_peer.remove(&cid);
            }
            self.of_siblings -= 1;
        }
        Some(connection)
    }

    /// Whether a slot has a tenant.
    #[inline]
    pub fn has(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|s| s.connection.is_some())
    }

    /// Slots that are or were in use: all connections are in `0..slots()`.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
}

//! The connections of a VM.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use super::credit::{CreditReview, FromGuest, SocketCredit, Why, WindowCredit};
use super::forecast::MessageForecast;
use super::held::Held;
use super::mapped::{AskedFor, Ended, Windows};
use super::packet::{HOST_CID, Header, Kind, Op};
use super::protocol::{Fields, Protocol, Shut, Verdict};
use super::socket;

/// What names a connection of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The guest's port.
    pub port: u32,
    /// The other end's CID.
    pub peer_cid: u64,
    /// The other end's port.
    pub peer_port: u32,
}

/// A slot of the table, and which of its tenants is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the slot.
    pub slot: u32,
    /// Counts the slot's tenants, 24 bits.
    pub tenant: u32,
}

/// Where a connection ends.
#[derive(Debug)]
pub enum End {
    /// At a host program.
    Host(Box<HostEnd>),
    /// At a host program whose backlog is full: it is tried again.
    Dialing,
    /// At another VM of the group.
    Sibling {
        /// Its place in the group.
        vm: usize,
        /// The connection there.
        place: Place,
    },
    /// Nowhere any more.
    Gone,
}

/// A unix socket.
#[derive(Debug)]
pub struct HostEnd {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// There may be something to read.
    pub readable: bool,
    /// How long its next message will be.
    pub forecast: MessageForecast,
    /// There may be room to write.
    pub writable: bool,
    /// The program has ended its sending, or closed.
    pub hung_up: bool,
    /// The program has closed.
    pub closed: bool,
    /// It closed while something that was sent to it was unread.
    pub closed_unread: bool,
    /// The socket's room, as credit for the guest.
    pub credit: SocketCredit,
    /// The same of windows, if the connection is mapped.
    pub window_credit: WindowCredit,
    /// News of room for writing are asked for.
    pub room_watched: bool,
    /// Writing was shut down.
    pub write_shut: bool,
    /// What the socket, or the windows, had no room for.
    pub held: Option<Box<Held>>,
    /// Where payload goes, if the program has mapped its receive buffers.
    pub windows: Option<Box<Windows>>,
    /// A program that waits for its mapped connection.
    pub asked: Option<Box<AskedFor>>,
}

impl HostEnd {
    /// A new socket's end.
    pub fn new(socket: OwnedFd, credit: SocketCredit) -> Box<Self> {
        Box::new(Self {
            socket,
            readable: false,
            forecast: MessageForecast::default(),
            writable: true,
            hung_up: false,
            closed: false,
            write_shut: false,
            closed_unread: false,
            credit,
            window_credit: WindowCredit::default(),
            room_watched: false,
            held: None,
            windows: None,
            asked: None,
        })
    }

    /// Whether `e` is the news that the program closed with something unread. It comes once, before messages that still
    /// wait (net/core/datagram.c, `__skb_try_recv_datagram`), at whichever call is next: those are to be read on.
    pub fn closes_unread(&mut self, e: &std::io::Error) -> bool {
        let is_news = e.kind() == std::io::ErrorKind::ConnectionReset && !self.closed_unread;
        if is_news {
            (self.closed_unread, self.closed) = (true, true);
        }
        is_news
    }

    /// Whether bytes of the guest, or the news that no more come, wait for the program.
    pub fn has_pending(&self) -> bool {
        let waits = |w: &Windows| w.ended() == Ended::Due || w.lends();
        self.held.is_some() || self.windows.as_ref().is_some_and(|w| waits(w))
    }

    /// Whether the socket takes `n` bytes by one call for sure, and the guest has credit for them as soon as it has.
    pub fn surely_takes(&self, n: u32) -> bool {
        let free = self.windows.is_none() && self.held.is_none() && self.writable;
        free && self.credit.surely_takes(n)
    }

    /// Bytes that the program may not have read, and for which the guest has no credit again.
    pub fn uncredited(&self) -> u32 {
        self.credit.uncredited() + self.window_credit.uncredited()
    }

    /// Gives the guest credit for what the program has read, or given back.
    fn review(&mut self, incoming: &mut FromGuest, why: Why) -> CreditReview {
        let part = self.held.as_ref().is_some_and(|held| held.has_partial());
        let why = if part { Why::PartWaits } else { why };
        if self.windows.is_some() || self.window_credit.uncredited() > 0 {
            self.window_credit.review(incoming, why, self.windows.as_deref_mut())
        } else {
            self.credit.review(incoming, why, || socket::unread(&self.socket))
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its name.
    pub key: Key,
    /// Its type.
    pub kind: Kind,
    /// What the guest and this side say to each other.
    pub protocol: Protocol,
    /// Where it ends.
    pub end: End,
    /// What waits for the guest's buffers.
    pub held: Option<Box<Held>>,
    /// Established at some time.
    pub counted: bool,
}

impl Connection {
    /// A new one, which ends nowhere yet.
    pub fn new(key: Key, kind: Kind, protocol: Protocol) -> Self {
        Self { key, kind, protocol, end: End::Gone, held: None, counted: false }
    }

    /// Takes a packet of the guest, but for its payload.
    #[inline]
    pub fn from_guest(&mut self, op: Op, kind: Kind, h: &Header) -> (Fields, Verdict) {
        self.protocol.from_guest(op, h, kind == self.kind)
    }

    /// Whether there may be payload for the guest.
    #[inline]
    pub fn has_payload(&self) -> bool {
        self.held.is_some() || matches!(&self.end, End::Host(host) if host.readable)
    }

    /// The other guest sends no more: a message that it did not complete is none.
    pub fn sibling_ends(&mut self) {
        if let Some(held) = &mut self.held {
            held.drop_partial();
        }
        Held::settle(&mut self.held);
    }

    /// The guest sends no more: a message to the host program that it did not complete is none.
    pub fn guest_ends(&mut self) {
        let End::Host(host) = &mut self.end else { return };
        if let Some(held) = &mut host.held {
            let lost = held.drop_partial();
            self.protocol.from.forward(lost);
            if let Some(w) = host.windows.as_mut().filter(|_| lost > 0) {
                w.cut_short();
            }
        }
        Held::settle(&mut host.held);
    }

    /// The host program has closed. A guest that receives no more hears of it here: its socket is
    /// not read again.
    pub fn program_closed(&mut self) {
        let guest_reads_no_more = self.protocol.guest().receives_no_more();
        if guest_reads_no_more || self.protocol.far().sends_no_more() {
            self.protocol.far_ends(Shut::BOTH);
        }
    }

    /// No more bytes of the guest will come: once nothing waits, the program of a mapped
    /// connection is told. A guest that did not end its sending has cut the data short.
    pub fn end_windows(&mut self) {
        let is_cut = !self.protocol.guest().sends_no_more();
        if let End::Host(host) = &mut self.end
            && host.held.is_none()
            && let Some(w) = &mut host.windows
        {
            if is_cut {
                w.cut_short();
            }
            w.end();
        }
    }

    /// What lies in the socket counts as read: the kernel says that it is writable.
    pub fn read_all(&mut self) {
        if let End::Host(h) = &mut self.end {
            self.protocol.from.forward(h.credit.writable());
        }
    }

    /// Brings the guest's credit up to what its far side has taken.
    pub fn review_credit(&mut self, why: Why) -> CreditReview {
        match &mut self.end {
            End::Host(host) => host.review(&mut self.protocol.from, why),
            _ => self.protocol.from.reviewed(why, self.protocol.from.is_news(), false),
        }
    }

    /// The host's end.
    pub fn host(&mut self) -> Option<&mut HostEnd> {
        match &mut self.end {
            End::Host(h) => Some(h),
            _ => None,
        }
    }
}

/// Bits of a slot's tenant count.
const TENANT_MASK: u32 = (1 << 24) - 1;

#[derive(Debug, Default)]
struct Slot {
    tenant: u32,
    /// It is in the list of those that may have something for the guest. The slot's mark, not its tenant's: else a guest
    /// that takes no buffer and begins connections over and over would make the list as long as it likes.
    queued: bool,
    /// It is in the list of those whose credit is looked at once nothing has happened for a while.
    quiet: bool,
    connection: Option<Connection>,
}

/// The table.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: HashMap<Key, u32>,
    /// Connections with each other guest that has some, by its CID, and in all.
    of_peer: HashMap<u64, usize>,
    of_siblings: usize,
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

    /// Connections with all other guests.
    pub fn of_siblings(&self) -> usize {
        self.of_siblings
    }

    /// Puts a connection in; one of the same name must have been removed.
    pub fn insert(&mut self, connection: Connection) -> Place {
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
        Place { slot, tenant: self.slots[slot as usize].tenant }
    }

    /// The connection of this name.
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Whether a name is taken.
    pub fn is_taken(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// The connection in a slot.
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.connection.as_mut()
    }

    /// The connection in a slot, if it is still the same.
    #[inline]
    pub fn at(&mut self, place: Place) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(place.slot as usize)?;
        if slot.tenant != place.tenant {
            return None;
        }
        slot.connection.as_mut()
    }

    /// The place of a slot's tenant.
    pub fn place(&self, slot: u32) -> Place {
        Place { slot, tenant: self.slots.get(slot as usize).map_or(0, |s| s.tenant) }
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
    pub fn remove(&mut self, slot: u32) -> Option<Connection> {
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

    /// Marks a slot whose tenant may have something for the guest. False where it has no tenant, or is marked already.
    #[inline]
    pub fn enqueue(&mut self, slot: u32) -> bool {
        match self.slots.get_mut(slot as usize) {
            Some(s) if s.connection.is_some() => !std::mem::replace(&mut s.queued, true),
            _ => false,
        }
    }

    /// The slot has left the list.
    #[inline]
    pub fn dequeue(&mut self, slot: u32) {
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.queued = false;
        }
    }

    /// Marks a slot whose tenant's credit is to be looked at once nothing has happened for a while.
    /// False where it has no tenant, or is marked already.
    #[inline]
    pub fn begin_quiet(&mut self, slot: u32) -> bool {
        match self.slots.get_mut(slot as usize) {
            Some(s) if s.connection.is_some() => !std::mem::replace(&mut s.quiet, true),
            _ => false,
        }
    }

    /// The slot has left the list of those.
    pub fn end_quiet(&mut self, slot: u32) {
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.quiet = false;
        }
    }

    /// Slots that are or were in use: all connections are in `0..slots()`.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn nothing_goes_ahead_of_what_waits() {
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
        let mut end = HostEnd::new(ours, SocketCredit::new(1 << 20, 1));
        assert!(end.surely_takes(1));
        end.held = Some(Box::default());
        assert!(!end.surely_takes(1), "not ahead of what waits");
    }
}

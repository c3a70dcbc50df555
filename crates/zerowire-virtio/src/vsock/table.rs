//! The connections of a VM.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::credit::{Incoming, Outgoing};
use super::held::Held;
use super::lifecycle::Lifecycle;
use super::mapped::{AskedFor, Ended, Windows};
use super::packet::{HOST_CID, Kind, SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};
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
    /// The longest message so far, bytes.
    longest: u32,
    /// How many came since that were no longer, up to where that counts.
    no_longer: u8,
    /// There may be room to write.
    pub writable: bool,
    /// The program has ended its sending, or closed.
    pub hung_up: bool,
    /// The program has closed.
    pub closed: bool,
    /// It closed while something that was sent to it was unread.
    pub closed_unread: bool,
    /// Bytes that the socket keeps unread at most, with what the kernel needs for them.
    pub room: usize,
    /// Bytes of the socket for which the guest has credit again, whether or not the program has read them.
    pub ahead: u32,
    /// Bytes that the socket, or the windows, took and that the program may not have read or given back.
    pub in_socket: u32,
    /// What the kernel has of the socket's room for them at most.
    kernel_needs: u32,
    /// Those of them for which the guest has no credit again.
    pub uncredited: u32,
    /// Bytes for which the guest has credit again, and that the socket has yet to take.
    pub promised: u32,
    /// The guest waits for credit, or may: news of room, or of a release, are asked for.
    pub credit_waits: bool,
    /// The program keeps windows while it waits: the guest is to be told of any room.
    pub stingy: bool,
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

/// After so many messages in a row that are no longer than one before, the next one is expected not to be, and read without a
/// look at its length. Where it is, all of it is copied once.
const SURE: u8 = 16;

/// What messages of a connection that are expected may have, bytes: for longer ones a call more makes no difference.
const SHORT: u32 = 64 << 10;

impl HostEnd {
    /// A new socket's end.
    pub fn new(socket: OwnedFd) -> Box<Self> {
        Box::new(Self {
            socket,
            readable: false,
            longest: 0,
            no_longer: 0,
            writable: true,
            hung_up: false,
            closed: false,
            write_shut: false,
            closed_unread: false,
            room: 0,
            ahead: 0,
            in_socket: 0,
            kernel_needs: 0,
            uncredited: 0,
            promised: 0,
            credit_waits: false,
            stingy: false,
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

    /// A message of `len` bytes came.
    pub fn message_came(&mut self, len: u32) {
        if len > self.longest {
            (self.longest, self.no_longer) = (len, 0);
        } else if self.no_longer < SURE {
            self.no_longer += 1;
        } else if self.longest > SHORT {
            // What was long may be over.
            (self.longest, self.no_longer) = (len, 0);
        }
    }

    /// How long the next message is expected to be at most, if that is known.
    pub fn expected_length(&self) -> Option<usize> {
        (self.no_longer >= SURE && self.longest <= SHORT).then_some(self.longest as usize)
    }

    /// Whether bytes of the guest, or the news that no more come, wait for the program.
    pub fn has_pending(&self) -> bool {
        let waits = |w: &Windows| w.ended() == Ended::Due || w.lends();
        self.held.is_some() || self.windows.as_ref().is_some_and(|w| waits(w))
    }

    /// The socket, or the windows, took `n` bytes.
    pub fn took(&mut self, n: usize) {
        self.in_socket = self.in_socket.saturating_add(n as u32);
        self.kernel_needs = self.kernel_needs.saturating_add(kernel_needs(n as u32));
        self.uncredited += self.unpromised(n as u32);
    }

    /// Whether the socket takes `n` bytes by one call for sure, and the guest has credit for them as soon as it has.
    pub fn surely_takes(&self, n: u32) -> bool {
        let free = self.windows.is_none() && self.held.is_none() && self.writable;
        let room = self.kernel_needs.saturating_add(kernel_needs(n)) as usize <= self.room;
        free && room && self.in_socket.saturating_add(n) <= self.ahead
    }

    /// `n` bytes of the guest leave for the socket, or nowhere: how many of them it has yet to get credit for.
    pub fn unpromised(&mut self, n: u32) -> u32 {
        let promised = self.promised.min(n);
        self.promised -= promised;
        n - promised
    }

    /// `unread` bytes are left of those that were taken at most. Returns for how many the guest has credit again with that.
    pub fn leaves(&mut self, unread: u32) -> u32 {
        self.in_socket = unread;
        let ahead = if self.windows.is_some() { 0 } else { self.ahead };
        let left = self.uncredited.min(unread.saturating_sub(ahead));
        std::mem::replace(&mut self.uncredited, left) - left
    }

    /// As [`Self::leaves`], for as many bytes of those that the socket, or the windows, took as the program has not read or given
    /// back yet.
    pub fn looks(&mut self) -> u32 {
        let unread = match &mut self.windows {
            // What is in the window that is being filled counts as read if nothing else is out: the program can't do
            // anything about it.
            Some(w) => {
                let back = w.take_released();
                if w.is_any_out() { self.in_socket.saturating_sub(back) } else { 0 }
            }
            None => {
                let unread = socket::unread(&self.socket);
                self.kernel_needs = unread as u32;
                if socket::is_writable(unread, self.room) {
                    return self.is_writable(unread);
                }
                self.in_socket.min(unread as u32)
            }
        };
        self.leaves(unread)
    }

    /// The kernel calls the socket writable, with at most so much unread, and says nothing of what is read from now on: the
    /// guest has credit again for all.
    fn is_writable(&mut self, unread: usize) -> u32 {
        self.in_socket = self.in_socket.min(unread as u32);
        self.kernel_needs = self.kernel_needs.min(unread as u32);
        self.leaves_all()
    }

    /// The guest has credit again for all that was taken, whether or not it was read. Returns for how many bytes more.
    pub fn leaves_all(&mut self) -> u32 {
        if self.windows.is_some() { self.leaves(0) } else { std::mem::take(&mut self.uncredited) }
    }
}

/// What the kernel takes of a socket's room for `n` bytes of one call at most: a piece is up to 48 KiB long, kept in blocks whose
/// length is a power of 2, with some hundred bytes of its own (net/unix/af_unix.c, `unix_stream_sendmsg`; `truesize` of a sk_buff).
fn kernel_needs(n: u32) -> u32 {
    n.saturating_mul(2).saturating_add((1 + n / (32 << 10)) << 11)
}

/// When a guest is asked again, and how long after the last time. A driver tells of room when it
/// has little: of packets that were read, which have few bytes, it may say nothing by itself.
#[derive(Clone, Copy, Debug)]
pub struct AskAgain {
    /// When it is asked.
    pub at: Instant,
    /// How long that is after it was asked last.
    pub after: Duration,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its name.
    pub key: Key,
    /// Its type.
    pub kind: Kind,
    /// Its state.
    pub life: Lifecycle,
    /// What the guest may send, to a host program or as far as its sibling takes it.
    pub incoming: Incoming,
    /// What may be sent to the guest.
    pub outgoing: Outgoing,
    /// Where it ends.
    pub end: End,
    /// What waits for the guest's buffers.
    pub held: Option<Box<Held>>,
    /// The guest is asked again for news of packets that it has read.
    pub asks: Option<AskAgain>,
    /// When patience ends.
    pub deadline: Option<Instant>,
    /// Established at some time.
    pub counted: bool,
}

impl Connection {
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
            self.incoming.forward(lost);
            if let Some(w) = host.windows.as_mut().filter(|_| lost > 0) {
                w.cut_short();
            }
        }
        Held::settle(&mut host.held);
    }

    /// The host program has closed. A guest that receives no more hears of it here: its socket is
    /// not read again.
    pub fn program_closed(&mut self) {
        let guest_reads_no_more = self.life.guest_ended() & SHUT_RECEIVE != 0;
        if guest_reads_no_more || self.life.far_ended() & SHUT_SEND != 0 {
            self.life.far_ends(SHUT_BOTH);
        }
    }

    /// No more bytes of the guest will come: once nothing waits, the program of a mapped
    /// connection is told. A guest that did not end its sending has cut the data short.
    pub fn end_windows(&mut self) {
        let is_cut = self.life.guest_ended() & SHUT_SEND == 0;
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

    /// What lies in the socket counts as read.
    pub fn read_all(&mut self) {
        if let End::Host(h) = &mut self.end {
            let more = if h.windows.is_some() { h.leaves(0) } else { h.is_writable(h.room / 4) };
            self.incoming.forward(more);
            h.credit_waits = false;
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
    fn credit_comes_back_for_what_was_read_and_for_what_the_socket_keeps_beside_it() {
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
        let mut end = HostEnd::new(ours);
        end.ahead = 100;
        end.took(80);
        assert_eq!((end.leaves(80), end.uncredited), (80, 0), "all of it may stay unread");
        end.took(60);
        assert_eq!((end.leaves(140), end.uncredited), (20, 40));
        assert_eq!((end.leaves(140), end.uncredited), (0, 40), "only once");
        assert_eq!((end.leaves(110), end.uncredited), (30, 10), "30 were read");
        end.took(50);
        assert_eq!((end.in_socket, end.uncredited), (160, 60));
        assert_eq!((end.leaves(0), end.in_socket, end.uncredited), (60, 0, 0));
        // The kernel says that a quarter of the room is unread at most.
        (end.room, end.ahead) = (400, 50);
        end.took(150);
        assert_eq!((end.is_writable(100), end.in_socket, end.uncredited), (150, 100, 0));
        end.took(30);
        assert_eq!((end.leaves(130), end.uncredited), (0, 30), "what may be unread still counts");
        assert_eq!((end.leaves_all(), end.in_socket, end.uncredited), (30, 130, 0));
        assert_eq!(end.looks(), 0);
        assert_eq!(end.in_socket, 0, "nothing is in the socket");
        // What was credited before the socket had it is not credited again, however much the socket takes of it.
        end.promised = 40;
        end.took(30);
        assert_eq!((end.in_socket, end.uncredited, end.promised), (30, 0, 10));
        assert_eq!((end.unpromised(4), end.unpromised(9), end.promised), (0, 3, 0));
        end.leaves(0);
        // Without room of its own each byte takes credit until it was read.
        end.ahead = 0;
        end.took(7);
        assert_eq!((end.leaves(7), end.leaves(2), end.uncredited), (0, 5, 2));
    }

    #[test]
    fn a_socket_surely_takes_what_the_kernel_has_room_for() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .expect("a pair");
        let room = socket::reserve(&ours, 192 << 10);
        let mut end = HostEnd::new(ours);
        (end.room, end.ahead) = (room, 128 << 10);
        let chunk = vec![7u8; 64 << 10];
        let mut sizes = [1, 64, 768, 1000, 4000, 4097, 9000, 17_000, 33_000, 49_000, 65_536].iter().cycle();
        let (mut sure, mut unsure) = (0, 0);
        while unsure < 1000 {
            let Some(n) = sizes.next().copied() else { break };
            let surely = end.surely_takes(n as u32);
            let took = rustix::io::write(&end.socket, &chunk[..n]).unwrap_or(0);
            assert!(
                !surely || took == n,
                "{took} of {n} bytes behind {} in {}",
                end.in_socket,
                end.kernel_needs
            );
            end.took(took);
            let unread = socket::unread(&end.socket) as u32;
            assert!(
                unread <= end.kernel_needs,
                "{unread} bytes for {}, at most {}",
                end.in_socket,
                end.kernel_needs
            );
            if surely {
                sure += 1;
                continue;
            }
            // Read a bit less each time, to meet it at every depth.
            unsure += 1;
            let mut left = vec![0; end.in_socket as usize * (unsure % 7) / 7];
            let got = rustix::io::read(&theirs, &mut left[..]).unwrap_or(0);
            let in_socket = end.in_socket - got as u32;
            end.kernel_needs = socket::unread(&end.socket) as u32;
            end.leaves(in_socket);
        }
        assert!(sure > 500, "{sure} sure, {unsure} not");
        end.held = Some(Box::default());
        end.leaves(0);
        assert!(!end.surely_takes(1), "not ahead of what waits");
    }
}

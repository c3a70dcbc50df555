//! Credit: who may send how much (virtio 1.3 §5.10.6.3).
//!
//! All counts are free-running and wrap around, as the header's fields do.

mod socket;
mod windows;

pub use socket::{SOCKET_BYTES, SocketCredit};
pub use windows::{Releases, WindowCredit};

use super::packet::Kind;

/// Why a guest's credit is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Something came from the guest, or left for the host program.
    Routine,
    /// The guest asks: it wants to know of little, too.
    GuestAsks,
    /// A message that is not complete takes room until its end comes. The guest may need all the
    /// rest for it.
    PartWaits,
    /// Nothing has happened for a while.
    Idle,
}

/// What a review of a guest's credit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Review {
    /// True: the guest is to be told.
    pub due: bool,
    /// True: there is credit that the guest does not know of, and nobody will say when there is
    /// more. It is reviewed again once nothing has happened for a while.
    pub quiet: bool,
}

/// What a guest may send to this side: to a host program, or to a sibling, whose own credit is followed then.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    buffer: u32,
    /// What of the buffer the guest is told of.
    offered: u32,
    /// The guest's own buffer, bytes: Linux lets no more than that be under way, however much it is
    /// offered.
    own: u32,
    received: u32,
    forwarded: u32,
    told: u32,
}

impl Incoming {
    /// A buffer of this many bytes, empty.
    pub fn new(buffer: u32) -> Self {
        Self { buffer, offered: buffer, own: u32::MAX, received: 0, forwarded: 0, told: 0 }
    }

    /// Bytes of the buffer: what may wait at most.
    pub fn buffer(&self) -> u32 {
        self.buffer
    }

    /// The guest says how large its own buffer is, with each header.
    pub fn own_buffer(&mut self, bytes: u32) {
        self.own = bytes;
    }

    /// Half of what the guest lets be under way.
    fn half(&self) -> u32 {
        self.buffer.min(self.own) / 2
    }

    /// The guest has sent `len` bytes. False, and nothing counted, where it was not allowed to.
    #[must_use]
    pub fn receive(&mut self, len: u32) -> bool {
        let fits = len <= self.buffer - self.received.wrapping_sub(self.forwarded);
        if fits {
            self.received = self.received.wrapping_add(len);
        }
        fits
    }

    /// `len` of the bytes received have left the buffer.
    pub fn forward(&mut self, len: u32) {
        debug_assert!(len <= self.received.wrapping_sub(self.forwarded));
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// The fields for a header to the guest, which knows them then.
    pub fn tell(&mut self) -> (u32, u32) {
        self.told = self.forwarded;
        (self.offered, self.forwarded)
    }

    /// The bytes go to a sibling that says this of its buffer. The sender may send as much as the sibling takes, or as may
    /// wait here, whichever is less: a larger buffer than this one counts as bytes that have left early, yet no byte
    /// leaves before it is with the sibling.
    pub fn follow(&mut self, sibling: &Outgoing) {
        self.offered = sibling.alloc.min(self.buffer);
        let beyond = sibling.alloc - self.offered;
        let waiting = self.received.wrapping_sub(sibling.sent);
        let not_forwarded = self.received.wrapping_sub(sibling.forwarded);
        let in_flight = not_forwarded.saturating_sub(beyond).max(waiting);
        let known = self.received.wrapping_sub(self.forwarded);
        // A sibling whose buffer shrinks takes nothing back.
        self.forward(known.saturating_sub(in_flight));
    }

    /// Whether a sender to a sibling is to be told without a word of the sibling's: as [`Self::is_news`], or it knows of no
    /// room at all and there is some.
    pub fn is_due(&self) -> bool {
        self.is_news() || (self.is_used_up() && self.forwarded != self.told)
    }

    /// Whether the guest is to be told: it knows of less than half of what it may use.
    pub fn is_news(&self) -> bool {
        self.untold() > self.half()
    }

    /// Whether the guest, if `more` bytes left the buffer now, would know of less than half of what
    /// it may use.
    pub fn lacks(&self, more: u32) -> bool {
        self.untold().saturating_add(more) > self.half()
    }

    /// Bytes that have to leave the buffer before the guest is told.
    pub fn short_of_news(&self) -> u32 {
        (self.half() + 1).saturating_sub(self.untold())
    }

    /// The outcome of a review: credit is news, and there is some that is `kept` from the guest.
    pub fn reviewed(&self, why: Why, news: bool, kept: bool) -> Review {
        let due = news || (matches!(why, Why::PartWaits | Why::Idle) && self.untold() > 0);
        // What is due goes once the guest has a buffer for it, and what it leaves is reviewed then.
        Review { due, quiet: !due && (kept || self.untold() > 0) }
    }

    /// Whether the guest may send nothing, as far as it was told.
    pub fn is_used_up(&self) -> bool {
        self.received.wrapping_sub(self.told) >= self.offered.min(self.own)
    }

    /// Bytes that have left the buffer since the guest was told last.
    pub fn untold(&self) -> u32 {
        self.forwarded.wrapping_sub(self.told)
    }
}

/// What this side may send to a guest: bytes that it has room for, which it says itself and is not
/// believed more than is plausible; and packets that it may leave unread, of which it says nothing.
/// Linux resets a connection when more than `buf_alloc / 576` packets are unread
/// (net/vmw_vsock/virtio_transport_common.c, `virtio_transport_inc_rx_pkt`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    alloc: u32,
    forwarded: u32,
    sent: u32,
    unread: UnreadPackets,
    /// The packet that was sent last is not the last one of its message.
    in_message: bool,
}

/// Bytes of a guest's buffer for each packet that it may leave unread. More than Linux takes, for
/// systems whose packets are dearer.
const BYTES_A_PACKET: u32 = 1024;

/// Packets that a guest has not read, as far as is known, in groups: those of a group count until
/// all of its bytes were read.
#[derive(Clone, Copy, Debug, Default)]
struct UnreadPackets {
    /// Where a group ends, in bytes sent; and its packets. The oldest one is at `first`.
    groups: [(u32, u32); 4],
    first: u8,
    len: u8,
    /// Packets of all groups.
    total: u32,
}

impl UnreadPackets {
    fn group(&mut self, i: u8) -> &mut (u32, u32) {
        &mut self.groups[usize::from(self.first.wrapping_add(i) % 4)]
    }

    /// Packets were sent, with bytes up to `end`. A group that has `full` of them takes no more if
    /// there is room for another.
    fn push(&mut self, end: u32, packets: u32, full: u32) {
        self.total = self.total.saturating_add(packets);
        if self.len > 0 {
            let all = self.len == 4;
            let last = self.group(self.len - 1);
            if last.1 < full || all {
                *last = (end, last.1.saturating_add(packets));
                return;
            }
        }
        *self.group(self.len) = (end, packets);
        self.len += 1;
    }

    /// All bytes up to `forwarded` were read, and `in_flight` bytes behind them were sent.
    fn retire(&mut self, forwarded: u32, in_flight: u32) {
        while self.len > 0 {
            let (end, packets) = *self.group(0);
            let ahead = end.wrapping_sub(forwarded);
            if ahead != 0 && ahead <= in_flight {
                break;
            }
            self.total = self.total.saturating_sub(packets);
            self.first = self.first.wrapping_add(1) % 4;
            self.len -= 1;
        }
    }
}

/// How a header's credit fields stand to those that came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// They are the newest.
    New,
    /// They are older than what is known, and change nothing.
    Stale,
}

/// The guest says that more bytes have left its buffer than were ever sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondSent;

impl Outgoing {
    /// Takes the fields of a header from the guest. A driver's threads may send an older count behind a newer one: the
    /// newest is kept, and the buffer that came with it, since a driver fills in both fields at once.
    pub fn update(&mut self, alloc: u32, forwarded: u32) -> Result<Credit, BeyondSent> {
        let step = forwarded.wrapping_sub(self.forwarded);
        if step <= self.in_flight() {
            self.forwarded = forwarded;
            self.alloc = alloc;
            self.unread.retire(forwarded, self.in_flight());
            Ok(Credit::New)
        } else if step < 1 << 31 {
            Err(BeyondSent)
        } else {
            Ok(Credit::Stale)
        }
    }

    fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.forwarded)
    }

    /// Bytes that may be sent.
    pub fn free(&self) -> u32 {
        self.alloc.saturating_sub(self.in_flight())
    }

    /// The guest's buffer, bytes.
    pub fn alloc(&self) -> u32 {
        self.alloc
    }

    /// What has left the guest's buffer.
    pub fn forwarded(&self) -> u32 {
        self.forwarded
    }

    /// Packets that may be unread in all.
    fn packet_bound(&self) -> u32 {
        (self.alloc / BYTES_A_PACKET).max(1)
    }

    /// Packets that the guest may not have read.
    pub fn unread_packets(&self) -> u32 {
        self.unread.total
    }

    /// Bytes of a stream that may be sent, in packets of `packet_room` bytes.
    pub fn stream_room(&self, packet_room: usize) -> usize {
        let packets = self.packet_bound().saturating_sub(self.unread.total);
        (self.free() as usize).min((packets as usize).saturating_mul(packet_room))
    }

    /// Whether a message of `len` bytes may begin, in packets of `packet_room` bytes: its guest
    /// reads none of it before it has all. With nothing unread any message may, and one that has
    /// begun goes on.
    pub fn message_may_begin(&self, len: usize, packet_room: usize) -> bool {
        let packets = len.div_ceil(packet_room.max(1)).max(1);
        self.in_message
            || self.unread.total == 0
            || self.unread.total as usize + packets <= self.packet_bound() as usize
    }

    /// Whether a packet may be sent: of a stream, or of a message of which `len` bytes are left.
    pub fn may_begin(&self, kind: Kind, len: usize, packet_room: usize) -> bool {
        match kind {
            Kind::Stream => self.stream_room(packet_room) > 0,
            Kind::SeqPacket => self.message_may_begin(len, packet_room),
        }
    }

    /// Bytes were sent in so many packets. `whole`: they end a message, or belong to a stream.
    pub fn send(&mut self, bytes: u32, packets: u32, whole: bool) {
        self.sent = self.sent.wrapping_add(bytes);
        self.in_message = !whole;
        self.unread.push(self.sent, packets, (self.packet_bound() / 4).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_what_it_was_given_and_no_more() {
        let mut c = Incoming::new(100);
        assert!(c.receive(100));
        assert!(!c.receive(1));
        c.forward(50);
        assert!(!c.is_news(), "half is known");
        c.forward(1);
        assert!(c.is_news());
        assert_eq!(c.tell(), (100, 51));
        assert!(!c.is_news());
        assert!(c.receive(51));
        assert!(!c.receive(1));
    }

    #[test]
    fn a_guest_with_a_small_buffer_is_told_by_half_of_that() {
        let mut c = Incoming::new(1000);
        c.own_buffer(100);
        assert!(c.receive(50));
        assert!(!c.is_used_up() && !c.lacks(50) && c.lacks(51));
        assert_eq!(c.short_of_news(), 51);
        assert!(c.receive(50));
        assert!(c.is_used_up(), "more is offered, and it does not use it");
        c.forward(51);
        assert!(c.is_news());
        c.tell();
        // A driver may use all that it is offered, whatever it says of its own buffer.
        assert!(c.receive(951) && !c.receive(1));
        c.own_buffer(2000);
        c.forward(500);
        assert!(!c.is_news());
        c.own_buffer(0);
        assert!(c.is_news());
    }

    #[test]
    fn a_sender_to_a_sibling_gets_what_that_takes_within_what_may_wait() {
        let mut c = Incoming::new(100);
        let mut sibling = Outgoing::default();
        sibling.update(60, 0).expect("sound");
        c.follow(&sibling);
        assert_eq!(c.tell(), (60, 0), "its buffer is smaller");
        sibling.update(1000, 0).expect("sound");
        assert!(c.receive(100));
        c.follow(&sibling);
        assert_eq!(c.tell(), (100, 0), "all of it waits here");
        sibling.send(70, 1, true);
        c.follow(&sibling);
        assert!(c.is_due());
        assert_eq!(c.tell(), (100, 70), "30 bytes wait");
        for _ in 0..9 {
            assert!(c.receive(70));
            sibling.send(70, 1, true);
            c.follow(&sibling);
            c.tell();
        }
        // 730 received, 700 with the sibling, of 1000.
        assert!(c.receive(70) && !c.receive(1));
        sibling.send(100, 1, true);
        c.follow(&sibling);
        assert_eq!(c.tell(), (100, 800));
        for sent in [100, 100] {
            assert!(c.receive(sent));
            sibling.send(sent, 1, true);
            c.follow(&sibling);
            c.tell();
        }
        assert_eq!(c.tell(), (100, 900), "the sibling's buffer is full");
        sibling.update(1000, 50).expect("sound");
        c.follow(&sibling);
        assert!(c.is_due());
        assert_eq!(c.tell(), (100, 950));
    }

    #[test]
    fn counts_wrap_around() {
        let mut c = Incoming::new(1000);
        let mut o = Outgoing::default();
        o.update(1000, 0).expect("sound");
        let mut total = 0u32;
        for _ in 0..10_000_000 / 1000 {
            for _ in 0..1000 {
                assert!(c.receive(700));
                c.forward(700);
                o.send(700, 1, true);
                total = total.wrapping_add(700);
                o.update(1000, total).expect("sound");
            }
        }
        assert_eq!((c.forwarded, o.free()), (total, 1000));
    }

    #[test]
    fn packets_are_bounded_beside_bytes() {
        let mut o = Outgoing::default();
        o.update(16 << 10, 0).expect("sound");
        for n in 0..16 {
            assert_eq!(o.stream_room(10), 10 * (16 - n));
            assert!(o.message_may_begin(10 * (16 - n), 10));
            assert!(n == 0 || !o.message_may_begin(10 * (16 - n) + 1, 10));
            o.send(5, 1, true);
        }
        assert!(o.stream_room(4096) == 0 && o.free() > 0);
        assert!(!o.message_may_begin(0, 4096), "an empty one takes a packet, too");
        // Four packets to a group: they count until the last of them was read.
        o.update(16 << 10, 19).expect("sound");
        assert_eq!(o.unread_packets(), 16);
        o.update(16 << 10, 20).expect("sound");
        assert_eq!((o.unread_packets(), o.stream_room(10)), (12, 40));
        o.update(16 << 10, 80).expect("sound");
        assert_eq!((o.unread_packets(), o.stream_room(4096)), (0, 16 << 10));
        // With nothing unread any message may begin, and goes on.
        assert!(o.message_may_begin(16 << 10, 10));
        o.send(100, 40, false);
        assert!(o.message_may_begin(1000, 10));
        o.send(100, 1, true);
        assert!(!o.message_may_begin(1, 10));
        // However small the buffer, one packet may go.
        let mut o = Outgoing::default();
        o.update(100, 0).expect("sound");
        assert_eq!(o.stream_room(10), 10);
        o.send(10, 1, true);
        assert_eq!(o.stream_room(10), 0);
    }

    /// Against a list of all packets.
    #[test]
    fn groups_of_packets_are_late_by_a_quarter_at_most() {
        let (mut o, mut all) = (Outgoing::default(), std::collections::VecDeque::new());
        let (alloc, bound) = (64 << 10, 64);
        // The counts wrap around meanwhile.
        let (mut sent, mut read, mut x) = (u32::MAX - 100_000, u32::MAX - 100_000, 1u64);
        (o.sent, o.forwarded) = (sent, sent);
        o.update(alloc, read).expect("sound");
        for _ in 0..200_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (x >> 40) as u32;
            if !n.is_multiple_of(3) {
                let (packet, packets) = (1 + n % 900, 1 + n % 5);
                let bytes = packet * packets;
                if o.stream_room(packet as usize) < bytes as usize {
                    continue;
                }
                for i in 1..=packets {
                    all.push_back(sent.wrapping_add(i * packet));
                }
                sent = sent.wrapping_add(bytes);
                o.send(bytes, packets, true);
            } else if sent != read {
                read = read.wrapping_add(1 + n % sent.wrapping_sub(read));
                o.update(alloc, read).expect("sound");
                while all.front().is_some_and(|end| end.wrapping_sub(read) > alloc || *end == read) {
                    all.pop_front();
                }
            }
            let (counted, there) = (o.unread_packets() as usize, all.len());
            assert!(there <= counted && counted <= bound, "{there} are unread, {counted} counted");
            assert!(counted < there + bound / 4 + 5, "{there} are unread, {counted} counted");
        }
        assert!(read < sent && sent < u32::MAX / 2, "they wrapped around");
    }

    #[test]
    fn what_a_guest_says_is_bounded_by_what_was_sent() {
        let mut o = Outgoing::default();
        assert_eq!(o.update(100, 1), Err(BeyondSent));
        o.update(100, 0).expect("sound");
        o.send(80, 1, true);
        assert_eq!(o.free(), 20);
        assert_eq!(o.update(100, 60), Ok(Credit::New));
        assert_eq!(o.free(), 80);
        for (alloc, forwarded) in
            [(100, 40), (0, 59), (u32::MAX, 0), (1000, 60 + (1 << 31)), (1000, u32::MAX)]
        {
            assert_eq!(o.update(alloc, forwarded), Ok(Credit::Stale), "older counts");
            assert_eq!((o.free(), o.alloc(), o.forwarded()), (80, 100, 60));
        }
        assert_eq!(o.update(100, 81), Err(BeyondSent));
        o.update(10, 60).expect("a smaller buffer");
        assert_eq!(o.free(), 0);
    }
}

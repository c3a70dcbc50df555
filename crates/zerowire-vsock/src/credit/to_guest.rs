//! What may be sent to a guest: bytes and packets.

use crate::packet::Kind;

/// What this side may send to a guest, in bytes and in packets. The guest says itself how many
/// bytes it has room for; this is not believed beyond what is plausible. It says nothing of the
/// packets that it may leave unread. Linux resets a connection when more than `buf_alloc / 576`
/// packets are unread (net/vmw_vsock/virtio_transport_common.c, `virtio_transport_inc_rx_pkt`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ToGuest {
    /// The guest's buffer, bytes.
    pub alloc: u32,
    /// What has left the guest's buffer.
    pub forwarded: u32,
    /// What was sent.
    pub(super) sent: u32,
    unread: UnreadPackets,
    /// The packet that was sent last is not the last one of its message.
    in_message: bool,
}

/// Bytes of a guest's buffer for each packet that it may leave unread. More than Linux takes, for
/// systems whose packets are dearer.
const BYTES_A_PACKET: u32 = 1024;

/// Packets that a guest has not read, as far as is known, in groups. Those of a group count until
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

impl ToGuest {
    /// Takes the fields of a header from the guest. A driver's threads may send an older count
    /// behind a newer one. The newest is kept, and the buffer that came with it, since a driver
    /// fills in both fields at once.
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

    /// Bytes were sent in `packets` packets. `whole`: they end a message, or belong to a stream.
    pub fn send(&mut self, bytes: u32, packets: u32, whole: bool) {
        self.sent = self.sent.wrapping_add(bytes);
        self.in_message = !whole;
        self.unread.push(self.sent, packets, (self.packet_bound() / 4).max(1));
    }
}

#[cfg(test)]
mod tests;

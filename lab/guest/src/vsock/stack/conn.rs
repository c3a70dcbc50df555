//! One connection: its addresses, its credit in both directions, what was
//! received and not yet read.
//!
//! Credit (virtio 1.3 §5.10.6.3): each side tells the size of its buffer
//! (buf_alloc) and how much it has taken out of it (fwd_cnt). The other side
//! may have `buf_alloc - (sent - fwd_cnt)` bytes more on their way. All
//! counts are modulo 2^32.

use std::collections::VecDeque;

use super::{ConnState, Drain, Drained};
use crate::vsock::{Op, PacketHeader, PacketLease, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType, StreamSum};

/// Bytes of the buffer for each of many packets: when that many were read, the peer gets its
/// credit.
const MANY_BYTES: u32 = 4096;

/// Fewer packets than these are not many, however small the buffer. A peer that waits for them to
/// be read asks.
const MANY_AT_LEAST: u32 = 16;

/// The addresses of a connection, as this side sees them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Key {
    pub local_port: u32,
    pub cid: u64,
    pub port: u32,
}

/// Bytes received and not yet read.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub bytes: Vec<u8>,
    start: usize,
    /// Whole messages: length, and whether the record ended (SEQPACKET only).
    pub messages: VecDeque<(usize, bool)>,
    /// Bytes of the message under way.
    pub partial: usize,
}

impl Inbox {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Moves `count` bytes to the end of `target`.
    pub(super) fn take(&mut self, count: usize, target: &mut Vec<u8>) {
        let end = self.start + count;
        target.extend_from_slice(&self.bytes[self.start..end]);
        self.start = end;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// A message that was taken and not wholly sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub bytes: Vec<u8>,
    pub sent: usize,
    pub eor: bool,
}

/// What this side has room for, and what became of it.
#[derive(Debug, Default)]
pub(super) struct RxCredit {
    pub buf_alloc: u32,
    /// Bytes received.
    pub received: u32,
    /// Of those, bytes taken out: this side's fwd_cnt.
    pub taken: u32,
    /// `taken` as this side last sent it to the peer.
    pub taken_told: u32,
    /// Packets with payload since then.
    pub packets_untold: u32,
}

/// What the peer has room for.
#[derive(Debug, Default)]
pub(super) struct TxCredit {
    /// Bytes sent.
    pub sent: u32,
    pub peer_buf_alloc: u32,
    pub peer_fwd_cnt: u32,
    /// Whether the peer was asked for credit since it gave some.
    pub asked: bool,
}

/// Flags of SHUTDOWN.
#[derive(Debug, Default)]
pub(super) struct ShutdownFlags {
    /// Received.
    pub peer: u32,
    /// Sent.
    pub own: u32,
    /// Those that wait for a message to be sent.
    pub deferred: u32,
}

/// Bytes that are drained, and that are sent from a pool.
#[derive(Debug, Default)]
pub(super) struct BulkTraffic {
    pub drain: Drain,
    pub drained: Drained,
    pub sum: StreamSum,
    /// Bytes sent from a pool.
    pub pool_at: u64,
    /// What is left of the write under way.
    pub write_left: usize,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub key: Key,
    pub own_cid: u64,
    pub kind: SocketType,
    pub state: ConnState,
    /// The application gave it up; it goes when it has ended.
    pub given_up: bool,

    pub rx: RxCredit,
    pub tx: TxCredit,
    pub shutdown: ShutdownFlags,

    pub inbox: Inbox,
    /// Payload that waits in the device's buffers; with it, nothing goes to
    /// `inbox`.
    pub in_place: Option<PacketLease>,
    pub outgoing: Option<Outgoing>,

    pub bulk: BulkTraffic,
}

impl Conn {
    pub(super) fn new(key: Key, own_cid: u64, kind: SocketType, buf_alloc: u32) -> Conn {
        Conn {
            key,
            own_cid,
            kind,
            state: ConnState::Connecting,
            given_up: false,
            rx: RxCredit { buf_alloc, ..RxCredit::default() },
            tx: TxCredit::default(),
            shutdown: ShutdownFlags::default(),
            inbox: Inbox::default(),
            in_place: None,
            outgoing: None,
            bulk: BulkTraffic::default(),
        }
    }

    /// A header as it would go out now.
    pub(super) fn header(&self, op: Op) -> PacketHeader {
        PacketHeader {
            src_cid: self.own_cid,
            dst_cid: self.key.cid,
            src_port: self.key.local_port,
            dst_port: self.key.port,
            len: 0,
            kind: self.kind as u16,
            op: op as u16,
            flags: 0,
            buf_alloc: self.rx.buf_alloc,
            fwd_cnt: self.rx.taken,
        }
    }

    /// Bytes that the peer has room for.
    pub(super) fn credit(&self) -> u32 {
        let on_their_way = self.tx.sent.wrapping_sub(self.tx.peer_fwd_cnt);
        self.tx.peer_buf_alloc.saturating_sub(on_their_way)
    }

    /// Notes that a header with the current `fwd_cnt` went out.
    pub(super) fn told(&mut self) {
        self.rx.taken_told = self.rx.taken;
        self.rx.packets_untold = 0;
    }

    /// Counts `len` bytes of payload that went out.
    pub(super) fn count_sent(&mut self, len: u32) {
        self.tx.sent = self.tx.sent.wrapping_add(len);
        self.told();
    }

    /// Takes the peer's credit from a header.
    pub(super) fn take_credit(&mut self, header: &PacketHeader) -> Result<(), String> {
        let moved = header.fwd_cnt.wrapping_sub(self.tx.peer_fwd_cnt);
        if moved > self.tx.sent.wrapping_sub(self.tx.peer_fwd_cnt) {
            return Err(fault(
                format!(
                    "fwd_cnt went back, or beyond the bytes sent (before {}, sent {}; 5.10.6.3)",
                    self.tx.peer_fwd_cnt, self.tx.sent
                ),
                header,
            ));
        }
        let changed = moved != 0 || header.buf_alloc != self.tx.peer_buf_alloc;
        self.tx.peer_fwd_cnt = header.fwd_cnt;
        self.tx.peer_buf_alloc = header.buf_alloc;
        self.tx.asked &= !changed;
        Ok(())
    }

    /// Counts received payload after checking that the peer kept to its credit.
    pub(super) fn count_received(&mut self, header: &PacketHeader) -> Result<(), String> {
        let received = self.rx.received.wrapping_add(header.len);
        let held = u64::from(self.rx.received.wrapping_sub(self.rx.taken_told)) + u64::from(header.len);
        if held > u64::from(self.rx.buf_alloc) {
            return Err(fault(
                format!("payload beyond the credit: {held} bytes of {} (5.10.6.3)", self.rx.buf_alloc),
                header,
            ));
        }
        self.rx.packets_untold = self.rx.packets_untold.saturating_add(1);
        self.rx.received = received;
        Ok(())
    }

    /// Whether a read would bring something.
    pub(super) fn readable(&self) -> bool {
        if let Some(arrived) = &self.in_place {
            return arrived.packet_count() > 0;
        }
        match self.kind {
            SocketType::Stream => self.inbox.len() > 0,
            SocketType::SeqPacket => !self.inbox.messages.is_empty(),
        }
    }

    /// Whether nothing more can be received.
    pub(super) fn ended(&self) -> bool {
        self.shutdown.peer & SHUTDOWN_SEND != 0
            || self.shutdown.own & SHUTDOWN_RCV != 0
            || matches!(self.state, ConnState::Closed | ConnState::Closing)
    }

    /// Whether a packet of its own should tell the peer of free buffer space. It should when the
    /// peer knows of less than half, and either a quarter is news or all that can be read was read.
    /// It also should when all was read and these were many packets. A device may bound how many
    /// are unread, and learns by credit alone that they were read.
    pub(super) fn should_update(&self) -> bool {
        let known = self.rx.buf_alloc.saturating_sub(self.rx.received.wrapping_sub(self.rx.taken_told));
        let little = u64::from(known) * 2 < u64::from(self.rx.buf_alloc);
        let news = self.rx.taken.wrapping_sub(self.rx.taken_told);
        let live = self.state == ConnState::Established && self.shutdown.peer & SHUTDOWN_SEND == 0;
        let many = self.rx.packets_untold >= (self.rx.buf_alloc / MANY_BYTES).max(MANY_AT_LEAST);
        live && news > 0
            && ((little && news >= self.rx.buf_alloc / 4) || ((little || many) && !self.readable()))
    }

    /// Takes bytes out that were read in place. Those of payload that was
    /// discarded since are counted already.
    pub(super) fn count_read(&mut self, bytes: u32) {
        let unread = self.rx.received.wrapping_sub(self.rx.taken);
        self.rx.taken = self.rx.taken.wrapping_add(bytes.min(unread));
    }

    /// Drains what was received and not read.
    pub(super) fn drain_inbox(&mut self, mode: Drain) {
        let mut bytes = Vec::new();
        self.inbox.take(self.inbox.len(), &mut bytes);
        if mode == Drain::Sum {
            self.bulk.sum.update(&bytes);
        }
        self.bulk.drained.bytes += bytes.len() as u64;
        self.bulk.drained.messages += self.inbox.messages.len() as u64;
        self.discard();
    }

    /// Forgets what was received and not read.
    pub(super) fn discard(&mut self) {
        self.inbox = Inbox::default();
        if let Some(arrived) = &mut self.in_place {
            drop(arrived.take(Vec::new(), None));
        }
        self.rx.taken = self.rx.received;
    }
}

/// What a peer did wrong with this packet.
pub(super) fn fault(rule: impl std::fmt::Display, header: &PacketHeader) -> String {
    format!("{rule}: {header:?}")
}

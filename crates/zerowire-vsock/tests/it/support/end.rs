//! A guest's end of one connection, which keeps to the rules and fails where the device doesn't.

use std::collections::VecDeque;

use zerowire_vsock::packet::{HEADER_LEN, Header, Kind, Op, SEQ_EOM, SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};
pub use zerowire_vsock::testing::bytes;
use zerowire_vsock::testing::{Guest, Layout};
use zerowire_vsock::{RX_QUEUE, TX_QUEUE};

/// The longest packet, header and all, that [`Guest`] has room for.
const MOST: u32 = 0x4000;

/// When an end tells of its room by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// With each read.
    EachRead,
    /// When the other side knows of less than half of it.
    Half,
    /// When the peer asks. An end that had no room then says when it has some.
    Asked,
}

/// The end.
#[derive(Debug)]
pub struct End {
    cid: u64,
    peer: u64,
    port: u32,
    peer_port: u32,
    pub kind: Kind,
    /// Its buffer, bytes.
    pub alloc: u32,
    habit: Habit,
    /// The largest buffer that the peer may announce.
    most: u32,
    pub open: bool,
    pub gone: bool,
    pub peer_alloc: u32,
    pub peer_forwarded: u32,
    pub sent: u32,
    pub received: u32,
    pub read: u32,
    /// What it said last that it has read.
    pub told: u32,
    /// It was asked, and had no room.
    promised: bool,
    /// The flags of each message that came, with its bytes.
    pub messages: VecDeque<(u32, u32)>,
    /// Bytes of a message that is partly in.
    part: u32,
    pub ended: u32,
    pub peer_ended: u32,
    /// Packets that the ring had no room for.
    pub out: VecDeque<Vec<u8>>,
}

impl End {
    /// Of a connection between these ports, each a CID and a number. Its buffer has `alloc` bytes
    /// here, and at most `most` there.
    pub fn new(own: (u64, u32), peer: (u64, u32), kind: Kind, habit: Habit, alloc: u32, most: u32) -> Self {
        Self {
            cid: own.0,
            peer: peer.0,
            port: own.1,
            peer_port: peer.1,
            kind,
            alloc,
            habit,
            most,
            open: false,
            gone: false,
            peer_alloc: 0,
            peer_forwarded: 0,
            sent: 0,
            received: 0,
            read: 0,
            told: 0,
            promised: false,
            messages: VecDeque::new(),
            part: 0,
            ended: 0,
            peer_ended: 0,
            out: VecDeque::new(),
        }
    }

    fn packet(&mut self, op: Op, flags: u32, payload: &[u8]) {
        self.told = self.read;
        let h = Header {
            src_cid: self.cid,
            dst_cid: self.peer,
            src_port: self.port,
            dst_port: self.peer_port,
            len: payload.len() as u32,
            kind: self.kind as u16,
            op: op as u16,
            flags,
            buf_alloc: self.alloc,
            fwd_cnt: self.read,
        };
        let mut packet = h.to_bytes().to_vec();
        packet.extend(payload);
        self.out.push_back(packet);
    }

    /// Sends a control packet.
    pub fn say(&mut self, op: Op, flags: u32) {
        if !self.gone {
            self.packet(op, flags, &[]);
        }
    }

    /// Ends its sending, its receiving, or both.
    pub fn shut(&mut self, flags: u32) {
        if self.open && !self.gone && flags & !self.ended != 0 {
            self.ended |= flags;
            self.say(Op::Shutdown, self.ended);
        }
        if self.ended & SHUT_RECEIVE != 0 {
            self.discard();
        }
    }

    /// Whether it may send payload.
    pub fn sends(&self) -> bool {
        self.open && !self.gone && self.ended & SHUT_SEND == 0 && self.peer_ended & SHUT_RECEIVE == 0
    }

    /// Bytes that it may send.
    pub fn credit(&self) -> u32 {
        self.peer_alloc.saturating_sub(self.sent.wrapping_sub(self.peer_forwarded))
    }

    /// Sends up to `len` bytes of its pattern as one packet, with these flags if they are all of
    /// them. Returns how many.
    pub fn send(&mut self, len: u32, flags: u32) -> u32 {
        let n = len.min(self.credit()).min(MOST - HEADER_LEN as u32);
        if self.sends() && (n > 0 || len == 0) {
            let payload = bytes(self.sent, n);
            self.packet(Op::Rw, if n == len { flags } else { 0 }, &payload);
            self.sent = self.sent.wrapping_add(n);
            return n;
        }
        0
    }

    /// Puts packets into the ring as long as there is room.
    pub fn push(&mut self, guest: &mut Guest, layout: Layout) -> bool {
        guest.reap(TX_QUEUE, |_| {});
        let mut moved = false;
        while let Some(packet) = self.out.front() {
            if !guest.send(packet, 0, layout) {
                break;
            }
            self.out.pop_front();
            moved = true;
        }
        moved
    }

    /// Takes what came. Returns whether anything did.
    pub fn pull(&mut self, guest: &mut Guest) -> bool {
        let mut packets = Vec::new();
        guest.reap(RX_QUEUE, |p| packets.push(p));
        for p in &packets {
            self.take(p);
        }
        !packets.is_empty()
    }

    fn take(&mut self, p: &[u8]) {
        let Some((head, payload)) = p.split_first_chunk::<HEADER_LEN>() else { panic!("a short packet") };
        let h = Header::from_bytes(head);
        assert_eq!((h.dst_cid, h.src_cid, h.dst_port), (self.cid, self.peer, self.port), "{h:?}");
        assert_eq!((h.len as usize, h.kind), (payload.len(), self.kind as u16), "{h:?}");
        if self.gone {
            return;
        }
        let op = Op::new(h.op).expect("an operation");
        if op == Op::Request {
            assert!(!self.open, "asked twice");
            self.peer_port = h.src_port;
        }
        assert_eq!(h.src_port, self.peer_port, "{h:?}");
        if op != Op::Rst {
            assert!(h.buf_alloc <= self.most, "told of {} bytes, which are {}", h.buf_alloc, self.most);
            assert!(h.fwd_cnt <= self.sent, "more left the device than was sent: {h:?}");
            assert!(h.fwd_cnt >= self.peer_forwarded, "credit was taken back: {h:?}");
            (self.peer_alloc, self.peer_forwarded) = (h.buf_alloc, h.fwd_cnt);
            let out = self.sent - self.peer_forwarded;
            assert!(out <= self.most, "{out} bytes are under way for a buffer of {}", self.most);
        }
        match op {
            Op::Request => {
                self.open = true;
                self.say(Op::Response, 0);
            }
            Op::Response => self.open = true,
            Op::Rw => self.payload(&h, payload),
            Op::CreditRequest => {
                self.promised = self.received - self.read == self.alloc;
                self.say(Op::CreditUpdate, 0);
            }
            Op::CreditUpdate => {}
            Op::Shutdown => {
                assert!(h.flags & !SHUT_BOTH == 0 && h.flags & !self.peer_ended != 0, "nothing new was said");
                assert!(
                    self.part == 0 || h.flags & SHUT_SEND == 0 || self.is_deaf(),
                    "an end within a message"
                );
                self.peer_ended |= h.flags;
                self.confirm();
            }
            Op::Rst => self.gone = true,
        }
    }

    fn payload(&mut self, h: &Header, payload: &[u8]) {
        assert!(
            self.open && self.peer_ended & SHUT_SEND == 0,
            "payload before the beginning or behind the end"
        );
        assert!(payload == bytes(self.received, h.len), "bytes lost, doubled, changed or out of order");
        self.received += h.len;
        let known = self.received - self.told;
        assert!(known <= self.alloc, "{known} bytes came for a buffer of {}", self.alloc);
        if self.kind == Kind::SeqPacket {
            self.part += h.len;
        }
        if self.kind == Kind::SeqPacket && h.flags & SEQ_EOM != 0 {
            self.messages.push_back((std::mem::take(&mut self.part), h.flags));
        } else {
            assert!(h.len > 0 && h.flags == 0, "{h:?}");
        }
        self.discard();
    }

    /// It said that it receives no more.
    pub fn is_deaf(&self) -> bool {
        self.ended & SHUT_RECEIVE != 0
    }

    /// Who receives no more keeps nothing.
    fn discard(&mut self) {
        if self.is_deaf() {
            self.read = self.received;
            self.messages.clear();
        }
    }

    /// Reads up to `n` bytes; of messages, those that are whole: their length and flags go to
    /// `got`.
    pub fn read(&mut self, n: u32, got: &mut Vec<(u32, u32)>) {
        let before = self.read;
        if self.is_deaf() {
            return;
        }
        if self.kind == Kind::Stream {
            self.read += n.min(self.received - self.read);
        } else {
            while let Some(m) =
                self.messages.front().copied().filter(|m| m.0 <= n.saturating_sub(self.read - before))
            {
                self.messages.pop_front();
                self.read += m.0;
                got.push(m);
            }
        }
        let untold = self.read - self.told;
        let tells = match self.habit {
            Habit::EachRead => self.read != before,
            Habit::Half => untold > 0 && self.received - self.told > self.alloc / 2,
            Habit::Asked => self.read != before && std::mem::take(&mut self.promised),
        };
        if tells && self.open {
            self.say(Op::CreditUpdate, 0);
        }
        self.confirm();
    }

    /// All that came was read.
    pub fn has_read_all(&self) -> bool {
        self.read == self.received && self.messages.is_empty()
    }

    /// The other side is gone, and all was read: it says that it is gone, too.
    fn confirm(&mut self) {
        if self.open && !self.gone && self.peer_ended == SHUT_BOTH && self.has_read_all() {
            self.say(Op::Rst, 0);
            self.gone = true;
        }
    }
}

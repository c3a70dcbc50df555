//! The guest's end of a connection that carries a pattern toward the host.

use super::guest::{Guest, Layout};
use super::honest::bytes;
use crate::TX_QUEUE;
use crate::packet::{HOST_CID, Header, Kind, Op};

/// What the guest knows of one of its connections.
#[derive(Clone, Debug)]
pub struct Flow {
    cid: u64,
    /// The guest's port.
    pub port: u32,
    /// The host's.
    pub host_port: u32,
    /// Its type.
    pub kind: Kind,
    /// The other side accepted.
    pub open: bool,
    /// The other side ended it.
    pub over: bool,
    /// Bytes sent: the pattern goes on from here.
    pub sent: u32,
    alloc: u32,
    forwarded: u32,
}

impl Flow {
    /// Of the guest `cid`; nothing is sent yet.
    pub fn new(cid: u64, port: u32, host_port: u32, kind: Kind) -> Self {
        Self { cid, port, host_port, kind, open: false, over: false, sent: 0, alloc: 0, forwarded: 0 }
    }

    /// Of a guest that is offered a connection by this packet.
    pub fn offered(h: &Header) -> Option<Self> {
        let kind = Kind::new(h.kind)?;
        let mut flow = Self::new(h.dst_cid, h.dst_port, h.src_port, kind);
        (flow.alloc, flow.forwarded, flow.open) = (h.buf_alloc, h.fwd_cnt, true);
        Some(flow)
    }

    /// A header for the other side.
    pub fn header(&self, op: Op, len: u32) -> Header {
        Header {
            src_cid: self.cid,
            dst_cid: HOST_CID,
            src_port: self.port,
            dst_port: self.host_port,
            len,
            kind: self.kind as u16,
            op: op as u16,
            buf_alloc: 64 << 10,
            ..Header::default()
        }
    }

    /// Whether the packet is one of this connection.
    pub fn is_of(&self, h: &Header) -> bool {
        (h.dst_port, h.src_port) == (self.port, self.host_port)
    }

    /// Takes a packet's news.
    pub fn take(&mut self, h: &Header) {
        (self.alloc, self.forwarded) = (h.buf_alloc, h.fwd_cnt);
        match Op::new(h.op) {
            Some(Op::Response) => self.open = true,
            Some(Op::Rst) => self.over = true,
            _ => {}
        }
    }

    /// Bytes that it may send.
    pub fn credit(&self) -> u32 {
        self.alloc.saturating_sub(self.sent.wrapping_sub(self.forwarded))
    }

    /// Sends a control packet. False where the ring is full.
    pub fn control(&self, guest: &mut Guest, op: Op, flags: u32) -> bool {
        let h = Header { flags, ..self.header(op, 0) };
        guest.send(&h.to_bytes(), 0, Layout(0))
    }

    /// Sends `len` bytes of the pattern; credit is the caller's affair. False where the ring is
    /// full.
    pub fn send(&mut self, guest: &mut Guest, len: u32, flags: u32, layout: Layout) -> bool {
        let mut packet = Header { flags, ..self.header(Op::Rw, len) }.to_bytes().to_vec();
        packet.extend(bytes(self.sent, len));
        let done = guest.send(&packet, 0, layout);
        if done {
            self.sent = self.sent.wrapping_add(len);
        }
        done
    }

    /// Whether a chain for `len` bytes leaves room for others although programs may hold many. The
    /// device bounds those that take as many descriptors as a chain may have. Of shorter ones a few
    /// are let through.
    pub fn leaves_room(guest: &Guest, len: u32, layout: Layout) -> bool {
        const SHORT: usize = 6;
        layout.descriptors(crate::packet::HEADER_LEN + len as usize) == 4
            || guest.lent_short(TX_QUEUE) < SHORT
    }
}

//! Sending: within the peer's credit, in order behind what waits already.

use std::collections::VecDeque;

use super::core::Core;
use super::{ConnId, ConnState};
use crate::GuestError;
use crate::vsock::{
    MAX_PAYLOAD, Op, PacketHeader, PayloadPool, RW_EOM, RW_EOR, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType,
    VsockTx,
};

/// What waits for credit, or for room in the transmit queue.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Packets without payload.
    pub packets: VecDeque<PacketHeader>,
    /// Connections with a message that is not wholly sent.
    pub unsent: VecDeque<ConnId>,
    /// True: somebody waits for room in the queue.
    pub wants_room: bool,
}

impl Output {
    /// Adds the packets that wait. True when none is left.
    pub(super) fn flush(&mut self, tx: &mut VsockTx) -> Result<bool, GuestError> {
        while let Some(header) = self.packets.front() {
            if !add(tx, header, &[])? {
                self.wants_room = true;
                return Ok(false);
            }
            self.packets.pop_front();
        }
        Ok(true)
    }
}

impl Core {
    /// Type of a connection that may send.
    pub(super) fn sender(&mut self, id: ConnId) -> Result<SocketType, GuestError> {
        let conn = self.need(id)?;
        let ended = (conn.shutdown.own | conn.shutdown.deferred) & SHUTDOWN_SEND != 0
            || conn.shutdown.peer & SHUTDOWN_RCV != 0;
        if conn.state != ConnState::Established || ended {
            return Err(GuestError::NotConnected { state: conn.state });
        }
        Ok(conn.kind)
    }

    /// Goes on with a message that was not wholly sent, and with the shutdown
    /// that waits for it.
    pub(super) fn send_rest(&mut self, tx: &mut VsockTx, id: ConnId) -> Result<(), GuestError> {
        let Some(conn) = self.get_mut(id) else { return Ok(()) };
        let Some(mut rest) = conn.outgoing.take() else { return Ok(()) };
        if conn.shutdown.peer & SHUTDOWN_RCV == 0 {
            let (sent, whole) =
                self.send_part(tx, id, &rest.bytes[rest.sent..], Some(last_flags(rest.eor)))?;
            if !whole {
                rest.sent += sent;
                self.need(id)?.outgoing = Some(rest);
                return Ok(());
            }
        }
        let flags = std::mem::take(&mut self.need(id)?.shutdown.deferred);
        if flags != 0 {
            self.say_shutdown(id, flags)?;
            self.output.flush(tx)?;
        }
        Ok(())
    }

    /// Goes on with messages that were not wholly sent.
    pub(super) fn send_unsent(&mut self, tx: &mut VsockTx) -> Result<(), GuestError> {
        for _ in 0..self.output.unsent.len() {
            let Some(id) = self.output.unsent.pop_front() else { break };
            self.send_rest(tx, id)?;
            if self.get(id).is_some_and(|conn| conn.outgoing.is_some()) {
                self.output.unsent.push_back(id);
            }
        }
        Ok(())
    }

    /// Sends what credit and queue allow of `bytes`; the last packet of a
    /// message gets the flags `message`. Returns the bytes sent and whether
    /// that was all.
    pub(super) fn send_part(
        &mut self,
        tx: &mut VsockTx,
        id: ConnId,
        bytes: &[u8],
        message: Option<u32>,
    ) -> Result<(usize, bool), GuestError> {
        let mut sent = 0;
        loop {
            let rest = &bytes[sent..];
            if rest.is_empty() && (sent > 0 || message.is_none()) {
                return Ok((sent, true));
            }
            let put = |tx: &mut VsockTx, header: &PacketHeader| add(tx, header, &rest[..header.len as usize]);
            let Some(len) = self.send_packet(tx, id, rest.len(), message.unwrap_or(0), put)? else {
                return Ok((sent, false));
            };
            sent += len;
            if len == rest.len() {
                return Ok((sent, true));
            }
        }
    }

    /// Sends the next packet of a stream from a pool; false when credit or
    /// queue don't allow it.
    pub(super) fn send_pooled(
        &mut self,
        tx: &mut VsockTx,
        id: ConnId,
        pool: &PayloadPool,
        write_len: usize,
        messages: bool,
    ) -> Result<bool, GuestError> {
        let bulk = &mut self.need(id)?.bulk;
        if bulk.write_left == 0 {
            bulk.write_left = write_len;
        }
        let (pool_at, left) = (bulk.pool_at, bulk.write_left);
        let put = |tx: &mut VsockTx, header: &PacketHeader| {
            let pieces = || pool.pieces(pool_at, header.len as usize);
            let count = pieces().count();
            if count >= usize::from(tx.ring().memory().size()) {
                return Err(GuestError::BadSetting {
                    what: "the number of a packet's pieces",
                    value: count as u64,
                    rule: "less than the queue's size; make the pool's pieces longer",
                });
            }
            Ok(tx.submit(header, pieces()) || tx.reap()? > 0 && tx.submit(header, pieces()))
        };
        let flags = if messages { RW_EOM } else { 0 };
        let Some(len) = self.send_packet(tx, id, left, flags, put)? else { return Ok(false) };
        let bulk = &mut self.need(id)?.bulk;
        bulk.pool_at += len as u64;
        bulk.write_left -= len;
        Ok(true)
    }

    /// Sends the next packet of a write of which `left` bytes are left, as long as credit allows;
    /// the last one gets `flags`. `put` adds it to the queue, with the payload that its header
    /// tells of. Returns its bytes; None when credit or queue don't allow a packet.
    fn send_packet(
        &mut self,
        tx: &mut VsockTx,
        id: ConnId,
        left: usize,
        flags: u32,
        put: impl FnOnce(&mut VsockTx, &PacketHeader) -> Result<bool, GuestError>,
    ) -> Result<Option<usize>, GuestError> {
        let room = self.output.flush(tx)?;
        let conn = self.need(id)?;
        let len = left.min(conn.credit() as usize).min(MAX_PAYLOAD);
        if len == 0 && left > 0 {
            self.ask_credit(id);
            self.output.flush(tx)?;
            return Ok(None);
        }
        let flags = if len == left { flags } else { 0 };
        let header = PacketHeader { len: len as u32, flags, ..conn.header(Op::Rw) };
        if !(room && put(tx, &header)?) {
            self.output.wants_room = true;
            return Ok(None);
        }
        self.need(id)?.count_sent(len as u32);
        self.counters.payload_sent += len as u64;
        Ok(Some(len))
    }
}

/// Adds a packet. If the queue is full, first takes back what the device is done with. False when
/// it is still full.
pub(super) fn add(tx: &mut VsockTx, header: &PacketHeader, payload: &[u8]) -> Result<bool, GuestError> {
    Ok(tx.send(header, payload)? || tx.reap()? > 0 && tx.send(header, payload)?)
}

/// Flags of a message's last packet.
pub(super) fn last_flags(eor: bool) -> u32 {
    RW_EOM | if eor { RW_EOR } else { 0 }
}

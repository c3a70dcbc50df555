//! Sending: within the peer's credit, in order behind what waits already.

use std::collections::VecDeque;

use super::core::Core;
use super::{ConnId, ConnState};
use crate::GuestError;
use crate::ring::BufferPiece;
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
    /// Kept from packet to packet to save the allocation.
    segments: Vec<BufferPiece>,
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
            let mut room = self.output.flush(tx)?;
            let conn = self.need(id)?;
            let len = rest.len().min(conn.credit() as usize).min(MAX_PAYLOAD);
            if len == 0 && !rest.is_empty() {
                conn.tx.stalled = true;
                self.ask_credit(id);
                self.output.flush(tx)?;
                return Ok((sent, false));
            }
            let last = len == rest.len();
            let flags = message.filter(|_| last).unwrap_or(0);
            let header = PacketHeader { len: len as u32, flags, ..conn.header(Op::Rw) };
            room = room && add(tx, &header, &rest[..len])?;
            if !room {
                self.wait_for_room(id);
                return Ok((sent, false));
            }
            let conn = self.need(id)?;
            conn.count_sent(len as u32);
            self.counters.payload_sent += len as u64;
            sent += len;
            if last {
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
        let mut room = self.output.flush(tx)?;
        let conn = self.need(id)?;
        if conn.bulk.write_left == 0 {
            conn.bulk.write_left = write_len;
        }
        let len = conn.bulk.write_left.min(conn.credit() as usize).min(MAX_PAYLOAD);
        if len == 0 {
            conn.tx.stalled = true;
            self.ask_credit(id);
            self.output.flush(tx)?;
            return Ok(false);
        }
        let last = messages && len == conn.bulk.write_left;
        let flags = if last { RW_EOM } else { 0 };
        let header = PacketHeader { len: len as u32, flags, ..conn.header(Op::Rw) };
        let pool_at = conn.bulk.pool_at;
        let segments = &mut self.output.segments;
        segments.clear();
        pool.segments(pool_at, len, segments);
        if segments.len() >= usize::from(tx.ring().memory().size()) {
            return Err(GuestError::BadSetting {
                what: "the number of a packet's pieces",
                value: segments.len() as u64,
                rule: "less than the queue's size; make the pool's pieces longer",
            });
        }
        room = room
            && (tx.submit_segments(&header, segments)
                || tx.reap()? > 0 && tx.submit_segments(&header, segments));
        if !room {
            self.wait_for_room(id);
            return Ok(false);
        }
        let conn = self.need(id)?;
        conn.count_sent(len as u32);
        conn.bulk.pool_at += len as u64;
        conn.bulk.write_left -= len;
        self.counters.payload_sent += len as u64;
        Ok(true)
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

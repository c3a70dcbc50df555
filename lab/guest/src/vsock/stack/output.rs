//! Sending: within the peer's credit, in order behind what waits already.

use super::conn::Outgoing;
use super::{ConnId, ConnState, VsockStack};
use crate::GuestError;
use crate::vsock::{MAX_PAYLOAD, Op, PacketHeader, RW_EOM, RW_EOR, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType};

impl VsockStack {
    /// Sends bytes of a STREAM connection as credit and queue allow; returns
    /// how many were taken. Less than all: wait for
    /// [`super::VsockEvent::Writable`]. Of a SEQPACKET connection they are one
    /// message, taken wholly (see [`VsockStack::send_message`]) or not.
    ///
    /// # Errors
    /// [`GuestError::NotConnected`], also when this side or the peer shut this
    /// direction down; [`GuestError::MessageTooLong`]; those of
    /// [`VsockStack::turn`].
    pub fn send(&mut self, id: ConnId, bytes: &[u8]) -> Result<usize, GuestError> {
        if self.sender(id)? == SocketType::Seqpacket {
            return Ok(if self.send_message(id, bytes, false)? { bytes.len() } else { 0 });
        }
        let (sent, _) = self.send_part(id, bytes, None)?;
        self.queues.tx.publish()?;
        Ok(sent)
    }

    /// Sends a message, with the flag EOR if `eor`. What the peer has no
    /// credit for is kept, and goes out in turns; until then the next message
    /// is not taken, and false comes back.
    ///
    /// # Errors
    /// As [`VsockStack::send`].
    pub fn send_message(&mut self, id: ConnId, bytes: &[u8], eor: bool) -> Result<bool, GuestError> {
        self.sender(id)?;
        let conn = self.core.need(id)?;
        let capacity = conn.tx.peer_buf_alloc as usize;
        if bytes.len() > capacity {
            return Err(GuestError::MessageTooLong { len: bytes.len(), capacity });
        }
        self.send_rest(id)?;
        let conn = self.core.need(id)?;
        if conn.outgoing.is_some() {
            conn.tx.stalled = true;
            self.queues.tx.publish()?;
            return Ok(false);
        }
        let (sent, whole) = self.send_part(id, bytes, Some(last_flags(eor)))?;
        if !whole {
            self.core.need(id)?.outgoing = Some(Outgoing { bytes: bytes[sent..].to_vec(), sent: 0, eor });
            self.unsent.push_back(id);
        }
        self.queues.tx.publish()?;
        Ok(true)
    }

    /// Sends a packet as it is, behind what waits already; no connection is
    /// looked at. False when the queue is full.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`]; those of [`VsockStack::turn`].
    pub fn send_raw(&mut self, header: &PacketHeader, payload: &[u8]) -> Result<bool, GuestError> {
        let sent = self.flush_outbox()? && self.send_packet(header, payload)?;
        self.queues.tx.publish()?;
        Ok(sent)
    }

    /// Type of a connection that may send.
    pub(super) fn sender(&mut self, id: ConnId) -> Result<SocketType, GuestError> {
        let conn = self.core.need(id)?;
        let ended = (conn.shutdown.own | conn.shutdown.deferred) & SHUTDOWN_SEND != 0
            || conn.shutdown.peer & SHUTDOWN_RCV != 0;
        if conn.state != ConnState::Established || ended {
            return Err(GuestError::NotConnected { state: conn.state });
        }
        Ok(conn.kind)
    }

    /// Goes on with a message that was not wholly sent, and with the shutdown
    /// that waits for it.
    pub(super) fn send_rest(&mut self, id: ConnId) -> Result<(), GuestError> {
        let Some(conn) = self.core.get_mut(id) else { return Ok(()) };
        let Some(mut rest) = conn.outgoing.take() else { return Ok(()) };
        if conn.shutdown.peer & SHUTDOWN_RCV == 0 {
            let (sent, whole) = self.send_part(id, &rest.bytes[rest.sent..], Some(last_flags(rest.eor)))?;
            if !whole {
                rest.sent += sent;
                self.core.need(id)?.outgoing = Some(rest);
                return Ok(());
            }
        }
        let flags = std::mem::take(&mut self.core.need(id)?.shutdown.deferred);
        if flags != 0 {
            self.say_shutdown(id, flags)?;
            self.flush_outbox()?;
        }
        Ok(())
    }

    /// Sends what credit and queue allow of `bytes`; the last packet of a
    /// message gets the flags `message`. Returns the bytes sent and whether
    /// that was all.
    fn send_part(
        &mut self,
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
            let mut room = self.flush_outbox()?;
            let conn = self.core.need(id)?;
            let len = rest.len().min(conn.credit() as usize).min(MAX_PAYLOAD);
            if len == 0 && !rest.is_empty() {
                conn.tx.stalled = true;
                self.core.ask_credit(id);
                self.flush_outbox()?;
                return Ok((sent, false));
            }
            let last = len == rest.len();
            let flags = message.filter(|_| last).unwrap_or(0);
            let header = PacketHeader { len: len as u32, flags, ..conn.header(Op::Rw) };
            room = room && self.send_packet(&header, &rest[..len])?;
            if !room {
                self.wants_room = true;
                self.core.wait_for_room(id);
                return Ok((sent, false));
            }
            let conn = self.core.need(id)?;
            conn.count_sent(len as u32);
            self.core.counters.payload_sent += len as u64;
            sent += len;
            if last {
                return Ok((sent, true));
            }
        }
    }

    /// Adds a packet, after taking back what the device is done with if there
    /// is no room. False when there is none.
    fn send_packet(&mut self, header: &PacketHeader, payload: &[u8]) -> Result<bool, GuestError> {
        let tx = &mut self.queues.tx;
        Ok(tx.send(header, payload)? || tx.reap()? > 0 && tx.send(header, payload)?)
    }

    /// Adds the packets that wait. True when none is left.
    pub(super) fn flush_outbox(&mut self) -> Result<bool, GuestError> {
        while let Some(&header) = self.core.outbox.front() {
            if !self.send_packet(&header, &[])? {
                self.wants_room = true;
                return Ok(false);
            }
            self.core.outbox.pop_front();
        }
        Ok(true)
    }

    /// Adds the packets that wait and lets the device see them.
    pub(super) fn push_out(&mut self) -> Result<(), GuestError> {
        self.flush_outbox()?;
        self.queues.tx.publish()?;
        Ok(())
    }
}

/// Flags of a message's last packet.
fn last_flags(eor: bool) -> u32 {
    RW_EOM | if eor { RW_EOR } else { 0 }
}

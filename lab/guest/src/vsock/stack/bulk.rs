//! Sending and receiving in bulk without touching the payload, for
//! benchmarks.

use super::{ConnId, Drain, Drained, VsockStack};
use crate::GuestError;
use crate::vsock::{MAX_PAYLOAD, Op, PacketHeader, PayloadPool, RW_EOM, SocketType};

impl VsockStack {
    /// Sends up to `max_packets` packets with payload from `pool`, as credit
    /// and queue allow: the stream of a program that writes `write_len` bytes
    /// at a time. Each write is cut as Linux does it, into packets of 64 KiB
    /// or what credit is left; of a SEQPACKET connection each write is a
    /// message. The stream goes on from call to call. Returns how many packets
    /// were sent; the device has seen them.
    ///
    /// `pool` must stay as it is until the packets were given back
    /// ([`VsockStack::flush`]).
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for writes of no bytes, or pieces of the
    /// pool so short that a packet does not fit the queue; those of
    /// [`VsockStack::send`].
    pub fn send_from_pool(
        &mut self,
        id: ConnId,
        pool: &PayloadPool,
        write_len: usize,
        max_packets: usize,
    ) -> Result<usize, GuestError> {
        if write_len == 0 {
            let what = "the length of a write";
            return Err(GuestError::BadSetting { what, value: 0, rule: "at least 1" });
        }
        let messages = self.sender(id)? == SocketType::Seqpacket;
        let mut segments = std::mem::take(&mut self.segments);
        let mut count = 0;
        let mut result = Ok(());
        while count < max_packets {
            segments.clear();
            match self.send_pooled(id, pool, write_len, messages, &mut segments) {
                Ok(true) => count += 1,
                Ok(false) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.segments = segments;
        self.queues.tx.publish()?;
        result.map(|()| count)
    }

    fn send_pooled(
        &mut self,
        id: ConnId,
        pool: &PayloadPool,
        write_len: usize,
        messages: bool,
        segments: &mut Vec<crate::ring::BufferPiece>,
    ) -> Result<bool, GuestError> {
        let mut room = self.flush_outbox()?;
        let conn = self.core.need(id)?;
        if conn.bulk.write_left == 0 {
            conn.bulk.write_left = write_len;
        }
        let len = conn.bulk.write_left.min(conn.credit() as usize).min(MAX_PAYLOAD);
        if len == 0 {
            conn.tx.stalled = true;
            self.core.ask_credit(id);
            self.flush_outbox()?;
            return Ok(false);
        }
        let last = messages && len == conn.bulk.write_left;
        let flags = if last { RW_EOM } else { 0 };
        let header = PacketHeader { len: len as u32, flags, ..conn.header(Op::Rw) };
        pool.segments(conn.bulk.pool_at, len, segments);
        let tx = &mut self.queues.tx;
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
            self.wants_room = true;
            self.core.wait_for_room(id);
            return Ok(false);
        }
        let conn = self.core.need(id)?;
        conn.count_sent(len as u32);
        conn.bulk.pool_at += len as u64;
        conn.bulk.write_left -= len;
        self.core.counters.payload_sent += len as u64;
        Ok(true)
    }

    /// From now on what arrives is counted and freed at once, or kept again
    /// ([`Drain::Off`]). Bytes that were not yet read are drained first.
    ///
    /// # Errors
    /// [`GuestError::NotConnected`] for an unknown connection;
    /// [`GuestError::WrongReceive`] for one that is received in place; those
    /// of [`VsockStack::turn`].
    pub fn drain_payload(&mut self, id: ConnId, mode: Drain) -> Result<(), GuestError> {
        let conn = self.core.need(id)?;
        if conn.in_place.is_some() {
            return Err(GuestError::WrongReceive { in_place: true });
        }
        if conn.bulk.drain == Drain::Off && mode != Drain::Off {
            conn.drain_inbox(mode);
        }
        conn.bulk.drain = mode;
        self.core.after_read(id);
        self.push_out()
    }

    /// What was drained of a connection so far.
    pub fn drained(&self, id: ConnId) -> Drained {
        let drained = |conn: &super::conn::Conn| Drained { sum: conn.bulk.sum.value(), ..conn.bulk.drained };
        self.core.get(id).map_or_else(Drained::default, drained)
    }
}

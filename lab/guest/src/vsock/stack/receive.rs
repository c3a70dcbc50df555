//! Receiving. What arrived is copied out, drained without a look at it, or read in place. In place
//! means in the device's buffers, which go back to the ring as the program is done with them.
//!
//! All connections together hold at most half of the ring's buffers at a time. Payload beyond that
//! is copied out and counted as held. So a program that keeps its leases stops its own sender, by
//! credit, and nobody else.

use std::time::Duration;

use super::conn::Conn;
use super::{ConnId, ConnState, Drain, Drained, Received, VsockStack};
use crate::GuestError;
use crate::vsock::SocketType;
use crate::vsock::lease::{InPlaceCounters, PacketLease};

// The values of [`VsockStack::poll_value`] are those of a window of mapped receive.
pub use zerowire_wire::mapped::{POLL_DATA, POLL_END, POLL_NOTHING};

/// What [`VsockStack::dequeue`] brought.
#[derive(Debug)]
pub enum Dequeued {
    /// Packets.
    Packets(PacketLease),
    /// Nothing yet.
    Empty,
    /// The peer sends no more, and everything was dequeued.
    End,
}

impl VsockStack {
    /// Reads what has arrived to the end of `bytes`: all bytes of a STREAM
    /// connection, one message of a SEQPACKET one.
    ///
    /// # Errors
    /// [`GuestError::NotConnected`] when nothing is left and the connection
    /// was not ended in order; [`GuestError::WrongReceive`] for a connection
    /// that is received in place; those of [`VsockStack::turn`].
    pub fn recv(&mut self, conn: ConnId, bytes: &mut Vec<u8>) -> Result<Received, GuestError> {
        self.recv_up_to(conn, bytes, usize::MAX)
    }

    /// As [`VsockStack::recv`], at most `max` bytes of a STREAM connection.
    pub fn recv_up_to(
        &mut self,
        id: ConnId,
        bytes: &mut Vec<u8>,
        max: usize,
    ) -> Result<Received, GuestError> {
        let conn = self.core.need(id)?;
        if conn.in_place.is_some() {
            return Err(GuestError::WrongReceive { in_place: true });
        }
        let received = match (conn.readable(), conn.kind) {
            (false, _) if conn.ended() => return Ok(Received::End),
            (false, _) if conn.state == ConnState::Established => return Ok(Received::Empty),
            (false, _) => return Err(GuestError::NotConnected { state: conn.state }),
            (true, SocketType::Stream) => Received::Data(conn.inbox.len().min(max)),
            (true, SocketType::SeqPacket) => match conn.inbox.messages.pop_front() {
                Some((len, true)) => Received::Record(len),
                Some((len, false)) => Received::Data(len),
                None => Received::Empty,
            },
        };
        if let Received::Data(len) | Received::Record(len) = received {
            conn.inbox.take(len, bytes);
            conn.rx.taken = conn.rx.taken.wrapping_add(len as u32);
            self.core.after_read(id);
            self.push_out()?;
        }
        Ok(received)
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
        let drained = |conn: &Conn| Drained { sum: conn.bulk.sum.value(), ..conn.bulk.drained };
        self.core.get(id).map_or_else(Drained::default, drained)
    }

    /// As [`VsockStack::listen`]; payload of the connections is received in
    /// place.
    pub fn listen_in_place(&mut self, port: u32, kind: SocketType) {
        self.listen_for(port, kind, true);
    }

    /// As [`VsockStack::connect`]; payload of the connection is received in
    /// place.
    pub fn connect_in_place(&mut self, cid: u64, port: u32, kind: SocketType) -> Result<ConnId, GuestError> {
        let local_port = self.free_port(cid, port);
        self.connect_for(local_port, cid, port, kind, true)
    }

    /// Takes all packets that arrived, where they are. It makes no turn; see
    /// [`VsockStack::turn`], [`VsockStack::dequeue_wait`]. Several leases of a
    /// connection may be held.
    ///
    /// Of a SEQPACKET connection the last packet may be a part of a message:
    /// see [`crate::vsock::Packet::end_of_message`].
    ///
    /// # Errors
    /// [`GuestError::WrongReceive`] unless the connection was opened for this;
    /// [`GuestError::NotConnected`] when nothing is left and the connection
    /// was not ended in order; those of [`VsockStack::turn`].
    pub fn dequeue(&mut self, id: ConnId) -> Result<Dequeued, GuestError> {
        let conn = self.core.need(id)?;
        let Some(arrived) = &conn.in_place else {
            return Err(GuestError::WrongReceive { in_place: false });
        };
        if arrived.packet_count() == 0 {
            return match conn.state {
                _ if conn.ended() => Ok(Dequeued::End),
                ConnState::Established => Ok(Dequeued::Empty),
                state => Err(GuestError::NotConnected { state }),
            };
        }
        let lease = self.core.take_arrived(id);
        // If the peer has shut down both ways, this was all.
        self.core.after_read(id);
        self.push_out()?;
        Ok(lease.map_or(Dequeued::Empty, Dequeued::Packets))
    }

    /// Waits until `lowat` bytes are there (SO_RCVLOWAT), or the end, and
    /// dequeues. None at the end.
    ///
    /// Never more than the credit arrives before a lease is dropped, so
    /// `lowat` should be well below [`super::StackOptions::buf_alloc`].
    pub fn dequeue_wait(
        &mut self,
        conn: ConnId,
        lowat: usize,
        timeout: Duration,
    ) -> Result<Option<PacketLease>, GuestError> {
        self.until("the arrival of as many bytes", timeout, |stack| {
            let over = stack.core.get(conn).is_none_or(|c| c.ended() || c.state != ConnState::Established);
            if stack.readable(conn) < lowat && !over {
                return Ok(None);
            }
            Ok(match stack.dequeue(conn)? {
                Dequeued::Packets(lease) => Some(Some(lease)),
                Dequeued::Empty => None,
                Dequeued::End => Some(None),
            })
        })
    }

    /// [`POLL_NOTHING`], [`POLL_DATA`] or [`POLL_END`] (also when the connection was reset), for a
    /// program that spins instead of sleeping. If nothing is there yet it makes a turn that does
    /// not sleep. Without news that costs a read of two indices, and no system call.
    pub fn poll_value(&mut self, conn: ConnId) -> Result<u32, GuestError> {
        let value = self.poll_value_now(conn);
        if value != POLL_NOTHING {
            return Ok(value);
        }
        self.turn(Duration::ZERO)?;
        Ok(self.poll_value_now(conn))
    }

    fn poll_value_now(&self, conn: ConnId) -> u32 {
        match self.core.get(conn) {
            Some(conn) if conn.readable() => POLL_DATA,
            Some(conn) if matches!(conn.state, ConnState::Connecting) => POLL_NOTHING,
            Some(conn) if conn.state == ConnState::Established && !conn.ended() => POLL_NOTHING,
            _ => POLL_END,
        }
    }

    /// How payload arrived on connections that are received in place.
    pub fn in_place_counters(&self) -> InPlaceCounters {
        self.core.in_place
    }
}

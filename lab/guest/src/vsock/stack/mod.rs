//! Connections over the queues, for one thread.
//!
//! Nothing happens by itself: [`VsockStack::turn`] takes what the device sent and gives it what
//! waits; the calls that wait for something make turns until it is there. Every received packet is
//! checked against the rules and against the credit that the device was given. What a peer does
//! wrong resets its connection ([`StackCounters::faults`]). A packet that no device may pass on is
//! a [`GuestError::DeviceBrokeRule`], after which the stack is of no more use.

#![allow(clippy::missing_errors_doc, reason = "said at VsockStack, for all calls")]

mod conn;
mod core;
mod payload;
mod receive;
mod send;
mod turn;
mod types;

use std::collections::VecDeque;

use super::{Op, PacketHeader, PayloadPool, SHUTDOWN_BOTH, SHUTDOWN_SEND, SocketType, VsockQueues};
use crate::GuestError;
use conn::{Key, Outgoing};
use core::{Core, StackListener};
pub use receive::{Dequeued, POLL_DATA, POLL_END, POLL_NOTHING};
use send::{add, last_flags};
pub use types::{ConnId, ConnState, Drain, Drained, Received, StackCounters, StackOptions};

/// First port that connections get which name none.
const FIRST_PORT: u32 = 49152;

/// Connections over the queues of one device.
///
/// # Errors
/// All calls fail with the errors of [`VsockStack::turn`]. Those that wait for something fail with
/// [`GuestError::TimedOut`] if it does not happen in time. Those that use a connection fail with
/// [`GuestError::NotConnected`] if there is none, or it has ended before. Calls that send all, or
/// receive more than once, also fail as [`VsockStack::send`] and [`VsockStack::recv`] do. Calls
/// that have errors of their own name them.
pub struct VsockStack {
    queues: VsockQueues,
    core: Core,
    next_port: u32,
}

impl VsockStack {
    /// A stack over `queues`.
    pub fn new(queues: VsockQueues, options: StackOptions) -> VsockStack {
        let core = Core::new(&queues, options);
        VsockStack { queues, core, next_port: FIRST_PORT }
    }

    /// The queues, for [`super::VsockDriver::resume`] and counters.
    pub fn queues(&mut self) -> &mut VsockQueues {
        &mut self.queues
    }

    /// CID of the guest.
    pub fn cid(&self) -> u64 {
        self.core.cid
    }

    /// Takes connections of type `kind` at `port` from now on. One type a
    /// port: a second call changes it.
    pub fn listen(&mut self, port: u32, kind: SocketType) {
        self.listen_for(port, kind, false);
    }

    fn listen_for(&mut self, port: u32, kind: SocketType, in_place: bool) {
        let listener = self.core.listeners.entry(port);
        let listener = listener.or_insert_with(|| StackListener { kind, in_place, waiting: VecDeque::new() });
        (listener.kind, listener.in_place) = (kind, in_place);
    }

    /// The next connection that came at `port`. Its request was granted
    /// already; it may have ended since.
    pub fn accept(&mut self, port: u32) -> Option<ConnId> {
        self.core.listeners.get_mut(&port)?.waiting.pop_front()
    }

    /// Asks for a connection, from any free port.
    pub fn connect(&mut self, cid: u64, port: u32, kind: SocketType) -> Result<ConnId, GuestError> {
        let local_port = self.free_port(cid, port);
        self.connect_from(local_port, cid, port, kind)
    }

    /// A port that has no connection to this peer.
    fn free_port(&mut self, cid: u64, port: u32) -> u32 {
        loop {
            let local_port = self.next_port;
            self.next_port = if local_port >= u32::MAX - 1 { FIRST_PORT } else { local_port + 1 };
            let key = Key { local_port, cid, port };
            if !self.core.keys.contains_key(&key) && !self.core.listeners.contains_key(&local_port) {
                return local_port;
            }
        }
    }

    /// Asks for a connection from `local_port`.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] when there is the same connection already;
    /// those of [`VsockStack::turn`].
    pub fn connect_from(
        &mut self,
        local_port: u32,
        cid: u64,
        port: u32,
        kind: SocketType,
    ) -> Result<ConnId, GuestError> {
        self.connect_for(local_port, cid, port, kind, false)
    }

    fn connect_for(
        &mut self,
        local_port: u32,
        cid: u64,
        port: u32,
        kind: SocketType,
        in_place: bool,
    ) -> Result<ConnId, GuestError> {
        let key = Key { local_port, cid, port };
        if self.core.keys.contains_key(&key) {
            let what = "the local port of a connection";
            return Err(GuestError::BadSetting { what, value: local_port.into(), rule: "a free one" });
        }
        let id = self.core.insert(key, kind, in_place);
        self.core.say(id, Op::Request, 0);
        self.push_out()?;
        Ok(id)
    }

    /// State of a connection.
    pub fn state(&self, conn: ConnId) -> ConnState {
        self.core.get(conn).map_or(ConnState::Closed, |conn| conn.state)
    }

    /// `SHUTDOWN_…` flags that the peer sent.
    pub fn peer_shutdown(&self, conn: ConnId) -> u32 {
        self.core.get(conn).map_or(0, |conn| conn.shutdown.peer)
    }

    /// Bytes that the peer has room for.
    pub fn credit(&self, conn: ConnId) -> u32 {
        self.core.get(conn).map_or(0, conn::Conn::credit)
    }

    /// Bytes received and not yet read, those of unfinished messages included.
    pub fn readable(&self, conn: ConnId) -> usize {
        let in_place = |conn: &conn::Conn| conn.in_place.as_ref().map_or(0, |arrived| arrived.len());
        self.core.get(conn).map_or(0, |conn| conn.inbox.len() + in_place(conn))
    }

    /// CID and port of the peer.
    pub fn peer(&self, conn: ConnId) -> Option<(u64, u32)> {
        self.core.get(conn).map(|conn| (conn.key.cid, conn.key.port))
    }

    /// Connections, in any state, that were not closed here.
    pub fn connections(&self) -> usize {
        self.core.conns.len()
    }

    /// What was seen and said so far.
    pub fn counters(&self) -> StackCounters {
        self.core.counters
    }

    /// The last rule that the peer of a connection broke, and the packet.
    pub fn last_fault(&self) -> Option<&str> {
        self.core.last_fault.as_deref()
    }

    /// A header with the connection's addresses and credit as they are now,
    /// to be changed and sent by [`VsockStack::send_raw`].
    pub fn header(&self, conn: ConnId, op: Op) -> Result<PacketHeader, GuestError> {
        match self.core.get(conn) {
            Some(conn) => Ok(conn.header(op)),
            None => Err(GuestError::NotConnected { state: ConnState::Closed }),
        }
    }

    /// Sends bytes of a STREAM connection as credit and queue allow; returns
    /// how many were taken. Less than all: try again after a turn. Of a
    /// SEQPACKET connection they are one message, taken wholly (see
    /// [`VsockStack::send_message`]) or not.
    ///
    /// # Errors
    /// [`GuestError::NotConnected`], also when this side or the peer shut this
    /// direction down; [`GuestError::MessageTooLong`]; those of
    /// [`VsockStack::turn`].
    pub fn send(&mut self, id: ConnId, bytes: &[u8]) -> Result<usize, GuestError> {
        if self.core.sender(id)? == SocketType::SeqPacket {
            return Ok(if self.send_message(id, bytes, false)? { bytes.len() } else { 0 });
        }
        let (sent, _) = self.core.send_part(&mut self.queues.tx, id, bytes, None)?;
        self.queues.tx.publish()?;
        Ok(sent)
    }

    /// Sends a message, with the flag EOR if `eor`. What the peer has no credit for is kept, and
    /// goes out in turns. Until then the next message is not taken, and false comes back.
    pub fn send_message(&mut self, id: ConnId, bytes: &[u8], eor: bool) -> Result<bool, GuestError> {
        self.core.sender(id)?;
        let conn = self.core.need(id)?;
        let capacity = conn.tx.peer_buf_alloc as usize;
        if bytes.len() > capacity {
            return Err(GuestError::MessageTooLong { len: bytes.len(), capacity });
        }
        self.core.send_rest(&mut self.queues.tx, id)?;
        let conn = self.core.need(id)?;
        if conn.outgoing.is_some() {
            self.queues.tx.publish()?;
            return Ok(false);
        }
        let (sent, whole) = self.core.send_part(&mut self.queues.tx, id, bytes, Some(last_flags(eor)))?;
        if !whole {
            self.core.need(id)?.outgoing = Some(Outgoing { bytes: bytes[sent..].to_vec(), sent: 0, eor });
            self.core.output.unsent.push_back(id);
        }
        self.queues.tx.publish()?;
        Ok(true)
    }

    /// Sends a packet as it is, behind what waits already. It touches no connection. False when the
    /// queue is full.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`]; those of [`VsockStack::turn`].
    pub fn send_raw(&mut self, header: &PacketHeader, payload: &[u8]) -> Result<bool, GuestError> {
        let tx = &mut self.queues.tx;
        let sent = self.core.output.flush(tx)? && add(tx, header, payload)?;
        tx.publish()?;
        Ok(sent)
    }

    /// Sends up to `max_packets` packets with payload from `pool`, as credit and queue allow. They
    /// are the stream of a program that writes `write_len` bytes at a time. Each write is cut as
    /// Linux does it, into packets of 64 KiB or what credit is left. Of a SEQPACKET connection each
    /// write is a message. The stream goes on from call to call. Returns how many packets were
    /// sent; the device has seen them.
    ///
    /// `pool` must stay as it is until the packets were given back ([`VsockStack::flush`]).
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for writes of no bytes, or pieces of the pool so short that a
    /// packet does not fit the queue. Those of [`VsockStack::send`].
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
        let messages = self.core.sender(id)? == SocketType::SeqPacket;
        let (mut count, mut result) = (0, Ok(true));
        while count < max_packets && matches!(result, Ok(true)) {
            result = self.core.send_pooled(&mut self.queues.tx, id, pool, write_len, messages);
            count += usize::from(matches!(result, Ok(true)));
        }
        self.queues.tx.publish()?;
        result.map(|_| count)
    }

    /// Says that this side receives ([`SHUTDOWN_RCV`](super::SHUTDOWN_RCV)) or sends
    /// ([`SHUTDOWN_SEND`]) no more. With both, the state is
    /// [`ConnState::Closing`] until the peer answers by RST. A message that is
    /// not wholly sent goes out before.
    pub fn shutdown(&mut self, id: ConnId, flags: u32) -> Result<(), GuestError> {
        let conn = self.core.need(id)?;
        if !matches!(conn.state, ConnState::Established | ConnState::Closing) {
            return Err(GuestError::NotConnected { state: conn.state });
        }
        if conn.outgoing.is_some() && flags & SHUTDOWN_SEND != 0 {
            conn.shutdown.deferred |= flags;
            return Ok(());
        }
        self.core.say_shutdown(id, flags)?;
        self.push_out()
    }

    /// Ends a connection in order and gives it up: what was not read is lost,
    /// and it is forgotten when the peer has answered. An ended or unfinished
    /// one is forgotten at once.
    pub fn close(&mut self, id: ConnId) -> Result<(), GuestError> {
        let Some(conn) = self.core.get_mut(id) else { return Ok(()) };
        conn.given_up = true;
        match conn.state {
            ConnState::Connecting => return self.abort(id),
            ConnState::Established if conn.shutdown.peer == SHUTDOWN_BOTH => return self.abort(id),
            ConnState::Established => {
                conn.discard();
                self.shutdown(id, SHUTDOWN_BOTH)?;
            }
            ConnState::Closing => {}
            ConnState::Closed | ConnState::Refused | ConnState::Reset => self.core.remove(id),
        }
        Ok(())
    }

    /// Ends a connection by RST and forgets it.
    pub fn abort(&mut self, id: ConnId) -> Result<(), GuestError> {
        let Some(conn) = self.core.get_mut(id) else { return Ok(()) };
        if conn.state.is_live() {
            self.core.say(id, Op::Rst, 0);
        }
        self.core.remove(id);
        self.push_out()
    }

    /// Takes all connections as reset, without a word to the device: after the
    /// device was replaced and knows none of them.
    pub fn reset_connections(&mut self) {
        self.core.output.packets.clear();
        for listener in self.core.listeners.values_mut() {
            listener.waiting.clear();
        }
        let live = self.core.conns.iter().filter(|(_, conn)| conn.state.is_live());
        for id in live.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.core.end(id, ConnState::Reset);
        }
    }

    /// Adds the packets that wait and lets the device see them.
    fn push_out(&mut self) -> Result<(), GuestError> {
        self.core.output.flush(&mut self.queues.tx)?;
        self.queues.tx.publish()?;
        Ok(())
    }
}

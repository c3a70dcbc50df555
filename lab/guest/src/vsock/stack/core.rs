//! Everything of the stack but its queues: what a received packet does. What
//! it makes the stack say goes to the [`Output`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::conn::{Conn, Key, fault};
use super::send::Output;
use super::{ConnId, ConnState, StackCounters, StackOptions};
use crate::vsock::lease::{Piece, Returned};
use crate::vsock::rx::Kept;
use crate::vsock::{
    CID_ANY, InPlaceCounters, Op, PacketHeader, PacketLease, RW_EOM, RW_EOR, RxPacket, SHUTDOWN_BOTH,
    SHUTDOWN_RCV, SocketType, VsockQueues,
};
use crate::{GuestError, GuestSlice};

#[derive(Debug)]
pub(super) struct StackListener {
    pub kind: SocketType,
    pub in_place: bool,
    pub waiting: VecDeque<ConnId>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub cid: u64,
    pub options: StackOptions,
    pub conns: BTreeMap<ConnId, Conn>,
    next_id: u64,
    pub keys: HashMap<Key, ConnId>,
    pub listeners: HashMap<u32, StackListener>,
    pub output: Output,
    pub counters: StackCounters,
    pub last_fault: Option<String>,
    pub in_place: InPlaceCounters,
    /// The buffers that leases may hold; what they give back, and their way to do so.
    buffers: Arc<[GuestSlice]>,
    pub returned: Receiver<Returned>,
    returns: Sender<Returned>,
    /// Empty lists of packets, to be filled again.
    pub spare: Vec<Vec<Piece>>,
}

impl Core {
    pub(super) fn new(queues: &VsockQueues, options: StackOptions) -> Core {
        let (returns, returned) = channel();
        Core {
            cid: queues.cid,
            options,
            conns: BTreeMap::new(),
            next_id: 0,
            keys: HashMap::new(),
            listeners: HashMap::new(),
            output: Output::default(),
            counters: StackCounters::default(),
            last_fault: None,
            in_place: InPlaceCounters::default(),
            buffers: Arc::clone(&queues.rx.buffers),
            returned,
            returns,
            spare: Vec::new(),
        }
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    /// The connection, or the error that there is none.
    pub(super) fn need(&mut self, id: ConnId) -> Result<&mut Conn, GuestError> {
        self.get_mut(id).ok_or(GuestError::NotConnected { state: ConnState::Closed })
    }

    pub(super) fn insert(&mut self, key: Key, kind: SocketType, in_place: bool) -> ConnId {
        let id = ConnId(self.next_id);
        self.next_id += 1;
        let mut conn = Conn::new(key, self.cid, kind, self.options.buf_alloc);
        conn.in_place = in_place.then(|| PacketLease::new(Vec::new(), &self.buffers, &self.returns));
        self.conns.insert(id, conn);
        self.keys.insert(key, id);
        id
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, id: ConnId) {
        self.unlink(id);
        self.conns.remove(&id);
    }

    /// Takes what waits in a connection that is received in place, for its program.
    pub(super) fn take_arrived(&mut self, id: ConnId) -> Option<PacketLease> {
        let arrived = self.conns.get_mut(&id)?.in_place.as_mut()?;
        Some(arrived.take(self.spare.pop().unwrap_or_default(), Some(id)))
    }

    /// Takes a connection's addresses out, so that its packets are of no
    /// connection.
    fn unlink(&mut self, id: ConnId) {
        let key = self.get(id).map(|conn| conn.key);
        if let Some(key) = key.filter(|key| self.keys.get(key) == Some(&id)) {
            self.keys.remove(&key);
        }
    }

    /// Queues a packet of a connection without payload.
    pub(super) fn say(&mut self, id: ConnId, op: Op, flags: u32) {
        let Some(conn) = self.get_mut(id) else { return };
        let header = PacketHeader { flags, ..conn.header(op) };
        conn.told();
        match op {
            Op::CreditUpdate => self.counters.credit_updates_sent += 1,
            Op::Rst => self.counters.resets_sent += 1,
            _ => {}
        }
        self.output.packets.push_back(header);
    }

    /// Says that this side receives or sends no more.
    pub(super) fn say_shutdown(&mut self, id: ConnId, flags: u32) -> Result<(), GuestError> {
        let conn = self.need(id)?;
        conn.shutdown.own |= flags & SHUTDOWN_BOTH;
        if conn.shutdown.own & SHUTDOWN_RCV != 0 {
            conn.discard();
        }
        if conn.shutdown.own == SHUTDOWN_BOTH {
            conn.state = ConnState::Closing;
        }
        self.say(id, Op::Shutdown, flags);
        Ok(())
    }

    /// Asks for credit, once until some came.
    pub(super) fn ask_credit(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        if !std::mem::replace(&mut conn.tx.asked, true) && self.options.ask_credit {
            self.say(id, Op::CreditRequest, 0);
        }
    }

    /// Ends a connection in `state`; it is forgotten if nobody asks for it.
    pub(super) fn end(&mut self, id: ConnId, state: ConnState) {
        self.unlink(id);
        let Some(conn) = self.get_mut(id) else { return };
        conn.state = state;
        conn.outgoing = None;
        if conn.given_up {
            self.remove(id);
        }
    }

    /// After data was taken out: tells the peer of the space, and answers a
    /// whole shutdown when all was read (§5.10.6.5).
    pub(super) fn after_read(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        if conn.shutdown.peer == SHUTDOWN_BOTH && !conn.readable() {
            if matches!(conn.state, ConnState::Established | ConnState::Closing) {
                self.say(id, Op::Rst, 0);
                self.end(id, ConnState::Closed);
            }
        } else if conn.should_update() {
            self.say(id, Op::CreditUpdate, 0);
        }
    }

    /// Handles a received packet.
    pub(super) fn input(&mut self, packet: &RxPacket<'_>) -> Result<Kept, GuestError> {
        let header = &packet.header;
        // The device must not pass such packets on, whoever sent them.
        let broken = |rule: &str| GuestError::DeviceBrokeRule(fault(rule, header));
        if header.dst_cid != self.cid {
            return Err(broken(&format!("dst_cid is not the guest's {} (5.10.6)", self.cid)));
        }
        if header.src_cid < 2 || header.src_cid >= CID_ANY || header.src_cid == self.cid {
            return Err(broken("src_cid is of nobody who can send (5.10.4)"));
        }
        let Some(op) = header.op() else {
            return Err(broken("the operation is unknown (5.10.6)"));
        };
        let Some(kind) = SocketType::new(header.kind) else {
            return Err(broken("the socket type is unknown (5.10.6)"));
        };
        if header.len > 0 && op != Op::Rw {
            return Err(broken("payload in a packet other than RW (5.10.6.4)"));
        }
        let allowed = match (op, kind) {
            (Op::Shutdown, _) => SHUTDOWN_BOTH,
            (Op::Rw, SocketType::SeqPacket) => RW_EOM | RW_EOR,
            _ => 0,
        };
        if header.flags & !allowed != 0 || op == Op::Shutdown && header.flags == 0 {
            return Err(broken("the flags don't fit the operation (5.10.6)"));
        }
        let key = Key { local_port: header.dst_port, cid: header.src_cid, port: header.src_port };
        match self.keys.get(&key).copied() {
            Some(id) => Ok(self.connected(id, packet, op, kind).unwrap_or_else(|fault| {
                self.note_fault(fault);
                self.say(id, Op::Rst, 0);
                self.end(id, ConnState::Reset);
                Kept::No
            })),
            None => {
                self.stray(header, key, op, kind);
                Ok(Kept::No)
            }
        }
    }

    fn note_fault(&mut self, fault: String) {
        self.counters.faults += 1;
        self.last_fault = Some(fault);
    }

    /// A packet of no connection.
    fn stray(&mut self, header: &PacketHeader, key: Key, op: Op, kind: SocketType) {
        match op {
            Op::Rst => self.counters.stray_resets += 1,
            Op::Request => {
                if header.fwd_cnt != 0 {
                    self.note_fault(fault("fwd_cnt of a REQUEST is not 0 (5.10.6.3)", header));
                    return self.refuse(header);
                }
                let backlog = self.options.backlog;
                let listener = self.listeners.get(&key.local_port);
                let Some(listener) = listener.filter(|l| l.kind == kind && l.waiting.len() < backlog) else {
                    return self.refuse(header);
                };
                let id = self.insert(key, kind, listener.in_place);
                if let Some(conn) = self.get_mut(id) {
                    conn.state = ConnState::Established;
                    conn.tx.peer_buf_alloc = header.buf_alloc;
                }
                if let Some(listener) = self.listeners.get_mut(&key.local_port) {
                    listener.waiting.push_back(id);
                }
                self.say(id, Op::Response, 0);
            }
            _ => {
                self.counters.stray += 1;
                self.refuse(header);
            }
        }
    }

    /// Answers by RST, which has no credit to tell.
    fn refuse(&mut self, header: &PacketHeader) {
        self.counters.resets_sent += 1;
        self.output.packets.push_back(header.answer(Op::Rst));
    }

    fn connected(
        &mut self,
        id: ConnId,
        packet: &RxPacket<'_>,
        op: Op,
        kind: SocketType,
    ) -> Result<Kept, String> {
        let header = &packet.header;
        let Some(conn) = self.get_mut(id) else { return Ok(Kept::No) };
        if conn.kind != kind {
            let rule = format!("the connection is of type {:?} (5.10.6)", conn.kind);
            return Err(fault(rule, header));
        }
        let both = conn.shutdown.peer == SHUTDOWN_BOTH || conn.shutdown.own == SHUTDOWN_BOTH;
        match (conn.state, op) {
            (ConnState::Connecting, Op::Response) => {
                conn.take_credit(header)?;
                conn.state = ConnState::Established;
                return Ok(Kept::No);
            }
            (ConnState::Connecting, Op::Rst) => {
                self.end(id, ConnState::Refused);
                return Ok(Kept::No);
            }
            (_, Op::Rst) => {
                self.end(id, if both { ConnState::Closed } else { ConnState::Reset });
                return Ok(Kept::No);
            }
            (state @ ConnState::Connecting, _) | (state, Op::Request | Op::Response) => {
                return Err(fault(format!("{op:?} in state {state:?} (5.10.6.4)"), header));
            }
            _ => {}
        }
        conn.take_credit(header)?;
        match op {
            Op::Shutdown => {
                conn.shutdown.peer |= header.flags;
                self.after_read(id);
            }
            Op::Rw => return self.payload(id, packet),
            Op::CreditUpdate => self.counters.credit_updates_received += 1,
            Op::CreditRequest => self.say(id, Op::CreditUpdate, 0),
            Op::Request | Op::Response | Op::Rst => {}
        }
        Ok(Kept::No)
    }
}

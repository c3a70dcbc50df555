//! From one guest to another: one copy, from the sender's buffers to the receiver's.

use zerowire::ledger::{CopyReason, DropReason};

use super::Switch;
use crate::memory::{Segment, access};
use crate::vsock::connection::{Connection, End};
use crate::vsock::credit::FromGuest;
use crate::vsock::held::Held;
use crate::vsock::packet::{HEADER_LEN, Header, Kind, Op, SEQ_EOM};
use crate::vsock::protocol::{ANSWER_PATIENCE, Protocol};
use crate::vsock::table::{Key, Place};

impl Switch {
    /// The guest asks another one for a connection.
    pub(super) fn requested_of_sibling(&mut self, v: usize, h: &Header, mut connection: Connection) {
        let other = (0..self.vms.len()).find(|o| {
            let vm = &self.vms[*o];
            let reached = *o != v && vm.id.cid == h.dst_cid && vm.id.shares_group(&self.vms[v].id);
            reached && vm.is_running() && vm.takes(connection.kind)
        });
        let Some(o) = other else { return self.turn_down(v, h) };
        let key = Key { port: h.dst_port, peer_cid: self.vms[v].id.cid, peer_port: h.src_port };
        // Taken: an old connection of these ports that is not yet over on the other side.
        if !self.vms[o].has_place(key.peer_cid) || self.vms[o].connections.is_taken(&key) {
            return self.turn_down(v, h);
        }
        // What is sent waits on the other's side.
        connection.protocol.from = FromGuest::new(self.vms[o].limits.buffer_bytes);
        let from = FromGuest::new(self.vms[v].limits.buffer_bytes);
        let offered = Connection::new(key, connection.kind, Protocol::offered(from, self.io.timers.now()));
        self.io.timers.look_after(ANSWER_PATIENCE);
        let place = self.vms[o].insert(offered);
        connection.end = End::Sibling { vm: o, place };
        let own = self.vms[v].insert(connection);
        if let Some(c) = self.vms[o].connections.at(place) {
            c.end = End::Sibling { vm: v, place: own };
        }
        self.vms[o].mark_ready(place.slot);
    }

    /// What a guest says of its buffers is its sibling's business.
    pub(super) fn relay_credit(&mut self, v: usize, slot: u32, asks: bool) {
        let Some(Connection { end: End::Sibling { vm, place }, .. }) = self.connection(v, slot) else {
            return;
        };
        let (vm, place) = (*vm, *place);
        let Some(c) = self.vms[vm].connections.at(place) else { return };
        match asks {
            false => c.protocol.owe_update(),
            // The answer at once tells what is known here; the sibling may know better.
            true if c.protocol.takes_payload() => c.protocol.pass_ask(),
            true => return,
        }
        self.vms[vm].mark_ready(place.slot);
    }

    /// Brings what a guest may send up to what its sibling takes.
    pub(super) fn follow_sibling(&mut self, v: usize, slot: u32) {
        let Some(Connection { end: End::Sibling { vm, place }, .. }) = self.connection(v, slot) else {
            return;
        };
        let (vm, place) = (*vm, *place);
        let Some(sibling) = self.vms[vm].connections.at(place).map(|c| c.protocol.to) else { return };
        if let Some(c) = self.connection(v, slot) {
            c.protocol.from.follow(&sibling);
        }
    }

    /// Has a guest told that it may send on to its sibling, where the sibling has no reason to.
    pub(super) fn tell_sender(&mut self, v: usize, slot: u32) {
        self.follow_sibling(v, slot);
        let Some(c) = self.connection(v, slot) else { return };
        if c.protocol.from.is_due() {
            c.protocol.owe_update();
            self.vms[v].mark_ready(slot);
        } else if c.protocol.from.untold() > 0 {
            self.vms[v].mark_quiet(slot);
        }
    }

    /// As [`Self::tell_sender`], for the guest that sends to this connection.
    pub(super) fn tell_sender_of(&mut self, v: usize, slot: u32) {
        if let Some(Connection { end: End::Sibling { vm, place }, .. }) = self.connection(v, slot) {
            let (vm, place) = (*vm, *place);
            if self.vms[vm].connections.at(place).is_some() {
                self.tell_sender(vm, place.slot);
            }
        }
    }

    /// Payload for another guest.
    pub(super) fn pass_to_sibling(
        &mut self,
        v: usize,
        slot: u32,
        (o, place): (usize, Place),
        h: &Header,
        segments: &[Segment],
    ) {
        let len = h.len as usize;
        self.vms[v].counters.transmit.frames.add(1);
        self.follow_sibling(v, slot);
        if self.connection(v, slot).is_none_or(|c| !c.protocol.from.receive(h.len)) {
            self.dropped(v, DropReason::BeyondCredit);
            return self.abort(v, slot);
        }
        if !self.vms[o].connections.at(place).is_some_and(|c| c.protocol.takes_payload()) {
            // It said that it receives no more, or the connection is over.
            return;
        }
        // A message of no bytes takes no credit, and its mark waits all the same. All of them together take no more than
        // messages of one byte would.
        let most = self.vms[o].limits.buffer_bytes as usize;
        let held = self.vms[o].connections.at(place).and_then(|c| c.held.as_ref());
        let ends = h.len == 0 || h.flags & SEQ_EOM != 0;
        if ends && held.is_some_and(|held| held.messages() > most) {
            self.dropped(v, DropReason::BeyondCredit);
            return self.abort(v, slot);
        }
        let done = self.copy_across(o, place, h, segments);
        self.vms[v].counters.transmit.copied(CopyReason::Sibling, done as u64);
        let Some(c) = self.vms[o].connections.at(place) else { return };
        // An empty packet is the end of a message.
        if done == len && len > 0 {
            return self.tell_sender(v, slot);
        }
        let held = Held::at(&mut c.held);
        let rest = len - done;
        held.push(segments, HEADER_LEN + done, rest);
        if c.kind == Kind::SeqPacket {
            held.mark(rest as u32, (h.flags & SEQ_EOM != 0).then_some(h.flags));
        }
        self.vms[o].mark_ready(place.slot);
        self.vms[v].counters.transmit.copied(CopyReason::Held, rest as u64);
        self.tell_sender(v, slot);
    }

    /// Copies as much of a packet as the other guest has buffers and credit for right now. Returns how many bytes.
    fn copy_across(&mut self, o: usize, place: Place, h: &Header, segments: &[Segment]) -> usize {
        let len = h.len as usize;
        let Some(c) = self.vms[o].connections.at(place) else { return len };
        if c.held.is_some() || c.protocol.owes_beginning() || len == 0 {
            return 0;
        }
        let Some(mut rx) = self.vms[o].rings.rx.take() else { return 0 };
        let memory = self.vms[o].rings.memory.clone();
        let mut done = 0;
        let mut error = None;
        while rx.queue.is_active() && done < len {
            let room = match rx.room(0, &memory) {
                Ok(Some(room)) => room,
                Ok(None) => break,
                Err(e) => {
                    error = Some(e);
                    break;
                }
            };
            let Some(c) = self.vms[o].connections.at(place) else { break };
            let n = room.min(c.protocol.to.free() as usize).min(len - done);
            if n == 0 || !c.protocol.to.may_begin(c.kind, len - done, room) {
                break;
            }
            let whole = done + n == len && h.flags & SEQ_EOM != 0;
            c.protocol.to.send(n as u32, 1, c.kind == Kind::Stream || whole);
            access::copy(segments, HEADER_LEN + done, rx.front(), HEADER_LEN, n);
            done += n;
            let flags = if done == len { h.flags } else { 0 };
            let header = self.header(o, place.slot, Op::Rw, n as u32, flags);
            rx.finish(header, &memory);
            let counters = &self.vms[o].counters.receive;
            counters.frames.add(1);
            counters.copied(CopyReason::Sibling, n as u64);
        }
        if error.is_some() {
            rx.queue.fail();
        }
        self.vms[o].rings.rx = Some(rx);
        if let Some(e) = error {
            self.ring_failed(o, &e);
        }
        done
    }
}

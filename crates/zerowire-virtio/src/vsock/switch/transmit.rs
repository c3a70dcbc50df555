//! From a guest's transmit queue.

use std::time::Instant;

use zerowire::ledger::DropReason;

use super::Switch;
use super::to_host::Run;
use crate::memory::Segment;
use crate::vsock::connection::End;
use crate::vsock::credit::{Credit, Why};
use crate::vsock::mapped::Lent;
use crate::vsock::packet::{Fault, HOST_CID, Header, Kind, Op, SEQ_EOM};
use crate::vsock::protocol::{Over, Shut, Verdict};
use crate::vsock::queues::{self, Packet};
use crate::vsock::table::Key;
use crate::vsock::vm::MAX_RESETS;

/// What a VM's turn may cost, in packets with payload: chains of a turn at most.
pub(super) const MAX_BATCH: usize = 64;

/// A request opens a socket, connects it and closes it again, or sets it up: as long as a credit's worth of payload, for which
/// others of the group wait.
const REQUEST_COST: usize = 32;

/// A packet of another connection than the one before takes a system call of its own.
const SWITCH_COST: usize = 2;

/// The end of a connection closes a socket, and perhaps frees what lay in it.
const END_COST: usize = 8;

/// Segments of a turn, give or take those of one chain.
const MAX_SEGMENTS: usize = 4096;

impl Switch {
    /// Takes a batch of packets from a guest. Returns whether there were any.
    pub fn transmit(&mut self, v: usize) -> bool {
        let vm = &mut self.vms[v];
        if !vm.rings.kicked || vm.resets.len() >= MAX_RESETS {
            return false;
        }
        let Some(tx) = vm.rings.tx.as_mut().filter(|t| t.is_active()) else { return false };
        if matches!(tx.ring.available(), Ok(0)) {
            return false;
        }
        let Some(mut tx) = vm.rings.tx.take() else { return false };
        let memory = vm.rings.memory.clone();
        let mut packets = std::mem::take(&mut self.io.scratch.packets);
        let mut segments = std::mem::take(&mut self.io.scratch.segments);
        packets.clear();
        segments.clear();
        let mut error = None;
        let (mut cost, mut now) = (0, None);
        while cost < MAX_BATCH && segments.len() < MAX_SEGMENTS {
            match queues::take(&mut tx.ring, &memory, &mut segments, &mut self.io.scratch.hint) {
                Ok(Some(mut p)) => {
                    cost += self.cost_of(v, &mut p, packets.last(), &mut now);
                    packets.push(p);
                }
                Ok(None) => break,
                Err(e) => {
                    error = Some(e);
                    break;
                }
            }
        }
        self.vms[v].rings.tx = Some(tx);
        let mut run = std::mem::take(&mut self.io.scratch.run);
        run.loan.at = None;
        if !packets.is_empty() {
            self.io.last_sender = None;
        }
        for p in &mut packets {
            run.loan.chain = Lent { head: p.head, descriptors: p.descriptors };
            self.packet(v, p, &segments[p.segments.0 as usize..p.segments.1 as usize], &mut run);
            p.lent = std::mem::take(&mut run.loan.lent);
        }
        self.flush(v, &mut run);
        self.io.scratch.run = run;
        self.settle_windows(v);
        if let Some(tx) = &mut self.vms[v].rings.tx {
            for p in packets.iter().filter(|p| !p.lent) {
                tx.ring.push_used(p.head, 0);
            }
            if error.is_some() {
                tx.publish();
                tx.fail();
            }
        }
        if let Some(e) = error {
            self.ring_failed(v, &e);
        }
        let any = !packets.is_empty();
        self.io.scratch.packets = packets;
        // A hostile guest's long lists don't stay.
        if segments.capacity() > 4 * MAX_SEGMENTS {
            segments = Vec::with_capacity(1024);
        }
        self.io.scratch.segments = segments;
        any
    }

    /// What a packet costs behind another one.
    #[inline]
    fn cost_of(
        &mut self,
        v: usize,
        p: &mut Packet,
        before: Option<&Packet>,
        now: &mut Option<Instant>,
    ) -> usize {
        let Some(h) = &p.header else { return 1 };
        match Op::new(h.op) {
            Some(Op::Request) => self.cost_of_request(v, p, now),
            Some(Op::Rst | Op::Shutdown) => END_COST,
            // Runs of one connection go out by one system call.
            _ => match before.and_then(|b| b.header.as_ref()) {
                Some(b) if (b.src_port, b.dst_port) != (h.src_port, h.dst_port) => SWITCH_COST,
                _ => 1,
            },
        }
    }

    /// What a request costs, which is little where nothing comes of it. One clock for all of a batch.
    fn cost_of_request(&mut self, v: usize, p: &mut Packet, now: &mut Option<Instant>) -> usize {
        let vm = &mut self.vms[v];
        let Some(h) = p.header.filter(|h| h.check(vm.id.cid, p.room).is_ok()) else { return SWITCH_COST };
        // One to another guest takes no system call.
        if h.dst_cid != HOST_CID || !vm.request_rate.is_bounded() {
            return REQUEST_COST;
        }
        let now = *now.get_or_insert_with(|| self.io.timers.now());
        if vm.request_rate.take(now) {
            return REQUEST_COST;
        }
        p.over_rate = true;
        if vm.request_rate.refusals.is_due(now) {
            tracing::warn!(
                "{}: the guest asks the host for more than {} connections a second: further ones are refused, and counted in \
                 requests_over_rate (--request-rate)",
                vm.id.name,
                vm.limits.request_rate
            );
        }
        // An old connection of these ports is over all the same.
        let key = Key { port: h.src_port, peer_cid: h.dst_cid, peer_port: h.dst_port };
        if vm.connections.is_taken(&key) { END_COST } else { SWITCH_COST }
    }

    #[inline]
    fn packet(&mut self, v: usize, p: &Packet, segments: &[Segment], run: &mut Run) {
        let Some(h) = p.header else { return self.dropped(v, DropReason::TooShort) };
        let key = Key { port: h.src_port, peer_cid: h.dst_cid, peer_port: h.dst_port };
        let vm = &self.vms[v];
        let sound = h.check(vm.id.cid, p.room);
        let (op, kind) = match sound.and_then(|s| if vm.takes(s.1) { Ok(s) } else { Err(Fault::Wrong) }) {
            Ok(sound) => sound,
            Err(Fault::Forged) => return self.dropped(v, DropReason::BadPacket),
            Err(Fault::Wrong) => {
                self.flush(v, run);
                return match self.vms[v].connections.find(&key) {
                    Some(slot) => self.breach(v, slot, &h, DropReason::BadPacket),
                    None => {
                        self.dropped(v, DropReason::BadPacket);
                        self.answer_stranger(v, &h);
                    }
                };
            }
        };
        let slot = run.slot_of(&key).or_else(|| self.vms[v].connections.find(&key));
        let Some(slot) = slot else {
            self.flush(v, run);
            return self.stranger(v, &h, op, kind, p.over_rate);
        };
        // What came before goes before: an end, for one, must not be passed on ahead of messages.
        if op != Op::Rw {
            self.flush(v, run);
        }
        let Some(c) = self.connection(v, slot) else { return };
        let (fields, verdict) = c.take_packet(op, kind, &h);
        let ready = fields.more_room && c.has_payload();
        if let Verdict::Broken(reason) = verdict {
            self.flush(v, run);
            return self.breach(v, slot, &h, reason);
        }
        if fields.credit == Ok(Credit::Stale) {
            self.vms[v].counters.stale_credit.add(1);
        }
        if ready {
            self.vms[v].mark_ready(slot);
        }
        if verdict == Verdict::Payload {
            return self.payload(v, slot, key, &h, segments, run);
        }
        self.vms[v].counters.control_packets.add(1);
        self.flush(v, run);
        self.control(v, slot, verdict);
        if verdict == Verdict::Over(Over::Renewed) {
            self.stranger(v, &h, op, kind, p.over_rate);
        }
    }

    /// A packet of a connection that breaks a rule: the connection is reset. Nothing answers a reset (virtio 1.3 §5.10.6.4),
    /// however broken: for its sender the connection is over.
    #[cold]
    fn breach(&mut self, v: usize, slot: u32, h: &Header, reason: DropReason) {
        self.dropped(v, reason);
        if h.op != Op::Rst as u16 {
            return self.abort(v, slot);
        }
        let Some(c) = self.connection(v, slot) else { return };
        let verdict = c.protocol.take(Op::Rst, Shut::NONE);
        self.control(v, slot, verdict);
    }

    /// A packet of a connection that carries no payload.
    fn control(&mut self, v: usize, slot: u32, verdict: Verdict) {
        match verdict {
            Verdict::AsksCredit | Verdict::TellsCredit => {
                let asks = verdict == Verdict::AsksCredit;
                if asks {
                    self.review_credit(v, slot, Why::GuestAsks);
                }
                self.vms[v].mark_ready(slot);
                self.relay_credit(v, slot, asks);
            }
            Verdict::Payload | Verdict::Broken(_) => {}
            Verdict::Accepted => self.accepted(v, slot),
            Verdict::Shut(shut) => self.guest_shut(v, slot, shut),
            Verdict::Over(Over::Refused) => {
                self.vms[v].counters.refused.add(1);
                self.end_of(v, slot);
                self.remove(v, slot);
            }
            Verdict::Over(Over::Reset | Over::Renewed) => self.guest_ended(v, slot),
            Verdict::OutOfPlace => {
                self.dropped(v, DropReason::NoConnection);
                self.abort(v, slot);
            }
            Verdict::Stray => self.dropped(v, DropReason::NoConnection),
        }
    }

    /// The guest ended the connection: what it sent before is still delivered.
    pub(super) fn guest_ended(&mut self, v: usize, slot: u32) {
        let now = self.io.timers.now();
        let Some(c) = self.connection(v, slot) else { return };
        let fate = c.guest_ended(now);
        self.apply(v, slot, fate);
    }

    /// A packet of no connection; `over_rate`: it asks for one, beyond the guest's rate.
    fn stranger(&mut self, v: usize, h: &Header, op: Op, kind: Kind, over_rate: bool) {
        match op {
            Op::Request => {
                self.vms[v].counters.control_packets.add(1);
                if over_rate {
                    self.vms[v].counters.over_rate.add(1);
                    return self.turn_down(v, h);
                }
                self.requested(v, h, kind);
            }
            // Nothing answers a reset (virtio 1.3 §5.10.6.4).
            Op::Rst => self.vms[v].counters.control_packets.add(1),
            _ => {
                self.dropped(v, DropReason::NoConnection);
                self.answer_stranger(v, h);
            }
        }
    }

    /// Answers a packet of no connection by RST, unless it is one.
    fn answer_stranger(&mut self, v: usize, h: &Header) {
        if h.op != Op::Rst as u16 {
            self.vms[v].counters.resets.add(1);
            self.refuse(v, h);
        }
    }

    /// Answers a packet of no connection by RST.
    pub(super) fn refuse(&mut self, v: usize, h: &Header) {
        self.vms[v].resets.push_back(Header {
            src_cid: h.dst_cid,
            dst_cid: h.src_cid,
            src_port: h.dst_port,
            dst_port: h.src_port,
            kind: h.kind,
            op: Op::Rst as u16,
            ..Header::default()
        });
    }

    /// Payload of an open connection.
    #[inline]
    fn payload(&mut self, v: usize, slot: u32, key: Key, h: &Header, segments: &[Segment], run: &mut Run) {
        let most = self.vms[v].limits.buffer_bytes as usize;
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        let ends = c.kind == Kind::SeqPacket && h.flags & SEQ_EOM != 0;
        if h.len == 0 && !ends {
            return self.dropped(v, DropReason::BadPacket);
        }
        if let End::Sibling { vm, place } = c.end {
            self.flush(v, run);
            return self.pass_to_sibling(v, slot, (vm, place), h, segments);
        }
        // A message of no bytes takes no credit: what bounds the bytes that wait bounds the marks of all messages, too.
        let too_many = ends && c.held_for_program().is_some_and(|held| held.messages() > most);
        if too_many || !c.protocol.from.receive(h.len) {
            self.flush(v, run);
            self.dropped(v, DropReason::BeyondCredit);
            return self.abort(v, slot);
        }
        if c.protocol.far().receives_no_more() || !matches!(c.end, End::Host(_) | End::Mapped(_)) {
            // Nobody reads it any more; the guest has been told, or will be.
            c.protocol.from.forward(h.len);
            return;
        }
        // Windows take one message at a time, and some each packet for itself.
        let alone = c.windows().is_some_and(|w| ends || w.keeps_packets_apart());
        if !run.takes(slot, segments.len()) {
            self.flush(v, run);
            run.begin(key, slot);
        }
        let is_full = run.collect(segments, h.len as usize, ends.then_some(h.flags));
        if alone || is_full {
            self.flush(v, run);
        }
    }

    /// Has the guest told that it may send again, once that is news.
    pub(super) fn tell_credit(&mut self, v: usize, slot: u32) {
        self.review_credit(v, slot, Why::Routine);
    }

    /// Whether a guest has credit that it was not told of, or a program data.
    pub fn has_quiet(&self) -> bool {
        self.vms.iter().any(|vm| !vm.lists.quiet.is_empty())
    }

    /// Nothing has happened for a while. Each guest that a part of its credit was kept from is told
    /// of it: it may let less be under way than it may, and wait for that. Each program that is
    /// behind gets what is there. Returns whether there are any such connections.
    pub fn review_quiet(&mut self) -> bool {
        let mut any = false;
        for v in 0..self.vms.len() {
            // One that is put into the list again waits for the next time.
            for _ in 0..self.vms[v].lists.quiet.len() {
                let Some(slot) = self.vms[v].lists.quiet.pop() else { break };
                any = true;
                if let Some(w) = self.connection(v, slot).and_then(|c| c.windows()) {
                    w.publish_rest();
                }
                self.follow_sibling(v, slot);
                self.review_credit(v, slot, Why::Idle);
            }
        }
        any
    }

    /// As [`Self::tell_credit`].
    fn review_credit(&mut self, v: usize, slot: u32, why: Why) {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        let review = c.review_credit(why);
        if review.due {
            c.protocol.owe_update();
            vm.mark_ready(slot);
        }
        if review.quiet {
            vm.mark_quiet(slot);
        }
        self.watch_room(v, slot);
    }
}

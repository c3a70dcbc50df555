//! From a guest's transmit queue.

use std::time::Instant;

use zerowire::ledger::DropReason;
use zerowire_vhost::limit::Meter;
use zerowire_vhost::memory::Segment;
use zerowire_vhost::ring::RingError;

use super::connect::{accepted, requested};
use super::fate::{abort, apply};
use super::mapped::settle_windows;
use super::sibling::{pass_payload, tell};
use super::to_host::{Run, flush};
use super::{Io, Rest, Timers};
use crate::VsockLimits;
use crate::connection::PayloadRoute;
use crate::credit::{Credit, Why};
use crate::mapped::DirectChain;
use crate::packet::{Fault, HOST_CID, Header, Kind, Op};
use crate::protocol::{Fate, Over, Shut, Verdict};
use crate::queues::{self, TxPacket};
use crate::request_rate::RequestRate;
use crate::rings::VmRings;
use crate::table::{ConnectionKey, Table};
use crate::vm::{GroupVm, Identity, MAX_RESETS};

/// What a VM's turn may cost, in packets with payload: chains of a turn at most.
pub(super) const MAX_BATCH: usize = 64;

/// A request opens a socket, connects it and closes it again, or sets it up. That takes as long as
/// a credit's worth of payload, and others of the group wait for it.
const REQUEST_COST: usize = 32;

/// A packet of another connection than the one before takes a system call of its own.
const SWITCH_COST: usize = 2;

/// The end of a connection closes a socket, and perhaps frees what lay in it.
const END_COST: usize = 8;

/// Segments of a turn, give or take those of one chain.
const MAX_SEGMENTS: usize = 4096;

/// Takes a batch of packets from a guest. Returns whether there were any.
pub(super) fn send_turn(vm: &mut GroupVm, rest: &mut Rest<'_>) -> bool {
    if !has_packets(vm) {
        vm.paces.transmit.end(&vm.counters.limiters.transmit);
        return false;
    }
    let meter = vm.paces.begin_transmit(&vm.counters.limiters, || rest.io.timers.now());
    let Some(mut meter) = meter else { return false };
    let mut packets = std::mem::take(&mut rest.io.scratch.packets);
    let mut segments = std::mem::take(&mut rest.io.scratch.segments);
    let error = take_batch(vm, &mut packets, &mut segments, &mut meter, rest.io).err();
    vm.paces.transmit.passed(&vm.counters.limiters.transmit, meter.passed(), || rest.io.timers.now());
    let mut run = std::mem::take(&mut rest.io.scratch.run);
    run.loan.at = None;
    if !packets.is_empty() {
        rest.io.last_sender = None;
    }
    for p in &mut packets {
        run.loan.chain = DirectChain { head: p.head, descriptors: p.descriptors };
        let lies = &segments[p.segments.0 as usize..p.segments.1 as usize];
        if let (Some(capture), Some(header)) = (&mut vm.rings.capture, &p.header) {
            capture.sent(header, p.room, lies);
        }
        packet(vm, p, lies, &mut run, rest);
        p.lent = std::mem::take(&mut run.loan.lent);
    }
    flush(vm, &mut run, rest);
    rest.io.scratch.run = run;
    settle_windows(vm);
    if let Some(tx) = &mut vm.rings.tx {
        for p in packets.iter().filter(|p| !p.lent) {
            tx.ring.push_used(p.head, 0);
        }
        if error.is_some() {
            tx.fail();
        }
    }
    if let Some(e) = error {
        vm.ring_failed(&e);
    }
    let any = !packets.is_empty();
    rest.io.scratch.packets = packets;
    // A hostile guest's long lists don't stay.
    if segments.capacity() > 4 * MAX_SEGMENTS {
        segments = Vec::with_capacity(1024);
    }
    rest.io.scratch.segments = segments;
    any
}

/// Whether the transmit ring may have packets, and they may be taken.
#[inline]
fn has_packets(vm: &mut GroupVm) -> bool {
    if !vm.rings.kicked || vm.resets.len() >= MAX_RESETS {
        return false;
    }
    let tx = vm.rings.tx.as_mut().filter(|t| t.is_active());
    tx.is_some_and(|tx| !matches!(tx.ring.available(), Ok(0)))
}

/// Takes as many packets as a turn may cost. An error comes behind those that were taken.
fn take_batch(
    vm: &mut GroupVm,
    packets: &mut Vec<TxPacket>,
    segments: &mut Vec<Segment>,
    meter: &mut Meter,
    io: &mut Io,
) -> Result<(), RingError> {
    packets.clear();
    segments.clear();
    let VmRings { tx, memory, .. } = &mut vm.rings;
    let Some(tx) = tx else { return Ok(()) };
    let mut costs = Costs {
        id: &vm.id,
        limits: &vm.limits,
        rate: &mut vm.request_rate,
        table: &vm.connections,
        timers: &io.timers,
        now: None,
    };
    let mut cost = 0;
    while cost < MAX_BATCH && segments.len() < MAX_SEGMENTS && meter.has_room() {
        let Some(mut p) = queues::take(&mut tx.ring, memory, segments, &mut io.scratch.hint)? else { break };
        cost += costs.of(&mut p, packets.last());
        meter.pass(p.payload_bytes());
        packets.push(p);
    }
    Ok(())
}

/// What the packets of a batch cost.
struct Costs<'a> {
    id: &'a Identity,
    limits: &'a VsockLimits,
    rate: &'a mut RequestRate,
    table: &'a Table,
    timers: &'a Timers,
    /// One clock for all of a batch, and none where it is not needed.
    now: Option<Instant>,
}

impl Costs<'_> {
    /// What a packet costs behind another one.
    #[inline]
    fn of(&mut self, p: &mut TxPacket, before: Option<&TxPacket>) -> usize {
        let Some(h) = &p.header else { return 1 };
        match Op::new(h.op) {
            Some(Op::Request) => self.of_request(p),
            Some(Op::Rst | Op::Shutdown) => END_COST,
            // Runs of one connection go out by one system call.
            _ => match before.and_then(|b| b.header.as_ref()) {
                Some(b) if (b.src_port, b.dst_port) != (h.src_port, h.dst_port) => SWITCH_COST,
                _ => 1,
            },
        }
    }

    /// What a request costs, which is little where nothing comes of it.
    fn of_request(&mut self, p: &mut TxPacket) -> usize {
        let Some(h) = p.header.filter(|h| h.check(self.id.cid, p.room).is_ok()) else { return SWITCH_COST };
        // One to another guest takes no system call.
        if h.dst_cid != HOST_CID || !self.rate.is_bounded() {
            return REQUEST_COST;
        }
        let now = *self.now.get_or_insert_with(|| self.timers.now());
        if self.rate.take(now) {
            return REQUEST_COST;
        }
        p.over_rate = true;
        if self.rate.refusals.is_due(now) {
            tracing::warn!(
                "{}: the guest asks the host for more than {} connections a second: further ones are refused, and counted in \
                 requests_over_rate (--request-rate)",
                self.id.name,
                self.limits.request_rate
            );
        }
        // An old connection of these ports is over all the same.
        if self.table.is_taken(&ConnectionKey::of(&h)) { END_COST } else { SWITCH_COST }
    }
}

/// A packet that breaks no rule by itself.
struct SoundPacket<'a> {
    header: &'a Header,
    op: Op,
    kind: Kind,
    /// Where it lies.
    segments: &'a [Segment],
    /// True: it asks for a connection, beyond the guest's rate.
    over_rate: bool,
}

#[inline]
fn packet(vm: &mut GroupVm, p: &TxPacket, segments: &[Segment], run: &mut Run, rest: &mut Rest<'_>) {
    let Some(header) = &p.header else { return vm.dropped(DropReason::TooShort) };
    let key = ConnectionKey::of(header);
    let sound = header.check(vm.id.cid, p.room);
    let (op, kind) = match sound.and_then(|s| if vm.takes(s.1) { Ok(s) } else { Err(Fault::Wrong) }) {
        Ok(sound) => sound,
        Err(Fault::Forged) => return vm.dropped(DropReason::BadPacket),
        Err(Fault::Wrong) => {
            flush(vm, run, rest);
            return wrong(vm, &key, header, rest);
        }
    };
    let sound = SoundPacket { header, op, kind, segments, over_rate: p.over_rate };
    let Some(slot) = run.slot_of(&key).or_else(|| vm.connections.find(&key)) else {
        flush(vm, run, rest);
        return stranger(vm, &sound, rest);
    };
    // What came before goes before: an end, for one, must not be passed on ahead of messages.
    if op != Op::Rw {
        flush(vm, run, rest);
    }
    let Some(mut at) = vm.current(slot) else { return };
    let (fields, verdict) = at.c.take_packet(op, kind, header);
    if let Verdict::Broken(reason) = verdict {
        flush(vm, run, rest);
        return breach(vm, slot, header, reason, rest);
    }
    if fields.credit == Ok(Credit::Stale) {
        at.counters.stale_credit.add(1);
    }
    if fields.more_room && at.c.has_payload() {
        at.mark_ready();
    }
    if verdict == Verdict::Payload {
        let to = at.c.take_payload(header, at.limits.buffer_bytes as usize);
        return payload(vm, slot, &sound, to, run, rest);
    }
    at.counters.control_packets.add(1);
    flush(vm, run, rest);
    control(vm, slot, verdict, rest);
    if verdict == Verdict::Over(Over::Renewed) {
        stranger(vm, &sound, rest);
    }
}

/// A packet that the guest may not send to anybody.
#[cold]
fn wrong(vm: &mut GroupVm, key: &ConnectionKey, header: &Header, rest: &mut Rest<'_>) {
    match vm.connections.find(key) {
        Some(slot) => breach(vm, slot, header, DropReason::BadPacket, rest),
        None => {
            vm.dropped(DropReason::BadPacket);
            vm.answer_stranger(header);
        }
    }
}

/// A packet of a connection that breaks a rule: the connection is reset. Nothing answers a reset
/// (virtio 1.3 §5.10.6.4), however broken: for its sender the connection is over.
#[cold]
fn breach(vm: &mut GroupVm, slot: u32, header: &Header, reason: DropReason, rest: &mut Rest<'_>) {
    vm.dropped(reason);
    if header.op != Op::Rst as u16 {
        return abort(vm, slot, rest);
    }
    let Some(c) = vm.connections.get(slot) else { return };
    let verdict = c.protocol.take(Op::Rst, Shut::NONE);
    control(vm, slot, verdict, rest);
}

/// A packet of a connection that carries no payload.
fn control(vm: &mut GroupVm, slot: u32, verdict: Verdict, rest: &mut Rest<'_>) {
    let Some(mut at) = vm.current(slot) else { return };
    if let Some(signal) = verdict.signal() {
        tell(at.c, signal, rest);
    }
    let fate = match verdict {
        Verdict::AsksCredit => {
            at.mark_ready();
            at.review_credit(Why::GuestAsks, &rest.io.watch)
        }
        Verdict::TellsCredit => {
            at.mark_ready();
            Fate::Stays
        }
        Verdict::Accepted => accepted(vm, slot, rest.io),
        Verdict::Shut(shut) => {
            let (tells, fate) = at.c.guest_shut(shut, || rest.io.timers.now());
            if tells {
                at.mark_ready();
            }
            fate
        }
        Verdict::Over(Over::Refused) => {
            at.counters.refused.add(1);
            Fate::Gone
        }
        Verdict::Over(Over::Reset | Over::Renewed) => at.c.guest_ended(rest.io.timers.now()),
        Verdict::OutOfPlace => {
            at.dropped(DropReason::NoConnection);
            Fate::Broken
        }
        Verdict::Stray => {
            at.dropped(DropReason::NoConnection);
            Fate::Stays
        }
        Verdict::Payload | Verdict::Broken(_) => Fate::Stays,
    };
    apply(vm, slot, fate, rest);
}

/// A packet of no connection.
fn stranger(vm: &mut GroupVm, p: &SoundPacket<'_>, rest: &mut Rest<'_>) {
    match p.op {
        Op::Request => {
            vm.counters.control_packets.add(1);
            if p.over_rate {
                vm.counters.over_rate.add(1);
                return vm.turn_down(p.header);
            }
            requested(vm, p.header, p.kind, rest);
        }
        // Nothing answers a reset (virtio 1.3 §5.10.6.4).
        Op::Rst => vm.counters.control_packets.add(1),
        _ => {
            vm.dropped(DropReason::NoConnection);
            vm.answer_stranger(p.header);
        }
    }
}

/// Payload of an open connection.
#[inline]
fn payload(
    vm: &mut GroupVm,
    slot: u32,
    p: &SoundPacket<'_>,
    to: PayloadRoute,
    run: &mut Run,
    rest: &mut Rest<'_>,
) {
    match to {
        PayloadRoute::Program { end, alone } => {
            if !run.takes(slot, p.segments.len()) {
                flush(vm, run, rest);
                run.begin(ConnectionKey::of(p.header), slot);
            }
            let is_full = run.collect(p.segments, p.header.len as usize, end);
            if alone || is_full {
                flush(vm, run, rest);
            }
        }
        PayloadRoute::Sibling(far) => {
            flush(vm, run, rest);
            pass_payload(vm, slot, far, p.header, p.segments, rest);
        }
        PayloadRoute::Unread => {}
        PayloadRoute::Empty => vm.dropped(DropReason::BadPacket),
        PayloadRoute::BeyondCredit => {
            flush(vm, run, rest);
            vm.dropped(DropReason::BeyondCredit);
            abort(vm, slot, rest);
        }
    }
}

/// Nothing has happened for a while. Each guest that a part of its credit was kept from hears of
/// it. It may keep less under way than it is allowed to, and wait for that part. Each program that
/// is behind gets what was kept back. Returns whether there are any such connections.
pub(super) fn review_quiet(vm: &mut GroupVm, rest: &mut Rest<'_>) -> bool {
    let mut any = false;
    // One that is put into the list again waits for the next time.
    for _ in 0..vm.lists.quiet.len() {
        let Some(slot) = vm.lists.quiet.pop() else { break };
        any = true;
        let Some(mut at) = vm.current(slot) else { continue };
        if let Some(w) = at.c.windows() {
            w.publish_rest();
        }
        at.follow_sibling(&mut rest.others);
        let fate = at.review_credit(Why::Idle, &rest.io.watch);
        apply(vm, slot, fate, rest);
    }
    any
}

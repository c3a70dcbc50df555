//! To a guest's receive queue.

use zerowire::ledger::CopyReason;
use zerowire_vhost::limit::Meter;
use zerowire_vhost::memory::{IoList, access};
use zerowire_vhost::ring::RingError;

use super::current::Current;
use super::fate::apply;
use super::messages::read_message;
use super::sibling::tell;
use super::{Gate, Others, Rest, Timers};
use crate::connection::End;
use crate::packet::{HEADER_LEN, Header, Kind, Op};
use crate::protocol::{ControlPacket, Fate, Shut, Signal, Waits};
use crate::rings::Buffers;
use crate::socket;
use crate::vm::GroupVm;

/// Connections of a VM that are served in a turn.
const MAX_SERVED: usize = 64;

/// Bytes of a connection in a turn.
const QUOTA_BYTES: usize = 256 << 10;

/// How a connection's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// Nothing is left to do for now.
    All,
    /// There may be more.
    Quota,
    /// The guest has no buffer left.
    NoRoom,
    /// Payload waits for the guest's limit.
    Limited,
    /// The connection changes, and its turn goes on.
    Changes(Fate),
}

/// What a step moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnStep {
    Nothing,
    Moved(usize),
    NoRoom,
    /// A message is longer than the guest takes.
    TooLong,
}

/// Gives the guest what waits for it. Returns whether anything moved.
pub(super) fn receive_turn(vm: &mut GroupVm, rest: &mut Rest<'_>) -> bool {
    let idle = vm.lists.ready.is_empty() && vm.resets.is_empty() && vm.lists.limited.is_empty();
    if idle || !vm.rings.have_buffers_again() {
        return false;
    }
    let Some(before) = vm.rings.used() else { return false };
    let allowed = vm.paces.receive.begin(&vm.counters.limiters.receive, || rest.io.timers.now());
    rest.io.meter = allowed.map_or(Meter::default(), Meter::new);
    if rest.io.meter.has_room() {
        for _ in 0..MAX_SERVED {
            let Some(slot) = vm.lists.limited.pop() else { break };
            vm.mark_ready(slot);
        }
    }
    let filled = fill(vm, rest);
    let (limiter, meter) = (&vm.counters.limiters.receive, &rest.io.meter);
    vm.paces.receive.passed(limiter, meter.passed(), || rest.io.timers.now());
    if !vm.lists.limited.is_empty() && !meter.has_room() {
        vm.paces.receive.hold(limiter);
    }
    match filled {
        Ok(()) => {
            let moved = vm.rings.used() != Some(before);
            if moved {
                vm.rings.state.moved();
            }
            moved
        }
        Err(e) => {
            if let Some(mut buffers) = vm.rings.buffers() {
                buffers.fail();
            }
            vm.ring_failed(&e);
            false
        }
    }
}

fn fill(vm: &mut GroupVm, rest: &mut Rest<'_>) -> Result<(), RingError> {
    vm.rings.count_posted()?;
    // Behind those that had nothing in this turn.
    let mut last = None;
    for _ in 0..MAX_SERVED {
        if vm.lists.ready.is_empty() && vm.resets.is_empty() {
            break;
        }
        let Some(mut buffers) = vm.rings.buffers() else { break };
        if buffers.room(0)?.is_none() {
            vm.rings.state.starve();
            break;
        }
        if let Some(h) = vm.resets.pop_front() {
            vm.counters.control_packets.add(1);
            buffers.finish(h);
            continue;
        }
        let Some(slot) = vm.lists.ready.pop() else { break };
        let before = rest.io.meter.passed();
        match serve(vm, slot, rest)? {
            Served::All | Served::Changes(_) => {}
            Served::Quota => vm.mark_ready(slot),
            Served::Limited if rest.io.meter.passed() == before => vm.lists.limited.push(slot),
            Served::Limited => last = Some(slot),
            Served::NoRoom => {
                vm.rings.state.starve();
                if vm.connections.has(slot) {
                    vm.lists.ready.push_front(slot);
                }
                break;
            }
        }
    }
    if let Some(slot) = last {
        vm.lists.limited.push(slot);
    }
    Ok(())
}

/// One connection's turn.
fn serve(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) -> Result<Served, RingError> {
    let mut quota = QUOTA_BYTES;
    let gated = vm.gate != Gate::Open;
    loop {
        let Some((mut at, rings, _)) = vm.parts(slot) else { return Ok(Served::All) };
        if gated && at.c.protocol.owes_beginning() {
            return Ok(Served::All);
        }
        let Some(mut buffers) = rings.buffers() else { return Ok(Served::All) };
        match steps(&mut at, &mut buffers, &mut quota, rest)? {
            Served::Changes(fate) => apply(vm, slot, fate, rest),
            served => return Ok(served),
        }
    }
}

/// Puts what a connection has for the guest into buffers, until its turn ends or it changes.
fn steps(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    quota: &mut usize,
    rest: &mut Rest<'_>,
) -> Result<Served, RingError> {
    loop {
        while at.c.has_control() {
            if buffers.room(0)?.is_none() {
                return Ok(Served::NoRoom);
            }
            let fate = control_out(at, buffers, rest);
            if fate != Fate::Stays {
                return Ok(Served::Changes(fate));
            }
        }
        if *quota == 0 {
            return Ok(Served::Quota);
        }
        if !rest.io.meter.has_room() && at.c.has_payload() {
            return Ok(Served::Limited);
        }
        let most = usize::try_from(rest.io.meter.bytes_left()).unwrap_or(usize::MAX).min(*quota);
        let step = if at.c.held.is_some() {
            deliver_held(at, buffers, rest)?
        } else if !at.c.protocol.takes_payload() || at.c.protocol.far().sends_no_more() {
            TurnStep::Nothing
        } else {
            match (at.c.kind, at.c.is_readable()) {
                (_, false) => TurnStep::Nothing,
                (Kind::Stream, true) => read_stream(at, buffers, most, rest)?,
                (Kind::SeqPacket, true) => read_message(at, buffers, rest)?,
            }
        };
        match step {
            TurnStep::NoRoom => return Ok(Served::NoRoom),
            TurnStep::Moved(n) => {
                rest.io.meter.pass(n);
                *quota = quota.saturating_sub(n.max(1));
            }
            TurnStep::TooLong => return Ok(Served::Changes(Fate::Broken)),
            // The step may have found an end, or that credit is missing.
            TurnStep::Nothing if at.c.has_control() => {}
            TurnStep::Nothing => return Ok(Served::All),
        }
    }
}

/// Sends the packet without payload that is due; there is a buffer for it.
fn control_out(at: &mut Current<'_>, buffers: &mut Buffers<'_>, rest: &mut Rest<'_>) -> Fate {
    let Some(control) = at.c.protocol.next_control(at.c.held.is_none()) else { return Fate::Stays };
    let (op, flags) = match control {
        ControlPacket::Request => (Op::Request, 0),
        ControlPacket::Response => (Op::Response, 0),
        ControlPacket::Update => (Op::CreditUpdate, 0),
        ControlPacket::Ask => (Op::CreditRequest, 0),
        ControlPacket::Shutdown(shut) => (Op::Shutdown, shut.flags()),
        ControlPacket::Rst => (Op::Rst, 0),
    };
    let header = at.header(op, &mut rest.others);
    buffers.finish(Header { flags, ..header });
    at.counters.control_packets.add(1);
    match control {
        ControlPacket::Rst => Fate::Gone,
        ControlPacket::Shutdown(Shut::BOTH) => at.c.await_end(|| rest.io.timers.now()),
        _ => Fate::Stays,
    }
}

/// Reads from a host program's stream into as many buffers as credit and quota allow, in one call.
fn read_stream(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    quota: usize,
    rest: &mut Rest<'_>,
) -> Result<TurnStep, RingError> {
    let Some(packet_room) = buffers.room(0)? else { return Ok(TurnStep::NoRoom) };
    let room = match at.c.protocol.stream_room(packet_room, || rest.io.timers.now()) {
        Ok(room) => room,
        Err(waits) => return Ok(await_room(waits, &mut rest.io.timers)),
    };
    let mut list = IoList::new(&mut rest.io.scratch.iov);
    let offered = buffers.offer(room.min(quota), &mut list)?;
    if offered == 0 {
        return Ok(TurnStep::NoRoom);
    }
    let Some(inlet) = at.c.inlet() else { return Ok(TurnStep::Nothing) };
    let outcome = socket::receive(&inlet.socket, &mut list);
    at.counters.receive.system_calls.add(1);
    match outcome {
        Ok(r) if r.len > 0 => {
            if r.len < offered && !r.interrupted {
                inlet.is_read();
            }
            finish_read(at, buffers, r.len, 0, &mut rest.others)?;
            return Ok(TurnStep::Moved(r.len));
        }
        Err(e) if socket::would_block(&e) => inlet.readable = false,
        outcome => {
            if outcome.is_err() {
                buffers.may_have_written(offered);
            }
            at.c.program_ends(outcome.is_err());
        }
    }
    Ok(TurnStep::Nothing)
}

/// Payload waits for the guest.
pub(super) fn await_room(waits: Waits, timers: &mut Timers) -> TurnStep {
    if let Some(after) = waits.again {
        timers.look_after(after);
    }
    TurnStep::Nothing
}

/// Writes the headers of packets whose payload of `len` bytes was read into the first buffers; the
/// last one has these flags.
pub(super) fn finish_read(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    len: usize,
    end: u32,
    others: &mut Others<'_>,
) -> Result<(), RingError> {
    let mut left = len;
    let mut packets = 0;
    let first = at.header(Op::Rw, others);
    while let Some(room) = buffers.room(0)? {
        let n = room.min(left);
        left -= n;
        let flags = if left == 0 { end } else { 0 };
        buffers.finish(Header { len: n as u32, flags, ..first });
        packets += 1;
        if left == 0 {
            break;
        }
    }
    let counters = &at.counters.receive;
    counters.frames.add(packets);
    counters.zero_copied_frames.add(packets);
    counters.zero_copied_bytes.add(len as u64);
    at.c.protocol.to.send(len as u32, packets as u32, true);
    Ok(())
}

/// Copies what waits for the guest's buffers into them.
fn deliver_held(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    rest: &mut Rest<'_>,
) -> Result<TurnStep, RingError> {
    let sibling = matches!(at.c.end, End::Sibling { .. });
    let reason = if sibling { CopyReason::Held } else { CopyReason::Message };
    let mut moved = 0;
    let step = loop {
        let done = if moved > 0 { TurnStep::Moved(moved) } else { TurnStep::Nothing };
        let Some(room) = buffers.room(0)? else { break TurnStep::NoRoom };
        let packet = match at.c.next_held(room, || rest.io.timers.now()) {
            Ok(Some(packet)) => packet,
            Ok(None) => break done,
            Err(waits) => {
                await_room(waits, &mut rest.io.timers);
                break done;
            }
        };
        let Some(held) = &at.c.held else { break done };
        let n = packet.len;
        let (mut room, mut skip) = (buffers.front(), HEADER_LEN);
        for run in held.runs(0, n) {
            access::pass(&mut room, &mut skip);
            access::write(room, skip, run);
            skip += run.len();
        }
        let empty = at.c.held_left(packet);
        let header = at.header(Op::Rw, &mut rest.others);
        buffers.finish(Header { len: n as u32, flags: packet.flags, ..header });
        at.counters.receive.frames.add(1);
        at.counters.receive.copied(reason, n as u64);
        moved += n.max(1);
        if empty || moved >= QUOTA_BYTES {
            break TurnStep::Moved(moved);
        }
    };
    tell(at.c, Signal::Delivered, rest);
    Ok(step)
}

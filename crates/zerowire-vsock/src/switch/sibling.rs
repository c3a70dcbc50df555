//! From one guest to another: payload, by one copy from the sender's buffers to the receiver's, and
//! signals.

use zerowire::ledger::{CopyReason, DropReason};
use zerowire_vhost::memory::{Segment, access};

use super::Rest;
use super::current::Current;
use super::fate::{apply, reset};
use crate::connection::{End, SignalOutcome, VsockConnection};
use crate::credit::FromGuest;
use crate::held::Held;
use crate::packet::{HEADER_LEN, Header, Kind, Op, SEQ_EOM};
use crate::protocol::{ANSWER_PATIENCE, Fate, Protocol, Signal};
use crate::rings::VmRings;
use crate::table::{ConnectionKey, SlotKey};
use crate::vm::GroupVm;

/// The guest asks another one for a connection.
pub(super) fn requested_of_sibling(
    vm: &mut GroupVm,
    h: &Header,
    mut connection: VsockConnection,
    rest: &mut Rest<'_>,
) {
    let other = rest.others.iter_mut().find(|other| {
        let reached = other.id.cid == h.dst_cid && other.id.shares_group(&vm.id);
        reached && other.is_running() && other.takes(connection.kind)
    });
    let Some(other) = other else { return vm.turn_down(h) };
    let key = ConnectionKey { port: h.dst_port, peer_cid: vm.id.cid, peer_port: h.src_port };
    // Taken: an old connection of these ports that is not yet over on the other side.
    if !other.has_place(key.peer_cid) || other.connections.is_taken(&key) {
        return vm.turn_down(h);
    }
    // What is sent waits on the other's side.
    connection.protocol.from = FromGuest::new(other.limits.buffer_bytes);
    let from = FromGuest::new(vm.limits.buffer_bytes);
    let timers = &mut rest.io.timers;
    let offered = VsockConnection::new(key, connection.kind, Protocol::offered(from, timers.now()));
    timers.look_after(ANSWER_PATIENCE);
    let place = other.insert(offered);
    connection.end = End::Sibling { vm: other.id.index, place };
    let own = vm.insert(connection);
    if let Some(c) = other.connections.at(place) {
        c.end = End::Sibling { vm: vm.id.index, place: own };
    }
    other.mark_ready(place.slot);
}

/// Tells the other guest's half of a connection, if there is one, what happened at this half.
/// Nothing else carries a signal.
pub(super) fn tell(c: &VsockConnection, signal: Signal, rest: &mut Rest<'_>) {
    let End::Sibling { vm, place } = c.end else { return };
    let Some(mut far) = rest.others.get(vm).and_then(|other| other.current_at(place)) else { return };
    match far.c.take_signal(signal, &c.protocol.to) {
        SignalOutcome::Nothing => {}
        SignalOutcome::Ready => far.mark_ready(),
        SignalOutcome::Opened => {
            far.count_opened();
            far.mark_ready();
        }
        SignalOutcome::Credit(review) => far.credit_reviewed(review),
        SignalOutcome::Resets => reset(&mut far, &mut rest.io.timers),
    }
}

/// Payload for another guest, to its half of the connection.
pub(super) fn pass_payload(
    vm: &mut GroupVm,
    slot: u32,
    far: (usize, SlotKey),
    h: &Header,
    segments: &[Segment],
    rest: &mut Rest<'_>,
) {
    let Some(mut at) = vm.current(slot) else { return };
    let far = rest.others.get(far.0).and_then(|other| other.parts_at(far.1));
    let fate = match far {
        Some((mut far, rings, _)) => pass(&mut at, &mut far, rings, h, segments),
        None => take(&mut at, h),
    };
    apply(vm, slot, fate, rest);
}

/// Takes credit for payload.
fn take(at: &mut Current<'_>, h: &Header) -> Fate {
    at.counters.transmit.frames.add(1);
    if at.c.protocol.from.receive(h.len) {
        return Fate::Stays;
    }
    at.dropped(DropReason::BeyondCredit);
    Fate::Broken
}

/// Passes payload on; what the other guest has no room for waits.
fn pass(
    at: &mut Current<'_>,
    far: &mut Current<'_>,
    rings: &mut VmRings,
    h: &Header,
    segments: &[Segment],
) -> Fate {
    at.c.protocol.from.follow(&far.c.protocol.to);
    let fate = take(at, h);
    // It may have said that it receives no more, or the connection is over.
    if fate != Fate::Stays || !far.c.protocol.takes_payload() {
        return fate;
    }
    // A message of no bytes takes no credit, and its mark waits all the same. All of them together
    // take no more than messages of one byte would.
    let most = far.limits.buffer_bytes as usize;
    let ends = h.len == 0 || h.flags & SEQ_EOM != 0;
    if ends && far.c.held.as_ref().is_some_and(|held| held.messages() > most) {
        at.dropped(DropReason::BeyondCredit);
        return Fate::Broken;
    }
    let len = h.len as usize;
    let done = copy_across(at.c, far, rings, h, segments);
    at.counters.transmit.copied(CopyReason::Sibling, done as u64);
    // An empty packet is the end of a message.
    if done < len || len == 0 {
        let held = Held::at(&mut far.c.held);
        let left = len - done;
        held.push(segments, HEADER_LEN + done, left);
        if far.c.kind == Kind::SeqPacket {
            held.mark(left as u32, (h.flags & SEQ_EOM != 0).then_some(h.flags));
        }
        far.mark_ready();
        at.counters.transmit.copied(CopyReason::Held, left as u64);
    }
    let review = at.c.protocol.from.sibling_took(&far.c.protocol.to);
    at.credit_reviewed(review);
    Fate::Stays
}

/// Copies as much of a packet as the other guest has buffers and credit for right now. Returns how
/// many bytes.
fn copy_across(
    c: &VsockConnection,
    far: &mut Current<'_>,
    rings: &mut VmRings,
    h: &Header,
    segments: &[Segment],
) -> usize {
    let len = h.len as usize;
    if far.c.held.is_some() || far.c.protocol.owes_beginning() || len == 0 {
        return 0;
    }
    let Some(mut buffers) = rings.buffers() else { return 0 };
    let mut done = 0;
    while done < len {
        let room = match buffers.room(0) {
            Ok(Some(room)) => room,
            Ok(None) => break,
            Err(e) => {
                buffers.fail();
                far.ring_failed(&e);
                break;
            }
        };
        let to = &mut far.c.protocol.to;
        let n = room.min(to.free() as usize).min(len - done);
        if n == 0 || !to.may_begin(far.c.kind, len - done, room) {
            break;
        }
        let whole = done + n == len && h.flags & SEQ_EOM != 0;
        to.send(n as u32, 1, far.c.kind == Kind::Stream || whole);
        access::copy(segments, HEADER_LEN + done, buffers.front(), HEADER_LEN, n);
        done += n;
        let flags = if done == len { h.flags } else { 0 };
        far.c.protocol.from.follow(&c.protocol.to);
        buffers.finish(Header { len: n as u32, flags, ..far.header_now(Op::Rw) });
        far.counters.receive.frames.add(1);
        far.counters.receive.copied(CopyReason::Sibling, n as u64);
    }
    done
}

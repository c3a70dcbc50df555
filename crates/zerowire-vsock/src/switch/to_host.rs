//! What guests send, to host programs' sockets: one call for all that lies one behind the other in
//! a batch.

use std::time::Instant;

use zerowire_vhost::memory::{IoList, Segment};

use super::current::Current;
use super::fate::apply;
use super::mapped::fill_windows;
use super::{Others, Rest};
use crate::connection::{End, Piece};
use crate::mapped::DirectChain;
use crate::packet::{HEADER_LEN, Op};
use crate::rings::VmRings;
use crate::socket::{self, MAX_IOV, MAX_MESSAGES};
use crate::table::ConnectionKey;
use crate::vm::GroupVm;

/// Packets of one connection, one behind the other, whose payload goes out in one call.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The connection's name and slot; None where nothing was collected.
    of: Option<(ConnectionKey, u32)>,
    /// Bytes and packets behind the last whole message.
    bytes: usize,
    packets: u64,
    /// The payload.
    parts: Vec<Segment>,
    /// Whole messages in it.
    messages: Vec<HeldMessage>,
    /// What is lent of the packet that was collected last.
    pub loan: Lendable,
}

impl Run {
    /// With room for a turn's packets.
    pub fn with_room() -> Self {
        let (parts, messages) = (Vec::with_capacity(1024), Vec::with_capacity(MAX_MESSAGES));
        Self { parts, messages, ..Self::default() }
    }

    /// The slot of the connection, if it has this name.
    #[inline]
    pub fn slot_of(&self, key: &ConnectionKey) -> Option<u32> {
        self.of.filter(|(k, _)| k == key).map(|(_, slot)| slot)
    }

    /// Whether a packet of `segments` segments can be collected behind the others, of this
    /// connection.
    #[inline]
    pub fn takes(&self, slot: u32, segments: usize) -> bool {
        self.of.is_some_and(|(_, s)| s == slot) && self.parts.len() + segments <= MAX_IOV
    }

    /// Begins with a connection; what was collected before has left.
    #[inline]
    pub fn begin(&mut self, key: ConnectionKey, slot: u32) {
        self.of = Some((key, slot));
    }

    /// Collects `len` bytes of payload, which lie behind the header. If `end` gives the flags of
    /// the last packet of a message, the message ends here. Returns whether no more can be
    /// collected.
    #[inline]
    pub fn collect(&mut self, segments: &[Segment], len: usize, end: Option<u32>) -> bool {
        let (mut skip, mut left) = (HEADER_LEN, len);
        for s in segments {
            let len = s.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(left);
            if n == 0 {
                break;
            }
            self.parts.push(Segment { ptr: s.ptr.wrapping_add(skip), len: n as u32, ..*s });
            left -= n;
            skip = 0;
        }
        self.bytes += len;
        self.packets += 1;
        if let Some(flags) = end {
            let (bytes, packets) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.packets));
            self.messages.push(HeldMessage { parts: self.parts.len(), bytes, packets, flags });
        }
        self.messages.len() == MAX_MESSAGES
    }
}

/// What a program with direct windows may keep of the guest's chains.
#[derive(Debug, Default)]
pub(super) struct Lendable {
    /// The chain of the packet in hand. What may be lent is never collected: its packet leaves
    /// before the next one is parsed.
    pub chain: DirectChain,
    /// True: it was lent.
    pub lent: bool,
    /// When this turn's first chain was lent: the clock is not asked for each.
    pub at: Option<Instant>,
}

/// A whole message among the packets that are being collected.
#[derive(Clone, Copy, Debug)]
struct HeldMessage {
    /// Where its payload ends among the parts.
    parts: usize,
    bytes: usize,
    packets: u64,
    /// Of its last packet.
    flags: u32,
}

/// Sends what was collected to the host program; what its socket refuses waits.
#[inline]
pub(super) fn flush(vm: &mut GroupVm, run: &mut Run, rest: &mut Rest<'_>) {
    if let Some((_, slot)) = run.of.take() {
        send(vm, slot, run, rest);
    }
}

fn send(vm: &mut GroupVm, slot: u32, run: &mut Run, rest: &mut Rest<'_>) {
    let Run { bytes, packets, parts, messages, loan, .. } = run;
    let sent = if messages.len() > 1 { send_messages(vm, slot, parts, messages, rest) } else { 0 };
    let mut at = messages[..sent].last().map_or(0, |m| m.parts);
    for m in &messages[sent..] {
        let (bytes, packets, end) = (m.bytes, m.packets, Some(m.flags));
        send_piece(vm, slot, Piece { parts: &parts[at..m.parts], bytes, packets, end }, loan, rest);
        at = m.parts;
    }
    let (bytes, packets) = (std::mem::take(bytes), std::mem::take(packets));
    if packets > 0 {
        send_piece(vm, slot, Piece { parts: &parts[at..], bytes, packets, end: None }, loan, rest);
    }
    parts.clear();
    messages.clear();
}

/// Sends as many of the messages as the host program's socket takes by one call; returns how many.
/// Why it does not take the next one is found out by sending that by itself.
fn send_messages(
    vm: &mut GroupVm,
    slot: u32,
    parts: &[Segment],
    messages: &[HeldMessage],
    rest: &mut Rest<'_>,
) -> usize {
    let Some((mut at, rings, _)) = vm.parts(slot) else { return 0 };
    let End::Host(host) = &mut at.c.end else { return 0 };
    if !host.out.is_free() {
        return 0;
    }
    let Some(last) = messages.last() else { return 0 };
    let mut list = IoList::new(&mut rest.io.scratch.iov);
    parts[..last.parts].iter().for_each(|part| list.add(&rings.memory, part));
    let counters = &at.counters.transmit;
    counters.system_calls.add(1);
    let ends = messages.iter().map(|m| m.parts);
    let sent = socket::send_messages(&host.inlet.socket, &list, ends).unwrap_or(0);
    let sum = |(bytes, packets), m: &HeldMessage| (bytes + m.bytes, packets + m.packets);
    let (bytes, packets) = messages[..sent].iter().fold((0, 0), sum);
    counters.frames.add(packets);
    counters.zero_copied_frames.add(packets);
    counters.zero_copied_bytes.add(bytes as u64);
    host.out.credit.took(bytes);
    if sent > 0 {
        rest.io.last_sender = Some((at.id.index, slot));
        let fate = at.tell_credit(&rest.io.watch);
        apply(vm, slot, fate, rest);
    }
    sent
}

/// Sends a part of a stream, or of a message.
fn send_piece(vm: &mut GroupVm, slot: u32, piece: Piece<'_>, loan: &mut Lendable, rest: &mut Rest<'_>) {
    // Resets go before credit.
    let may_tell = vm.resets.is_empty();
    let Some((mut at, rings, loans)) = vm.parts(slot) else { return };
    if at.c.may_promise(&piece) && may_tell {
        promise_room(&mut at, rings, piece.bytes as u32, &mut rest.others);
    }
    let from = (at.id.index, slot);
    let fate = match &mut at.c.end {
        _ if at.c.protocol.far().receives_no_more() => return at.c.protocol.from.forward(piece.bytes as u32),
        End::Host(host) => {
            rest.io.last_sender = Some(from);
            let list = &mut rest.io.scratch.iov;
            match host.send(at.c.kind, &piece, &rings.memory, list, &at.counters.transmit) {
                Ok(false) => at.tell_credit(&rest.io.watch),
                Ok(true) => at.flush_held(rest.io).or(at.tell_credit(&rest.io.watch)),
                Err(e) => {
                    at.c.protocol.from.forward(host.out.credit.lost(piece.bytes as u32));
                    at.host_refuses(&e, &rest.io.timers)
                }
            }
        }
        End::Mapped(_) => {
            rest.io.last_sender = Some(from);
            at.counters.transmit.frames.add(piece.packets);
            fill_windows(&mut at, piece, loan, rings, loans, rest.io)
        }
        _ => return at.c.protocol.from.forward(piece.bytes as u32),
    };
    apply(vm, slot, fate, rest);
}

/// Gives the guest of a stream its credit back before the host program's socket has the bytes,
/// where that has room for them. A guest whose credit one packet uses up gets the next one ready
/// while the kernel copies this one. Should the socket not take all of them (the system has no
/// memory), the rest is held. No such promise is made until it is gone.
fn promise_room(at: &mut Current<'_>, rings: &mut VmRings, bytes: u32, others: &mut Others<'_>) {
    if rings.state.is_starved() {
        return;
    }
    let Some(mut buffers) = rings.buffers() else { return };
    match buffers.room(0) {
        Ok(Some(_)) => {}
        Ok(None) => return,
        Err(e) => {
            buffers.fail();
            return at.ring_failed(&e);
        }
    }
    at.c.promise(bytes);
    let header = at.header(Op::CreditUpdate, others);
    at.counters.control_packets.add(1);
    buffers.finish(header);
    if buffers.publish() {
        at.counters.receive.calls.add(1);
    }
}

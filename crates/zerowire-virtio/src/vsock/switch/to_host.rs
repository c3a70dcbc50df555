//! What guests send, to host programs' sockets: one call for all that lies one behind the other in a batch.

use std::time::Instant;

use super::Switch;
use crate::memory::Segment;
use crate::vsock::connection::{End, Piece, entry};
use crate::vsock::mapped::Lent;
use crate::vsock::packet::{HEADER_LEN, Op};
use crate::vsock::socket::{self, MAX_IOV};
use crate::vsock::table::Key;

/// Messages that go out in one call at most.
const MAX_MESSAGES: usize = socket::MAX_MESSAGES;

/// Packets of one connection, one behind the other, whose payload goes out in one call.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The connection's name and slot; None where nothing was collected.
    of: Option<(Key, u32)>,
    /// Bytes and packets behind the last whole message.
    bytes: usize,
    packets: u64,
    /// The payload.
    parts: Vec<Segment>,
    /// Whole messages in it.
    messages: Vec<Message>,
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
    pub fn slot_of(&self, key: &Key) -> Option<u32> {
        self.of.filter(|(k, _)| k == key).map(|(_, slot)| slot)
    }

    /// Whether a packet of so many segments can be collected behind the others, of this connection.
    #[inline]
    pub fn takes(&self, slot: u32, segments: usize) -> bool {
        self.of.is_some_and(|(_, s)| s == slot) && self.parts.len() + segments <= MAX_IOV
    }

    /// Begins with a connection; what was collected before has left.
    #[inline]
    pub fn begin(&mut self, key: Key, slot: u32) {
        self.of = Some((key, slot));
    }

    /// Collects `len` bytes of payload, which lie behind the header. If `end` gives the flags of the
    /// last packet of a message, the message ends here. Returns whether no more can be collected.
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
            self.messages.push(Message { parts: self.parts.len(), bytes, packets, flags });
        }
        self.messages.len() == MAX_MESSAGES
    }
}

/// What a program with direct windows may keep of the guest's chains.
#[derive(Debug, Default)]
pub(super) struct Lendable {
    /// The chain of the packet that is looked at. What may be lent is never collected: its packet
    /// leaves before the next one is looked at.
    pub chain: Lent,
    /// True: it was lent.
    pub lent: bool,
    /// When this turn's first chain was lent: the clock is not asked for each.
    pub at: Option<Instant>,
}

/// A whole message among the packets that are being collected.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Where its payload ends among the parts.
    parts: usize,
    bytes: usize,
    packets: u64,
    /// Of its last packet.
    flags: u32,
}

impl Switch {
    /// Sends what was collected to the host program; what its socket refuses waits.
    pub(super) fn flush(&mut self, v: usize, run: &mut Run) {
        let Some((_, slot)) = run.of.take() else { return };
        let Run { bytes, packets, parts, messages, loan, .. } = run;
        let sent = if messages.len() > 1 { self.send_messages(v, slot, parts, messages) } else { 0 };
        let mut at = messages[..sent].last().map_or(0, |m| m.parts);
        for m in &messages[sent..] {
            let (bytes, packets, end) = (m.bytes, m.packets, Some(m.flags));
            self.send_piece(v, slot, Piece { parts: &parts[at..m.parts], bytes, packets, end }, loan);
            at = m.parts;
        }
        let (bytes, packets) = (std::mem::take(bytes), std::mem::take(packets));
        if packets > 0 {
            self.send_piece(v, slot, Piece { parts: &parts[at..], bytes, packets, end: None }, loan);
        }
        parts.clear();
        messages.clear();
    }

    /// Sends as many of the messages as the host program's socket takes by one call; returns how many. Why it does not take the
    /// next one is found out by sending that by itself.
    fn send_messages(&mut self, v: usize, slot: u32, parts: &[Segment], messages: &[Message]) -> usize {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return 0 };
        let End::Host(host) = &mut c.end else { return 0 };
        if !host.out.is_free() {
            return 0;
        }
        let Some(last) = messages.last() else { return 0 };
        self.io.scratch.iov.clear();
        self.io.scratch.iov.extend(parts[..last.parts].iter().map(entry));
        vm.counters.transmit.system_calls.add(1);
        let ends = messages.iter().map(|m| m.parts);
        // SAFETY: the parts lie in the memory that this turn holds.
        let sent =
            unsafe { socket::send_messages(&host.inlet.socket, &self.io.scratch.iov, ends) }.unwrap_or(0);
        let sum = |(bytes, packets), m: &Message| (bytes + m.bytes, packets + m.packets);
        let (bytes, packets) = messages[..sent].iter().fold((0, 0), sum);
        vm.counters.transmit.frames.add(packets);
        vm.counters.transmit.zero_copied_frames.add(packets);
        vm.counters.transmit.zero_copied_bytes.add(bytes as u64);
        host.out.credit.took(bytes);
        if sent > 0 {
            self.io.last_sender = Some((v, slot));
            self.tell_credit(v, slot);
        }
        sent
    }

    /// Sends a part of a stream, or of a message.
    fn send_piece(&mut self, v: usize, slot: u32, piece: Piece<'_>, loan: &mut Lendable) {
        self.promise_room(v, slot, &piece);
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        let reads_no_more = c.protocol.far().receives_no_more();
        let host = match &mut c.end {
            End::Host(host) if !reads_no_more => host,
            End::Mapped(_) if !reads_no_more => {
                vm.counters.transmit.frames.add(piece.packets);
                self.io.last_sender = Some((v, slot));
                return self.fill_windows(v, slot, piece, loan);
            }
            _ => return c.protocol.from.forward(piece.bytes as u32),
        };
        self.io.last_sender = Some((v, slot));
        // SAFETY: the parts lie in the memory that this turn holds.
        match unsafe { host.send(c.kind, &piece, &mut self.io.scratch.iov, &vm.counters.transmit) } {
            Ok(false) => {}
            Ok(true) => self.flush_held(v, slot),
            Err(e) => {
                c.protocol.from.forward(host.out.credit.lost(piece.bytes as u32));
                return self.host_refuses(v, slot, &e);
            }
        }
        self.tell_credit(v, slot);
    }

    /// Gives the guest of a stream its credit back before the host program's socket has the bytes, where that has room for them: a
    /// guest whose credit one packet uses up gets the next one ready while the kernel copies this one. Should the socket not take all
    /// of them (the system has no memory), the rest is held, and there is no such promise until it is gone.
    fn promise_room(&mut self, v: usize, slot: u32, piece: &Piece<'_>) {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        if !c.may_promise(piece) {
            return;
        }
        let memory = vm.rings.memory.clone();
        let free = !vm.rings.state.is_starved() && vm.resets.is_empty();
        let Some(rx) = vm.rings.rx.as_mut().filter(|r| free && r.queue.is_active()) else { return };
        match rx.room(0, &memory) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(e) => {
                rx.queue.publish();
                rx.queue.fail();
                return self.ring_failed(v, &e);
            }
        }
        c.promise(piece.bytes as u32);
        let header = self.header(v, slot, Op::CreditUpdate, 0, 0);
        let vm = &mut self.vms[v];
        vm.counters.control_packets.add(1);
        let Some(rx) = &mut vm.rings.rx else { return };
        rx.finish(header, &memory);
        if rx.queue.publish() {
            vm.counters.receive.calls.add(1);
        }
    }
}

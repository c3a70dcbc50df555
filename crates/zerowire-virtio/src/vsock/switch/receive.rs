//! To a guest's receive queue.

use std::time::Instant;

use zerowire::ledger::CopyReason;

use super::{Gate, Switch};
use crate::memory::{GuestMemory, access};
use crate::ring::RingError;
use crate::vsock::connection::End;
use crate::vsock::packet::{HEADER_LEN, Kind, Op};
use crate::vsock::protocol::{CLOSE_PATIENCE, ControlPacket, Shut, Waits};
use crate::vsock::queues::Receive;
use crate::vsock::socket;

/// Connections of a VM that are served in a turn.
const MAX_SERVED: usize = 64;

/// Bytes of a connection in a turn.
const QUOTA_BYTES: usize = 256 << 10;

/// What became of a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// Nothing is left to do for now.
    All,
    /// There may be more.
    Quota,
    /// The guest has no buffer left.
    NoRoom,
}

/// What a step moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Moved(usize),
    NoRoom,
}

impl Switch {
    /// Gives the guest what waits for it. Returns whether anything moved.
    pub fn receive(&mut self, v: usize) -> bool {
        let vm = &mut self.vms[v];
        if (vm.lists.ready.is_empty() && vm.resets.is_empty()) || !vm.rings.have_buffers_again() {
            return false;
        }
        let Some(mut rx) = vm.rings.rx.take() else { return false };
        if !rx.queue.is_active() {
            self.vms[v].rings.rx = Some(rx);
            return false;
        }
        let memory = vm.rings.memory.clone();
        let outcome = self.fill(v, &mut rx, &memory);
        if outcome.is_err() {
            rx.queue.publish();
            rx.queue.fail();
        }
        self.vms[v].rings.rx = Some(rx);
        match outcome {
            Ok(moved) => moved,
            Err(e) => {
                self.ring_failed(v, &e);
                false
            }
        }
    }

    fn fill(&mut self, v: usize, rx: &mut Receive, memory: &GuestMemory) -> Result<bool, RingError> {
        let before = rx.queue.ring.next_used();
        self.vms[v].rings.count_posted(rx)?;
        for _ in 0..MAX_SERVED {
            if self.vms[v].lists.ready.is_empty() && self.vms[v].resets.is_empty() {
                break;
            }
            if rx.room(0, memory)?.is_none() {
                self.vms[v].rings.state.starve();
                break;
            }
            if let Some(h) = self.vms[v].resets.pop_front() {
                self.vms[v].counters.control_packets.add(1);
                rx.finish(h, memory);
                continue;
            }
            let Some(slot) = self.vms[v].lists.ready.pop() else { break };
            match self.serve(v, slot, rx, memory)? {
                Served::All => {}
                Served::Quota => self.vms[v].mark_ready(slot),
                Served::NoRoom => {
                    let vm = &mut self.vms[v];
                    vm.rings.state.starve();
                    if vm.connections.has(slot) {
                        vm.lists.ready.push_front(slot);
                    }
                    break;
                }
            }
        }
        let moved = rx.queue.ring.next_used() != before;
        if moved {
            self.vms[v].rings.state.moved();
        }
        Ok(moved)
    }

    /// One connection's turn.
    fn serve(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Served, RingError> {
        let mut quota = QUOTA_BYTES;
        let gated = self.vms[v].gate != Gate::Open;
        if gated && self.connection(v, slot).is_some_and(|c| c.protocol.owes_beginning()) {
            return Ok(Served::All);
        }
        loop {
            loop {
                let Some(c) = self.connection(v, slot) else { return Ok(Served::All) };
                if !c.protocol.has_control(c.held.is_none()) {
                    break;
                }
                if rx.room(0, memory)?.is_none() {
                    return Ok(Served::NoRoom);
                }
                self.control_out(v, slot, rx, memory);
            }
            if quota == 0 {
                return Ok(Served::Quota);
            }
            let Some(c) = self.connection(v, slot) else { return Ok(Served::All) };
            let step = if c.held.is_some() {
                self.deliver_held(v, slot, rx, memory)?
            } else if !c.protocol.takes_payload() || c.protocol.far().sends_no_more() {
                Step::Nothing
            } else {
                match (c.kind, c.is_readable()) {
                    (_, false) => Step::Nothing,
                    (Kind::Stream, true) => self.read_stream(v, slot, rx, memory, quota)?,
                    (Kind::SeqPacket, true) => self.read_message(v, slot, rx, memory)?,
                }
            };
            match step {
                Step::NoRoom => return Ok(Served::NoRoom),
                Step::Moved(n) => quota = quota.saturating_sub(n.max(1)),
                Step::Nothing => match self.connection(v, slot) {
                    // The step may have found an end, or that credit is missing.
                    Some(c) if c.protocol.has_control(c.held.is_none()) => {}
                    _ => return Ok(Served::All),
                },
            }
        }
    }

    /// Sends the packet without payload that is due; there is a buffer for it.
    fn control_out(&mut self, v: usize, slot: u32, rx: &mut Receive, memory: &GuestMemory) {
        let Some(c) = self.connection(v, slot) else { return };
        let Some(control) = c.protocol.next_control(c.held.is_none()) else { return };
        let (op, flags) = match control {
            ControlPacket::Request => (Op::Request, 0),
            ControlPacket::Response => (Op::Response, 0),
            ControlPacket::Update => (Op::CreditUpdate, 0),
            ControlPacket::Ask => (Op::CreditRequest, 0),
            ControlPacket::Shutdown(shut) => (Op::Shutdown, shut.flags()),
            ControlPacket::Rst => (Op::Rst, 0),
        };
        let header = self.header(v, slot, op, 0, flags);
        rx.finish(header, memory);
        self.vms[v].counters.control_packets.add(1);
        match control {
            ControlPacket::Rst => {
                self.end_of(v, slot);
                self.remove(v, slot);
            }
            ControlPacket::Shutdown(Shut::BOTH) => self.await_end(v, slot),
            _ => {}
        }
    }

    /// The guest knows that the host program is gone: it has a while to say so.
    fn await_end(&mut self, v: usize, slot: u32) {
        let now = self.io.timers.now();
        let Some(c) = self.connection(v, slot) else { return };
        if matches!(c.end, End::Sibling { .. }) {
            return;
        }
        c.drop_held_for_program();
        c.protocol.await_end(now);
        self.end_of(v, slot);
        self.io.timers.look_after(CLOSE_PATIENCE);
        self.settle(v, slot);
    }

    /// Reads from a host program's stream into as many buffers as credit and quota allow, in one call.
    fn read_stream(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
        quota: usize,
    ) -> Result<Step, RingError> {
        let Some(packet_room) = rx.room(0, memory)? else { return Ok(Step::NoRoom) };
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(Step::Nothing) };
        let room = match c.protocol.stream_room(packet_room, || self.io.timers.now()) {
            Ok(room) => room,
            Err(waits) => return Ok(self.await_room(waits)),
        };
        self.io.scratch.iov.clear();
        let offered = rx.offer(room.min(quota), memory, &mut self.io.scratch.iov)?;
        if offered == 0 {
            return Ok(Step::NoRoom);
        }
        let Some(inlet) = c.inlet() else { return Ok(Step::Nothing) };
        // SAFETY: the list names guest memory that this turn holds.
        let outcome = unsafe { socket::receive(&inlet.socket, &self.io.scratch.iov) };
        self.vms[v].counters.receive.system_calls.add(1);
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(Step::Nothing) };
        match outcome {
            Ok(r) if r.len > 0 => {
                if let Some(inlet) = c.inlet()
                    && r.len < offered
                    && !r.interrupted
                {
                    inlet.is_read();
                }
                self.finish_read(v, slot, rx, memory, r.len, None)?;
                Ok(Step::Moved(r.len))
            }
            Err(e) if socket::would_block(&e) => {
                if let Some(inlet) = c.inlet() {
                    inlet.readable = false;
                }
                Ok(Step::Nothing)
            }
            outcome => {
                if outcome.is_err() {
                    rx.may_have_written(offered, memory);
                }
                c.program_ends(outcome.is_err());
                Ok(Step::Nothing)
            }
        }
    }

    /// Payload waits for the guest.
    pub(super) fn await_room(&mut self, waits: Waits) -> Step {
        if let Some(after) = waits.again {
            self.io.timers.look_after(after);
        }
        Step::Nothing
    }

    /// Asks a guest again, if it is time.
    pub(super) fn ask_again(&mut self, v: usize, slot: u32, now: Instant) {
        let Some(c) = self.vms[v].connections.get(slot) else { return };
        let Some((due, left)) = c.protocol.ask_again(now) else { return };
        if due {
            self.vms[v].mark_ready(slot);
        }
        self.io.timers.look_after(left);
    }

    /// Writes the headers of packets whose payload of `len` bytes was read into the first buffers.
    pub(super) fn finish_read(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
        len: usize,
        message: Option<u32>,
    ) -> Result<(), RingError> {
        let mut left = len;
        let mut packets = 0;
        let first = self.header(v, slot, Op::Rw, 0, 0);
        while let Some(room) = rx.room(0, memory)? {
            let n = room.min(left);
            left -= n;
            let flags = if left == 0 { message.unwrap_or(0) } else { 0 };
            rx.finish(crate::vsock::packet::Header { len: n as u32, flags, ..first }, memory);
            packets += 1;
            if left == 0 {
                break;
            }
        }
        let vm = &mut self.vms[v];
        vm.counters.receive.frames.add(packets);
        vm.counters.receive.zero_copied_frames.add(packets);
        vm.counters.receive.zero_copied_bytes.add(len as u64);
        if let Some(c) = vm.connections.get(slot) {
            c.protocol.to.send(len as u32, packets as u32, true);
        }
        Ok(())
    }

    /// Copies what waits for the guest's buffers into them.
    fn deliver_held(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Step, RingError> {
        let mut moved = 0;
        loop {
            let Some(room) = rx.room(0, memory)? else {
                self.tell_sender_of(v, slot);
                return Ok(Step::NoRoom);
            };
            let Some(c) = self.vms[v].connections.get(slot) else { break };
            let sibling = matches!(c.end, End::Sibling { .. });
            let packet = match c.next_held(room, || self.io.timers.now()) {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(waits) => {
                    self.await_room(waits);
                    break;
                }
            };
            let Some(held) = &c.held else { break };
            let n = packet.len;
            let (mut room, mut skip) = (rx.front(), HEADER_LEN);
            for run in held.runs(0, n) {
                access::pass(&mut room, &mut skip);
                access::write(room, skip, run);
                skip += run.len();
            }
            let empty = c.held_left(packet);
            let header = self.header(v, slot, Op::Rw, n as u32, packet.flags);
            rx.finish(header, memory);
            let counters = &self.vms[v].counters.receive;
            counters.frames.add(1);
            counters.copied(if sibling { CopyReason::Held } else { CopyReason::Message }, n as u64);
            moved += n.max(1);
            if empty || moved >= QUOTA_BYTES {
                break;
            }
        }
        self.tell_sender_of(v, slot);
        Ok(if moved > 0 { Step::Moved(moved) } else { Step::Nothing })
    }
}

//! What guests send, to host programs' sockets: one call for all that lies one behind the other in a batch.

use zerowire::ledger::CopyReason;

use super::Switch;
use crate::memory::Segment;
use crate::vsock::connection::End;
use crate::vsock::held::Held;
use crate::vsock::packet::{Kind, Op};
use crate::vsock::socket::{self, MAX_IOV};
use crate::vsock::table::Key;

/// Messages that go out in one call at most.
pub(super) const MAX_MESSAGES: usize = socket::MAX_MESSAGES;

/// Packets of one connection, one behind the other, whose payload goes out in one call. Of messages these are the ones behind
/// the last whole message.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub key: Key,
    pub slot: u32,
    pub bytes: usize,
    pub packets: u64,
}

/// A whole message among the packets that are being collected.
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// Where its payload ends among the parts.
    pub parts: usize,
    pub bytes: usize,
    pub packets: u64,
    /// Of its last packet.
    pub flags: u32,
}

impl Switch {
    /// Sends what was collected to the host program; what its socket refuses waits.
    pub(super) fn flush(&mut self, v: usize, run: &mut Option<Run>) {
        let Some(run) = run.take() else { return };
        let (parts, messages) = (std::mem::take(&mut self.parts), std::mem::take(&mut self.messages));
        let sent = if messages.len() > 1 { self.send_messages(v, run.slot, &parts, &messages) } else { 0 };
        let mut at = messages[..sent].last().map_or(0, |m| m.parts);
        for m in &messages[sent..] {
            self.send_run(
                v,
                Run { bytes: m.bytes, packets: m.packets, ..run },
                Some(m.flags),
                &parts[at..m.parts],
            );
            at = m.parts;
        }
        if run.packets > 0 {
            self.send_run(v, run, None, &parts[at..]);
        }
        (self.parts, self.messages) = (parts, messages);
        self.parts.clear();
        self.messages.clear();
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
        self.iov.clear();
        self.iov.extend(parts[..last.parts].iter().map(entry));
        vm.counters.transmit.system_calls.add(1);
        let ends = messages.iter().map(|m| m.parts);
        // SAFETY: the parts lie in the memory that this turn holds.
        let sent = unsafe { socket::send_messages(&host.inlet.socket, &self.iov, ends) }.unwrap_or(0);
        let sum = |(bytes, packets), m: &Message| (bytes + m.bytes, packets + m.packets);
        let (bytes, packets) = messages[..sent].iter().fold((0, 0), sum);
        vm.counters.transmit.frames.add(packets);
        vm.counters.transmit.zero_copied_frames.add(packets);
        vm.counters.transmit.zero_copied_bytes.add(bytes as u64);
        host.out.credit.took(bytes);
        if sent > 0 {
            self.last_sender = Some((v, slot));
            self.tell_credit(v, slot);
        }
        sent
    }

    /// Sends a part of a stream, or of a message, the last one if `end` gives the flags of that.
    fn send_run(&mut self, v: usize, run: Run, end: Option<u32>, parts: &[Segment]) {
        self.promise_room(v, &run, parts.len());
        let vm = &mut self.vms[v];
        let counters = vm.counters.clone();
        let Some(c) = vm.connections.get(run.slot) else { return };
        let kind = c.kind;
        let reads_no_more = c.protocol.far().receives_no_more();
        let host = match &mut c.end {
            End::Host(host) if !reads_no_more => host,
            End::Mapped(_) if !reads_no_more => {
                counters.transmit.frames.add(run.packets);
                self.last_sender = Some((v, run.slot));
                return self.fill_windows(v, run.slot, parts, run.bytes, end);
            }
            _ => return c.protocol.from.forward(run.bytes as u32),
        };
        counters.transmit.frames.add(run.packets);
        self.last_sender = Some((v, run.slot));
        // A message goes whole or not at all.
        let direct = host.out.is_free() && parts.len() <= MAX_IOV;
        let whole = kind == Kind::Stream || end.is_some();
        let (mut sent, mut taken) = (0, false);
        if direct && whole {
            self.iov.clear();
            self.iov.extend(parts.iter().map(entry));
            counters.transmit.system_calls.add(1);
            // SAFETY: the parts lie in the memory that this turn holds.
            match unsafe { socket::send(&host.inlet.socket, &self.iov) } {
                Ok(n) => (sent, taken) = (n, n == run.bytes),
                Err(e) if socket::would_block(&e) => {}
                Err(e) => {
                    c.protocol.from.forward(host.out.credit.lost(run.bytes as u32));
                    return self.host_refuses(v, run.slot, &e);
                }
            }
            host.out.wrote(taken);
        }
        counters.transmit.zero_copied_bytes.add(sent as u64);
        host.out.credit.took(sent);
        let rest = run.bytes - sent;
        if taken {
            counters.transmit.zero_copied_frames.add(run.packets);
        } else {
            let held = Held::at(&mut host.out.held);
            // The last part of a message waited for nobody but itself.
            let whole = whole && !held.has_partial();
            held.push(parts, sent, rest);
            if kind == Kind::SeqPacket {
                held.mark(rest as u32, end);
            }
            let reason = if whole { CopyReason::Held } else { CopyReason::Message };
            counters.transmit.copied(reason, rest as u64);
            self.flush_held(v, run.slot);
        }
        self.tell_credit(v, run.slot);
    }

    /// Gives the guest of a stream its credit back before the host program's socket has the bytes, where that has room for them: a
    /// guest whose credit one packet uses up gets the next one ready while the kernel copies this one. Should the socket not take all
    /// of them (the system has no memory), the rest is held, and there is no such promise until it is gone.
    fn promise_room(&mut self, v: usize, run: &Run, parts: usize) {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(run.slot) else { return };
        let bytes = run.bytes as u32;
        if !c.protocol.from.lacks(bytes) || c.kind != Kind::Stream || parts > MAX_IOV {
            return;
        }
        let quiet = c.protocol.is_quiet();
        let End::Host(host) = &mut c.end else { return };
        if !quiet || !host.out.surely_takes(bytes) {
            return;
        }
        let memory = vm.memory.clone();
        let Some(rx) = vm.rx.as_mut().filter(|r| r.queue.is_active() && !vm.starved && vm.resets.is_empty())
        else {
            return;
        };
        match rx.room(0, &memory) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(e) => {
                rx.queue.publish();
                rx.queue.fail();
                return self.ring_failed(v, &e);
            }
        }
        host.out.credit.promise(bytes);
        c.protocol.from.forward(bytes);
        let header = self.header(v, run.slot, Op::CreditUpdate, 0, 0);
        let vm = &mut self.vms[v];
        vm.counters.control_packets.add(1);
        let Some(rx) = &mut vm.rx else { return };
        rx.finish(header, &memory);
        if rx.queue.publish() {
            vm.counters.receive.calls.add(1);
        }
    }
}

fn entry(s: &Segment) -> libc::iovec {
    libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len as usize }
}

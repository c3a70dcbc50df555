//! Messages of host programs, to a guest's receive queue.

use super::Switch;
use super::receive::Step;
use crate::memory::GuestMemory;
use crate::ring::RingError;
use crate::vsock::held::{self, Held};
use crate::vsock::packet::{HEADER_LEN, SEQ_EOM};
use crate::vsock::queues::Receive;
use crate::vsock::socket;

/// The longest message that a host program may send, bytes.
pub(super) const MAX_MESSAGE: usize = 1 << 20;
// One that waits is read into pieces by one call.
const _: () = assert!(MAX_MESSAGE <= socket::MAX_IOV * held::PIECE);

impl Switch {
    /// Reads a host program's next message, if the guest may take it whole.
    pub(super) fn read_message(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Step, RingError> {
        let inlet = self.vms[v].connections.get(slot).and_then(|c| c.inlet());
        if let Some(longest) = inlet.and_then(|i| i.forecast.expected())
            && let Some(step) = self.read_expected(v, slot, longest, rx, memory)?
        {
            return Ok(step);
        }
        let Some(packet_room) = rx.room(0, memory)? else { return Ok(Step::NoRoom) };
        let counters = self.vms[v].counters.clone();
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(Step::Nothing) };
        let most = (c.protocol.to.alloc() as usize).min(MAX_MESSAGE);
        let Some(inlet) = c.inlet() else { return Ok(Step::Nothing) };
        counters.receive.system_calls.add(1);
        let len = match socket::peek_message(&inlet.socket) {
            Ok(0) if socket::has_ended(&inlet.socket) => {
                c.program_ends(false);
                return Ok(Step::Nothing);
            }
            Ok(len) => len,
            Err(e) if socket::would_block(&e) => {
                inlet.readable = false;
                return Ok(Step::Nothing);
            }
            Err(e) if inlet.closes_unread(&e) => return Ok(Step::Moved(0)),
            Err(_) => {
                c.program_ends(true);
                return Ok(Step::Nothing);
            }
        };
        if len > most {
            return Ok(self.too_long(v, slot, len, most));
        }
        let whole = match c.protocol.message_room(len, packet_room, || self.io.timers.now()) {
            Ok(whole) => whole,
            Err(waits) => return Ok(self.await_room(waits)),
        };
        let Some(inlet) = c.inlet() else { return Ok(Step::Nothing) };
        self.io.scratch.iov.clear();
        let offered = rx.offer(len, memory, &mut self.io.scratch.iov)?;
        // An empty message takes a buffer, too.
        if rx.room(0, memory)?.is_none() || (offered == 0 && len > 0) {
            return Ok(Step::NoRoom);
        }
        inlet.forecast.came(len as u32);
        counters.receive.system_calls.add(1);
        if offered == len && whole {
            // SAFETY: the list names guest memory that this turn holds.
            match unsafe { socket::receive(&inlet.socket, &self.io.scratch.iov) } {
                Ok(r) if r.len == len => {
                    self.finish_read(v, slot, rx, memory, len, Some(SEQ_EOM))?;
                    return Ok(Step::Moved(len));
                }
                // After the look at the message, which still waits.
                Err(e) if inlet.closes_unread(&e) => return Ok(Step::Moved(0)),
                _ => {}
            }
            rx.may_have_written(offered, memory);
            c.program_ends(true);
            return Ok(Step::Nothing);
        }
        // Too few buffers or too little credit for the moment, and a socket gives a message whole
        // or not at all.
        self.io.scratch.iov.clear();
        let mut held = None;
        let entry = |run: &mut [u8]| libc::iovec { iov_base: run.as_mut_ptr().cast(), iov_len: run.len() };
        Held::at(&mut held).make_room(len, |run| self.io.scratch.iov.push(entry(run)));
        // SAFETY: the list names the room that was just made in `held`, which nobody else knows of.
        match unsafe { socket::receive(&inlet.socket, &self.io.scratch.iov) } {
            Ok(r) if r.len == len => {
                Held::at(&mut held).mark(len as u32, Some(SEQ_EOM));
                c.held = held;
                return Ok(Step::Moved(0));
            }
            Err(e) if inlet.closes_unread(&e) => return Ok(Step::Moved(0)),
            _ => {}
        }
        c.program_ends(true);
        Ok(Step::Nothing)
    }

    /// As [`Self::read_message`], by one call in place of two, into buffers for `longest` bytes or
    /// more. None if there are too few, or too little credit.
    fn read_expected(
        &mut self,
        v: usize,
        slot: u32,
        longest: usize,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Option<Step>, RingError> {
        let counters = self.vms[v].counters.clone();
        let Some(room) = rx.room(0, memory)? else { return Ok(Some(Step::NoRoom)) };
        if self.io.scratch.beyond.is_empty() {
            // One byte more, so that a message that is too long for all is known by its length.
            self.io.scratch.beyond = vec![0; MAX_MESSAGE + 1];
        }
        let rest = libc::iovec {
            iov_base: self.io.scratch.beyond.as_mut_ptr().cast(),
            iov_len: self.io.scratch.beyond.len(),
        };
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(None) };
        let (free, most) = (c.protocol.to.free() as usize, (c.protocol.to.alloc() as usize).min(MAX_MESSAGE));
        let wanted = room.max(longest);
        let goes = wanted <= free && c.protocol.to.message_may_begin(wanted, room);
        let Some(inlet) = c.inlet() else { return Ok(None) };
        self.io.scratch.iov.clear();
        let offered = if goes { rx.offer(wanted, memory, &mut self.io.scratch.iov)? } else { 0 };
        if offered < wanted || self.io.scratch.iov.len() >= socket::MAX_IOV {
            return Ok(None);
        }
        self.io.scratch.iov.push(rest);
        counters.receive.system_calls.add(1);
        // SAFETY: the list names guest memory that this turn holds, and `beyond`, which nobody else
        // uses meanwhile.
        let len = match unsafe { socket::receive(&inlet.socket, &self.io.scratch.iov) } {
            Ok(r) if r.len == 0 && socket::has_ended(&inlet.socket) => {
                c.program_ends(false);
                return Ok(Some(Step::Nothing));
            }
            Ok(r) => r.len,
            Err(e) if socket::would_block(&e) => {
                inlet.readable = false;
                return Ok(Some(Step::Nothing));
            }
            Err(e) if inlet.closes_unread(&e) => return Ok(Some(Step::Moved(0))),
            Err(_) => {
                rx.may_have_written(offered, memory);
                c.program_ends(true);
                return Ok(Some(Step::Nothing));
            }
        };
        if len <= offered {
            self.finish_read(v, slot, rx, memory, len, Some(SEQ_EOM))?;
            return Ok(Some(Step::Moved(len)));
        }
        rx.may_have_written(offered, memory);
        if len > most {
            return Ok(Some(self.too_long(v, slot, len, most)));
        }
        inlet.forecast.came(len as u32);
        let held = Held::at(&mut c.held);
        rx.offered(offered, |segments, n| held.push(segments, HEADER_LEN, n));
        held.push_bytes(&self.io.scratch.beyond[..len - offered]);
        held.mark(len as u32, Some(SEQ_EOM));
        Ok(Some(Step::Moved(0)))
    }

    /// A message of `len` bytes or more, of which the guest takes `most`.
    fn too_long(&mut self, v: usize, slot: u32, len: usize, most: usize) -> Step {
        let name = &self.vms[v].id.name;
        tracing::warn!(
            "{name}: a message of {len} bytes or more is longer than the {most} that the guest takes: reset"
        );
        self.abort(v, slot);
        Step::Nothing
    }
}

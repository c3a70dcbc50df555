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

/// After so many messages in a row that fit a buffer of the guest the next one is expected to, and read without a look at its
/// length. Where it does not, what is beyond the buffer is copied: a byte in some hundred at most, were all others empty.
const SHORT_ENOUGH: u8 = 16;

impl Switch {
    /// Reads a host program's next message, if the guest may take it whole.
    pub(super) fn read_message(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Step, RingError> {
        let counters = self.vms[v].counters.clone();
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(Step::Nothing) };
        let (free, alloc) = (c.outgoing.free() as usize, c.outgoing.alloc() as usize);
        let Some(host) = c.host() else { return Ok(Step::Nothing) };
        if host.short_messages >= SHORT_ENOUGH && free >= alloc / 2 {
            return self.read_short(v, slot, rx, memory);
        }
        counters.receive.system_calls.add(1);
        let len = match socket::peek_message(&host.socket) {
            Ok(0) if socket::has_ended(&host.socket) => {
                Self::far_end(c, false);
                return Ok(Step::Nothing);
            }
            Ok(len) => len,
            Err(e) if socket::would_block(&e) => {
                host.readable = false;
                return Ok(Step::Nothing);
            }
            Err(e) if host.closes_unread(&e) => return Ok(Step::Moved(0)),
            Err(_) => {
                Self::far_end(c, true);
                return Ok(Step::Nothing);
            }
        };
        if len > alloc.min(MAX_MESSAGE) {
            return Ok(self.too_long(v, slot, len));
        }
        // A guest that knows of half its buffer need not tell of more by itself: what fits goes ahead of the rest then.
        let in_parts = len > free && free >= alloc / 2;
        if len > free && !in_parts {
            c.life.owe_credit_request();
            return Ok(Step::Nothing);
        }
        self.iov.clear();
        let offered = rx.offer(len, memory, &mut self.iov)?;
        // An empty message takes a buffer, too.
        let Some(first) = rx.room(0, memory)?.filter(|_| offered > 0 || len == 0) else {
            return Ok(Step::NoRoom);
        };
        host.short_messages = if len <= first { (host.short_messages + 1).min(SHORT_ENOUGH) } else { 0 };
        counters.receive.system_calls.add(1);
        if offered == len && !in_parts {
            // SAFETY: the list names guest memory that this turn holds.
            match unsafe { socket::receive(&host.socket, &self.iov) } {
                Ok(r) if r.len == len => {
                    self.finish_read(v, slot, rx, memory, len, Some(SEQ_EOM))?;
                    return Ok(Step::Moved(len));
                }
                // After the look at the message, which still waits.
                Err(e) if host.closes_unread(&e) => return Ok(Step::Moved(0)),
                _ => {}
            }
            rx.may_have_written(offered, memory);
            Self::far_end(c, true);
            return Ok(Step::Nothing);
        }
        // Too few buffers or too little credit for the moment, and a socket gives a message whole or not at all.
        self.iov.clear();
        let mut held = None;
        let entry = |run: &mut [u8]| libc::iovec { iov_base: run.as_mut_ptr().cast(), iov_len: run.len() };
        Held::at(&mut held).make_room(len, |run| self.iov.push(entry(run)));
        // SAFETY: the list names the room that was just made in `held`, which nobody else knows of.
        match unsafe { socket::receive(&host.socket, &self.iov) } {
            Ok(r) if r.len == len => {
                Held::at(&mut held).mark(len as u32, Some(SEQ_EOM));
                c.held = held;
                return Ok(Step::Moved(0));
            }
            Err(e) if host.closes_unread(&e) => return Ok(Step::Moved(0)),
            _ => {}
        }
        Self::far_end(c, true);
        Ok(Step::Nothing)
    }

    /// As [`Self::read_message`], by one call in place of two, into one buffer of the guest. What is beyond that waits.
    fn read_short(
        &mut self,
        v: usize,
        slot: u32,
        rx: &mut Receive,
        memory: &GuestMemory,
    ) -> Result<Step, RingError> {
        let counters = self.vms[v].counters.clone();
        let Some(room) = rx.room(0, memory)? else { return Ok(Step::NoRoom) };
        self.iov.clear();
        let offered = rx.offer(room, memory, &mut self.iov)?;
        if self.beyond.is_empty() {
            // One byte more, so that a message that is too long for all is known by its length.
            self.beyond = vec![0; MAX_MESSAGE + 1];
        }
        let rest = libc::iovec { iov_base: self.beyond.as_mut_ptr().cast(), iov_len: self.beyond.len() };
        let Some(c) = self.vms[v].connections.get(slot) else { return Ok(Step::Nothing) };
        let (free, most) = (c.outgoing.free() as usize, (c.outgoing.alloc() as usize).min(MAX_MESSAGE));
        let Some(host) = c.host() else { return Ok(Step::Nothing) };
        if self.iov.len() >= socket::MAX_IOV || offered > free {
            // So many pieces leave none for the rest; a look at the length decides.
            host.short_messages = 0;
            return Ok(Step::Moved(0));
        }
        self.iov.push(rest);
        counters.receive.system_calls.add(1);
        // SAFETY: the list names guest memory that this turn holds, and `beyond`, which nobody else uses meanwhile.
        let len = match unsafe { socket::receive(&host.socket, &self.iov) } {
            Ok(r) if r.len == 0 && socket::has_ended(&host.socket) => {
                Self::far_end(c, false);
                return Ok(Step::Nothing);
            }
            Ok(r) => r.len,
            Err(e) if socket::would_block(&e) => {
                host.readable = false;
                return Ok(Step::Nothing);
            }
            Err(e) if host.closes_unread(&e) => return Ok(Step::Moved(0)),
            Err(_) => {
                rx.may_have_written(offered, memory);
                Self::far_end(c, true);
                return Ok(Step::Nothing);
            }
        };
        if len <= offered {
            self.finish_read(v, slot, rx, memory, len, Some(SEQ_EOM))?;
            return Ok(Step::Moved(len));
        }
        rx.may_have_written(offered, memory);
        if len > most {
            return Ok(self.too_long(v, slot, len));
        }
        host.short_messages = 0;
        let held = Held::at(&mut c.held);
        held.push(rx.front(), HEADER_LEN, offered);
        held.push_bytes(&self.beyond[..len - offered]);
        held.mark(len as u32, Some(SEQ_EOM));
        Ok(Step::Moved(0))
    }

    /// A message that the guest can't take, or nobody.
    fn too_long(&mut self, v: usize, slot: u32, len: usize) -> Step {
        let alloc = self.vms[v].connections.get(slot).map_or(0, |c| c.outgoing.alloc() as usize);
        let (name, most) = (&self.vms[v].name, alloc.min(MAX_MESSAGE));
        tracing::warn!(
            "{name}: a message of {len} bytes is longer than the {most} that the guest takes: reset"
        );
        self.abort(v, slot);
        Step::Nothing
    }
}

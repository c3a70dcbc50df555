//! A VM's rings, and whether its guest posts receive buffers as fast as they are used.

mod rx_state;

use std::sync::Arc;

use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::{GuestMemory, IoList, Segment, access};
use zerowire_vhost::ring::RingError;

use super::VsockCounters;
use super::capture::PacketCapture;
use super::loans::Loans;
use super::mapped::DirectChain;
use super::packet::{HEADER_LEN, Header, MAX_PAYLOAD};
use super::queues::Receive;
use super::socket::MAX_IOV;
pub(super) use rx_state::RxState;

/// The part of its ring that a starved guest is to post, before it is served again.
const STARVED_PART: u16 = 4;

/// How many receive buffers to wait for from a starved guest, with a ring of `size` and `posted` at
/// once at most. That is a quarter of the ring, so that each turn has a batch. It is at most half
/// of what comes, so that guest and device work side by side.
fn batch(size: u16, posted: u16) -> u16 {
    (size / STARVED_PART).min(posted / 2).max(1)
}

/// The rings of a VM, those that run. They hold pointers into the memory: they go before it.
#[derive(Debug)]
pub(super) struct VmRings {
    pub rx: Option<Box<Receive>>,
    pub tx: Option<Box<HostRing>>,
    pub events: Option<Box<HostRing>>,
    /// True: the transmit queue may hold packets.
    pub kicked: bool,
    /// Whether something waits for receive buffers.
    pub state: RxState,
    /// The most receive buffers that the guest posts at once. The largest number until it has let
    /// the device wait for more than it posted; what it posts beyond this later counts again.
    posted: u16,
    pub memory: Arc<GuestMemory>,
    pub capture: Option<Box<PacketCapture>>,
}

impl VmRings {
    /// None yet, and no memory.
    pub fn new() -> Self {
        Self {
            rx: None,
            tx: None,
            events: None,
            kicked: false,
            state: RxState::Flowing,
            posted: u16::MAX,
            memory: Arc::default(),
            capture: None,
        }
    }

    /// Whether the guest's driver runs.
    pub fn are_running(&self) -> bool {
        self.rx.as_ref().is_some_and(|r| r.queue.is_active())
            && self.tx.as_ref().is_some_and(|t| t.is_active())
    }

    /// Descriptors of the transmit ring.
    pub fn transmit_size(&self) -> usize {
        self.tx.as_ref().map_or(0, |t| usize::from(t.ring.size()))
    }

    /// Another driver posts receive buffers, or the same one anew.
    pub fn forget_posted(&mut self) {
        self.posted = u16::MAX;
    }

    /// Counts what the guest has posted, if it has posted less at once.
    pub fn count_posted(&mut self) -> Result<(), RingError> {
        if let Some(rx) = &mut self.rx
            && self.posted < rx.queue.ring.size()
        {
            self.posted = self.posted.max(rx.posted()?);
        }
        Ok(())
    }

    /// Buffers that the guest has posted, if its receive ring is active.
    #[inline]
    pub fn buffers(&mut self) -> Option<Buffers<'_>> {
        let rx = self.rx.as_deref_mut().filter(|r| r.queue.is_active())?;
        Some(Buffers { rx, memory: &self.memory, capture: self.capture.as_deref_mut() })
    }

    /// How many buffers were used, free-running, if the receive ring is active.
    pub fn used(&self) -> Option<u16> {
        self.rx.as_ref().filter(|r| r.queue.is_active()).map(|r| r.queue.ring.next_used())
    }

    /// Gives the guest chains of its transmit ring back, and leaves the list empty.
    pub fn give_back(&mut self, loans: &mut Loans, chains: &mut Vec<DirectChain>) {
        for chain in chains.drain(..) {
            loans.end(chain);
            match self.tx.as_mut() {
                Some(tx) if tx.is_sound() => tx.ring.push_used(chain.head, 0),
                // Its memory is gone for the moment.
                Some(tx) if tx.is_unmapped() => loans.owed.push(chain.head),
                _ => {}
            }
        }
    }

    /// Receive buffers that are to wake the thread.
    pub fn wanted(&self) -> u16 {
        let size = self.rx.as_ref().map_or(0, |rx| rx.queue.ring.size());
        if self.state.takes_any() { 1 } else { batch(size, self.posted) }
    }

    /// Whether the guest is not starved, or has posted enough for a batch, or anything for a while.
    #[inline]
    pub fn have_buffers_again(&mut self) -> bool {
        !self.state.is_starved() || self.are_enough()
    }

    /// As [`Self::have_buffers_again`], of a starved guest.
    fn are_enough(&mut self) -> bool {
        let Some(rx) = self.rx.as_mut().filter(|r| r.queue.is_active()) else { return false };
        // An error is found, and answered, when the chain is taken.
        let posted = rx.posted().unwrap_or(u16::MAX);
        let batch = batch(rx.queue.ring.size(), self.posted);
        let enough = self.state.look(posted, batch);
        if enough && posted < batch {
            self.posted = posted;
        }
        enough
    }

    /// A starved guest was waited for long enough: what it has posted is what it posts. A guest
    /// that has posted nothing may stand still, which says nothing.
    pub fn give_up_waiting(&mut self) {
        if self.state.give_up()
            && let Some(rx) = self.rx.as_mut().filter(|r| r.queue.is_active())
            && let Ok(posted) = rx.posted()
            && (1..batch(rx.queue.ring.size(), self.posted)).contains(&posted)
        {
            self.posted = posted;
        }
    }

    /// Shows the guest what was used, and notifies it.
    pub fn publish(&mut self, counters: &VsockCounters) {
        if self.rx.as_mut().is_some_and(|r| r.queue.publish()) {
            counters.receive.calls.add(1);
        }
        if self.tx.as_mut().is_some_and(|t| t.publish()) {
            counters.transmit.calls.add(1);
        }
        if let Some(capture) = &mut self.capture {
            capture.publish();
        }
    }
}

/// Buffers of a guest for what it receives.
pub(super) struct Buffers<'a> {
    rx: &'a mut Receive,
    memory: &'a GuestMemory,
    capture: Option<&'a mut PacketCapture>,
}

impl<'a> Buffers<'a> {
    /// Room for payload in buffer `i` of those that wait, bytes; None where the guest has posted no
    /// more.
    #[inline]
    pub fn room(&mut self, i: usize) -> Result<Option<usize>, RingError> {
        let Receive { queue, chains } = &mut *self.rx;
        let whole = HEADER_LEN + MAX_PAYLOAD;
        if !chains.ensure(i, whole, &mut queue.ring, self.memory, HEADER_LEN)? {
            return Ok(None);
        }
        Ok(Some(chains.room(i).min(whole) - HEADER_LEN))
    }

    /// Appends the payload parts of as many buffers as hold `want` bytes to `list`. Returns how
    /// many bytes they hold, at most `want`.
    pub fn offer<'m>(&mut self, want: usize, list: &mut IoList<'m>) -> Result<usize, RingError>
    where
        'a: 'm,
    {
        let mut total = 0;
        let mut i = 0;
        while total < want {
            let Some(room) = self.room(i)? else { break };
            let take = room.min(want - total);
            let mark = list.len();
            let mut left = take;
            let mut skip = HEADER_LEN;
            for s in self.rx.chains.segments(i) {
                let len = s.len as usize;
                if skip >= len {
                    skip -= len;
                    continue;
                }
                let n = (len - skip).min(left);
                if n == 0 {
                    break;
                }
                list.add(self.memory, &Segment { ptr: s.ptr.wrapping_add(skip), len: n as u32, ..*s });
                left -= n;
                skip = 0;
            }
            if list.len() > MAX_IOV {
                // One chain alone always fits: the parser stops before.
                list.truncate(mark);
                break;
            }
            total += take;
            i += 1;
        }
        Ok(total)
    }

    /// Notes that up to `len` bytes of payload may have been written to what [`Self::offer`]
    /// offered: the kernel failed half-way and does not say where.
    #[cold]
    pub fn may_have_written(&self, len: usize) {
        self.offered(len, |segments, n| self.memory.wrote(segments, HEADER_LEN, n));
    }

    /// The first `len` bytes of what [`Self::offer`] offered, buffer by buffer: the segments of
    /// each, and how many bytes lie behind the header.
    pub fn offered(&self, mut len: usize, mut each: impl FnMut(&[Segment], usize)) {
        let chains = &self.rx.chains;
        for i in 0..chains.len() {
            let n = chains.room(i).min(HEADER_LEN + MAX_PAYLOAD).saturating_sub(HEADER_LEN).min(len);
            each(chains.segments(i), n);
            len -= n;
        }
    }

    /// Segments of the first buffer.
    #[inline]
    pub fn front(&self) -> &[Segment] {
        self.rx.chains.segments(0)
    }

    /// Completes the first buffer as a packet, whose payload is in place.
    #[inline]
    pub fn finish(&mut self, header: Header) {
        let Receive { queue, chains } = &mut *self.rx;
        if let Some(capture) = self.capture.as_deref_mut() {
            capture.given(&header, chains.segments(0));
        }
        access::write(chains.segments(0), 0, &header.to_bytes());
        self.memory.wrote(chains.segments(0), 0, HEADER_LEN + header.len as usize);
        if let Some((head, _)) = chains.pop() {
            queue.ring.push_used(head, HEADER_LEN as u32 + header.len);
        }
    }

    /// Shows the guest what was used. Returns whether it was notified.
    pub fn publish(&mut self) -> bool {
        self.rx.queue.publish()
    }

    /// Stops serving the ring and tells the front end.
    pub fn fail(&mut self) {
        self.rx.queue.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_quarter_of_the_ring_or_half_of_what_comes() {
        let batches = [(256, u16::MAX), (256, 100), (256, 64), (256, 1), (256, 0), (2, u16::MAX), (1, 1)];
        assert_eq!(batches.map(|(size, posted)| batch(size, posted)), [64, 50, 32, 1, 1, 1, 1]);
    }
}

//! A VM's two rings.

use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::{GuestMemory, IoList, Segment, access};
use zerowire_vhost::ring::{ChainCursor, RingError, RingRule, RxChains, SplitRing};

use super::packet::{HEADER_LEN, Header, MAX_PAYLOAD};
use super::socket::MAX_IOV;

/// The queue toward the guest.
#[derive(Debug)]
pub struct Receive {
    /// Its ring.
    pub queue: HostRing,
    chains: RxChains,
}

impl Receive {
    /// On this ring.
    pub fn new(queue: HostRing) -> Self {
        Self { queue, chains: RxChains::default() }
    }

    /// Gives up the ring.
    pub fn into_queue(self) -> HostRing {
        self.queue
    }

    /// Gives chains that were taken and not used back to the ring: before it stops, or moves.
    pub fn release(&mut self) {
        self.queue.ring.untake(self.chains.heads());
        self.chains.clear();
    }

    /// Chains that the guest has posted and that are not used.
    #[inline]
    pub fn posted(&mut self) -> Result<u16, RingError> {
        Ok(self.queue.ring.refresh()?.saturating_add(self.chains.len() as u16))
    }

    /// Room for payload in chain `i` of those that wait, bytes; None where the guest has posted no
    /// more.
    #[inline]
    pub fn room(&mut self, i: usize, memory: &GuestMemory) -> Result<Option<usize>, RingError> {
        let whole = HEADER_LEN + MAX_PAYLOAD;
        if !self.chains.ensure(i, whole, &mut self.queue.ring, memory, HEADER_LEN)? {
            return Ok(None);
        }
        Ok(Some(self.chains.room(i).min(whole) - HEADER_LEN))
    }

    /// Appends the payload parts of as many chains as hold `want` bytes to `list`. Returns how many
    /// bytes they hold, at most `want`.
    pub fn offer<'m>(
        &mut self,
        want: usize,
        memory: &'m GuestMemory,
        list: &mut IoList<'m>,
    ) -> Result<usize, RingError> {
        let mut total = 0;
        let mut i = 0;
        while total < want {
            let Some(room) = self.room(i, memory)? else { break };
            let take = room.min(want - total);
            let mark = list.len();
            let mut left = take;
            let mut skip = HEADER_LEN;
            for s in self.chains.segments(i) {
                let len = s.len as usize;
                if skip >= len {
                    skip -= len;
                    continue;
                }
                let n = (len - skip).min(left);
                if n == 0 {
                    break;
                }
                list.add(memory, &Segment { ptr: s.ptr.wrapping_add(skip), len: n as u32, ..*s });
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
    pub fn may_have_written(&self, len: usize, memory: &GuestMemory) {
        self.offered(len, |segments, n| memory.wrote(segments, HEADER_LEN, n));
    }

    /// The first `len` bytes of what [`Self::offer`] offered, chain by chain: the segments of each,
    /// and how many bytes lie behind the header.
    pub fn offered(&self, mut len: usize, mut each: impl FnMut(&[Segment], usize)) {
        for i in 0..self.chains.len() {
            let n = self.chains.room(i).min(HEADER_LEN + MAX_PAYLOAD).saturating_sub(HEADER_LEN).min(len);
            each(self.chains.segments(i), n);
            len -= n;
        }
    }

    /// Segments of the first chain.
    pub fn front(&self) -> &[Segment] {
        self.chains.segments(0)
    }

    /// Completes the first chain as a packet, whose payload is in place.
    #[inline]
    pub fn finish(&mut self, header: Header, memory: &GuestMemory) {
        access::write(self.chains.segments(0), 0, &header.to_bytes());
        memory.wrote(self.chains.segments(0), 0, HEADER_LEN + header.len as usize);
        if let Some((head, _)) = self.chains.pop() {
            self.queue.ring.push_used(head, HEADER_LEN as u32 + header.len);
        }
    }
}

/// Segments of one descriptor at most: one for each region that it may touch, and no sound driver's
/// does touch more than two.
const ROOM_FOR_ONE: usize = 64;

/// A packet that was taken from the guest's queue.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket {
    /// Its chain.
    pub head: u16,
    /// Its header; None where the chain is too short for one.
    pub header: Option<Header>,
    /// Bytes behind the header.
    pub room: usize,
    /// Its segments in the turn's list.
    pub segments: (u32, u32),
    /// Descriptors of the ring's table that the chain takes: an indirect table takes one.
    pub descriptors: u16,
    /// A program has it for a while.
    pub lent: bool,
    /// It asks for a connection, and too many were asked for before.
    pub over_rate: bool,
}

impl TxPacket {
    /// Bytes of payload, as far as they are there.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.header.map_or(0, |h| (h.len as usize).min(self.room))
    }
}

/// Takes the next chain of the transmit queue, appending its segments to `list`.
#[inline]
pub fn take(
    ring: &mut SplitRing,
    memory: &GuestMemory,
    list: &mut Vec<Segment>,
    hint: &mut usize,
) -> Result<Option<TxPacket>, RingError> {
    let Some(head) = ring.take()? else { return Ok(None) };
    let start = list.len();
    let mut total = 0usize;
    let mut descriptors = 0u16;
    let mut cursor = ChainCursor::new(ring, head);
    while let Some(d) = cursor.next(ring, memory, hint)? {
        if d.is_writable() {
            return Err(ring.error(RingRule::WritableInTransmit));
        }
        descriptors += u16::from(!cursor.is_indirect());
        if list.capacity() - list.len() < ROOM_FOR_ONE {
            list.reserve(1024);
        }
        if !memory.translate(d.addr, d.len, hint, list) {
            return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
        }
        total += d.len as usize;
    }
    let mut bytes = [0; HEADER_LEN];
    let whole = access::read(&list[start..], 0, &mut bytes) == HEADER_LEN;
    Ok(Some(TxPacket {
        head,
        header: whole.then(|| Header::from_bytes(&bytes)),
        room: total.saturating_sub(HEADER_LEN),
        segments: (start as u32, list.len() as u32),
        descriptors: descriptors + u16::from(cursor.is_indirect()),
        lent: false,
        over_rate: false,
    }))
}

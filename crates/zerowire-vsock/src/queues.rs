//! A VM's two rings.

use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::{GuestMemory, Segment, access};
use zerowire_vhost::ring::{ChainCursor, RingError, RingRule, RxChains, SplitRing};

use super::packet::{HEADER_LEN, Header};

/// The queue toward the guest.
#[derive(Debug)]
pub struct Receive {
    /// Its ring.
    pub queue: HostRing,
    /// Chains that were taken and not used.
    pub chains: RxChains,
}

impl Receive {
    /// On this ring.
    pub fn new(queue: HostRing) -> Self {
        Self { queue, chains: RxChains::default() }
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

//! Chains, tables and indices that break one rule each.

use crate::net::header::HEADER_LEN;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, write_desc_at};
use crate::{GuestAddr, GuestError, GuestSlice};

use super::{RawDesc, RawQueue};

/// What a device should do about an attack. It must go on serving other
/// queues' guests in any case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expect {
    /// The ring is broken: the device stops this queue and reports it.
    RingStops,
    /// The ring is sound, the frame is not: it is dropped, the chain is given
    /// back.
    FrameDropped,
    /// Unusual and allowed: the frame goes out.
    FrameSent,
}

/// Makes the attacks and what a device should do about each.
macro_rules! ring_attacks {
    ($($(#[doc = $doc:literal])* $name:ident => $expect:ident,)*) => {
        /// Ways to break a transmit queue. Each is one entry on the available ring, but for
        /// [`RingAttack::AvailIdxJump`].
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum RingAttack {
            $($(#[doc = $doc])* $name,)*
        }

        impl RingAttack {
            /// All attacks.
            pub const ALL: &'static [RingAttack] = &[$(RingAttack::$name,)*];

            /// What a device should do about it.
            pub fn expect(self) -> Expect {
                match self {
                    $(RingAttack::$name => Expect::$expect,)*
                }
            }
        }
    };
}

ring_attacks! {
    /// The available index moves by more than the queue's size (virtio 1.3
    /// §2.7.13.3).
    AvailIdxJump => RingStops,
    /// The available ring holds an index behind the table (§2.7.6).
    HeadOutOfRange => RingStops,
    /// A chain goes on behind the table (§2.7.5).
    NextOutOfRange => RingStops,
    /// A descriptor is its own next one (§2.7.5.2).
    LoopOfOne => RingStops,
    /// The last of several descriptors goes back to the first (§2.7.5.2).
    LoopOfAll => RingStops,
    /// A buffer lies outside all memory.
    AddressOutside => RingStops,
    /// A buffer begins in a region and ends behind it.
    CrossesRegionEnd => RingStops,
    /// Address and length run past 2^64.
    AddressWraps => RingStops,
    /// The payload is for the device to write (§5.1.6.2).
    WritablePayload => RingStops,
    /// A readable buffer comes after a writable one (§2.7.4.2).
    ReadableAfterWritable => RingStops,
    /// The device may write the whole chain: it has no header to read.
    WritableOnly => RingStops,
    /// An indirect table of 0 bytes (§2.7.5.3).
    IndirectEmpty => RingStops,
    /// An indirect table whose length isn't a multiple of 16.
    IndirectRagged => RingStops,
    /// An indirect table longer than the queue (§2.7.5.3.1).
    IndirectTooLong => RingStops,
    /// An indirect descriptor in an indirect table.
    IndirectNested => RingStops,
    /// A chain in an indirect table that leaves it.
    IndirectNextOutOfRange => RingStops,
    /// A chain in an indirect table that goes round.
    IndirectLoop => RingStops,
    /// A descriptor both indirect and with a next one.
    IndirectWithNext => RingStops,
    /// An indirect table outside all memory.
    IndirectOutside => RingStops,
    /// An indirect table that crosses the end of its region.
    IndirectCrossesRegionEnd => RingStops,
    /// A chain of zero-length buffers only.
    ZeroLengthOnly => FrameDropped,
    /// A chain with the first bytes of a header only.
    HalfHeader => FrameDropped,
    /// A chain with a header and no frame.
    HeaderOnly => FrameDropped,
    /// The frame is shorter than an Ethernet header.
    RuntFrame => FrameDropped,
    /// Zero-length buffers among the others.
    ZeroLengthAmong => FrameSent,
    /// A header whose every byte is in a descriptor of its own.
    HeaderBytewise => FrameSent,
    /// The end of the header and the begin of the frame share a descriptor.
    HeaderStraddles => FrameSent,
}

use RingAttack::*;

impl RingAttack {
    /// Writes the attack to `queue`, with `frame` as payload where a payload
    /// takes part, from descriptor 0 on, and notifies the device. The queue
    /// needs at least 16 entries with none in flight.
    ///
    /// # Errors
    /// [`GuestError::OutOfMemory`]; [`GuestError::Io`].
    pub fn apply(self, queue: &mut RawQueue, frame: &[u8]) -> Result<(), GuestError> {
        self.apply_with_header(queue, &[0; HEADER_LEN], frame)
    }

    /// As [`RingAttack::apply`], with the header of another device, for
    /// example that of a vsock packet that carries `frame`. The queue needs
    /// as many entries as the header has bytes, and 16 more.
    ///
    /// # Errors
    /// As [`RingAttack::apply`].
    pub fn apply_with_header(
        self,
        queue: &mut RawQueue,
        bytes: &[u8],
        frame: &[u8],
    ) -> Result<(), GuestError> {
        self.carry_out(queue, bytes, frame, 0)
    }

    /// The same attack on a receive queue. Its buffers, room for a header and for `len` bytes of a
    /// frame, are for the device to write. What is wrong about their direction is the other way
    /// round. It shows when the device looks for room for a longer frame.
    ///
    /// # Errors
    /// As [`RingAttack::apply`].
    pub fn apply_to_receive(self, queue: &mut RawQueue, len: usize) -> Result<(), GuestError> {
        self.carry_out(queue, &[0; HEADER_LEN], &vec![0; len], DESC_WRITE)
    }

    /// `right` is the flag of buffers in the queue's direction.
    fn carry_out(
        self,
        queue: &mut RawQueue,
        bytes: &[u8],
        frame: &[u8],
        right: u16,
    ) -> Result<(), GuestError> {
        let size = queue.ring().size();
        let rightly = |slice: &GuestSlice| RawDesc { flags: right, ..RawDesc::readable(slice) };
        let header = rightly(&queue.place(bytes)?);
        let payload = rightly(&queue.place(frame)?);
        let next_is = |next, desc| RawDesc { flags: right | DESC_NEXT, next, ..desc };
        let wrongly = |desc| RawDesc { flags: right ^ DESC_WRITE, ..desc };
        let empty = RawDesc { len: 0, ..header };
        let chain = match self {
            AvailIdxJump | HeadOutOfRange => vec![header, payload],
            NextOutOfRange => vec![header, next_is(size, payload)],
            LoopOfOne => vec![next_is(0, header)],
            LoopOfAll => vec![header, payload, payload, next_is(0, payload)],
            AddressOutside => vec![header, RawDesc { addr: outside(queue), ..payload }],
            CrossesRegionEnd => vec![header, RawDesc { addr: last_end(queue) - 8, len: 64, ..payload }],
            AddressWraps => vec![header, RawDesc { addr: u64::MAX - 7, len: 64, ..payload }],
            WritablePayload => vec![header, wrongly(payload)],
            ReadableAfterWritable => vec![header, wrongly(payload), payload],
            WritableOnly => vec![wrongly(header), wrongly(payload)],
            ZeroLengthOnly => vec![empty; 3],
            HalfHeader => vec![RawDesc { len: 7, ..header }],
            HeaderOnly => vec![header],
            RuntFrame => vec![header, RawDesc { len: 13, ..payload }],
            ZeroLengthAmong => vec![empty, header, empty, payload, empty],
            HeaderBytewise => {
                let one = |at| RawDesc { addr: header.addr + at, len: 1, ..header };
                (0..bytes.len() as u64).map(one).chain([payload]).collect()
            }
            HeaderStraddles => {
                let all = rightly(&queue.place(&[bytes, frame].concat())?);
                let rest = RawDesc { addr: all.addr + 5, len: all.len - 5, ..all };
                vec![RawDesc { len: 5, ..all }, rest]
            }
            _ => vec![self.indirect(queue, header, payload)?],
        };
        queue.write_chain(0, &chain);
        match self {
            AvailIdxJump => queue.set_avail_idx(queue.avail_idx().wrapping_add(size).wrapping_add(1)),
            HeadOutOfRange => queue.offer(size),
            _ => queue.offer(0),
        }
        queue.kick()
    }

    /// A descriptor that points to a table.
    fn indirect(
        self,
        queue: &mut RawQueue,
        header: RawDesc,
        payload: RawDesc,
    ) -> Result<RawDesc, GuestError> {
        let size = queue.ring().size();
        let first = RawDesc { flags: header.flags | DESC_NEXT, next: 1, ..header };
        let good = RawDesc::indirect(&queue.place_table(&[first, payload])?);
        let next_is = |next| RawDesc { flags: payload.flags | DESC_NEXT, next, ..payload };
        let table: Vec<RawDesc> = match self {
            IndirectTooLong => (1..=size).map(|next| RawDesc { next, ..first }).chain([payload]).collect(),
            IndirectNested => vec![first, good],
            IndirectNextOutOfRange => vec![first, next_is(2)],
            IndirectLoop => vec![first, next_is(0)],
            IndirectEmpty => return Ok(RawDesc { len: 0, ..good }),
            IndirectRagged => return Ok(RawDesc { len: 31, ..good }),
            IndirectWithNext => {
                queue.write_desc(1, payload);
                return Ok(RawDesc { flags: DESC_INDIRECT | DESC_NEXT, next: 1, ..good });
            }
            IndirectCrossesRegionEnd => {
                // The entry inside is good and goes on to the one outside.
                let addr = last_end(queue) - 16;
                let end = queue.memory().at(GuestAddr(addr), 16)?;
                write_desc_at(&end, 0, first.addr, first.len, first.flags, first.next);
                return Ok(RawDesc { addr, ..good });
            }
            _ => return Ok(RawDesc { addr: outside(queue), ..good }),
        };
        Ok(RawDesc::indirect(&queue.place_table(&table)?))
    }
}

/// The first address behind all memory.
fn last_end(queue: &RawQueue) -> u64 {
    let regions = queue.memory().regions();
    regions.last().map_or(0, |region| region.end().0)
}

/// An address outside all memory: in the first hole, or behind all regions.
fn outside(queue: &RawQueue) -> u64 {
    let regions = queue.memory().regions();
    let hole = regions.windows(2).find(|pair| pair[0].end().0 + 0x2000 < pair[1].guest_addr().0);
    match hole {
        Some(pair) => pair[0].end().0 + 0x1000,
        None => last_end(queue).saturating_add(0x1000),
    }
}

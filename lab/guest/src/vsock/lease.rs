//! Payload that a program reads in the device's buffers.
//!
//! # Who owns the bytes
//! The device wrote them and gave the buffer back. By the rules it does not touch them until it
//! gets the buffer again, which is when the [`PacketLease`] was dropped. But it could, so no
//! reference into them is made here: access copies, or reads with volatile operations. Who trusts
//! the device, as a guest trusts its hypervisor, can make a slice of [`Packet::as_ptr`].

use std::sync::Arc;

use super::RW_EOM;
use super::loans::{LentBuffers, Returns};
use super::rx::{Kept, RxPacket};
use super::stack::ConnId;
use crate::GuestSlice;

/// Copied packets share a piece up to this length.
const COPIED_MOST: usize = 64 << 10;
/// Lists of packets kept to be filled again: as many leases as a program may
/// drop between two turns without an allocation later.
const SPARE_LISTS: usize = 16;

/// How payload of connections that are received in place arrived.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InPlaceCounters {
    /// Packets left in the device's buffers.
    pub in_place_packets: u64,
    /// Their bytes.
    pub in_place_bytes: u64,
    /// Bytes copied, because half the ring's buffers were held already.
    pub held_bytes: u64,
}

/// What leases gave back to their stack.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Bytes that were read and are the sender's again, by connection.
    pub read: Vec<(ConnId, u32)>,
    /// Empty lists, to be filled again.
    spare: Vec<Vec<Piece>>,
}

impl Returned {
    /// Moves all of `from` here.
    pub(super) fn append(&mut self, from: &mut Returned) {
        self.read.append(&mut from.read);
        self.spare.append(&mut from.spare);
        self.spare.truncate(SPARE_LISTS);
    }
}

#[derive(Debug)]
enum PacketSpan {
    Lent { buffer: u32, offset: usize },
    Copied(Vec<u8>),
}

#[derive(Debug)]
struct Piece {
    place: PacketSpan,
    len: usize,
    flags: u32,
}

/// Payload of one connection. Its buffers go back when it is dropped, wherever
/// that happens.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    pieces: Vec<Piece>,
    bytes: usize,
    /// Whose buffers they are.
    loans: Option<Arc<LentBuffers>>,
}

impl Arrived {
    /// An empty one, with a list of `returned` if that has one.
    pub(super) fn new(returned: &mut Returned) -> Arrived {
        Arrived { pieces: returned.spare.pop().unwrap_or_default(), bytes: 0, loans: None }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a packet: its buffer if it may be kept, else a copy.
    pub(super) fn push(&mut self, packet: &RxPacket<'_>, counters: &mut InPlaceCounters) -> Kept {
        let (len, flags) = (packet.len(), packet.header.flags);
        self.bytes += len;
        if len == 0 && flags == 0 {
            return Kept::No;
        }
        if let Some((loans, buffer, offset)) = packet.lend().filter(|_| len > 0)
            && self.loans.as_ref().is_none_or(|own| Arc::ptr_eq(own, loans))
        {
            self.loans.get_or_insert_with(|| Arc::clone(loans));
            self.pieces.push(Piece { place: PacketSpan::Lent { buffer, offset }, len, flags });
            counters.in_place_packets += 1;
            counters.in_place_bytes += len as u64;
            return Kept::Lent;
        }
        // A message without bytes needs no buffer.
        counters.held_bytes += len as u64;
        if let Some(Piece { place: PacketSpan::Copied(bytes), len: so_far, flags: ends }) =
            self.pieces.last_mut()
            && *ends == 0
            && *so_far + len <= COPIED_MOST
        {
            packet.append_to(bytes);
            *so_far += len;
            *ends = flags;
        } else {
            self.pieces.push(Piece { place: PacketSpan::Copied(packet.to_vec()), len, flags });
        }
        Kept::No
    }

    /// Gives the buffers back.
    fn clear(&mut self) {
        if let Some(loans) = self.loans.take() {
            let lent = self.pieces.iter().filter_map(|piece| match piece.place {
                PacketSpan::Lent { buffer, .. } => Some(buffer),
                PacketSpan::Copied(_) => None,
            });
            loans.back.add(|numbers| numbers.extend(lent));
        }
        self.pieces.clear();
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Packets of a connection, read where the device wrote them. Dropping it
/// gives their buffers back to the ring and their bytes back to the sender's
/// credit, at the next turn of the [`super::VsockStack`].
///
/// Leases may be dropped in any order, by any thread, and also after their
/// connection or the stack are gone.
#[derive(Debug)]
#[must_use = "dropping it gives the payload back"]
pub struct PacketLease {
    arrived: Arrived,
    conn: ConnId,
    returns: Arc<Returns<Returned>>,
}

impl PacketLease {
    pub(super) fn new(arrived: Arrived, conn: ConnId, returns: &Arc<Returns<Returned>>) -> PacketLease {
        PacketLease { arrived, conn, returns: Arc::clone(returns) }
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.arrived.bytes
    }

    /// Whether there are no bytes: an empty message.
    pub fn is_empty(&self) -> bool {
        self.arrived.bytes == 0
    }

    /// Number of packets. Copied ones that follow each other within a message
    /// or a stream count as one.
    pub fn packet_count(&self) -> usize {
        self.arrived.pieces.len()
    }

    /// The packets in order.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        let loans = self.arrived.loans.as_deref();
        self.arrived.pieces.iter().filter_map(move |piece| {
            let place = match &piece.place {
                PacketSpan::Lent { buffer, offset } => PacketBytes::InPlace(loans?.buffer(*buffer), *offset),
                PacketSpan::Copied(bytes) => PacketBytes::Copied(bytes),
            };
            Some(Packet { place, len: piece.len, flags: piece.flags })
        })
    }

    /// All payload, copied to the end of `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.packets().for_each(|packet| packet.append_to(bytes));
    }
}

impl Drop for PacketLease {
    fn drop(&mut self) {
        self.arrived.clear();
        let list = std::mem::take(&mut self.arrived.pieces);
        // Less than the credit, which has 32 bits.
        let read = (self.conn, self.arrived.bytes as u32);
        self.returns.add(|returned| {
            returned.read.push(read);
            if returned.spare.len() < SPARE_LISTS {
                returned.spare.push(list);
            }
        });
    }
}

/// A packet of a [`PacketLease`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    place: PacketBytes<'a>,
    len: usize,
    flags: u32,
}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug)]
enum PacketBytes<'a> {
    /// In the device's buffer, from this offset on.
    InPlace(&'a GuestSlice, usize),
    Copied(&'a [u8]),
}

impl Packet<'_> {
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a message ends with it.
    pub fn end_of_message(&self) -> bool {
        self.flags & RW_EOM != 0
    }

    /// Whether the payload is where the device wrote it; else it was copied.
    pub fn is_in_place(&self) -> bool {
        matches!(self.place, PacketBytes::InPlace(..))
    }

    /// Address of the first byte. The bytes follow each other, and stay until
    /// the lease is dropped. They are aligned to 64 with
    /// [`super::VsockOptions::rx_align_payload`] if they are in place.
    ///
    /// A slice made of it is sound as long as the device keeps the rules.
    pub fn as_ptr(&self) -> *const u8 {
        match self.place {
            PacketBytes::InPlace(buffer, offset) => (buffer.user_addr() as *const u8).wrapping_add(offset),
            PacketBytes::Copied(bytes) => bytes.as_ptr(),
        }
    }

    /// Copies payload from `at` on to `bytes`.
    ///
    /// # Panics
    /// When there are not as many bytes.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let (len, left) = (bytes.len(), self.len.saturating_sub(at));
        assert!(len <= left, "{len} bytes from {at} of {}", self.len);
        match self.place {
            PacketBytes::InPlace(buffer, offset) => buffer.read(offset + at, bytes),
            PacketBytes::Copied(copy) => bytes.copy_from_slice(&copy[at..at + len]),
        }
    }

    /// Appends the payload to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + self.len, 0);
        self.read(0, &mut bytes[start..]);
    }

    /// Reads one byte of each 64 and returns their sum: what a program costs
    /// that touches every cache line once.
    pub fn touch(&self) -> u64 {
        let lines = (0..self.len).step_by(64);
        match self.place {
            PacketBytes::InPlace(buffer, offset) => {
                lines.map(|at| u64::from(buffer.read_int::<u8>(offset + at))).sum()
            }
            PacketBytes::Copied(bytes) => lines.map(|at| u64::from(bytes[at])).sum(),
        }
    }
}

//! Payload that a program reads in the device's buffers.
//!
//! # Who owns the bytes
//! The device wrote them and gave the buffer back. By the rules it does not touch them until it
//! gets the buffer again, which is when the [`PacketLease`] was dropped. But it could, so no
//! reference into them is made here: access copies, or reads with volatile operations. Who trusts
//! the device, as a guest trusts its hypervisor, can make a slice of [`Packet::as_ptr`].

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::RW_EOM;
use super::rx::{Kept, RxPacket};
use super::stack::ConnId;
use crate::GuestSlice;

/// Copied packets share a piece up to this length.
const COPIED_MOST: usize = 64 << 10;

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

/// What a lease gives back to its stack.
#[derive(Debug)]
pub(super) struct Returned {
    /// The connection that may send as many bytes again, if a program had the lease.
    pub read: Option<(ConnId, u32)>,
    /// Packets, some in buffers that are the device's again.
    pub list: Vec<Piece>,
}

#[derive(Debug)]
pub(super) enum PacketSpan {
    Lent { buffer: u32, offset: usize },
    Copied(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Piece {
    place: PacketSpan,
    len: usize,
    flags: u32,
}

impl Piece {
    /// The number of the device's buffer that it lies in.
    pub(super) fn buffer(&self) -> Option<u32> {
        match self.place {
            PacketSpan::Lent { buffer, .. } => Some(buffer),
            PacketSpan::Copied(_) => None,
        }
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
    pieces: Vec<Piece>,
    bytes: usize,
    /// All buffers of the queue.
    buffers: Arc<[GuestSlice]>,
    /// Whose payload a program reads. None while it waits in its connection.
    reader: Option<ConnId>,
    returns: Sender<Returned>,
}

impl PacketLease {
    /// An empty one, to be filled by a connection; `list` is empty.
    pub(super) fn new(
        list: Vec<Piece>,
        buffers: &Arc<[GuestSlice]>,
        returns: &Sender<Returned>,
    ) -> PacketLease {
        let (buffers, returns) = (Arc::clone(buffers), returns.clone());
        PacketLease { pieces: list, bytes: 0, buffers, reader: None, returns }
    }

    /// Takes what waits, and leaves `list`. It goes back if nobody wants it.
    pub(super) fn take(&mut self, list: Vec<Piece>, reader: Option<ConnId>) -> PacketLease {
        let mut taken = PacketLease::new(list, &self.buffers, &self.returns);
        std::mem::swap(self, &mut taken);
        taken.reader = reader;
        taken
    }

    /// Adds a packet: its buffer if it may be kept, else a copy.
    pub(super) fn push(&mut self, packet: &RxPacket<'_>, counters: &mut InPlaceCounters) -> Kept {
        let (len, flags) = (packet.len(), packet.header.flags);
        self.bytes += len;
        if len == 0 && flags == 0 {
            return Kept::No;
        }
        if let Some((buffer, offset)) = packet.lend().filter(|_| len > 0) {
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

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes: an empty message.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Number of packets. Copied ones that follow each other within a message
    /// or a stream count as one.
    pub fn packet_count(&self) -> usize {
        self.pieces.len()
    }

    /// The packets in order.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        self.pieces.iter().map(|piece| Packet { piece, buffers: &self.buffers })
    }

    /// All payload, copied to the end of `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.packets().for_each(|packet| packet.append_to(bytes));
    }
}

impl Drop for PacketLease {
    fn drop(&mut self) {
        // Less than the credit, which has 32 bits.
        let read = self.reader.map(|conn| (conn, self.bytes as u32));
        // Without its stack nobody wants it.
        let _ = self.returns.send(Returned { read, list: std::mem::take(&mut self.pieces) });
    }
}

/// A packet of a [`PacketLease`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    piece: &'a Piece,
    buffers: &'a [GuestSlice],
}

impl Packet<'_> {
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.piece.len
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.piece.len == 0
    }

    /// Whether a message ends with it.
    pub fn end_of_message(&self) -> bool {
        self.piece.flags & RW_EOM != 0
    }

    /// Whether the payload is where the device wrote it; else it was copied.
    pub fn is_in_place(&self) -> bool {
        self.piece.buffer().is_some()
    }

    /// Address of the first byte. The bytes follow each other, and stay until
    /// the lease is dropped. They are aligned to 64 with
    /// [`super::VsockOptions::rx_align_payload`] if they are in place.
    ///
    /// A slice made of it is sound as long as the device keeps the rules.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.piece.place {
            PacketSpan::Lent { buffer, offset } => {
                (self.buffers[*buffer as usize].user_addr() as *const u8).wrapping_add(*offset)
            }
            PacketSpan::Copied(bytes) => bytes.as_ptr(),
        }
    }

    /// Copies payload from `at` on to `bytes`.
    ///
    /// # Panics
    /// When there are not as many bytes.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let (len, left) = (bytes.len(), self.piece.len.saturating_sub(at));
        assert!(len <= left, "{len} bytes from {at} of {}", self.piece.len);
        match &self.piece.place {
            PacketSpan::Lent { buffer, offset } => self.buffers[*buffer as usize].read(offset + at, bytes),
            PacketSpan::Copied(copy) => bytes.copy_from_slice(&copy[at..at + len]),
        }
    }

    /// Appends the payload to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + self.piece.len, 0);
        self.read(0, &mut bytes[start..]);
    }

    /// Reads one byte of each 64 and returns their sum: what a program costs
    /// that touches every cache line once.
    pub fn touch(&self) -> u64 {
        let lines = (0..self.piece.len).step_by(64);
        match &self.piece.place {
            PacketSpan::Lent { buffer, offset } => {
                let buffer = &self.buffers[*buffer as usize];
                lines.map(|at| u64::from(buffer.read_int::<u8>(offset + at))).sum()
            }
            PacketSpan::Copied(bytes) => lines.map(|at| u64::from(bytes[at])).sum(),
        }
    }
}

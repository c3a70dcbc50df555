//! The queue of packets from the guest.

use super::driver::VsockOptions;
use super::{HEADER_LEN, MAX_PAYLOAD, PacketHeader};
use crate::frames::{FramePool, FrameShape};
use crate::queue::{DriverQueue, drains, driver_queue};
use crate::ring::{BufferPiece, PreparedChains};
use crate::{GuestError, GuestMemory, GuestSlice};

/// Headers lie this far apart, so that none share a cache line.
const HEADER_STRIDE: usize = 64;
/// Most entries of an indirect table; longer chains go without one.
const TABLE_ENTRIES: usize = 256;
/// In a token: the packet was copied, and this is the number of its slot, not of its header.
const COPIED: u32 = 1 << 31;

/// The transmit queue. Owned by one thread at a time.
///
/// [`VsockTx::send`] copies the payload to a buffer of the queue;
/// [`VsockTx::submit`] has it read where it is. The device sees packets at the
/// next [`DriverQueue::publish`].
pub struct VsockTx {
    queue: DriverQueue,
    /// Packets whose payload is copied.
    slots: FramePool,
    free_slots: Vec<u32>,
    /// Headers of the others.
    headers: GuestSlice,
    free_headers: Vec<u32>,
    /// The chains that have tables, by header.
    tables: Option<PreparedChains>,
    segments: Vec<BufferPiece>,
}

driver_queue!(VsockTx);
drains!(VsockTx);

impl VsockTx {
    pub(super) fn new(
        queue: DriverQueue,
        memory: &GuestMemory,
        options: &VsockOptions,
        indirect: bool,
    ) -> Result<VsockTx, GuestError> {
        let size = usize::from(queue.ring.memory().size());
        let shape = FrameShape { layout: options.layout, indirect, capacity: MAX_PAYLOAD };
        let slots = FramePool::with_headers(memory, shape, options.tx_slots, HEADER_LEN)?;
        if shape.max_segments() > size {
            return Err(GuestError::BadSetting {
                what: "the number of descriptors of 64 KiB and a header",
                value: shape.max_segments() as u64,
                rule: "at most the queue's size; make the pieces longer",
            });
        }
        Ok(VsockTx {
            queue,
            slots,
            free_slots: (0..options.tx_slots as u32).rev().collect(),
            headers: memory.allocate(size * HEADER_STRIDE, HEADER_STRIDE)?,
            free_headers: (0..size as u32).rev().collect(),
            tables: match indirect {
                // A table must not be longer than the queue (§2.7.5.3.1).
                true => Some(PreparedChains::new(memory, size, size.min(TABLE_ENTRIES), true)?),
                false => None,
            },
            segments: Vec::with_capacity(size),
        })
    }

    /// Copies a packet to buffers of the queue and adds it. The header goes
    /// out as it is, its length included. False when the queue is full: reap,
    /// or wait.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`] above [`MAX_PAYLOAD`].
    pub fn send(&mut self, header: &PacketHeader, payload: &[u8]) -> Result<bool, GuestError> {
        if payload.is_empty() {
            return Ok(self.submit(header, []));
        }
        let Some(&slot) = self.free_slots.last() else { return Ok(false) };
        self.slots.write(slot as usize, &header.to_bytes(), payload)?;
        let added = self.slots.add(&mut self.queue.ring, slot as usize, COPIED | slot);
        if added {
            self.free_slots.pop();
        }
        Ok(added)
    }

    /// Adds a packet whose payload lies in guest memory already, in these
    /// pieces; it must stay as it is until it was given back. False when the
    /// queue is full.
    #[inline]
    pub fn submit(&mut self, header: &PacketHeader, payload: impl IntoIterator<Item = BufferPiece>) -> bool {
        let Some(&number) = self.free_headers.last() else { return false };
        let at = number as usize * HEADER_STRIDE;
        self.headers.write(at, &header.to_bytes());
        self.segments.clear();
        self.segments.push(BufferPiece::readable(&self.headers, at, HEADER_LEN));
        self.segments.extend(payload);
        let (ring, segments) = (&mut self.queue.ring, &self.segments);
        let added = match &mut self.tables {
            Some(tables) if segments.len() <= tables.most() => {
                tables.set(number as usize, segments.iter().copied());
                tables.add(ring, number as usize, number)
            }
            _ => ring.add(segments, number),
        };
        if added {
            self.free_headers.pop();
        }
        added
    }

    /// Takes all packets that the device gave back; returns how many.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`].
    #[inline]
    pub fn reap(&mut self) -> Result<usize, GuestError> {
        let mut count = 0;
        while let Some(used) = self.queue.ring.reap()? {
            match used.token & COPIED {
                0 => self.free_headers.push(used.token),
                _ => self.free_slots.push(used.token & !COPIED),
            }
            count += 1;
        }
        Ok(count)
    }
}

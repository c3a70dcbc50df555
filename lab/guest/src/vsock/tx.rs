//! The queue of packets from the guest.

use std::time::Duration;

use super::driver::VsockOptions;
use super::header::{HEADER_LEN, MAX_PAYLOAD, PacketHeader};
use crate::queue::{DriverQueue, driver_queue, until};
use crate::ring::{BufferPiece, IndirectTables};
use crate::{GuestError, GuestMemory, GuestSlice};

/// How [`VsockTx::send`] cuts a packet into descriptors. Every way is allowed
/// (virtio 1.3 §2.7.4.2: no framing assumptions).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TxLayout {
    /// Header and payload in one descriptor.
    Single,
    /// Header in one, payload in another one, as Linux sends copies.
    Split,
    /// Header in one, payload in pieces of this many bytes that don't touch
    /// each other, as Linux 6.7 and later sends pages.
    Pieces(u32),
}

/// Headers lie this far apart, so that none share a cache line.
const HEADER_STRIDE: usize = 64;
/// Most entries of an indirect table; longer chains go without one.
const TABLE_ENTRIES: usize = 256;
/// No payload slot.
const NONE: u32 = u32::MAX;

/// The transmit queue. Owned by one thread at a time.
///
/// [`VsockTx::send`] copies the payload to a buffer of the queue;
/// [`VsockTx::submit`] has it read where it is. The device sees packets at the
/// next [`DriverQueue::publish`].
pub struct VsockTx {
    queue: DriverQueue,
    layout: TxLayout,
    headers: GuestSlice,
    /// One table a header.
    tables: Option<IndirectTables>,
    payload: GuestSlice,
    slot_stride: usize,
    free_headers: Vec<u32>,
    free_slots: Vec<u32>,
    /// Payload slot of each header in flight.
    slots: Vec<u32>,
    segments: Vec<BufferPiece>,
}

driver_queue!(VsockTx);

impl VsockTx {
    pub(super) fn new(
        queue: DriverQueue,
        memory: &GuestMemory,
        options: &VsockOptions,
        indirect: bool,
    ) -> Result<VsockTx, GuestError> {
        let size = usize::from(queue.ring.memory().size());
        let slot_stride = match options.layout {
            TxLayout::Single => (HEADER_LEN + MAX_PAYLOAD).next_multiple_of(HEADER_STRIDE),
            TxLayout::Split => MAX_PAYLOAD,
            TxLayout::Pieces(len) => {
                let count = MAX_PAYLOAD.div_ceil((len as usize).max(1));
                if len == 0 || count >= size {
                    return Err(GuestError::BadSetting {
                        what: "the length of a packet's pieces",
                        value: len.into(),
                        rule: "so long that 64 KiB and a header fit the queue's descriptors",
                    });
                }
                count * piece_stride(len)
            }
        };
        if options.tx_slots == 0 || size < 2 {
            return Err(GuestError::BadSetting {
                what: "the number of transmit buffers or descriptors",
                value: 0,
                rule: "at least 1 buffer and 2 descriptors",
            });
        }
        Ok(VsockTx {
            queue,
            layout: options.layout,
            headers: memory.allocate(size * HEADER_STRIDE, HEADER_STRIDE)?,
            tables: match indirect {
                // A table must not be longer than the queue (§2.7.5.3.1).
                true => Some(IndirectTables::new(memory, size, size.min(TABLE_ENTRIES))?),
                false => None,
            },
            payload: memory.allocate(options.tx_slots * slot_stride, 4096)?,
            slot_stride,
            free_headers: (0..size as u32).rev().collect(),
            free_slots: (0..options.tx_slots as u32).rev().collect(),
            slots: vec![NONE; size],
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
        if payload.len() > MAX_PAYLOAD {
            return Err(GuestError::FrameTooLong { len: payload.len(), capacity: MAX_PAYLOAD });
        }
        let mut segments = std::mem::take(&mut self.segments);
        segments.clear();
        let added = self.copy_and_add(header, payload, &mut segments);
        self.segments = segments;
        Ok(added)
    }

    fn copy_and_add(
        &mut self,
        header: &PacketHeader,
        payload: &[u8],
        segments: &mut Vec<BufferPiece>,
    ) -> bool {
        let Some(&number) = self.free_headers.last() else { return false };
        let slot = match (payload.is_empty(), self.free_slots.last()) {
            (true, _) => NONE,
            (false, Some(&slot)) => slot,
            (false, None) => return false,
        };
        let base = self.slot_stride * if slot == NONE { 0 } else { slot as usize };
        let own = |at: usize, len: usize| BufferPiece::readable(&self.payload, base + at, len);
        match self.layout {
            TxLayout::Single if slot != NONE => {
                self.payload.write(base, &header.to_bytes());
                self.payload.write(base + HEADER_LEN, payload);
                segments.push(own(0, HEADER_LEN + payload.len()));
            }
            TxLayout::Pieces(len) => {
                segments.push(self.place_header(number, header));
                for (at, bytes) in payload.chunks(len as usize).enumerate() {
                    let at = at * piece_stride(len);
                    self.payload.write(base + at, bytes);
                    segments.push(own(at, bytes.len()));
                }
            }
            _ => {
                segments.push(self.place_header(number, header));
                if slot != NONE {
                    self.payload.write(base, payload);
                    segments.push(own(0, payload.len()));
                }
            }
        }
        let added = self.add(number, segments);
        if added && slot != NONE {
            self.free_slots.pop();
            self.slots[number as usize] = slot;
        }
        added
    }

    /// Adds a packet whose payload lies in guest memory already, in these
    /// pieces; it must stay as it is until it was given back. False when the
    /// queue is full.
    #[inline]
    pub fn submit(&mut self, header: &PacketHeader, payload: impl IntoIterator<Item = BufferPiece>) -> bool {
        let Some(&number) = self.free_headers.last() else { return false };
        let mut segments = std::mem::take(&mut self.segments);
        segments.clear();
        segments.push(self.place_header(number, header));
        segments.extend(payload);
        let added = self.add(number, &segments);
        self.segments = segments;
        added
    }

    fn place_header(&self, number: u32, header: &PacketHeader) -> BufferPiece {
        let at = number as usize * HEADER_STRIDE;
        self.headers.write(at, &header.to_bytes());
        BufferPiece::readable(&self.headers, at, HEADER_LEN)
    }

    fn add(&mut self, number: u32, segments: &[BufferPiece]) -> bool {
        let added = match &self.tables {
            Some(tables) if segments.len() <= tables.entries() => {
                tables.write(number as usize, segments);
                tables.add(&mut self.queue.ring, number as usize, segments, number)
            }
            _ => self.queue.ring.add(segments, number),
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
            self.free_headers.push(used.token);
            let slot = std::mem::replace(&mut self.slots[used.token as usize], NONE);
            if slot != NONE {
                self.free_slots.push(slot);
            }
            count += 1;
        }
        Ok(count)
    }

    /// Publishes, then waits and reaps until nothing is in flight. False when
    /// that takes longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`VsockTx::reap`] and [`DriverQueue::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, GuestError> {
        self.publish()?;
        let drained = until(self, timeout, |queue| {
            queue.reap()?;
            Ok((queue.in_flight() == 0).then_some(()))
        });
        Ok(drained?.is_some())
    }
}

/// Bytes from one piece to the next: a cache line more than needed.
fn piece_stride(len: u32) -> usize {
    (len as usize).next_multiple_of(HEADER_STRIDE) + HEADER_STRIDE
}

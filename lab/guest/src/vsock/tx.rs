//! The queue of packets from the guest.

use std::time::{Duration, Instant};

use super::driver::VsockOptions;
use super::header::{HEADER_LEN, MAX_PAYLOAD, PacketHeader};
use crate::queue::{DriverQueue, driver_queue};
use crate::ring::{BufferPiece, DESC_LEN, DESC_NEXT, write_desc_at};
use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice};

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

/// What a queue has done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VsockTxCounters {
    /// Packets added.
    pub added: u64,
    /// Packets that the device gave back.
    pub completed: u64,
    /// Bytes of payload added.
    pub bytes: u64,
    /// Notifications of the device.
    pub kicks: u64,
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
    /// One table of `entries` a header.
    tables: Option<GuestSlice>,
    entries: usize,
    payload: GuestSlice,
    slot_stride: usize,
    free_headers: Vec<u32>,
    free_slots: Vec<u32>,
    /// Payload slot of each header in flight.
    slots: Vec<u32>,
    segments: Vec<BufferPiece>,
    counters: VsockTxCounters,
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
        // A table must not be longer than the queue (§2.7.5.3.1).
        let entries = size.min(TABLE_ENTRIES);
        Ok(VsockTx {
            queue,
            layout: options.layout,
            headers: memory.allocate(size * HEADER_STRIDE, HEADER_STRIDE)?,
            tables: match indirect {
                true => Some(memory.allocate(size * entries * DESC_LEN, HEADER_STRIDE)?),
                false => None,
            },
            entries,
            payload: memory.allocate(options.tx_slots * slot_stride, 4096)?,
            slot_stride,
            free_headers: (0..size as u32).rev().collect(),
            free_slots: (0..options.tx_slots as u32).rev().collect(),
            slots: vec![NONE; size],
            segments: Vec::with_capacity(size),
            counters: VsockTxCounters::default(),
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
        let own = |at: usize, len: usize| readable(&self.payload, base + at, len);
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
        let added = self.add(number, segments, payload.len());
        if added && slot != NONE {
            self.free_slots.pop();
            self.slots[number as usize] = slot;
        }
        added
    }

    /// Adds a packet whose payload lies in guest memory already, one
    /// descriptor a slice; it must stay as it is until it was given back.
    /// False when the queue is full.
    pub fn submit(&mut self, header: &PacketHeader, payload: &[GuestSlice]) -> bool {
        self.submit_all(header, payload.iter().map(|slice| readable(slice, 0, slice.len())))
    }

    /// As [`VsockTx::submit`], with any descriptors.
    #[inline]
    pub fn submit_segments(&mut self, header: &PacketHeader, payload: &[BufferPiece]) -> bool {
        self.submit_all(header, payload.iter().copied())
    }

    #[inline]
    fn submit_all(&mut self, header: &PacketHeader, payload: impl Iterator<Item = BufferPiece>) -> bool {
        let Some(&number) = self.free_headers.last() else { return false };
        let mut segments = std::mem::take(&mut self.segments);
        segments.clear();
        segments.push(self.place_header(number, header));
        segments.extend(payload);
        let bytes = segments[1..].iter().map(|segment| segment.len as usize).sum();
        let added = self.add(number, &segments, bytes);
        self.segments = segments;
        added
    }

    fn place_header(&self, number: u32, header: &PacketHeader) -> BufferPiece {
        let at = number as usize * HEADER_STRIDE;
        self.headers.write(at, &header.to_bytes());
        readable(&self.headers, at, HEADER_LEN)
    }

    fn add(&mut self, number: u32, segments: &[BufferPiece], bytes: usize) -> bool {
        let added = match &self.tables {
            Some(tables) if segments.len() <= self.entries => {
                let base = number as usize * self.entries;
                for (at, segment) in segments.iter().enumerate() {
                    let flags = if at + 1 < segments.len() { DESC_NEXT } else { 0 };
                    write_desc_at(tables, base + at, segment.addr.0, segment.len, flags, at as u16 + 1);
                }
                let table = GuestAddr(tables.guest_addr().0 + (base * DESC_LEN) as u64);
                self.queue.ring.add_indirect(table, (segments.len() * DESC_LEN) as u32, 0, number)
            }
            _ => self.queue.ring.add(segments, number),
        };
        if added {
            self.free_headers.pop();
            self.counters.added += 1;
            self.counters.bytes += bytes as u64;
        }
        added
    }

    /// Whether [`VsockTx::send`] has a buffer and descriptors for one more
    /// packet of `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        let pieces = match self.layout {
            TxLayout::Single => 1,
            TxLayout::Split => 2,
            TxLayout::Pieces(piece) => 1 + len.div_ceil(piece as usize),
        };
        let in_table = self.tables.is_some() && pieces <= self.entries;
        let needed = if in_table { 1 } else { pieces };
        usize::from(self.queue.ring.free()) >= needed
            && !self.free_headers.is_empty()
            && (len == 0 || !self.free_slots.is_empty())
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
        self.counters.completed += count as u64;
        Ok(count)
    }

    /// Publishes, then waits and reaps until nothing is in flight. False when
    /// that takes longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`VsockTx::reap`] and [`DriverQueue::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, GuestError> {
        let start = Instant::now();
        self.publish()?;
        self.reap()?;
        while self.queue.ring.in_flight() > 0 {
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Ok(false);
            };
            self.wait(1, left)?;
            self.reap()?;
        }
        Ok(true)
    }

    /// What was done so far.
    pub fn counters(&self) -> VsockTxCounters {
        VsockTxCounters { kicks: self.queue.kicks(), ..self.counters }
    }
}

/// A part of guest memory for the device to read.
fn readable(slice: &GuestSlice, at: usize, len: usize) -> BufferPiece {
    BufferPiece { addr: GuestAddr(slice.guest_addr().0 + at as u64), len: len as u32, writable: false }
}

/// Bytes from one piece to the next: a cache line more than needed.
fn piece_stride(len: u32) -> usize {
    (len as usize).next_multiple_of(HEADER_STRIDE) + HEADER_STRIDE
}

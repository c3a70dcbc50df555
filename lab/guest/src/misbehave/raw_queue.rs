//! A queue without rules.

use std::time::{Duration, Instant};

use crate::ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, RingMemory, write_desc_at};
use crate::{GuestError, GuestMemory, GuestSlice, QueueHandle, Transport};

/// A descriptor, any of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RawDesc {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Flags ([`crate::ring::DESC_NEXT`] and its like).
    pub flags: u16,
    /// Index of the next one.
    pub next: u16,
}

impl RawDesc {
    /// A whole slice for the device to read.
    pub fn readable(slice: &GuestSlice) -> RawDesc {
        RawDesc { addr: slice.guest_addr().0, len: slice.len() as u32, ..RawDesc::default() }
    }

    /// A whole slice for the device to write.
    pub fn writable(slice: &GuestSlice) -> RawDesc {
        RawDesc { flags: DESC_WRITE, ..RawDesc::readable(slice) }
    }

    /// A whole slice that is a table of descriptors.
    pub fn indirect(slice: &GuestSlice) -> RawDesc {
        RawDesc { flags: DESC_INDIRECT, ..RawDesc::readable(slice) }
    }
}

/// A queue whose every field can be written. Owns its ring and what it placed.
pub struct RawQueue {
    memory: GuestMemory,
    ring: RingMemory,
    handle: QueueHandle,
    avail_idx: u16,
    placed: Vec<GuestSlice>,
}

impl RawQueue {
    /// Sets up and enables queue `index` with `size` entries. `transport` must
    /// have negotiated features and shared `memory`.
    ///
    /// # Errors
    /// Those of the transport; [`GuestError::OutOfMemory`].
    pub fn start<T: Transport>(
        memory: &GuestMemory,
        transport: &mut T,
        index: u16,
        size: u16,
    ) -> Result<RawQueue, GuestError> {
        let ring = RingMemory::new(memory, size)?;
        let handle = transport.start_queue(index, &ring.setup(0))?;
        transport.enable_queue(index, true)?;
        Ok(Self::from_parts(memory, ring, handle))
    }

    /// Misuses a queue that is set up already. Goes on at its available index.
    pub fn from_parts(memory: &GuestMemory, ring: RingMemory, handle: QueueHandle) -> RawQueue {
        RawQueue { memory: memory.clone(), avail_idx: ring.avail_idx(), ring, handle, placed: Vec::new() }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The ring's memory, every field writable.
    pub fn ring(&self) -> &RingMemory {
        &self.ring
    }

    /// Doorbell, interrupt and error descriptor.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    /// Copies bytes to newly allocated guest memory, which the queue keeps
    /// until it is dropped.
    ///
    /// # Errors
    /// [`GuestError::OutOfMemory`].
    pub fn place(&mut self, bytes: &[u8]) -> Result<GuestSlice, GuestError> {
        let slice = self.memory.allocate(bytes.len(), 16)?;
        slice.write(0, bytes);
        self.placed.push(slice.clone());
        Ok(slice)
    }

    /// Writes descriptors to a new table in guest memory, as they are.
    ///
    /// # Errors
    /// [`GuestError::OutOfMemory`].
    pub fn place_table(&mut self, table: &[RawDesc]) -> Result<GuestSlice, GuestError> {
        let slice = self.place(&vec![0; table.len() * DESC_LEN])?;
        for (at, desc) in table.iter().enumerate() {
            write_desc_at(&slice, at, desc.addr, desc.len, desc.flags, desc.next);
        }
        Ok(slice)
    }

    /// Writes descriptor `index` (modulo the size) as it is.
    pub fn write_desc(&self, index: u16, desc: RawDesc) {
        self.ring.write_desc(index, desc.addr, desc.len, desc.flags, desc.next);
    }

    /// Writes descriptors from `first` on, linked one to the next; the last
    /// one keeps its own flags and link.
    pub fn write_chain(&self, first: u16, chain: &[RawDesc]) {
        for (at, desc) in (0u16..).zip(chain) {
            let index = first.wrapping_add(at);
            let mut desc = *desc;
            if usize::from(at) + 1 < chain.len() {
                desc.flags |= DESC_NEXT;
                desc.next = index.wrapping_add(1);
            }
            self.write_desc(index, desc);
        }
    }

    /// Puts `head` on the available ring and moves the index by one.
    pub fn offer(&mut self, head: u16) {
        self.ring.write_avail(self.avail_idx, head);
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    /// Stores the available index, whatever it is.
    pub fn set_avail_idx(&mut self, index: u16) {
        self.avail_idx = index;
        self.ring.publish_avail_idx(index);
    }

    /// The available index stored last.
    pub fn avail_idx(&self) -> u16 {
        self.avail_idx
    }

    /// Notifies the device.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn kick(&self) -> Result<(), GuestError> {
        let result = self.handle.doorbell.ring();
        result.map_err(|e| GuestError::io("notifying the device", e))
    }

    /// Waits until the used index is `index`, by looking again and again.
    /// False when `timeout` is over first.
    pub fn wait_used(&self, index: u16, timeout: Duration) -> bool {
        let start = Instant::now();
        while self.ring.used_idx() != index {
            if start.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Waits until the device reports an error of this queue (the descriptor
    /// of SET_VRING_ERR). False when it does not, or has no way to.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn wait_error(&self, timeout: Duration) -> Result<bool, GuestError> {
        let Some(error) = &self.handle.error else {
            return Ok(false);
        };
        let waited = error.wait(timeout);
        waited.map_err(|e| GuestError::io("waiting for the queue's error descriptor", e))
    }
}

//! The memory that frames come from and go to.
//!
//! An [`Area`] is a shared mapping of an anonymous file, like the memory of a guest, populated
//! before anything is measured. This process alone maps it, and benchmarks fill it once, before
//! they measure.

use std::io;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::MapFlags;
use zerowire_sys::map::{Mapping, READ_WRITE};

/// Owned memory, page-aligned, zeroed.
#[derive(Debug)]
pub struct Area(Mapping);

impl Area {
    /// Maps `len` bytes, at least one. Fails when memory is short.
    pub fn new(len: usize) -> Result<Self> {
        let len = len.max(1);
        let file = memfd_create("zerowire-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let mapping = Mapping::shared_with(&file, 0, len, READ_WRITE, MapFlags::POPULATE);
        let mapping = mapping
            .map_err(io::Error::from)
            .with_context(|| format!("can't map {len} bytes for the working set: free memory"))?;
        Ok(Self(mapping))
    }

    /// All its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long, lives as long as `self`, nobody else maps the file, and
        // the mutable borrow keeps other references out.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`; shared borrows only read.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

/// What Linux posts for frames of Ethernet's usual length, bytes (drivers/net/virtio_net.c,
/// GOOD_PACKET_LEN).
pub const RECEIVE_BUFFER: usize = 1536;

/// What Linux cuts them out of (net/core/sock.c, skb_page_frag_refill).
const RECEIVE_BLOCK: usize = 32 << 10;

/// A working set cut into slots of equal size, walked in order, again and again.
///
/// A buffer that is much shorter than its slot moves on within it with each pass. So in the end
/// every cache line of the working set is used. Else the short buffers of a large working set would
/// fit into a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    stride: usize,
    count: usize,
    /// Slots in a block, which begin one behind the other.
    per_block: usize,
    /// From one block to the next, bytes.
    block: usize,
    /// Distance of the places within a slot: whole cache lines.
    step: usize,
    /// Places within a slot.
    lanes: usize,
}

impl Slots {
    /// Slots for buffers of `len` bytes in a working set of `bytes` (at least one slot).
    ///
    /// The stride is 2048 bytes for buffers within it, as a guest's network buffers are, else whole
    /// pages.
    pub fn new(bytes: usize, len: usize) -> Self {
        let len = len.max(1);
        let stride = if len <= 2048 { 2048 } else { len.next_multiple_of(4096) };
        Self::cut(bytes, len, stride, 1, stride)
    }

    /// Slots for receive buffers, as Linux cuts them for frames of Ethernet's usual length
    /// (drivers/net/virtio_net.c, add_recvbuf_mergeable). They have 1536 bytes and lie one behind
    /// the other in blocks of 32 KiB, so they begin at many places of a page. Longer ones as by
    /// [`Slots::new`].
    pub fn received(bytes: usize, len: usize) -> Self {
        match len {
            0..=RECEIVE_BUFFER => {
                Self::cut(bytes, len.max(1), RECEIVE_BUFFER, RECEIVE_BLOCK / RECEIVE_BUFFER, RECEIVE_BLOCK)
            }
            _ => Self::new(bytes, len),
        }
    }

    fn cut(bytes: usize, len: usize, stride: usize, per_block: usize, block: usize) -> Self {
        let step = len.next_multiple_of(64);
        let count = (bytes / block * per_block).max(1);
        Self { stride, count, per_block, block, step, lanes: stride / step }
    }

    /// The memory that all slots take, in bytes.
    pub fn total(self) -> usize {
        self.block * self.count.div_ceil(self.per_block)
    }

    /// How many different places there are.
    pub fn places(self) -> usize {
        self.count * self.lanes
    }

    /// Where the buffer of the `index`-th use begins, in bytes from the start.
    pub fn offset(self, index: usize) -> usize {
        let slot = index % self.count;
        let lane = index / self.count % self.lanes;
        let (block, within) = (slot / self.per_block, slot % self.per_block);
        block * self.block + within * self.stride + lane * self.step
    }
}

#[cfg(test)]
mod tests;

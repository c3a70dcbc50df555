//! A ring of provided buffers (`IORING_REGISTER_PBUF_RING`, Linux 5.19): the kernel takes the next
//! one when data comes.
//!
//! Memory: the entries lie in memory of this process that the kernel maps as well. The kernel reads
//! an entry after the tail has passed it, and may shorten its length (bundles). The memory that an
//! entry points to belongs to the kernel from [`BufferRing::publish`] until the completion that
//! names it.

use super::ring::SendRing;
use crate::map::Mapping;
use io_uring::types::BufRingEntry;
use rustix::mm::MapFlags;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// See the module.
#[derive(Debug)]
pub struct BufferRing {
    memory: Mapping,
    mask: u16,
    tail: u16,
    group: u16,
}

impl BufferRing {
    /// Registers a ring of `entries` (rounded up to a power of two, at most 32768) as group
    /// `group`.
    ///
    /// # Errors
    /// EINVAL before Linux 5.19; ENOMEM beyond RLIMIT_MEMLOCK.
    pub fn new(ring: &SendRing, entries: usize, group: u16) -> io::Result<Self> {
        let entries = entries.clamp(1, 32768).next_power_of_two();
        let page = rustix::param::page_size();
        let bytes = (entries * size_of::<BufRingEntry>()).next_multiple_of(page);
        let memory = Mapping::private_with(bytes, MapFlags::empty())?;
        // SAFETY: the memory is page-aligned and long enough. The kernel pins its pages, so that
        // even a ring that outlives this value writes to nothing else.
        unsafe { ring.register_buffer_ring(memory.as_ptr(), entries as u16, group)? };
        Ok(Self { memory, mask: (entries - 1) as u16, tail: 0, group })
    }

    /// Its number, which entries name.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Writes the next entry, which the kernel sees after [`BufferRing::publish`]; returns its
    /// position.
    ///
    /// # Safety
    /// `len` bytes from `at` on stay mapped and writable, and nobody else reads or writes them,
    /// until a completion names the entry or the ring is gone. No more entries are out than the
    /// ring has.
    #[inline]
    pub unsafe fn put(&mut self, at: *mut u8, len: u32, buffer: u16) -> u16 {
        let position = self.tail & self.mask;
        // SAFETY: the position is within the ring. The kernel doesn't read or write an entry before
        // the tail has passed it, and only this thread writes. The fields are set one by one: those
        // of the first entry share it with the tail.
        let entry = unsafe { &mut *self.entry(position) };
        entry.set_addr(at as u64);
        entry.set_len(len);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        position
    }

    /// Hands what was put over to the kernel.
    #[inline]
    pub fn publish(&self) {
        // SAFETY: the first entry's last field is the tail (include/uapi/linux/io_uring.h, `struct
        // io_uring_buf_ring`); it is aligned, and both sides use it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entry(0)).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The length of an entry that the kernel has used: it may have shortened it.
    #[inline]
    pub fn len_at(&self, position: u16) -> u32 {
        // SAFETY: within the ring; a completion named the entry, so the kernel is done with it.
        unsafe { (*self.entry(position & self.mask)).len() }
    }

    #[inline]
    fn entry(&self, position: u16) -> *mut BufRingEntry {
        self.memory.as_ptr().cast::<BufRingEntry>().wrapping_add(position.into())
    }
}

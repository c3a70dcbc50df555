//! A ring of provided buffers (`IORING_REGISTER_PBUF_RING`, Linux 5.19): the kernel takes the next
//! one when data comes.
//!
//! Memory: the entries lie in memory of this process that the kernel maps as well. The kernel reads
//! an entry after the tail has passed it, and may shorten its length (bundles). The memory that an
//! entry points to belongs to the kernel from [`BufferRing::publish`] until the completion that
//! names it.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::mm::MapFlags;

use super::ring::{SendRing, register_buffer_ring};
use crate::map::{EntryTable, Mapping};
use crate::plain::plain;

plain! {
    /// `struct io_uring_buf`. The last field of the first entry is the ring's tail (`struct
    /// io_uring_buf_ring`).
    struct BufferEntry {
        addr: u64,
        len: u32,
        buffer: u16,
        tail: u16,
    }
}

const TAIL: usize = std::mem::offset_of!(BufferEntry, tail);

/// See the module.
#[derive(Debug)]
pub struct BufferRing {
    entries: EntryTable<BufferEntry>,
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
        let bytes = (entries * size_of::<BufferEntry>()).next_multiple_of(page);
        let memory = Mapping::private_with(bytes, MapFlags::empty())?;
        register_buffer_ring(&ring.submitter(), &memory, entries as u16, group)?;
        let entries = EntryTable::new(memory, 0, entries as u32).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { entries, tail: 0, group })
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
        let position = self.tail & (self.entries.len() - 1) as u16;
        // The kernel doesn't read or write an entry before the tail has passed it, and only this
        // thread writes.
        let tail = if position == 0 { self.published().load(Ordering::Relaxed) } else { 0 };
        self.entries.write(position.into(), &BufferEntry { addr: at as u64, len, buffer, tail });
        self.tail = self.tail.wrapping_add(1);
        position
    }

    /// Hands what was put over to the kernel.
    #[inline]
    pub fn publish(&self) {
        self.published().store(self.tail, Ordering::Release);
    }

    /// The tail as the kernel sees it.
    #[inline]
    fn published(&self) -> &AtomicU16 {
        self.entries.memory().atomic(TAIL).expect("a ring has an entry")
    }

    /// The length of an entry that the kernel has used: it may have shortened it.
    #[inline]
    pub fn len_at(&self, position: u16) -> u32 {
        self.entries.read(position.into()).len
    }
}

//! The shared memory and its layout.
//!
//! ```text
//! queue 0                                                    queue 1, at the next multiple of 64
//! features u64 | version u16 | desc_num u16 |                 ...
//!   last_batch_head u16 | used_idx u16 |
//!   for each head: inflight u8 | free [u8; 5] | next u16 | counter u64
//! ```
//! Fields are in the byte order of the machine. The protocol doesn't give the places of the queues.
//! They are where libvhost-user and DPDK have them, so that a region can go from one back end to
//! the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::memory::{
    Guarded, KeepsMapped, Mapping, SharedWords, check_memory, file_len, memory_file, page_size,
};

/// Bytes before the first entry, and of each entry (`QueueRegionSplit`, `DescStateSplit`).
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// Each queue begins at a multiple of this.
const QUEUE_ALIGN: usize = 64;

/// The memory in which the chains in flight of a device's queues are marked. The front end shares
/// it, hence it is hostile.
#[derive(Debug)]
pub struct InflightRegion {
    map: Guarded,
    /// Queues that have a place.
    pub queues: u16,
    /// Entries of each.
    pub queue_size: u16,
}

impl InflightRegion {
    /// A new region, all zero, for `queues` queues of `queue_size` entries (a power of two), and
    /// its file. The file can't be made shorter. `VHOST_USER_GET_INFLIGHT_FD` answers with both.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(Self, OwnedFd)> {
        let len = Self::bytes_for(queues, queue_size);
        let file = memory_file("zerowire-inflight", len as u64)?;
        let map = map_pages(&file, 0, len)?;
        Ok((Self { map, queues, queue_size }, file))
    }

    /// The region that lies at `offset` in `file`, of which the front end says that it has `len`
    /// bytes (`VHOST_USER_SET_INFLIGHT_FD`).
    ///
    /// # Errors
    /// A text that says which number can't be.
    pub fn open(file: &OwnedFd, offset: u64, len: u64, queues: u16, queue_size: u16) -> Result<Self, String> {
        let needed = Self::bytes_for(queues, queue_size);
        if len < needed as u64 {
            return Err(format!(
                "a region of {len} bytes, where {queues} queues of {queue_size} entries take {needed}"
            ));
        }
        check_memory(file).map_err(|e| e.to_string())?;
        let page = page_size(file).map_err(|e| format!("its file can't be used: {e}"))?;
        if !offset.is_multiple_of(page) {
            return Err(format!("offset {offset:#x} is not a multiple of its file's page size {page}"));
        }
        let size = file_len(file).map_err(|e| format!("its file can't be used: {e}"))?;
        if offset.checked_add(needed as u64).is_none_or(|end| end > size) {
            return Err(format!("the file ends at {size}, the region of {needed} bytes is at {offset}"));
        }
        let map = map_pages(file, offset, needed)
            .map_err(|e| format!("{needed} bytes at {offset:#x} can't be mapped: {e}"))?;
        Ok(Self { map, queues, queue_size })
    }

    /// Bytes of such a region.
    pub fn bytes_for(queues: u16, queue_size: u16) -> usize {
        Self::queue_bytes(queue_size) * usize::from(queues)
    }

    fn queue_bytes(queue_size: u16) -> usize {
        (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(QUEUE_ALIGN)
    }

    /// Nothing is in flight any more, of any queue: the driver has reset the device, and no ring
    /// runs.
    pub fn clear(self: &Arc<Self>) {
        (0..self.queues)
            .filter_map(|queue| Place::new(self, queue))
            .for_each(|p| p.version().store(0, Ordering::Release));
    }
}

/// Maps whole pages: only those can be replaced when the file loses them.
fn map_pages(file: &OwnedFd, offset: u64, len: usize) -> io::Result<Guarded> {
    let page = page_size(file)? as usize;
    let map = Mapping::shared(file.as_fd(), offset, len.next_multiple_of(page))?;
    Ok(Guarded::new(map, page))
}

impl KeepsMapped for InflightRegion {
    fn map(&self) -> &Guarded {
        &self.map
    }
}

/// The place of one queue.
#[derive(Debug)]
pub(super) struct Place {
    queue_size: u16,
    words: SharedWords,
}

impl Place {
    /// None where the region has no place for this queue.
    pub fn new(region: &Arc<InflightRegion>, queue: u16) -> Option<Self> {
        if queue >= region.queues {
            return None;
        }
        let len = InflightRegion::queue_bytes(region.queue_size);
        let words = SharedWords::new(region.clone(), len * usize::from(queue), len)?;
        Some(Self { queue_size: region.queue_size, words })
    }

    pub fn size(&self) -> u16 {
        self.queue_size
    }

    pub fn features(&self) -> &AtomicU64 {
        self.words.long(0)
    }

    /// 1, or 0 while the rest means nothing.
    pub fn version(&self) -> &AtomicU16 {
        self.words.word(4)
    }

    pub fn desc_num(&self) -> &AtomicU16 {
        self.words.word(5)
    }

    pub fn last_batch_head(&self) -> &AtomicU16 {
        self.words.word(6)
    }

    pub fn used_idx(&self) -> &AtomicU16 {
        self.words.word(7)
    }

    /// Where the entry of a head begins, which is reduced to the size of the place.
    fn entry(&self, head: u16) -> usize {
        HEADER_BYTES + ENTRY_BYTES * usize::from(head & (self.queue_size - 1))
    }

    pub fn inflight(&self, head: u16) -> &AtomicU8 {
        self.words.byte(self.entry(head))
    }

    /// A byte that the protocol leaves free.
    pub fn handed_on(&self, head: u16) -> &AtomicU8 {
        self.words.byte(self.entry(head) + 1)
    }

    pub fn next(&self, head: u16) -> &AtomicU16 {
        self.words.word(self.entry(head) / 2 + 3)
    }

    pub fn counter(&self, head: u16) -> &AtomicU64 {
        self.words.long(self.entry(head) + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_of_a_region_is_lost_the_process_has_few_mappings_more() {
        let (queues, queue_size) = (512, 1024);
        let len = InflightRegion::bytes_for(queues, queue_size) as u64;
        let file = rustix::fs::memfd_create("inflight", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, len).expect("its length");
        let region = InflightRegion::open(&file, 0, len, queues, queue_size).expect("a region");
        let region = Arc::new(region);
        rustix::fs::ftruncate(&file, 4096).expect("its new length");
        for queue in (0..queues).rev() {
            Place::new(&region, queue).expect("its place").version().store(1, Ordering::Release);
        }
        assert_eq!(region.map.parts(), 2);
    }
}

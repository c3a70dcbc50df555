//! The memory of a packet ring: slots that the process and the kernel pass to each other by a
//! status word.
//!
//! **Who owns these bytes.** A slot's data is the process's, unless the status says that the kernel
//! has it. The kernel takes a slot only behind a status that the process stores, or within a call
//! that its owner makes. So the process stores a status with release ordering, and loads it with
//! acquire ordering. The words of a slot's header are accessed by atomics.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
#[cfg(feature = "testing")]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::MapFlags;

use super::geometry::Geometry;
use super::receive::{SLOT_BYTES, SLOTS};
use crate::map::{Mapping, READ_WRITE};

/// `TP_STATUS_SENDING` (include/uapi/linux/if_packet.h).
pub(super) const SENDING: u32 = 2;

/// Which slots are the kernel's.
#[derive(Clone, Copy, Debug)]
enum KernelHas {
    /// Of a receive ring: those with status 0 (TP_STATUS_KERNEL).
    Zero,
    /// Of a transmit ring: those with [`SENDING`].
    Sending,
}

/// A mapped ring.
#[derive(Debug)]
pub(super) struct SlotMap {
    mapping: Mapping,
    /// Offset of each slot, to save two divisions an access.
    offsets: Box<[usize]>,
    slot_bytes: usize,
    status_at: usize,
    /// Where data may begin in a slot, behind the header.
    data_at: usize,
    kernel_has: KernelHas,
}

impl SlotMap {
    /// The receive ring of a socket.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self {
            mapping: Mapping::shared(socket, 0, SLOTS * SLOT_BYTES)?,
            offsets: (0..SLOTS).map(|slot| slot * SLOT_BYTES).collect(),
            slot_bytes: SLOT_BYTES,
            status_at: std::mem::offset_of!(libc::tpacket2_hdr, tp_status),
            data_at: size_of::<libc::tpacket2_hdr>(),
            kernel_has: KernelHas::Zero,
        })
    }

    /// The transmit ring of a socket.
    pub(super) fn transmit(socket: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<Self> {
        let len = geometry.total_bytes();
        Ok(Self {
            mapping: Mapping::shared_with(socket, 0, len, READ_WRITE, MapFlags::POPULATE)?,
            offsets: (0..geometry.slots()).map(|slot| geometry.offset(slot)).collect(),
            slot_bytes: geometry.slot_bytes(),
            status_at: geometry.version().status_at(),
            data_at: geometry.version().data_at(),
            kernel_has: KernelHas::Sending,
        })
    }

    /// The word at byte `at` of a slot.
    #[inline]
    pub(super) fn word(&self, slot: usize, at: usize) -> &AtomicU32 {
        debug_assert!(at < self.data_at);
        self.mapping.word(self.offsets[slot] + at)
    }

    /// The status of a slot. What the kernel wrote before it is seen.
    #[inline]
    pub(super) fn status(&self, slot: usize) -> u32 {
        self.word(slot, self.status_at).load(Ordering::Acquire)
    }

    /// Sets the status of a slot. Who sees it sees what was written before.
    #[inline]
    pub(super) fn set_status(&mut self, slot: usize, status: u32) {
        self.word(slot, self.status_at).store(status, Ordering::Release);
    }

    #[inline]
    fn is_kernels(&self, slot: usize) -> bool {
        let status = self.status(slot);
        match self.kernel_has {
            KernelHas::Zero => status == libc::TP_STATUS_KERNEL,
            KernelHas::Sending => status & SENDING != 0,
        }
    }

    /// A range of a slot, in the mapping; None unless it lies behind the slot's header.
    #[inline]
    fn data_range(&self, slot: usize, range: &Range<usize>) -> Option<Range<usize>> {
        let is_data = self.data_at <= range.start && range.start <= range.end && range.end <= self.slot_bytes;
        let offset = self.offsets[slot];
        is_data.then(|| offset + range.start..offset + range.end)
    }

    /// Bytes of a slot; None while the kernel has it, and unless they lie behind the slot's header.
    #[inline]
    pub(super) fn data_mut(&mut self, slot: usize, range: Range<usize>) -> Option<&mut [u8]> {
        let range = self.data_range(slot, &range)?;
        if self.is_kernels(slot) {
            return None;
        }
        // SAFETY: inside the slot, which lies in the mapping, and behind the words that are
        // accessed by atomics. The slot is the process's until its status changes, or its owner
        // makes a call on the ring: both take `self`. Nothing else refers to the bytes.
        Some(unsafe { self.mapping.bytes_mut(range) })
    }

    /// Copies bytes of slot `from` to slot `to`, which are both the process's.
    ///
    /// # Panics
    /// Where they don't lie behind the slots' headers.
    #[inline]
    pub(super) fn copy(&mut self, from: usize, to: usize, range: Range<usize>) {
        debug_assert!(!self.is_kernels(from) && !self.is_kernels(to));
        let [from, to] = [from, to].map(|slot| self.data_range(slot, &range));
        let (from, to) = from.zip(to).expect("data of a slot");
        let base = self.mapping.as_ptr();
        // SAFETY: two ranges of the mapping of one length. No reference to them exists, and the
        // kernel doesn't mind what it reads.
        unsafe { std::ptr::copy(base.wrapping_add(from.start), base.wrapping_add(to.start), from.len()) };
    }

    /// A byte of a slot, whoever has it.
    #[cfg(feature = "testing")]
    pub(super) fn byte(&self, slot: usize, at: usize) -> &AtomicU8 {
        assert!(at < self.slot_bytes);
        self.mapping.byte(self.offsets[slot] + at)
    }
}

//! The memory of a transmit ring: slots that the process and the kernel pass to each other by a
//! status word.
//!
//! A slot is the process's while its status is AVAILABLE or WRONG_FORMAT, and while it is
//! SEND_REQUEST outside a call that sends on the socket (sendto(2), write(2)). The kernel looks at
//! requests only there, and only the owner of this memory makes such a call. A slot is the kernel's
//! while its status is SENDING. The kernel reads the length and the frame after it has seen
//! SEND_REQUEST. So the process stores the status with release and loads it with acquire ordering.
//! The kernel's side is net/packet/af_packet.c, `tpacket_snd`.
//!
//! ```text
//! slot     | tp_status, tp_len, ... | virtio-net header (with offloads) | frame ....... | unused |
//! offset   0                        data_at                            + 10
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::map::{Mapping, READ_WRITE};
use rustix::mm::MapFlags;

use super::geometry::Geometry;

/// Bits of `tp_status` of a transmit slot (include/uapi/linux/if_packet.h); others hold time
/// stamps.
const SEND_REQUEST: u32 = 1;
const SENDING: u32 = 2;
const WRONG_FORMAT: u32 = 4;

/// The owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The process; it was never sent, or it is back.
    Available,
    /// The process has requested a send.
    Requested,
    /// The kernel.
    Sending,
    /// The kernel refused it; it waits there until the process changes it.
    Refused,
}

/// The mapped ring. The kernel keeps pages that frames in flight refer to.
#[derive(Debug)]
pub struct TransmitRing {
    mapping: Mapping,
    /// Offset of each slot, to save two divisions an access.
    offsets: Box<[usize]>,
    geometry: Geometry,
}

impl TransmitRing {
    /// Maps the ring that was made on `socket` with this geometry ([`super::set_transmit_ring`]).
    pub fn map(socket: BorrowedFd<'_>, geometry: Geometry) -> io::Result<Self> {
        let len = geometry.total_bytes();
        let mapping = Mapping::shared_with(socket, 0, len, READ_WRITE, MapFlags::POPULATE)?;
        let offsets = (0..geometry.slots()).map(|slot| geometry.offset(slot)).collect();
        Ok(Self { mapping, offsets, geometry })
    }

    /// Where its slots lie.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Address of byte `at` of a slot, which are checked.
    #[inline]
    fn at(&self, slot: usize, at: usize) -> NonNull<u8> {
        let offset = self.offsets[slot];
        assert!(at < self.geometry.slot_bytes(), "byte {at} of a slot");
        // SAFETY: the offset of a slot of the geometry plus less than its length is inside the
        // mapping.
        unsafe { self.mapping.base().add(offset + at) }
    }

    #[inline]
    fn word(&self, slot: usize, at: usize) -> &AtomicU32 {
        // SAFETY: mapped as long as `self` and aligned: slots begin at multiples of 16, words at
        // multiples of 4. This process only ever uses the word atomically.
        unsafe { AtomicU32::from_ptr(self.at(slot, at).as_ptr().cast()) }
    }

    /// The owner of a slot.
    #[inline]
    pub fn status(&self, slot: usize) -> Status {
        let word = self.word(slot, self.geometry.version().status_at()).load(Ordering::Acquire);
        if word & WRONG_FORMAT != 0 {
            Status::Refused
        } else if word & SENDING != 0 {
            Status::Sending
        } else if word & SEND_REQUEST != 0 {
            Status::Requested
        } else {
            Status::Available
        }
    }

    /// Asks for `len` bytes (virtio-net header and frame) of a slot to be sent.
    #[inline]
    pub fn request(&mut self, slot: usize, len: usize) {
        debug_assert!(len <= self.geometry.data_bytes());
        debug_assert_ne!(self.status(slot), Status::Sending);
        self.word(slot, self.geometry.version().len_at()).store(len as u32, Ordering::Relaxed);
        self.word(slot, self.geometry.version().status_at()).store(SEND_REQUEST, Ordering::Release);
    }

    /// Takes a slot back that the kernel doesn't have.
    #[inline]
    pub fn take_back(&mut self, slot: usize) {
        debug_assert_ne!(self.status(slot), Status::Sending);
        self.word(slot, self.geometry.version().status_at()).store(0, Ordering::Release);
    }

    /// The place of virtio-net header and frame of a slot; None while the kernel has it.
    #[inline]
    pub fn data_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        if self.status(slot) == Status::Sending {
            return None;
        }
        let start = self.at(slot, self.geometry.version().data_at());
        // SAFETY: inside the slot; the kernel doesn't have it (above), and gets it only by a call
        // that needs `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.geometry.data_bytes()) })
    }

    /// Copies `len` bytes of data of slot `from` to slot `to`; both are the process's.
    #[inline]
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        debug_assert!(len <= self.geometry.data_bytes() && from != to);
        debug_assert!(self.status(from) != Status::Sending && self.status(to) != Status::Sending);
        let data_at = self.geometry.version().data_at();
        let (source, target) = (self.at(from, data_at), self.at(to, data_at));
        let len = len.min(self.geometry.data_bytes());
        // SAFETY: two slots, each with room for `len` bytes behind `data_at`.
        unsafe { ptr::copy(source.as_ptr(), target.as_ptr(), len) };
    }

    /// Changes bytes of a slot whoever has it, for tests.
    #[cfg(feature = "testing")]
    pub fn scribble(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.geometry.data_bytes());
        let start = self.at(slot, self.geometry.version().data_at());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the slot; no reference to it exists, and the kernel doesn't mind what
            // it reads.
            unsafe { start.add(offset + i).write_volatile(*byte) };
        }
    }

    /// Makes a slot's request one that the kernel refuses (`tp_len` beyond the slot), for tests.
    #[cfg(feature = "testing")]
    pub fn spoil(&mut self, slot: usize) {
        let len = self.geometry.slot_bytes() as u32 + 1;
        self.word(slot, self.geometry.version().len_at()).store(len, Ordering::Release);
    }
}

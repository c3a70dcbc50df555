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
use std::sync::atomic::Ordering;

use super::geometry::Geometry;
use super::slots::{SENDING, SlotMap};

/// Further bits of `tp_status` of a transmit slot (include/uapi/linux/if_packet.h); others hold
/// time stamps.
const SEND_REQUEST: u32 = 1;
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
    slots: SlotMap,
    geometry: Geometry,
}

impl TransmitRing {
    /// Maps the ring that was made on `socket` with this geometry ([`super::set_transmit_ring`]).
    pub fn map(socket: BorrowedFd<'_>, geometry: Geometry) -> io::Result<Self> {
        Ok(Self { slots: SlotMap::transmit(socket, &geometry)?, geometry })
    }

    /// Where its slots lie.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The owner of a slot.
    #[inline]
    pub fn status(&self, slot: usize) -> Status {
        let word = self.slots.status(slot);
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
        self.slots.word(slot, self.geometry.version().len_at()).store(len as u32, Ordering::Relaxed);
        self.slots.set_status(slot, SEND_REQUEST);
    }

    /// Takes a slot back that the kernel doesn't have.
    #[inline]
    pub fn take_back(&mut self, slot: usize) {
        debug_assert_ne!(self.status(slot), Status::Sending);
        self.slots.set_status(slot, 0);
    }

    /// The place of virtio-net header and frame of a slot; None while the kernel has it.
    #[inline]
    pub fn data_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.slots.data_mut(slot, self.geometry.version().data_at()..self.geometry.slot_bytes())
    }

    /// Copies `len` bytes of data of slot `from` to slot `to`; both are the process's.
    #[inline]
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        debug_assert!(len <= self.geometry.data_bytes() && from != to);
        let data_at = self.geometry.version().data_at();
        self.slots.copy(from, to, data_at..data_at + len.min(self.geometry.data_bytes()));
    }

    /// Changes bytes of a slot whoever has it, for tests.
    #[cfg(feature = "testing")]
    pub fn scribble(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.geometry.data_bytes());
        let start = self.geometry.version().data_at() + offset;
        for (i, byte) in bytes.iter().enumerate() {
            self.slots.byte(slot, start + i).store(*byte, Ordering::Relaxed);
        }
    }

    /// Makes a slot's request one that the kernel refuses (`tp_len` beyond the slot), for tests.
    #[cfg(feature = "testing")]
    pub fn spoil(&mut self, slot: usize) {
        let len = self.geometry.slot_bytes() as u32 + 1;
        self.slots.word(slot, self.geometry.version().len_at()).store(len, Ordering::Release);
    }
}

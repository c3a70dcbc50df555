//! The receive ring of a packet socket (PACKET_RX_RING, TPACKET_V2;
//! Documentation/networking/packet_mmap.rst).
//!
//! A slot is the kernel's while its status is 0 (TP_STATUS_KERNEL). It is this process's from when
//! the kernel has stored another status until this process stores 0 again. Nobody else touches it
//! meanwhile. The kernel fills slots in the order of the frames.
//!
//! ```text
//! slot     | header (status, lengths, …), address | … | virtio-net header | frame ..... | unused |
//! offset   0                                            tp_mac - 10         tp_mac
//! ```
//!
//! The kernel also queues a frame longer than a slot's room, whole, in the socket's receive queue,
//! in the order of those slots (PACKET_COPY_THRESH). If that queue has no room, the slot has what
//! fitted and says that it is not all (net/packet/af_packet.c, `tpacket_rcv`).

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use super::set_ring;
use super::slots::SlotMap;
use crate::socket::set_int;

/// Places for frames. A full ring is 2 MiB of the kernel's memory, which no limit of the user
/// counts.
pub const SLOTS: usize = 1024;

/// From one slot to the next: an Ethernet frame of 1500 bytes fits with all that stands before it,
/// and two slots are a page.
pub const SLOT_BYTES: usize = 2048;

/// Bytes of a block of slots, which the kernel allocates in one piece: eight pages, as it still
/// finds easily.
const BLOCK_BYTES: usize = 32 << 10;

/// Bytes of the virtio-net header that the kernel writes right before the frame, however long the
/// socket's headers are (`tpacket_rcv`: `macoff - sizeof(struct virtio_net_hdr)`).
const HEADER_BYTES: usize = 10;

/// Words of a slot's header: the length of the frame, how much of it is in the slot, and where its
/// Ethernet header begins (the first half).
const LEN: usize = offset_of!(libc::tpacket2_hdr, tp_len);
const SNAP_LEN: usize = offset_of!(libc::tpacket2_hdr, tp_snaplen);
const MAC: usize = offset_of!(libc::tpacket2_hdr, tp_mac);

/// What became of the frame of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// It is in the slot.
    Here,
    /// It is in the socket's receive queue; its length with its virtio-net header, in bytes.
    Queued(usize),
    /// Only its start is there: the receive queue was full.
    Cut,
}

/// A ring that is mapped.
#[derive(Debug)]
pub struct Slots {
    slots: SlotMap,
    next: usize,
    header_bytes: usize,
    given_back: u64,
}

impl Slots {
    /// Has `socket` receive by a ring, with virtio-net headers of `header_bytes`, which it has
    /// already. What waits in its receive queue is lost.
    ///
    /// # Errors
    /// What setsockopt(2) and mmap(2) say.
    pub fn open(socket: BorrowedFd<'_>, header_bytes: usize) -> io::Result<Self> {
        Self::set_up(socket)?;
        Self::map(socket, header_bytes).inspect_err(|_| drop(Self::close(socket)))
    }

    /// Has `socket` receive by a ring, which a process [maps](Self::map) then.
    ///
    /// # Errors
    /// What setsockopt(2) says.
    pub fn set_up(socket: BorrowedFd<'_>) -> io::Result<()> {
        let of_packet = |option, value| set_int(socket, libc::SOL_PACKET, option, value);
        of_packet(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
        // Any number but 0.
        of_packet(libc::PACKET_COPY_THRESH, 1)?;
        set_ring(socket, BLOCK_BYTES, SLOT_BYTES, SLOTS)
    }

    /// The ring that was [set up](Self::set_up) on `socket`, whose virtio-net headers have
    /// `header_bytes`.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn map(socket: BorrowedFd<'_>, header_bytes: usize) -> io::Result<Self> {
        Ok(Self { slots: SlotMap::receive(socket)?, next: 0, header_bytes, given_back: 0 })
    }

    /// Has `socket` receive without a ring again, which nothing maps any more.
    ///
    /// # Errors
    /// What setsockopt(2) says.
    pub fn close(socket: BorrowedFd<'_>) -> io::Result<()> {
        set_ring(socket, 0, 0, 0)
    }

    /// Slots that were given back to the kernel since the ring was opened.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// The slot `ahead` of the next one.
    #[inline]
    fn slot(&self, ahead: usize) -> usize {
        (self.next + ahead) % SLOTS
    }

    /// The word at byte `at` of a slot's header.
    #[inline]
    fn word(&self, slot: usize, at: usize) -> u32 {
        self.slots.word(slot, at).load(Ordering::Relaxed)
    }

    /// What became of the frame in the slot `ahead` of the next one; None while it is the kernel's.
    #[inline]
    pub fn arrived(&self, ahead: usize) -> Option<Arrived> {
        let slot = self.slot(ahead);
        let status = self.slots.status(slot);
        if ahead >= SLOTS || status == libc::TP_STATUS_KERNEL {
            return None;
        }
        let [len, here] = [LEN, SNAP_LEN].map(|at| self.word(slot, at));
        Some(if status & libc::TP_STATUS_COPY != 0 {
            Arrived::Queued(self.header_bytes + len as usize)
        } else if here < len {
            Arrived::Cut
        } else {
            Arrived::Here
        })
    }

    /// The frame in the next slot with its virtio-net header in front, as far as it is there; None
    /// where the kernel has the slot, or what it says of it can't be.
    #[inline]
    pub fn frame(&mut self) -> Option<&mut [u8]> {
        let slot = self.slot(0);
        // Acquires what the kernel wrote before.
        if self.slots.status(slot) == libc::TP_STATUS_KERNEL {
            return None;
        }
        let [a, b, ..] = self.word(slot, MAC).to_ne_bytes();
        let (mac, len) = (usize::from(u16::from_ne_bytes([a, b])), self.word(slot, SNAP_LEN) as usize);
        let start = mac.checked_sub(self.header_bytes)?;
        let bytes = self.slots.data_mut(slot, start..mac.checked_add(len)?)?;
        // The longer header is the shorter one and `num_buffers`, for which the kernel has left
        // room in front of it.
        let more = self.header_bytes - HEADER_BYTES;
        if more > 0 {
            bytes.copy_within(more..self.header_bytes, 0);
            bytes[HEADER_BYTES..self.header_bytes].fill(0);
        }
        Some(bytes)
    }

    /// Keeps the slot before the next one from the kernel, or no more.
    ///
    /// poll(2) looks at that slot alone (`packet_poll`, net/packet/af_packet.c): while it is kept
    /// an empty ring is readable, too. So epoll reports each wake-up of the socket to
    /// edge-triggered waiters, also the wake-up for a dropped frame.
    pub fn keep_last(&mut self, keep: bool) {
        let status = if keep { libc::TP_STATUS_USER } else { libc::TP_STATUS_KERNEL };
        self.slots.set_status(self.slot(SLOTS - 1), status);
    }

    /// Gives the next slot back to the kernel, if it is not there already.
    #[inline]
    pub fn give_back(&mut self) {
        let slot = self.slot(0);
        if self.slots.status(slot) != libc::TP_STATUS_KERNEL {
            self.slots.set_status(slot, libc::TP_STATUS_KERNEL);
            self.next = (self.next + 1) % SLOTS;
            self.given_back += 1;
        }
    }
}

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
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{set, set_ring};
use crate::map::Mapping;

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
    memory: Mapping,
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
        let of_packet = |option, value| set(socket, libc::SOL_PACKET, option, value);
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
        let memory = Mapping::shared(socket, 0, SLOTS * SLOT_BYTES)?;
        Ok(Self { memory, next: 0, header_bytes, given_back: 0 })
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

    /// The first byte of the slot `ahead` of the next one.
    #[inline]
    fn at(&self, ahead: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add((self.next + ahead) % SLOTS * SLOT_BYTES)
    }

    #[inline]
    fn status(&self, ahead: usize) -> &AtomicU32 {
        // SAFETY: the first word of a slot inside the mapping, which lives as long as `self`. Slots
        // begin at multiples of their length, and this process uses the word atomically only.
        unsafe { AtomicU32::from_ptr(self.at(ahead).cast()) }
    }

    /// What became of the frame in the slot `ahead` of the next one; None while it is the kernel's.
    #[inline]
    pub fn arrived(&self, ahead: usize) -> Option<Arrived> {
        let status = self.status(ahead).load(Ordering::Acquire);
        if ahead >= SLOTS || status == libc::TP_STATUS_KERNEL {
            return None;
        }
        let header = self.header(ahead);
        Some(if status & libc::TP_STATUS_COPY != 0 {
            Arrived::Queued(self.header_bytes + header.tp_len as usize)
        } else if header.tp_snaplen < header.tp_len {
            Arrived::Cut
        } else {
            Arrived::Here
        })
    }

    #[inline]
    fn header(&self, ahead: usize) -> libc::tpacket2_hdr {
        // SAFETY: a slot inside the mapping begins with this structure of integers; the kernel may
        // at most change what is read.
        unsafe { ptr::read_volatile(self.at(ahead).cast()) }
    }

    /// The frame in the next slot with its virtio-net header in front, as far as it is there; None
    /// where the kernel has the slot, or what it says of it can't be.
    #[inline]
    pub fn frame(&mut self) -> Option<&mut [u8]> {
        if self.status(0).load(Ordering::Acquire) == libc::TP_STATUS_KERNEL {
            return None;
        }
        let header = self.header(0);
        let (mac, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let start = mac.checked_sub(self.header_bytes).filter(|s| *s >= size_of::<libc::tpacket2_hdr>())?;
        if mac + len > SLOT_BYTES {
            return None;
        }
        // SAFETY: the range is inside the slot (above), behind its header. The slot is this
        // process's until it is given back, which takes `self` mutably: the kernel doesn't write
        // there, and nothing else refers to it.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.at(0).wrapping_add(start), self.header_bytes + len)
        };
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
        self.status(SLOTS - 1).store(status, Ordering::Release);
    }

    /// Gives the next slot back to the kernel, if it is not there already.
    #[inline]
    pub fn give_back(&mut self) {
        if self.status(0).load(Ordering::Relaxed) != libc::TP_STATUS_KERNEL {
            self.status(0).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
            self.given_back += 1;
        }
    }
}

//! PACKET_TX_RING (TPACKET_V3; Documentation/networking/packet_mmap.rst): headers built in place
//! before a resident payload, or whole frames copied into the ring.
//!
//! A slot: `struct tpacket3_hdr` of 48 bytes (length at 16, status at 20), then the frame.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use zerowire_sys::socket::set_int;

use super::super::case::{BATCH, TxCase};
use super::super::frame::Head;
use super::super::lab::TxLab;
use super::super::source::TxSource;
use super::super::way::{Proof, TxWay};
use super::packet;
use super::sys::{self, Mapping};

const LENGTH_AT: usize = 16;
const STATUS_AT: usize = 20;
const FRAME_AT: usize = 48;
/// Bytes of a block of the ring, which the kernel allocates in one piece.
const BLOCK: usize = 1 << 16;

/// Turns without any frame back that are one too many: the kernel works in the calls themselves.
const PATIENCE: u32 = 1_000_000;

/// The ring.
pub struct Ring<'a> {
    socket: OwnedFd,
    memory: Mapping,
    source: &'a TxSource,
    head: Head,
    copied: bool,
    slot_len: usize,
    slots: usize,
    /// The next slot to fill, and the oldest one that the kernel has.
    next: usize,
    oldest: usize,
}

impl<'a> Ring<'a> {
    /// Opens the socket and its ring. The ring has as many bytes as the working set, or as one
    /// batch where frames are `copied` from the working set.
    pub fn open(case: &TxCase, lab: &TxLab, source: &'a TxSource, copied: bool) -> Result<Self> {
        let head = *source.head();
        let socket = packet::socket(lab, head.cut.is_some())?;
        let slot_len = slot_len(head.bytes_before() + case.payload);
        let slots = slots(case, slot_len, copied);
        let blocks = (slots * slot_len).div_ceil(BLOCK);
        let slots = blocks * (BLOCK / slot_len);
        let version = libc::tpacket_versions::TPACKET_V3 as i32;
        set_int(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        // struct tpacket_req3: block size, blocks, slot size, slots, and three words for receiving.
        let request = [BLOCK, blocks, slot_len, slots, 0, 0, 0].map(|word| (word as u32).to_ne_bytes());
        sys::set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_TX_RING, &request.concat())
            .with_context(|| format!("a ring of {slots} slots of {slot_len} bytes"))?;
        let memory = Mapping::of(socket.as_fd(), 0, blocks * BLOCK)?;
        let mut ring = Self { socket, memory, source, head, copied, slot_len, slots, next: 0, oldest: 0 };
        for index in 0..ring.slots {
            let at = index * ring.slot_len;
            ring.memory
                .word(at + LENGTH_AT)
                .store((head.bytes_before() + case.payload) as u32, Ordering::Relaxed);
            let frame = source.frame(index);
            ring.memory.bytes_mut(at + FRAME_AT, frame.len()).copy_from_slice(frame);
        }
        Ok(ring)
    }

    /// Takes back the slots that the kernel is done with, in order.
    fn reap(&mut self) -> Result<()> {
        while self.oldest < self.next {
            let status = self.memory.word(self.oldest % self.slots * self.slot_len + STATUS_AT);
            match status.load(Ordering::Acquire) {
                libc::TP_STATUS_AVAILABLE => self.oldest += 1,
                libc::TP_STATUS_WRONG_FORMAT => bail!("the kernel refused frame {}", self.oldest),
                _ => break,
            }
        }
        Ok(())
    }

    /// Hands everything over that is marked.
    fn hand_over(&self) -> Result<()> {
        match send(&self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(error).context("the transmit ring"),
        }
    }
}

/// Bytes of a slot for a frame of `len` bytes, virtio-net header included: they divide a block.
pub fn slot_len(len: usize) -> usize {
    (FRAME_AT + len).next_power_of_two().max(2048)
}

/// Slots for the working set of a case, or for two batches where frames are copied into the ring.
fn slots(case: &TxCase, slot_len: usize, copied: bool) -> usize {
    match copied {
        true => 2 * BATCH,
        false => (case.working_set.bytes() / slot_len).max(1),
    }
}

impl TxWay for Ring<'_> {
    fn send(&mut self, count: usize) -> Result<()> {
        let end = self.next + count;
        // The source goes its own way through its memory.
        let ahead = if self.copied { self.source.take(count).wrapping_sub(self.next) } else { 0 };
        let mut idle = 0;
        while self.oldest < end {
            let room = self.slots - (self.next - self.oldest);
            let batch = BATCH.min(end - self.next).min(room);
            for index in self.next..self.next + batch {
                let at = index % self.slots * self.slot_len;
                if self.copied {
                    let frame = self.source.frame(index.wrapping_add(ahead));
                    self.memory.bytes_mut(at + FRAME_AT, frame.len()).copy_from_slice(frame);
                } else {
                    self.head.write(self.memory.bytes_mut(at + FRAME_AT, self.head.bytes_before()));
                }
                self.memory.word(at + STATUS_AT).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
            }
            self.next += batch;
            self.hand_over()?;
            let before = self.oldest;
            self.reap()?;
            idle = if self.oldest == before { idle + 1 } else { 0 };
            if idle > PATIENCE {
                bail!("{} frames stay in the transmit ring", self.next - self.oldest);
            }
        }
        Ok(())
    }

    fn proof(&self) -> Proof {
        let bytes = (self.next * self.source.payload_len()) as u64;
        match self.copied {
            true => Proof { copied_bytes: bytes, ..Proof::default() },
            false => Proof { zero_copied_bytes: bytes, ..Proof::default() },
        }
    }
}

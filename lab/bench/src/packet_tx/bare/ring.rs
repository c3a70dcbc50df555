//! PACKET_TX_RING (TPACKET_V3; Documentation/networking/packet_mmap.rst): headers built in place
//! before a resident payload, or whole frames copied into the ring.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use zerowire_sys::packet::{self, Geometry, Status, TransmitRing, Version};

use super::super::case::{BATCH, TxCase};
use super::super::lab::TxLab;
use super::super::source::{Head, TxSource};
use super::super::way::{Proof, TxWay};
use super::packet::socket;

/// Turns without any frame back that are one too many: the kernel works in the calls themselves.
const PATIENCE: u32 = 1_000_000;

/// The ring.
pub struct Ring<'a> {
    socket: OwnedFd,
    ring: TransmitRing,
    source: &'a TxSource,
    head: Head,
    /// Bytes of a frame, its virtio-net header included.
    len: usize,
    copied: bool,
    slots: usize,
    /// The next slot to fill, and the oldest one that the kernel has.
    next: usize,
    oldest: usize,
}

impl<'a> Ring<'a> {
    /// Opens the socket and its ring. The ring has as many bytes as the working set, or as two
    /// batches where frames are `copied` from the working set.
    pub fn open(case: &TxCase, lab: &TxLab, source: &'a TxSource, copied: bool) -> Result<Self> {
        let head = *source.head();
        let socket = socket(lab, head.cut.is_some())?;
        let len = head.bytes_before() + case.payload;
        let slots = if copied { 2 * BATCH } else { resident_slots(case, source)? };
        let geometry = Geometry::new(slots, len, Version::V3)?;
        packet::set_transmit_ring(socket.as_fd(), &geometry)
            .with_context(|| format!("a ring of {slots} slots for {len} bytes"))?;
        let ring = TransmitRing::map(socket.as_fd(), geometry)?;
        let mut ring = Self { socket, ring, source, head, len, copied, slots, next: 0, oldest: 0 };
        for index in 0..slots {
            let frame = source.frame(index);
            ring.slot(index)?.copy_from_slice(frame);
        }
        Ok(ring)
    }

    /// The bytes of a frame in a slot that the kernel doesn't have.
    #[inline]
    fn slot(&mut self, index: usize) -> Result<&mut [u8]> {
        let data = self.ring.data_mut(index % self.slots).context("the kernel has a slot that came back")?;
        Ok(&mut data[..self.len])
    }

    /// Takes back the slots that the kernel is done with, in order.
    fn reap(&mut self) -> Result<()> {
        while self.oldest < self.next {
            match self.ring.status(self.oldest % self.slots) {
                Status::Available => self.oldest += 1,
                Status::Refused => bail!("the kernel refused frame {}", self.oldest),
                Status::Requested | Status::Sending => break,
            }
        }
        Ok(())
    }

    /// Hands everything over that is marked.
    fn hand_over(&self) -> Result<()> {
        match packet::kick(self.socket.as_fd(), None) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) => {
                Err(error).context("the transmit ring")
            }
            _ => Ok(()),
        }
    }
}

/// Slots that have as many bytes as the working set.
pub fn resident_slots(case: &TxCase, source: &TxSource) -> Result<usize> {
    let frame_bytes = source.head().bytes_before() + case.payload;
    let slot_bytes = Geometry::new(2 * BATCH, frame_bytes, Version::V3)?.slot_bytes();
    Ok((case.working_set.bytes() / slot_bytes).max(1))
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
                let (source, head, copied) = (self.source, self.head, self.copied);
                let slot = self.slot(index)?;
                match copied {
                    true => slot.copy_from_slice(source.frame(index.wrapping_add(ahead))),
                    false => head.write(slot),
                }
                self.ring.request(index % self.slots, self.len);
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

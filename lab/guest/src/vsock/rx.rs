//! The queue of packets toward the guest.

use std::sync::Arc;
use std::time::Duration;

use super::driver::VsockOptions;
use super::{HEADER_LEN, PacketHeader};
use crate::queue::{DriverQueue, driver_queue, until};
use crate::ring::{BufferPiece, PostedBuffers, PreparedChains, Used};
use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice, PAGE};

/// Buffers begin at multiples of this.
const CACHE_LINE: usize = 64;

/// A received packet, in the queue's buffer until the callback returns.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// The header; its length is that of the payload in the buffer.
    pub header: PacketHeader,
    /// The buffer, and its number.
    memory: &'a GuestSlice,
    buffer: u32,
    /// Where the payload begins in the buffer.
    offset: usize,
    lendable: bool,
}

/// Where a packet's buffer goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kept {
    /// The device gets it again.
    No,
    /// It comes back by [`VsockRx::take_back`].
    Lent,
}

impl RxPacket<'_> {
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.header.len as usize
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.header.len == 0
    }

    /// Appends the payload to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.memory.append_to(self.offset, self.len(), bytes);
    }

    /// The payload in a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Copies payload from `at` on to `bytes`.
    ///
    /// # Panics
    /// When there are not as many bytes.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.len(), "{} bytes from {at} of {}", bytes.len(), self.len());
        self.memory.read(self.offset + at, bytes);
    }

    /// The buffer's number and the place of the payload in it. None if the device needs this
    /// buffer, because half a ring is lent.
    pub(super) fn lend(&self) -> Option<(u32, usize)> {
        self.lendable.then_some((self.buffer, self.offset))
    }
}

/// The receive queue. Owned by one thread at a time.
pub struct VsockRx {
    queue: DriverQueue,
    /// A lent one is neither in the ring nor idle: the device can't write to it, and nobody posts
    /// it.
    pub(super) buffers: Arc<[GuestSlice]>,
    lent: usize,
    /// The most buffers that may be lent: the device keeps half a ring.
    most_lent: usize,
    /// Bytes before the header in each buffer.
    front: usize,
    posted: PostedBuffers,
}

driver_queue!(VsockRx);

impl VsockRx {
    pub(super) fn new(
        queue: DriverQueue,
        memory: &GuestMemory,
        options: &VsockOptions,
        indirect: bool,
    ) -> Result<VsockRx, GuestError> {
        let size = usize::from(queue.ring.memory().size());
        let (capacity, each) = (options.rx_buffer_len, usize::from(options.rx_descriptors));
        if capacity as usize <= HEADER_LEN || each == 0 || each > size || each > capacity as usize {
            return Err(GuestError::BadSetting {
                what: "the length of a receive buffer",
                value: capacity.into(),
                rule: "more than 44 bytes, in at least 1 and at most as many descriptors as the queue has",
            });
        }
        let fit = if indirect { size } else { size / each };
        let count = if options.rx_buffers == 0 { fit } else { options.rx_buffers };
        let front = if options.rx_align_payload { CACHE_LINE - HEADER_LEN % CACHE_LINE } else { 0 };
        let stride = (front + capacity as usize).next_multiple_of(CACHE_LINE);
        let align = if stride.is_multiple_of(PAGE) { PAGE } else { CACHE_LINE };
        let buffers = (0..count).map(|_| memory.allocate(stride, align));
        let buffers = buffers.collect::<Result<Arc<[GuestSlice]>, GuestError>>()?;
        let mut chains = PreparedChains::new(memory, count, each, indirect)?;
        let piece = (capacity as usize).div_ceil(each);
        for (number, buffer) in buffers.iter().enumerate() {
            let pieces = (0..each).map(|at| {
                let start = (at * piece).min(capacity as usize);
                BufferPiece::writable(buffer, front + start, piece.min(capacity as usize - start))
            });
            chains.set(number, pieces);
        }
        let mut new = VsockRx {
            queue,
            buffers,
            lent: 0,
            most_lent: count - count.min(fit).div_ceil(2),
            front,
            posted: PostedBuffers::new(chains, options.rx_limit),
        };
        new.posted.post(&mut new.queue.ring);
        Ok(new)
    }

    /// Takes up to `max` packets and passes each to `each`. Its buffer is posted again after that,
    /// and the device sees it at the next [`VsockRx::publish`]. Returns how many packets there
    /// were.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`]. [`GuestError::DeviceBrokeRule`] for a buffer without a
    /// whole header, or whose header gives another length than was written (virtio 1.3 §5.10.6).
    pub fn harvest(&mut self, max: usize, mut each: impl FnMut(RxPacket<'_>)) -> Result<usize, GuestError> {
        self.try_harvest(max, |packet| {
            each(packet);
            Ok(Kept::No)
        })
    }

    /// As [`VsockRx::harvest`]; `each` may keep the buffer. Ends with the
    /// first error of `each`.
    #[inline]
    pub(super) fn try_harvest(
        &mut self,
        max: usize,
        mut each: impl FnMut(RxPacket<'_>) -> Result<Kept, GuestError>,
    ) -> Result<usize, GuestError> {
        let mut count = 0;
        while count < max {
            let Some(used) = self.posted.reap(&mut self.queue.ring)? else { break };
            let result = self.open(used).and_then(&mut each);
            match result {
                Ok(Kept::Lent) => self.lent += 1,
                _ => self.posted.idle.push_back(used.token),
            }
            result?;
            count += 1;
            self.posted.post(&mut self.queue.ring);
        }
        Ok(count)
    }

    /// The packet in a buffer that the device gave back.
    #[inline]
    fn open(&self, used: Used) -> Result<RxPacket<'_>, GuestError> {
        if (used.len as usize) < HEADER_LEN {
            let len = used.len;
            return Err(GuestError::DeviceBrokeRule(format!(
                "a packet of {len} bytes is less than a header (5.10.6)"
            )));
        }
        let mut bytes = [0; HEADER_LEN];
        let memory = &self.buffers[used.token as usize];
        memory.read(self.front, &mut bytes);
        let header = PacketHeader::from_bytes(&bytes);
        let written = used.len - HEADER_LEN as u32;
        if header.len != written {
            return Err(GuestError::DeviceBrokeRule(format!(
                "the header gives {} bytes of payload and {written} were written (5.10.6): {header:?}",
                header.len
            )));
        }
        Ok(RxPacket {
            header,
            memory,
            buffer: used.token,
            offset: self.front + HEADER_LEN,
            lendable: self.lent < self.most_lent,
        })
    }

    /// Waits for one packet and returns header and payload, and publishes.
    /// None when `timeout` is over first. It allocates.
    ///
    /// # Errors
    /// Those of [`VsockRx::harvest`] and [`DriverQueue::wait`].
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<(PacketHeader, Vec<u8>)>, GuestError> {
        until(self, timeout, |queue| {
            let mut found = None;
            queue.harvest(1, |packet| found = Some((packet.header, packet.to_vec())))?;
            queue.publish()?;
            Ok(found)
        })
    }

    /// Changes the most buffers posted at once: with 0 the device starves as
    /// its buffers are used up. More are posted at the next
    /// [`VsockRx::publish`].
    pub fn set_limit(&mut self, buffers: usize) {
        self.posted.limit = buffers;
    }

    /// Buffers posted and not given back.
    pub fn posted(&self) -> usize {
        self.posted.posted
    }

    /// Buffers that a program reads in place now.
    pub fn lent(&self) -> usize {
        self.lent
    }

    /// Lets the device see the buffers posted, and notifies it if it asks for
    /// that. Returns whether it was notified.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    #[inline]
    pub fn publish(&mut self) -> Result<bool, GuestError> {
        self.posted.post(&mut self.queue.ring);
        self.queue.publish()
    }

    /// Address and bytes of every descriptor's buffer, posted or not: what
    /// the device may write.
    pub fn writable(&self) -> impl Iterator<Item = (GuestAddr, u32)> {
        self.posted.writable()
    }

    /// Takes buffers back that were lent. They are posted at the next [`VsockRx::publish`].
    pub(super) fn take_back(&mut self, numbers: impl Iterator<Item = u32>) {
        let idle = &mut self.posted.idle;
        let before = idle.len();
        idle.extend(numbers);
        self.lent -= idle.len() - before;
    }
}

//! A receive queue.

use std::time::Duration;

use crate::queue::{DriverQueue, driver_queue, until};
use crate::ring::{BufferPiece, PostedBuffers, PreparedChains};
use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice};

use super::header::{HEADER_LEN, VirtioNetHdr};

/// The buffers that a receive queue posts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RxMode {
    /// One descriptor of `buffer_len` bytes a buffer; a frame may take
    /// several buffers (needs MRG_RXBUF). Linux posts 1536 to 4096 bytes.
    Mergeable {
        /// Bytes of each buffer, header included.
        buffer_len: u32,
    },
    /// Chains of this many pages of 4 KiB each, for GSO frames without
    /// MRG_RXBUF; 17 are needed for 64 KiB.
    Big {
        /// Pages a chain.
        descriptors: u16,
        /// Whether the header has a descriptor of its own in front.
        header_apart: bool,
    },
    /// One descriptor of 1530 bytes: frames of 1518 bytes.
    Small,
}

impl RxMode {
    /// Lengths of the descriptors of one buffer, in order.
    fn lens(&self) -> Vec<u32> {
        match *self {
            RxMode::Mergeable { buffer_len } => vec![buffer_len],
            RxMode::Big { descriptors, header_apart } => {
                let header = header_apart.then_some(HEADER_LEN as u32);
                let pages = std::iter::repeat_n(4096, descriptors.into());
                header.into_iter().chain(pages).collect()
            }
            RxMode::Small => vec![1530],
        }
    }
}

/// Settings of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RxOptions {
    /// The buffers.
    pub mode: RxMode,
    /// Whether chains are indirect (needs RING_INDIRECT_DESC).
    pub indirect: bool,
    /// Buffers in all. They are posted in turn, so more of them than the
    /// queue holds make a larger working set. 0: as many as the queue holds.
    pub buffers: usize,
}

/// A received frame, in the queue's buffers until the callback returns.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The header, as the device wrote it.
    pub header: VirtioNetHdr,
    /// Bytes of the frame without the header.
    pub len: usize,
    area: &'a GuestSlice,
    pieces: &'a [(usize, usize)],
}

impl RxFrame<'_> {
    /// Appends the frame's bytes to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        for &(offset, len) in self.pieces {
            self.area.append_to(offset, len, bytes);
        }
    }

    /// The frame's bytes in a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.append_to(&mut bytes);
        bytes
    }

    /// The pieces of guest memory that the frame lies in, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = GuestSlice> + '_ {
        let part = |&(offset, len): &(usize, usize)| self.area.part(offset, len);
        self.pieces.iter().map(part)
    }
}

/// A receive queue. Owned by one thread at a time.
pub struct RxQueue {
    queue: DriverQueue,
    mergeable: bool,
    area: GuestSlice,
    /// Bytes a buffer in `area`.
    stride: usize,
    buffers: PostedBuffers,
    /// Parts of the frame under way (offset in `area`, bytes), each in a buffer of its own.
    pieces: Vec<(usize, usize)>,
    /// Frames received.
    frames: u64,
}

driver_queue!(RxQueue);

impl RxQueue {
    pub(super) fn new(
        queue: DriverQueue,
        memory: &GuestMemory,
        options: &RxOptions,
    ) -> Result<RxQueue, GuestError> {
        let lens = options.mode.lens();
        let capacity: u32 = lens.iter().sum();
        let size = usize::from(queue.ring.memory().size());
        if lens.len() > size || (capacity as usize) <= HEADER_LEN {
            return Err(GuestError::BadSetting {
                what: "the length of a receive buffer",
                value: capacity.into(),
                rule: "more than 12 bytes, in at most as many descriptors as the queue has",
            });
        }
        let posted = if options.indirect { size } else { size / lens.len() };
        let count = if options.buffers == 0 { posted } else { options.buffers };
        let stride = (capacity as usize).next_multiple_of(64);
        let area = memory.allocate(count * stride, 4096)?;
        let mut chains = PreparedChains::new(memory, count, lens.len(), options.indirect)?;
        for buffer in 0..count {
            let mut at = buffer * stride;
            let pieces = lens.iter().map(|&len| {
                let piece = BufferPiece::writable(&area, at, len as usize);
                at += len as usize;
                piece
            });
            chains.set(buffer, pieces);
        }
        let mut new = RxQueue {
            queue,
            mergeable: matches!(options.mode, RxMode::Mergeable { .. }),
            area,
            stride,
            buffers: PostedBuffers::new(chains, usize::MAX),
            pieces: Vec::with_capacity(64),
            frames: 0,
        };
        new.buffers.post(&mut new.queue.ring);
        Ok(new)
    }

    /// Takes up to `budget` frames, passes each to `each` and posts as many
    /// buffers again. The device sees those at the next [`DriverQueue::publish`].
    /// Returns how many frames there were.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`], also for a frame without a whole
    /// header and for a num_buffers that the used ring does not hold
    /// (virtio 1.3 §5.1.6.4).
    #[inline]
    pub fn harvest(&mut self, budget: usize, mut each: impl FnMut(RxFrame<'_>)) -> Result<usize, GuestError> {
        let mut count = 0;
        while count < budget {
            let Some(used) = self.buffers.reap(&mut self.queue.ring)? else { break };
            let first = used.token as usize * self.stride;
            if (used.len as usize) < HEADER_LEN {
                let rule = "a frame's first buffer holds less than a header (5.1.6.4)";
                return Err(self.queue.ring.broken(rule, used.len.into()));
            }
            let mut bytes = [0; HEADER_LEN];
            self.area.read(first, &mut bytes);
            let header = VirtioNetHdr::decode(&bytes);
            let mut len = used.len as usize - HEADER_LEN;
            self.pieces.clear();
            self.pieces.push((first + HEADER_LEN, len));
            if self.mergeable && header.num_buffers != 1 {
                len += self.merge(header.num_buffers)?;
            }
            each(RxFrame { header, len, area: &self.area, pieces: &self.pieces });
            self.frames += 1;
            self.buffers.idle.extend(self.pieces.iter().map(|&(at, _)| (at / self.stride) as u32));
            self.buffers.post(&mut self.queue.ring);
            count += 1;
        }
        Ok(count)
    }

    /// Takes the other buffers of a frame of `num_buffers`.
    fn merge(&mut self, num_buffers: u16) -> Result<usize, GuestError> {
        if num_buffers == 0 {
            let rule = "num_buffers is 0 with MRG_RXBUF (5.1.6.4)";
            return Err(self.queue.ring.broken(rule, 0));
        }
        let mut total = 0;
        for _ in 1..num_buffers {
            let Some(used) = self.buffers.reap(&mut self.queue.ring)? else {
                let rule = "num_buffers counts more buffers than were given back (5.1.6.4)";
                return Err(self.queue.ring.broken(rule, num_buffers.into()));
            };
            let len = used.len as usize;
            self.pieces.push((used.token as usize * self.stride, len));
            total += len;
        }
        Ok(total)
    }

    /// Waits for one frame and returns header and bytes, and publishes. None
    /// when `timeout` is over first. For tests; it allocates.
    ///
    /// # Errors
    /// Those of [`RxQueue::harvest`], [`DriverQueue::publish`] and
    /// [`DriverQueue::wait`].
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<(VirtioNetHdr, Vec<u8>)>, GuestError> {
        until(self, timeout, |queue| {
            let mut found = None;
            queue.harvest(1, |frame| found = Some((frame.header, frame.to_vec())))?;
            queue.publish()?;
            Ok(found)
        })
    }

    /// Frames received so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Address and bytes of every descriptor's buffer, posted or not: what
    /// the device may write.
    pub fn writable(&self) -> impl Iterator<Item = (GuestAddr, u32)> {
        self.buffers.writable()
    }
}

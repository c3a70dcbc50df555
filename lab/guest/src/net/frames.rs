//! Frames in guest memory, laid out in one of several ways, ready to send.
//!
//! A [`FramePool`] writes header, payload and (if asked for) indirect tables
//! once; sending one of its frames writes descriptors only. The device only
//! reads them, so one frame may be in flight several times.

use crate::ring::{BufferPiece, DriverRing, PreparedChains};
use crate::{GuestError, GuestMemory, GuestSlice};

use super::header::{HEADER_LEN, VirtioNetHdr};

/// How a frame is cut into descriptors. Every one is allowed (virtio 1.3
/// §2.7.4.2: no framing assumptions).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layout {
    /// Header and payload in one descriptor.
    Single,
    /// Header in one, payload in another one.
    Split,
    /// Header in one, payload cut into this many of about equal length that
    /// don't touch each other.
    Segments(u16),
    /// Header in one, payload in pages of 4 KiB that lie scattered over the
    /// pool's memory.
    Pages,
}

/// Form of the frames of a pool.
#[derive(Clone, Copy, Debug)]
pub struct FrameShape {
    /// How frames are cut into descriptors.
    pub layout: Layout,
    /// Whether each frame has an indirect table (needs RING_INDIRECT_DESC).
    pub indirect: bool,
    /// Longest frame in bytes, without the virtio-net header.
    pub capacity: usize,
}

impl FrameShape {
    /// Descriptors that the longest frame takes, indirect or not.
    fn max_segments(&self) -> usize {
        match self.layout {
            Layout::Single => 1,
            Layout::Split => 2,
            Layout::Segments(count) => 1 + usize::from(count),
            Layout::Pages => 1 + self.capacity.div_ceil(PAGE),
        }
    }

    /// Bytes that a frame of `capacity` takes in the pool's payload memory.
    fn footprint(&self) -> usize {
        match self.layout {
            Layout::Single => (HEADER_LEN + self.capacity).next_multiple_of(LINE),
            Layout::Split => self.capacity.next_multiple_of(LINE),
            Layout::Segments(count) => usize::from(count) * self.segment_stride(count),
            Layout::Pages => self.capacity.next_multiple_of(PAGE),
        }
    }

    /// A segment's share of memory: a cache line more than it can fill, so
    /// that segments never touch.
    fn segment_stride(&self, count: u16) -> usize {
        let longest = self.capacity.div_ceil(usize::from(count).max(1));
        longest.next_multiple_of(LINE) + LINE
    }
}

/// Frames written once and sent as often as wanted. Owns its guest memory. Keep it while its frames
/// are in flight: else the memory may be given to somebody else, and the device reads that.
#[derive(Debug)]
pub struct FramePool {
    shape: FrameShape,
    count: usize,
    stride: usize,
    headers: GuestSlice,
    payload: GuestSlice,
    /// Where each payload piece begins in `payload`, `stride` a frame.
    places: Vec<usize>,
    chains: PreparedChains,
}

const PAGE: usize = 4096;
const LINE: usize = 64;
/// Headers lie a cache line apart, as they do in a guest.
const HEADER_STRIDE: usize = LINE;

impl FramePool {
    /// A pool of `count` empty frames.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for no frames, no capacity or no segments;
    /// [`GuestError::OutOfMemory`].
    pub fn new(memory: &GuestMemory, shape: FrameShape, count: usize) -> Result<FramePool, GuestError> {
        let bad = |what| Err(GuestError::BadSetting { what, value: 0, rule: "at least 1" });
        if count == 0 {
            return bad("the number of frames");
        }
        if shape.capacity == 0 {
            return bad("the capacity of a frame");
        }
        if shape.layout == Layout::Segments(0) {
            return bad("the number of segments of a frame");
        }
        let stride = shape.max_segments();
        let mut pool = FramePool {
            shape,
            count,
            stride,
            headers: memory.allocate(count * HEADER_STRIDE, LINE)?,
            payload: memory.allocate(count * shape.footprint(), PAGE)?,
            places: vec![0; count * stride],
            chains: PreparedChains::new(memory, count, stride, shape.indirect)?,
        };
        pool.place();
        Ok(pool)
    }

    /// A pool of frames that together fill about `working_set` bytes (at
    /// least one frame), each filled with `frame` behind `header`: what a
    /// benchmark sends. A small working set stays in the cache, a large one
    /// does not.
    ///
    /// # Errors
    /// As [`FramePool::new`]; [`GuestError::FrameTooLong`].
    pub fn filled(
        memory: &GuestMemory,
        shape: FrameShape,
        working_set: usize,
        header: &VirtioNetHdr,
        frame: &[u8],
    ) -> Result<FramePool, GuestError> {
        let each = shape.footprint().max(1);
        let mut pool = FramePool::new(memory, shape, (working_set / each).max(1))?;
        for index in 0..pool.count {
            pool.set(index, header, frame)?;
        }
        Ok(pool)
    }

    /// Number of frames.
    #[allow(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Writes frame `index`.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`].
    ///
    /// # Panics
    /// When `index` is not below [`FramePool::len`].
    pub fn set(&mut self, index: usize, header: &VirtioNetHdr, frame: &[u8]) -> Result<(), GuestError> {
        let capacity = self.shape.capacity;
        if frame.len() > capacity {
            let len = frame.len();
            return Err(GuestError::FrameTooLong { len, capacity });
        }
        let FramePool { headers, payload, chains, .. } = self;
        let places = &self.places[index * self.stride..];
        if self.shape.layout == Layout::Single {
            payload.write(places[0], &header.encode());
            payload.write(places[0] + HEADER_LEN, frame);
            chains.set(index, [BufferPiece::readable(payload, places[0], HEADER_LEN + frame.len())]);
            return Ok(());
        }
        let at = index * HEADER_STRIDE;
        headers.write(at, &header.encode());
        let piece_len = match self.shape.layout {
            Layout::Segments(count) => frame.len().div_ceil(usize::from(count)).max(1),
            Layout::Pages => PAGE,
            _ => capacity,
        };
        let pieces = frame.chunks(piece_len).zip(&places[1..]).map(|(bytes, &at)| {
            payload.write(at, bytes);
            BufferPiece::readable(payload, at, bytes.len())
        });
        chains.set(index, std::iter::once(BufferPiece::readable(headers, at, HEADER_LEN)).chain(pieces));
        Ok(())
    }

    /// The descriptors of frame `index`.
    ///
    /// # Panics
    /// When `index` is not below [`FramePool::len`].
    pub fn segments(&self, index: usize) -> &[BufferPiece] {
        self.chains.get(index)
    }

    /// Adds frame `index` to a ring. False when the ring is full.
    #[inline]
    pub(super) fn add(&self, ring: &mut DriverRing, index: usize, token: u32) -> bool {
        self.chains.add(ring, index, token)
    }

    /// Decides where each piece lies.
    fn place(&mut self) {
        let footprint = self.shape.footprint();
        match self.shape.layout {
            Layout::Pages => {
                let each = self.stride - 1;
                let pages = shuffled(self.count * each);
                for (number, page) in pages.into_iter().enumerate() {
                    let place = number / each * self.stride + 1 + number % each;
                    self.places[place] = page * PAGE;
                }
            }
            layout => {
                for frame in 0..self.count {
                    for at in 0..self.stride {
                        let within = match layout {
                            Layout::Segments(count) if at > 0 => (at - 1) * self.shape.segment_stride(count),
                            _ => 0,
                        };
                        self.places[frame * self.stride + at] = frame * footprint + within;
                    }
                }
            }
        }
    }
}

/// The numbers below `count` in an order that looks random and is always the
/// same.
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        numbers.swap(at, (state % (at as u64 + 1)) as usize);
    }
    numbers
}

//! Frames in guest memory, laid out in one of several ways, ready to send.
//!
//! A [`FramePool`] writes header, payload and (if asked for) indirect tables
//! once; sending one of its frames writes descriptors only. The device only
//! reads them, so one frame may be in flight several times.

use crate::ring::{BufferPiece, DESC_LEN, DESC_NEXT, write_desc_at};
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
    pub fn max_segments(&self) -> usize {
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

/// What [`super::TxQueue`] needs of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared<'a> {
    pub segments: &'a [BufferPiece],
    /// Address and bytes of the indirect table.
    pub table: Option<(crate::GuestAddr, u32)>,
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
    tables: Option<GuestSlice>,
    /// Where each payload piece begins in `payload`, `stride` a frame.
    pieces: Vec<usize>,
    /// Descriptors, `stride` a frame.
    segments: Vec<BufferPiece>,
    used_segments: Vec<u16>,
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
        let nothing = BufferPiece { addr: crate::GuestAddr(0), len: 0, writable: false };
        let tables = match shape.indirect {
            true => Some(memory.allocate(count * stride * DESC_LEN, LINE)?),
            false => None,
        };
        let mut pool = FramePool {
            shape,
            count,
            stride,
            headers: memory.allocate(count * HEADER_STRIDE, LINE)?,
            payload: memory.allocate(count * shape.footprint(), PAGE)?,
            tables,
            pieces: vec![0; count * stride],
            segments: vec![nothing; count * stride],
            used_segments: vec![0; count],
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

    /// Form of the frames.
    pub fn shape(&self) -> &FrameShape {
        &self.shape
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
        let base = index * self.stride;
        let segment = |slice: &GuestSlice, offset: usize, len: usize| BufferPiece {
            addr: crate::GuestAddr(slice.guest_addr().0 + offset as u64),
            len: len as u32,
            writable: false,
        };
        let mut used = 1;
        if self.shape.layout == Layout::Single {
            let at = self.pieces[base];
            self.payload.write(at, &header.encode());
            self.payload.write(at + HEADER_LEN, frame);
            self.segments[base] = segment(&self.payload, at, HEADER_LEN + frame.len());
        } else {
            let at = index * HEADER_STRIDE;
            self.headers.write(at, &header.encode());
            self.segments[base] = segment(&self.headers, at, HEADER_LEN);
            let piece = match self.shape.layout {
                Layout::Segments(count) => frame.len().div_ceil(usize::from(count)).max(1),
                Layout::Pages => PAGE,
                _ => capacity,
            };
            for bytes in frame.chunks(piece) {
                let at = self.pieces[base + used];
                self.payload.write(at, bytes);
                self.segments[base + used] = segment(&self.payload, at, bytes.len());
                used += 1;
            }
        }
        self.used_segments[index] = used as u16;
        self.write_table(index, used);
        Ok(())
    }

    /// The memory of frame `index`'s header, to change it in flight.
    ///
    /// # Panics
    /// When `index` is not below [`FramePool::len`].
    pub fn header_memory(&self, index: usize) -> GuestSlice {
        match self.shape.layout {
            Layout::Single => self.payload.part(self.pieces[index * self.stride], HEADER_LEN),
            _ => self.headers.part(index * HEADER_STRIDE, HEADER_LEN),
        }
    }

    /// The descriptors of frame `index`.
    ///
    /// # Panics
    /// When `index` is not below [`FramePool::len`].
    #[inline]
    pub fn segments(&self, index: usize) -> &[BufferPiece] {
        let base = index * self.stride;
        &self.segments[base..base + usize::from(self.used_segments[index])]
    }

    #[inline]
    pub(super) fn prepared(&self, index: usize) -> Prepared<'_> {
        let segments = self.segments(index);
        let table = self.tables.as_ref().map(|tables| {
            let offset = index * self.stride * DESC_LEN;
            let addr = crate::GuestAddr(tables.guest_addr().0 + offset as u64);
            (addr, (segments.len() * DESC_LEN) as u32)
        });
        Prepared { segments, table }
    }

    fn write_table(&self, index: usize, used: usize) {
        let Some(tables) = &self.tables else { return };
        let base = index * self.stride;
        for (at, segment) in self.segments(index).iter().enumerate() {
            let flags = if at + 1 < used { DESC_NEXT } else { 0 };
            let next = at as u16 + 1;
            write_desc_at(tables, base + at, segment.addr.0, segment.len, flags, next);
        }
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
                    self.pieces[place] = page * PAGE;
                }
            }
            layout => {
                for frame in 0..self.count {
                    for at in 0..self.stride {
                        let within = match layout {
                            Layout::Segments(count) if at > 0 => (at - 1) * self.shape.segment_stride(count),
                            _ => 0,
                        };
                        self.pieces[frame * self.stride + at] = frame * footprint + within;
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

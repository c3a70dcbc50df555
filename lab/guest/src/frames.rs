//! Frames and packets in guest memory, laid out in one of several ways, ready to send.
//!
//! A [`FramePool`] writes header, payload and (if asked for) indirect tables
//! once; sending one of its frames writes descriptors only. The device only
//! reads them, so one frame may be in flight several times.

use crate::net::VirtioNetHdr;
use crate::net::header::HEADER_LEN;
use crate::ring::{BufferPiece, DriverRing, PreparedChains};
use crate::{GuestError, GuestMemory, GuestSlice, PAGE};

/// How a frame or a packet is cut into descriptors. Every way is allowed
/// (virtio 1.3 §2.7.4.2: no framing assumptions).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layout {
    /// Header and payload in one descriptor.
    Single,
    /// Header in one, payload in another one, as Linux sends copies.
    Split,
    /// Header in one, payload cut into this many of about equal length that
    /// don't touch each other.
    Segments(u16),
    /// Header in one, payload in pieces of this many bytes that don't touch
    /// each other.
    Pieces(u32),
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
    /// Longest frame in bytes, without the header.
    pub capacity: usize,
}

impl FrameShape {
    fn check(&self) -> Result<(), GuestError> {
        let bad = |what| Err(GuestError::BadSetting { what, value: 0, rule: "at least 1" });
        match self.layout {
            _ if self.capacity == 0 => bad("the capacity of a frame"),
            Layout::Segments(0) => bad("the number of segments of a frame"),
            Layout::Pieces(0) => bad("the length of a frame's pieces"),
            _ => Ok(()),
        }
    }

    /// Bytes of each payload piece of a frame of `len` bytes; the last one
    /// may be shorter.
    fn piece_len(&self, len: usize) -> usize {
        match self.layout {
            Layout::Single | Layout::Split => self.capacity,
            Layout::Segments(count) => len.div_ceil(count.into()).max(1),
            Layout::Pieces(len) => len as usize,
            Layout::Pages => PAGE,
        }
    }

    /// Payload pieces that the longest frame is cut into.
    fn pieces(&self) -> usize {
        match self.layout {
            Layout::Segments(count) => count.into(),
            _ => self.capacity.div_ceil(self.piece_len(self.capacity)),
        }
    }

    /// Bytes from one payload piece to the next. Where pieces must not touch, that is a cache line
    /// more than they can fill. In a single descriptor a header of `header_len` bytes is in front.
    fn piece_stride(&self, header_len: usize) -> usize {
        let filled = self.piece_len(self.capacity).next_multiple_of(LINE);
        match self.layout {
            Layout::Single => (header_len + self.capacity).next_multiple_of(LINE),
            Layout::Segments(_) | Layout::Pieces(_) => filled + LINE,
            _ => filled,
        }
    }

    /// Descriptors that the longest frame takes, indirect or not.
    pub(crate) fn max_segments(&self) -> usize {
        match self.layout {
            Layout::Single => 1,
            _ => 1 + self.pieces(),
        }
    }
}

/// Frames written once and sent as often as wanted. Owns its guest memory. Keep it while its frames
/// are in flight: else the memory may be given to somebody else, and the device reads that.
#[derive(Debug)]
pub struct FramePool {
    shape: FrameShape,
    count: usize,
    headers: GuestSlice,
    payload: GuestSlice,
    /// Where each payload piece begins in `payload`, as many a frame as the longest one has.
    places: Vec<usize>,
    chains: PreparedChains,
}

const LINE: usize = 64;
/// Headers lie a cache line apart, as they do in a guest.
const HEADER_STRIDE: usize = LINE;

impl FramePool {
    /// A pool of `count` empty frames of a network device.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for no frames, no capacity or no segments;
    /// [`GuestError::OutOfMemory`].
    pub fn new(memory: &GuestMemory, shape: FrameShape, count: usize) -> Result<FramePool, GuestError> {
        Self::with_headers(memory, shape, count, HEADER_LEN)
    }

    /// The same for another device, whose headers have `header_len` bytes, 64 at most.
    pub(crate) fn with_headers(
        memory: &GuestMemory,
        shape: FrameShape,
        count: usize,
        header_len: usize,
    ) -> Result<FramePool, GuestError> {
        if count == 0 {
            return Err(GuestError::BadSetting {
                what: "the number of frames",
                value: 0,
                rule: "at least 1",
            });
        }
        shape.check()?;
        let (pieces, stride) = (count * shape.pieces(), shape.piece_stride(header_len));
        let order = if shape.layout == Layout::Pages { shuffled(pieces) } else { (0..pieces).collect() };
        Ok(FramePool {
            shape,
            count,
            headers: memory.allocate(count * HEADER_STRIDE, LINE)?,
            payload: memory.allocate(pieces * stride, PAGE)?,
            places: order.into_iter().map(|place| place * stride).collect(),
            chains: PreparedChains::new(memory, count, shape.max_segments(), shape.indirect)?,
        })
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
        shape.check()?;
        let count = working_set / (shape.pieces() * shape.piece_stride(HEADER_LEN));
        let mut pool = FramePool::new(memory, shape, count.max(1))?;
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
        self.write(index, &header.encode(), frame)
    }

    /// The same with the bytes of any header of the pool's length.
    pub(crate) fn write(&mut self, index: usize, header: &[u8], frame: &[u8]) -> Result<(), GuestError> {
        let (len, capacity) = (frame.len(), self.shape.capacity);
        if len > capacity {
            return Err(GuestError::FrameTooLong { len, capacity });
        }
        let FramePool { headers, payload, chains, .. } = self;
        let places = &self.places[index * self.shape.pieces()..];
        if self.shape.layout == Layout::Single {
            payload.write(places[0], header);
            payload.write(places[0] + header.len(), frame);
            chains.set(index, [BufferPiece::readable(payload, places[0], header.len() + len)]);
            return Ok(());
        }
        let at = index * HEADER_STRIDE;
        headers.write(at, header);
        let pieces = frame.chunks(self.shape.piece_len(len)).zip(places).map(|(bytes, &at)| {
            payload.write(at, bytes);
            BufferPiece::readable(payload, at, bytes.len())
        });
        chains.set(index, std::iter::once(BufferPiece::readable(headers, at, header.len())).chain(pieces));
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
    pub(crate) fn add(&self, ring: &mut DriverRing, index: usize, token: u32) -> bool {
        self.chains.add(ring, index, token)
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

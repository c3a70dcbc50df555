//! Private memory in the UMEM: heads of frames, and whole frames that are copied.
//!
//! Each queue pair has its own part, which nobody else writes but the kernel, and that only to
//! places that are in its hands. A place is given out by its number; who has the number has the
//! place.

use std::ptr::NonNull;

use super::RING_ENTRIES;
use super::geometry::CHUNK_BYTES;

/// Bytes of a private head: what is inspected of a frame.
pub const HEAD_BYTES: usize = 256;
/// Heads: one for each frame under way.
const HEADS: usize = RING_ENTRIES as usize;
/// Places for frames to send that are copied.
pub const SEND_PLACES: usize = 256;
/// Places for frames to receive that are copied.
pub const RECEIVE_PLACES: usize = 256;
/// Places that a socket in zero-copy mode has in its fill ring from the start. A driver that runs
/// out of chunks may not look for more until a frame comes.
pub const FIRST_PLACES: usize = 4;
/// Bytes of a place.
pub const PLACE_BYTES: usize = CHUNK_BYTES as usize;

/// Bytes of a queue pair's part.
pub const PAIR_BYTES: usize = HEADS * HEAD_BYTES + (SEND_PLACES + RECEIVE_PLACES) * PLACE_BYTES;

/// The part of one queue pair.
#[derive(Debug)]
pub struct Slab {
    start: NonNull<u8>,
    /// Where it begins in the UMEM, bytes.
    at: u64,
}

// SAFETY: memory that belongs to no thread; one worker has the value.
unsafe impl Send for Slab {}

impl Slab {
    /// The part at `start`, which is byte `at` of the UMEM.
    ///
    /// # Safety
    /// [`PAIR_BYTES`] bytes from `start` on stay mapped readable and writable as long as the value
    /// is used. They belong to this value alone. The kernel writes to them only as the rings say.
    pub unsafe fn new(start: NonNull<u8>, at: u64) -> Self {
        Self { start, at }
    }

    fn head_offset(number: usize) -> usize {
        (number % HEADS) * HEAD_BYTES
    }

    fn send_offset(place: u16) -> usize {
        HEADS * HEAD_BYTES + (usize::from(place) % SEND_PLACES) * PLACE_BYTES
    }

    fn receive_offset(place: u16) -> usize {
        HEADS * HEAD_BYTES + (SEND_PLACES + usize::from(place) % RECEIVE_PLACES) * PLACE_BYTES
    }

    /// The head of loan `number`: its bytes, and its address in the UMEM. Not while the kernel has
    /// it.
    #[inline]
    pub fn head(&mut self, number: usize) -> (&mut [u8], u64) {
        self.part(Self::head_offset(number), HEAD_BYTES)
    }

    /// A place for a frame to send. Not while the kernel has it.
    #[inline]
    pub fn send_place(&mut self, place: u16) -> (&mut [u8], u64) {
        self.part(Self::send_offset(place), PLACE_BYTES)
    }

    /// The chunk of a place for a frame to receive.
    #[inline]
    pub fn receive_chunk(&self, place: u16) -> u64 {
        self.at + Self::receive_offset(place) as u64
    }

    /// `len` bytes from `offset` on of a place that a frame was received into. Not while the kernel
    /// has it.
    #[inline]
    pub fn received(&mut self, place: u16, offset: usize, len: usize) -> &mut [u8] {
        let offset = offset.min(PLACE_BYTES);
        self.part(Self::receive_offset(place) + offset, len.min(PLACE_BYTES - offset)).0
    }

    #[inline]
    fn part(&mut self, offset: usize, len: usize) -> (&mut [u8], u64) {
        // SAFETY: offsets come from numbers that were reduced modulo the count of their places, and
        // lengths end with their place. So the bytes lie within PAIR_BYTES. They belong to this
        // value alone by the contract of `new`, and callers don't ask for what the kernel has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) };
        (bytes, self.at + offset as u64)
    }
}

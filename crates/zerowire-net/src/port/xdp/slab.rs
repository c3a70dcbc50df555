//! The layout of private memory in the UMEM: heads of frames, and whole frames that are copied.
//!
//! Each queue pair has its own part ([`Slab`](super::umem::Slab)), which nobody else writes but the
//! kernel, and that only to places that are in its hands. A place is given out by its number; who
//! has the number has the place.

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

/// Where the head of loan `number` begins in a pair's part, bytes.
#[inline]
pub fn head_at(number: usize) -> usize {
    (number % HEADS) * HEAD_BYTES
}

/// Where a place for a frame to send begins, bytes.
#[inline]
pub fn send_place_at(place: u16) -> usize {
    HEADS * HEAD_BYTES + (usize::from(place) % SEND_PLACES) * PLACE_BYTES
}

/// Where a place for a frame to receive begins, bytes.
#[inline]
pub fn receive_place_at(place: u16) -> usize {
    HEADS * HEAD_BYTES + (SEND_PLACES + usize::from(place) % RECEIVE_PLACES) * PLACE_BYTES
}

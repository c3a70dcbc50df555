//! Payload that is written once and sent as often as wanted.

use crate::ring::BufferPiece;
use crate::{GuestError, GuestMemory, GuestSlice, PAGE};

/// A stretch of guest memory filled with a pattern. A stream from it is its
/// bytes again and again. Owns the memory; keep it while packets are in
/// flight.
#[derive(Debug)]
pub struct PayloadPool {
    memory: GuestSlice,
    piece: usize,
}

impl PayloadPool {
    /// A pool of `bytes`. With `piece`, packets are cut into descriptors of as
    /// many bytes, else they are cut at the pool's end only.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for no bytes or pieces without bytes;
    /// [`GuestError::OutOfMemory`].
    pub fn new(memory: &GuestMemory, bytes: usize, piece: Option<u32>) -> Result<PayloadPool, GuestError> {
        let piece = piece.map_or(bytes, |piece| piece as usize);
        if bytes == 0 || piece == 0 {
            let what = "the length of a payload pool or of its pieces";
            return Err(GuestError::BadSetting { what, value: 0, rule: "at least 1" });
        }
        let pool = PayloadPool { memory: memory.allocate(bytes, PAGE)?, piece };
        for start in (0..bytes).step_by(PAGE) {
            let page: Vec<u8> = (start..bytes.min(start + PAGE)).map(|at| pattern(at as u64)).collect();
            pool.memory.write(start, &page);
        }
        Ok(pool)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// All bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.memory.to_vec()
    }

    /// The memory.
    pub fn memory(&self) -> &GuestSlice {
        &self.memory
    }

    /// The descriptors of bytes `offset..offset + len` of the stream.
    pub(super) fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = BufferPiece> {
        let mut at = (offset % self.len() as u64) as usize;
        let mut left = len;
        std::iter::from_fn(move || {
            let now = left.min(self.piece).min(self.len() - at);
            let piece = BufferPiece::readable(&self.memory, at, now);
            left -= now;
            at = (at + now) % self.len();
            (now > 0).then_some(piece)
        })
    }
}

/// No period below 2^32 that a mistake of addressing could hide in.
fn pattern(at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// A sum over a stream of bytes. It depends on their order and not on how they were cut, so both
/// ends can compute it and compare.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StreamSum(u64);

impl StreamSum {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        const STEP: u64 = 0x0000_0100_0000_01b3;
        const STEPS: [u64; 9] = {
            let mut steps = [1u64; 9];
            let mut at = 1;
            while at < 9 {
                steps[at] = steps[at - 1].wrapping_mul(STEP);
                at += 1;
            }
            steps
        };
        // Eight bytes at a time, so that the products don't wait for each
        // other: sum * STEP^8 + b0 * STEP^7 + … + b7.
        // Without iterators, which take most of the time of a build that does not optimise.
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            let (mut part, mut at) = (0u64, 0);
            while at < 8 {
                part = part.wrapping_add((chunk[at] as u64 + 1).wrapping_mul(STEPS[7 - at]));
                at += 1;
            }
            self.0 = self.0.wrapping_mul(STEPS[8]).wrapping_add(part);
        }
        for &byte in rest {
            self.0 = self.0.wrapping_mul(STEP).wrapping_add(u64::from(byte) + 1);
        }
    }

    /// The sum so far; 0 for no bytes.
    pub fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;

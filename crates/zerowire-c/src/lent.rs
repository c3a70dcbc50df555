//! The check that borrowed memory was left alone: checksums taken when it is lent, and compared
//! when it is back.
//!
//! C can't be kept from changing a buffer that the kernel still reads; with this it is found out,
//! as an assertion: the process aborts. The memory may be changing while it is read here, so it is
//! copied out in blocks first.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use zerowire::send::Payload;
use zerowire::send::in_place::InPlace;
use zerowire_sys::lock;

/// Bytes under one checksum: the precision with which a change is located, for 1/64 of the memory.
const BLOCK: usize = 512;

/// One piece of memory of a payload. The pointer is a number: it is compared, and read through only
/// while the payload is alive.
#[derive(Debug)]
struct LentRange {
    at: usize,
    len: usize,
    sums: Vec<u64>,
}

impl LentRange {
    /// Of memory as it is now.
    fn of(bytes: &[u8]) -> Self {
        Self { at: bytes.as_ptr() as usize, len: bytes.len(), sums: sums(bytes).collect() }
    }

    /// Where the first block begins that is another one now, and its length. `bytes` is the memory
    /// of then.
    fn change(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        let now = sums(&bytes[..self.len.min(bytes.len())]);
        let block = now.zip(&self.sums).position(|(now, then)| now != *then)?;
        let at = block * BLOCK;
        Some((at, BLOCK.min(self.len - at)))
    }
}

/// The pieces that are lent, by ticket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(Arc<Mutex<HashMap<u32, Vec<LentRange>>>>);

impl Checks {
    /// Takes the checksums of what `ticket` will stand for. Before the submission: what is copied
    /// comes back within it.
    pub(crate) fn lend(&self, ticket: u32, payload: &Payload) {
        let pieces = payload.segments().iter().filter_map(|s| s.bytes()).map(LentRange::of).collect();
        lock(&self.0).insert(ticket, pieces);
    }

    /// The payload was not taken.
    pub(crate) fn forget(&self, ticket: u32) {
        lock(&self.0).remove(&ticket);
    }

    /// The payload is back. Aborts the process if it was changed.
    pub(crate) fn back(&self, ticket: u32, payload: &Payload) {
        let pieces = lock(&self.0).remove(&ticket);
        if let Some((offset, len)) = pieces.and_then(|pieces| changed(&pieces, payload)) {
            let until = "the ticket is done (zw_sender_wait, zw_sender_next_completion)";
            abort(&format!("the memory of ticket {ticket}"), offset, len, until);
        }
    }
}

/// The frames of a frame sender that are on their way, by their places.
#[derive(Debug, Default)]
pub(crate) struct FrameChecks(HashMap<usize, (u64, LentRange)>);

impl FrameChecks {
    /// Takes the checksums of frame `number`, which is at this place.
    pub(crate) fn lend(&mut self, place: usize, number: u64, bytes: &[u8]) {
        self.0.insert(place, (number, LentRange::of(bytes)));
    }

    /// Those that are not out are back. Aborts the process if one of them was changed.
    pub(crate) fn settle(&mut self, sender: &mut dyn InPlace) {
        self.0.retain(|&place, (number, piece)| {
            let out = sender.is_out(place);
            if !out
                && let Some((offset, len)) = sender.bytes(place, piece.len).and_then(|now| piece.change(now))
            {
                let until = "the frame is back (zw_frames_reap, zw_frames_drain)";
                abort(&format!("frame {number}"), offset, len, until);
            }
            out
        });
    }

    /// Frames have moved to other places: they are not looked at any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Where the first changed block begins in the payload, and its length.
fn changed(pieces: &[LentRange], payload: &Payload) -> Option<(usize, usize)> {
    let segments = payload.segments();
    let same = |(p, s): (&LentRange, &zerowire::send::Segment)| {
        s.bytes().is_some_and(|b| b.len() == p.len && (p.len == 0 || b.as_ptr() as usize == p.at))
    };
    if segments.len() != pieces.len() || !pieces.iter().zip(segments).all(same) {
        // The sender gathered the pieces into a buffer of its own, and the memory was free from
        // then on.
        return None;
    }
    let mut before = 0;
    for (piece, segment) in pieces.iter().zip(segments) {
        if let Some((at, len)) = segment.bytes().and_then(|bytes| piece.change(bytes)) {
            return Some((before + at, len));
        }
        before += piece.len;
    }
    None
}

/// The checksums of the blocks of some bytes, each of a copy of its block.
fn sums(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(BLOCK).map(|bytes| {
        let mut block = [0; BLOCK];
        block[..bytes.len()].copy_from_slice(bytes);
        sum(&block)
    })
}

/// Each step maps distinct sums to distinct sums (exclusive or, an odd factor, a rotation), so that
/// a change of one word is always found.
fn sum(block: &[u8; BLOCK]) -> u64 {
    block.chunks_exact(8).fold(0, |sum: u64, word| {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn abort(what: &str, offset: usize, len: usize, until: &str) -> ! {
    let last = offset + len - 1;
    // It aborts also when standard error is closed.
    let _ = writeln!(
        std::io::stderr(),
        "libzerowire: {what} was changed while it was lent, between offset {offset} and {last}: it must not be changed, \
         reused or freed until {until}"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests;

//! The check that borrowed memory was left alone: checksums taken when it is lent, and compared when it is back.
//!
//! C can't be kept from changing a buffer that the kernel still reads; with this it is found out, as an assertion: the
//! process aborts. The memory may be changing while it is read here, so it is copied out in blocks first.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerowire::send::Payload;

/// Bytes under one checksum: the precision with which a change is located, for 1/64 of the memory.
const BLOCK: usize = 512;

/// One piece of memory of a payload. The pointer is a number: it is compared, and read through only while the payload
/// is alive.
#[derive(Debug)]
struct Piece {
    at: usize,
    len: usize,
    sums: Vec<u64>,
}

/// The pieces that are lent, by ticket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(Arc<Mutex<HashMap<u32, Vec<Piece>>>>);

impl Checks {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Vec<Piece>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the checksums of what `ticket` will stand for. Before the submission: what is copied comes back within it.
    pub(crate) fn lend(&self, ticket: u32, payload: &Payload) {
        let pieces = payload.segments().iter().filter_map(|s| s.bytes()).map(|b| Piece {
            at: b.as_ptr() as usize,
            len: b.len(),
            sums: sums(b.as_ptr(), b.len()).collect(),
        });
        let pieces = pieces.collect();
        self.lock().insert(ticket, pieces);
    }

    /// The payload was not taken.
    pub(crate) fn forget(&self, ticket: u32) {
        self.lock().remove(&ticket);
    }

    /// The payload is back. Aborts the process if it was changed.
    pub(crate) fn back(&self, ticket: u32, payload: &Payload) {
        let pieces = self.lock().remove(&ticket);
        if let Some((offset, len)) = pieces.and_then(|pieces| changed(&pieces, payload)) {
            abort(ticket, offset, len);
        }
    }
}

/// Where the first changed block begins in the payload, and its length.
fn changed(pieces: &[Piece], payload: &Payload) -> Option<(usize, usize)> {
    let segments = payload.segments();
    let same = |(p, s): (&Piece, &zerowire::send::Segment)| {
        s.bytes().is_some_and(|b| b.len() == p.len && (p.len == 0 || b.as_ptr() as usize == p.at))
    };
    if segments.len() != pieces.len() || !pieces.iter().zip(segments).all(same) {
        // The sender gathered the pieces into a buffer of its own, and the memory was free from then on.
        return None;
    }
    let mut before = 0;
    for (piece, segment) in pieces.iter().zip(segments) {
        if let Some(bytes) = segment.bytes() {
            let now = sums(bytes.as_ptr(), piece.len);
            if let Some(block) = now.zip(&piece.sums).position(|(now, then)| now != *then) {
                let at = block * BLOCK;
                return Some((before + at, BLOCK.min(piece.len - at)));
            }
        }
        before += piece.len;
    }
    None
}

/// The checksums of the blocks of `len` bytes from `from` on.
fn sums(from: *const u8, len: usize) -> impl Iterator<Item = u64> {
    (0..len).step_by(BLOCK).map(move |at| {
        let mut block = [0; BLOCK];
        let n = BLOCK.min(len - at);
        // SAFETY: at + n is at most len, and the callers have a payload whose segment is these bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), block.as_mut_ptr(), n) };
        sum(&block)
    })
}

/// Each step maps distinct sums to distinct sums (exclusive or, an odd factor, a rotation), so that a change of one word
/// is always found.
fn sum(block: &[u8; BLOCK]) -> u64 {
    block.chunks_exact(8).fold(0, |sum: u64, word| {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn abort(ticket: u32, offset: usize, len: usize) -> ! {
    let last = offset + len - 1;
    // A standard error that is closed is no reason not to abort.
    let _ = writeln!(
        std::io::stderr(),
        "libzerowire: the memory of ticket {ticket} was changed while it was lent, between offset {offset} and {last}: \
         it must not be changed, reused or freed until the ticket is done (zw_sender_wait, zw_sender_next_completion)"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerowire::send::Segment;

    fn payload(pieces: &[&'static [u8]]) -> Payload {
        pieces.iter().map(|p| Segment::Static(p)).collect()
    }

    fn pieces(checks: &Checks, ticket: u32) -> Vec<Piece> {
        checks.lock().remove(&ticket).unwrap()
    }

    #[test]
    fn a_change_is_found_where_it_is() {
        let bytes: &'static mut [u8] = Vec::leak(vec![7; 3 * BLOCK + 100]);
        let at = bytes.as_mut_ptr();
        let whole = || {
            // SAFETY: leaked memory, which is written between the uses of the slices only.
            let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(at, 3 * BLOCK + 100) };
            payload(&[b"head", b"", bytes])
        };
        for (place, block, len) in
            [(0, 0, BLOCK), (BLOCK - 1, 0, BLOCK), (2 * BLOCK + 9, 2, BLOCK), (3 * BLOCK + 99, 3, 100)]
        {
            let checks = Checks::default();
            checks.lend(1, &whole());
            // SAFETY: within the leaked memory, and no slice of it is alive.
            unsafe { *at.add(place) ^= 1 };
            assert_eq!(changed(&pieces(&checks, 1), &whole()), Some((4 + block * BLOCK, len)));
        }
        let checks = Checks::default();
        checks.lend(2, &whole());
        assert_eq!(changed(&pieces(&checks, 2), &whole()), None);
    }

    #[test]
    fn what_was_gathered_is_not_compared() {
        let checks = Checks::default();
        checks.lend(1, &payload(&[b"ab", b"cd"]));
        checks.back(1, &Payload::from(b"other".to_vec()));
        checks.lend(2, &payload(&[b"ab"]));
        checks.back(2, &Payload::from(b"xy".to_vec()));
        assert!(checks.lock().is_empty());
    }
}

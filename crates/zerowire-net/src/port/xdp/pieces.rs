//! What a frame to send is made of: pieces of the UMEM, or private memory.

use crate::port::xdp::geometry::CHUNK_BYTES;
use crate::port::xdp::link::Link;
use crate::port::xdp::loans::Lent;

/// Private memory for a frame that is copied, and its address. It is the head of loan `number` if
/// the frame fits in there, else a place of the slab. None where none is free.
#[inline]
pub(super) fn private_memory(link: &mut Link, number: u16, in_head: bool) -> Option<(Lent, &mut [u8], u64)> {
    link.memory()?;
    let lent = if in_head { Lent::Head } else { Lent::Place(link.outgoing.loans.place()?) };
    let (slab, _) = link.memory()?;
    let (bytes, at) = match lent {
        Lent::Place(place) => slab.send_place(place),
        _ => slab.head(usize::from(number)),
    };
    Some((lent, bytes, at))
}

/// Adds bytes of the UMEM to a frame, in pieces of a chunk's length at most. False where it then
/// has more than `most`.
#[inline]
pub(super) fn add_piece(pieces: &mut Vec<(u64, u32)>, mut at: u64, mut left: u32, most: usize) -> bool {
    while left > 0 {
        let have = pieces.len();
        let n = match pieces.last_mut() {
            // What lies one behind the other is one piece.
            Some(p) if p.0 + u64::from(p.1) == at && p.1 < CHUNK_BYTES => {
                let n = left.min(CHUNK_BYTES - p.1);
                p.1 += n;
                n
            }
            _ if have == most => return false,
            _ => {
                let n = left.min(CHUNK_BYTES);
                pieces.push((at, n));
                n
            }
        };
        at += u64::from(n);
        left -= n;
    }
    true
}

//! Addresses of unaligned chunks, and a cookie that comes back with a completion.
//!
//! With unaligned chunks, the kernel splits a 64-bit address. To find the memory, it adds bits 48
//! to 63 to bits 0 to 47 (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`, include/uapi/linux/if_xdp.h). When a
//! transmit is completed, it reports the 64 bits unchanged. So a number can travel along: with k
//! taken off below and put on above, `(a - k) | k << 48` names the same byte.
//!
//! It also works around a kernel bug (6.18 and 7.3, net/xdp/xsk.c). In copy mode, the completion
//! loses bit 0 of the first address of a frame. When k has the parity of the address, the lower
//! part is even and comes back as it was.

/// Bits of the part that names memory.
const SHIFT: u32 = 48;

/// The part that names memory (`XSK_UNALIGNED_BUF_ADDR_MASK`).
const MASK: u64 = (1 << SHIFT) - 1;

/// The largest cookie: 15 bits. The sixteenth carries the parity of the address.
pub const MAX_COOKIE: u16 = 0x7fff;

/// The address as the transmit ring of a UMEM with unaligned chunks takes it. The completion brings
/// it back whole, and `cookie` with it. None if the cookie is larger than [`MAX_COOKIE`], if the
/// address has more than 48 bits, or if it is less than twice the cookie. The last rule lets every
/// address carry 0.
#[inline]
pub fn encode(address: u64, cookie: u16) -> Option<u64> {
    if cookie > MAX_COOKIE || address > MASK {
        return None;
    }
    let k = u64::from(cookie) << 1 | (address & 1);
    Some(address.checked_sub(k)? | k << SHIFT)
}

/// The address and the cookie of what [`encode`] made.
#[inline]
pub fn decode(encoded: u64) -> (u64, u16) {
    let k = encoded >> SHIFT;
    (plain(encoded), (k >> 1) as u16)
}

/// The byte that a descriptor of a UMEM with unaligned chunks names: its upper part added to its
/// lower one.
///
/// For a received frame the upper part is the headroom, 256 bytes and that of the UMEM.
#[inline]
pub fn plain(encoded: u64) -> u64 {
    (encoded & MASK) + (encoded >> SHIFT)
}

/// The chunk that a received frame lies in: the address that was put into the fill ring.
#[inline]
pub fn chunk(encoded: u64) -> u64 {
    encoded & MASK
}

#[cfg(test)]
mod tests;

//! Pieces of guest memory registered with one io_uring.

use crate::memory::{Piece, PinClaim, Reservation, Segment};

/// A registered piece.
#[derive(Debug)]
pub struct FixedPiece {
    /// Index of the registered buffer.
    pub index: u16,
    id: u64,
    reservation: Reservation,
    guest_ptr: *mut u8,
    _pinned: PinClaim<'static>,
}

// SAFETY: addresses only; the memory behind them is owned by `reservation` and by the GuestMemory.
unsafe impl Send for FixedPiece {}

impl FixedPiece {
    pub(super) fn new(
        index: u16,
        piece: &Piece,
        reservation: Reservation,
        pinned: PinClaim<'static>,
    ) -> Self {
        Self { index, id: piece.id(), guest_ptr: piece.ptr(), reservation, _pinned: pinned }
    }

    /// Identity of the piece.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The segment as fixed operations name it.
    #[inline]
    pub fn iovec(&self, s: &Segment) -> libc::iovec {
        let offset = s.ptr.addr() - self.guest_ptr.addr();
        libc::iovec {
            iov_base: self.reservation.guest_base().wrapping_add(offset).cast(),
            iov_len: s.len as usize,
        }
    }

    /// Private memory inside the registered buffer, [`crate::memory::SLAB_BYTES`] long.
    #[inline]
    pub fn slab(&self) -> *mut u8 {
        self.reservation.slab()
    }
}

/// Registered pieces by the index of [`crate::memory::GuestMemory::pieces`]; None for those that are not.
#[derive(Debug, Default)]
pub struct FixedPieces(pub(super) Vec<Option<FixedPiece>>);

impl FixedPieces {
    /// The piece in which all `segments` lie, if it is one and it is registered.
    #[inline]
    pub fn common(&self, segments: &[Segment]) -> Option<&FixedPiece> {
        let first = segments.first()?.piece;
        let fixed = self.0.get(usize::from(first))?.as_ref()?;
        segments.iter().all(|s| s.piece == first).then_some(fixed)
    }
}

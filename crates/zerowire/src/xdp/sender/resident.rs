//! Frames that stay in the memory and are sent many times. Plain code without memory or system
//! calls.
//!
//! They lie behind each other, each on a cache line of its own. Short ones share a chunk, since the
//! kernel takes no piece that crosses the end of one. One longer than a chunk begins at the start
//! of a chunk, so its pieces are whole chunks.

/// Frames start at multiples of this: even addresses also come back whole from kernels that lose
/// bit 0 of a completion.
const ALIGN: usize = 64;

/// A frame that was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub(super) address: u64,
    pub(super) len: u32,
}

impl Resident {
    /// Bytes of the frame.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

#[derive(Debug)]
pub(super) struct Residents {
    /// Address of the first byte: a multiple of the chunk length.
    base: u64,
    /// Bytes: a multiple of the chunk length.
    pub(super) bytes: usize,
    chunk: usize,
    /// Bytes in use.
    pub(super) used: usize,
    /// Length of the frame that begins at each step of [`ALIGN`]; 0 where none does.
    lens: Vec<u32>,
    /// Length of the frame whose last piece begins there; 0 where none does.
    lasts: Vec<u32>,
}

impl Residents {
    pub(super) fn new(base: u64, bytes: usize, chunk: usize) -> Self {
        let none = vec![0; bytes / ALIGN];
        Self { base, bytes, chunk, used: 0, lens: none.clone(), lasts: none }
    }

    /// Where a frame of `len` bytes would begin, and end, counted from the base.
    fn place(used: usize, chunk: usize, len: usize) -> Option<(usize, usize)> {
        let start = used.checked_next_multiple_of(ALIGN)?;
        let fits = start % chunk + len <= chunk;
        let start = if fits { start } else { start.checked_next_multiple_of(chunk)? };
        Some((start, start.checked_add(len)?))
    }

    /// Bytes that frames of these lengths need, loaded in this order.
    pub(super) fn needed(chunk: usize, lens: impl IntoIterator<Item = usize>) -> Option<usize> {
        lens.into_iter()
            .try_fold(0, |used, len| Some(Self::place(used, chunk, len)?.1))?
            .checked_next_multiple_of(chunk)
    }

    /// Takes room for a frame of 1 to 2^32 - 1 bytes; None if there isn't enough.
    pub(super) fn add(&mut self, len: usize) -> Option<Resident> {
        let (start, end) = Self::place(self.used, self.chunk, len)?;
        let frame_len = u32::try_from(len).ok().filter(|n| *n > 0)?;
        if end > self.bytes {
            return None;
        }
        self.used = end;
        self.lens[start / ALIGN] = frame_len;
        self.lasts[(start + (len - 1) / self.chunk * self.chunk) / ALIGN] = frame_len;
        Some(Resident { address: self.base + start as u64, len: frame_len })
    }

    /// Whether the frame lies here: one of another sender, or from before [`clear`](Self::clear),
    /// doesn't.
    #[inline]
    pub(super) fn has(&self, frame: &Resident) -> bool {
        self.at(&self.lens, frame.address) == Some(frame.len)
            && (frame.address - self.base).is_multiple_of(ALIGN as u64)
    }

    /// The length of the frame whose last piece lies at `address`; None for the other pieces of a
    /// frame, and for anything else.
    #[inline]
    pub(super) fn last_piece(&self, address: u64) -> Option<u32> {
        self.at(&self.lasts, address)
    }

    #[inline]
    fn at(&self, lens: &[u32], address: u64) -> Option<u32> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()? / ALIGN;
        lens.get(at).copied().filter(|len| *len > 0)
    }

    /// Forgets all frames.
    pub(super) fn clear(&mut self) {
        self.lens.fill(0);
        self.lasts.fill(0);
        self.used = 0;
    }
}

#[cfg(test)]
mod tests;

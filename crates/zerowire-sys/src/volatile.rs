//! Memory that others may change during an access, such as a guest's, and room to copy it to.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Bytes in the guest's memory. The guest's driver has lent them to the device and should leave
/// them alone, but nothing keeps it from writing. So this type gives no slice of them: copy what
/// has to stay the same between a check and a use.
///
/// The file behind guest memory is the front end's. If it shrinks the file while the program maps
/// it, an access is SIGBUS, as with every shared file; QEMU and other front ends don't.
#[derive(Clone, Copy, Debug)]
pub struct VolatileSlice<'a> {
    start: *const u8,
    len: usize,
    lease: PhantomData<&'a ()>,
}

// SAFETY: the memory belongs to no thread, and is only read, by volatile loads.
unsafe impl Send for VolatileSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for VolatileSlice<'_> {}

impl<'a> VolatileSlice<'a> {
    /// The `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are mapped for reading as long as `'a`.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, lease: PhantomData }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin, for code that reads by itself. Valid as long as the window is held; read
    /// by volatile loads only.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// The byte at `at`, as it is now.
    #[inline]
    pub fn get(&self, at: usize) -> Option<u8> {
        if at >= self.len {
            return None;
        }
        // SAFETY: in bounds, and mapped as long as `'a`.
        Some(unsafe { self.start.add(at).read_volatile() })
    }

    /// What is behind the first `at` bytes; nothing if there are fewer.
    #[must_use]
    pub fn skip(&self, at: usize) -> Self {
        let at = at.min(self.len);
        Self { start: self.start.wrapping_add(at), len: self.len - at, lease: PhantomData }
    }

    /// Copies as many bytes as there are and fit, and returns their number.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.copy_into(&mut to.into())
    }

    /// As [`Self::copy_to`], to memory that may not have been written yet.
    pub fn copy_to_uninit(&self, to: &mut [MaybeUninit<u8>]) -> usize {
        self.copy_into(&mut to.into())
    }

    /// As [`Self::copy_to`], to the beginning of `to`.
    pub fn copy_into(&self, to: &mut ByteRoom<'_>) -> usize {
        let n = self.len.min(to.len());
        let head = self.start.align_offset(8).min(n);
        let (first, rest) = to.0[..n].split_at_mut(head);
        for (i, b) in first.iter_mut().enumerate() {
            // SAFETY: i < head <= n <= len.
            b.write(unsafe { self.start.add(i).read_volatile() });
        }
        let mut at = head;
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            // SAFETY: at + 8 <= n, and `start + at` is a multiple of 8 from `head` on.
            let value = unsafe { self.start.add(at).cast::<u64>().read_volatile() };
            put(word, &value.to_ne_bytes());
            at += 8;
        }
        for b in words.into_remainder() {
            // SAFETY: at < n <= len.
            b.write(unsafe { self.start.add(at).read_volatile() });
            at += 1;
        }
        n
    }
}

/// Memory for bytes, written before or not. Nothing but bytes can be put there.
#[derive(Debug)]
pub struct ByteRoom<'a>(&'a mut [MaybeUninit<u8>]);

impl ByteRoom<'_> {
    /// Bytes that fit.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none fits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is behind the first `at` bytes; nothing if there are fewer.
    pub fn behind(&mut self, at: usize) -> ByteRoom<'_> {
        ByteRoom(self.0.get_mut(at..).unwrap_or_default())
    }

    /// Copies as many bytes as fit to the beginning, and returns their number.
    pub fn put(&mut self, from: &[u8]) -> usize {
        put(self.0, from);
        from.len().min(self.0.len())
    }
}

impl<'a> From<&'a mut [MaybeUninit<u8>]> for ByteRoom<'a> {
    fn from(memory: &'a mut [MaybeUninit<u8>]) -> Self {
        Self(memory)
    }
}

impl<'a> From<&'a mut [u8]> for ByteRoom<'a> {
    fn from(memory: &'a mut [u8]) -> Self {
        // SAFETY: of the same layout; this module writes nothing but initialised bytes to it.
        Self(unsafe { &mut *(std::ptr::from_mut(memory) as *mut [MaybeUninit<u8>]) })
    }
}

/// Copies as many bytes as fit.
fn put(to: &mut [MaybeUninit<u8>], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        to.write(*from);
    }
}

#[cfg(test)]
mod tests;
